//! Every fuzz target over its committed inputs, without a fuzzer: what was found once stays found, and no
//! target rots.
//!
//! `fixtures/fuzz/TARGET.hex` holds one input a line. `make fuzz` begins with them, too.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "test code throughout; clippy sees only the marked functions as such"
)]

mod config;
mod excerpt;
mod frame;
mod import;
mod pgoutput;
mod stream;
mod template;
mod tuple;

use std::path::Path;

/// Inputs that a corpus has at least; the tree walks past an empty one otherwise.
const INPUTS_MIN: usize = 5;

fn replay(name: &str, target: fn(&[u8])) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/fuzz/{name}.hex"));
    let text = std::fs::read_to_string(&path).expect("a corpus");
    let inputs: Vec<Vec<u8>> = text.lines().map(bytes).collect();
    assert!(inputs.len() >= INPUTS_MIN, "{} holds {} inputs", path.display(), inputs.len());
    for (number, input) in (1..).zip(&inputs) {
        eprintln!("{name}, line {number}");
        target(input);
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2), "half a byte: {hex}");
    let pairs = (0..hex.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal")).collect()
}

macro_rules! replayed {
    ($($target:ident: $holds:ident;)*) => {
        /// Of every target.
        const TARGETS: &[&str] = &[$(stringify!($target)),*];

        $(
            #[test]
            fn $holds() {
                replay(stringify!($target), $target::run);
            }
        )*
    };
}

replayed! {
    config: any_configuration_can_be_shown_or_its_mistakes_can;
    excerpt: g7_a_message_in_pieces_is_what_it_is_as_a_whole_or_refused_like_it;
    frame: g1_g7_any_frames_are_relayed_or_refused;
    import: any_text_is_imported_or_refused_with_a_reason;
    pgoutput: g7_what_is_read_of_any_bytes_is_what_was_written;
    stream: g1_g3_g7_any_bytes_of_a_server_are_frames_or_an_error;
    template: g7_any_pattern_expands_any_value;
    tuple: g4_g7_any_row_is_a_record_or_a_dead_letter;
}

/// libFuzzer runs what lies in `fuzz/fuzz_targets`, and `fuzz/check` builds what `fuzz/Cargo.toml` names.
#[test]
fn every_target_is_given_to_libfuzzer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).expect("a manifest");
    let stems = |folder: &str| {
        let entries = std::fs::read_dir(root.join(folder)).expect("a folder");
        let stem = |entry: std::fs::DirEntry| entry.path().file_stem().map(ToOwned::to_owned);
        let mut stems: Vec<_> = entries.map_while(Result::ok).filter_map(stem).collect();
        stems.sort();
        stems
    };
    assert_eq!(stems("fuzz/fuzz_targets"), TARGETS);
    assert_eq!(stems("fixtures/fuzz"), TARGETS);
    for target in TARGETS {
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is not built");
    }
}
