//! Logins that change while rows flow: tokens that are renewed, a token endpoint that fails, passwords that are replaced.
//! One line of JSON has what became of the rows and of the sessions.
//!
//! Input: `FULL=1` for the large runs, small ones otherwise; `PARTS`, such as `tokens passwords`, for some of them.
//! Output: the line on stdout, and whether each part did what it is for.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod outages;
mod passwords;
mod streamed;
mod tokens;

use serde_json::{Map, Value};
use support::kafka;

/// What a part found out.
struct Finding {
    /// What it saw.
    figures: Value,
    /// Whether that is as it should be.
    is_sound: bool,
}

type Part = (&'static str, fn(bool) -> Option<Finding>);

const PARTS: [Part; 3] =
    [("tokens", tokens::run), ("outages", outages::run), ("passwords", passwords::run)];

/// Whether all is as it should be.
pub(crate) fn all() -> bool {
    let is_full = std::env::var("FULL").is_ok_and(|full| full == "1");
    let wanted = std::env::var("PARTS").unwrap_or_default();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.split(' ').any(|part| part == name);
    let mut line = Map::new();
    line.insert("what".to_owned(), "identity".into());
    let mut is_sound = true;
    for (name, run) in PARTS.iter().filter(|(name, _)| is_wanted(name)) {
        // Nothing without Kafka, which is said once.
        let Some(found) = run(is_full) else { continue };
        is_sound &= found.is_sound;
        line.insert((*name).to_owned(), found.figures);
    }
    println!("{}", Value::Object(line));
    is_sound
}

/// Brokers that check tokens by the keys of this endpoint, with Kafka's own validator.
fn brokers(keys: String) -> Option<kafka::Kafka> {
    kafka::start(&kafka::Options {
        sasl: true,
        token_keys: Some(keys),
        ..kafka::Options::default()
    })
}
