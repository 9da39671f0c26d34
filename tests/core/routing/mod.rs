//! Routing as Debezium's EventRouter does it: what it was seen to make of rows, against the dry run of
//! the built binary. What is meant to differ is in `fixtures/routing/deliberate.json`, with the reason
//! and the exact answer; what is listed there and does not differ fails as well, since lists rot.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what is wrong by panicking; its tally belongs on stdout"
)]

mod cases;
mod claims;
mod drawn;
mod dry_run;
mod listed;
mod observed;
mod tally;

use std::path::{Path, PathBuf};

use listed::Listed;
use tally::Tally;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/routing").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(fixture(name)).unwrap()
}

/// The cases that describe the router, and the lines that were recorded.
#[test]
fn rows_become_what_debezium_makes_of_them() {
    let listed = Listed::read(&read("deliberate.json"));
    let mut total = Tally::default();
    for (what, tally) in [
        ("eventrouter.json", cases::run(&read("eventrouter.json"), &listed)),
        ("observed.jsonl", observed::run(&read("observed.jsonl"), &listed)),
    ] {
        println!("{what}: {tally}");
        total.add(tally);
    }
    println!("{}", total.reasons());
    let rotten = listed.not_among(total.names());
    assert!(
        rotten.is_empty(),
        "listed as deliberate, but there are no such differences: {rotten:?}"
    );
    assert!(total.different.is_empty(), "different:\n{}", total.different.join("\n"));
}

/// docs/routing.md shows lines of input and, after them, what the binary answers.
#[test]
fn the_documents_sample_is_answered_as_it_says() {
    let document =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/routing.md"))
            .unwrap();
    let blocks: Vec<&str> =
        document.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(dry_run::printed(&["--set", "messages.prefixes=outbox"], blocks[0]), blocks[1]);
}
