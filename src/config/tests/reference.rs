//! Tests that the generated documentation is current and true.

use super::*;
use crate::{OPTIONS, example_toml, reference_markdown};

#[test]
fn the_example_file_loads_and_is_the_default() {
    let example = example_toml();
    let from_example = Given { file: Some(&example), ..Given::default() }.load().unwrap().config;
    assert_eq!(from_example, Given::default().load().unwrap().config);
    for option in OPTIONS {
        assert!(example.contains(&format!("\n{} = {}", option.name(), option.default)));
    }
    assert!(example.lines().all(|line| line.chars().count() <= 100), "fits a terminal");
}

#[test]
fn every_default_prints_as_it_would_be_typed() {
    let loaded = Given::default().load().unwrap();
    for option in OPTIONS {
        let line = loaded.effective.iter().find(|line| line.key == option.key).unwrap();
        assert_eq!(line.value.to_string(), option.default, "{}", option.key);
    }
}

#[test]
fn the_reference_page_is_the_generated_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let generated = reference_markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &generated).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == generated,
        "docs/configuration.md is out of date: UPDATE_DOCS=1 cargo test -p postrider-config"
    );
}
