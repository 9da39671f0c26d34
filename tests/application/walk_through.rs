//! `docs/patterns.md`, "Write your first event": its commands, unchanged.

use std::path::Path;
use std::process::Command;

use postrider::sandbox::postgres::Options;
use support::{kafka, postgres, root};

#[test]
fn the_way_into_a_service_that_exists_leads_to_an_event() {
    // A cluster of its own: the page's commands name neither a database nor a slot.
    let cluster = postgres::start(&Options::default());
    let Some(kafka) = kafka::shared() else { return };
    let page = std::fs::read_to_string(root().join("docs/patterns.md")).unwrap();
    let (_, section) = page.split_once("## Write your first event").unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (commands, _) = block.split_once("```").unwrap();

    let address = cluster.address();
    let binaries = Path::new(env!("CARGO_BIN_EXE_postrider")).parent().unwrap();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-eu", "-c", commands])
        .current_dir(root())
        .env("PATH", path)
        .env("PGHOST", "127.0.0.1")
        .env("PGPORT", address.port.to_string())
        .env("PGUSER", &address.user)
        .env("PGPASSWORD", address.password.unwrap())
        .env("PGDATABASE", &address.database)
        .env("POSTRIDER_KAFKA__BROKERS", kafka.bootstrap())
        .output()
        .unwrap();
    let [printed, log] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(output.status.success(), "{log}");
    let last = printed.lines().last().unwrap();
    assert!(last.starts_with("42 id="), "{printed}\n{log}");
    assert!(last.ends_with(r#" {"cents": 990}"#), "{printed}");
}
