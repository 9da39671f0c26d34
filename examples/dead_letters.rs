//! Lists what a consumer could not process, and sends it to its topic again.
//!
//! ```toml
//! postrider-patterns = { version = "0.1", features = ["dead-letter"] }
//! ```
//!
//! Input: `KAFKA_BROKERS`, and `list` or `redrive` with the consumer's name as arguments. Output: a line for each
//! dead letter, without its payload; or how many were sent. Invariant: none is sent twice, and none that failed
//! longer ago than markers are kept, or another consumer of the topic could process it a second time.

use std::io::Write as _;
use std::time::Duration;

use postrider_patterns::dead_letter::{DeadLetters, Filter, RedriveOptions, now_ms};

/// For how long the consumers of the topic keep their markers, less the retention of the topic.
const HORIZON: Duration = Duration::from_hours(7 * 24);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [action, consumer] = &arguments[..] else {
        return Err("usage: dead-letters list|redrive CONSUMER".into());
    };
    let kafka = vec![("bootstrap.servers".to_owned(), std::env::var("KAFKA_BROKERS")?)];
    let letters = DeadLetters::new(consumer, &kafka);
    let mut output = std::io::stdout();
    if action == "redrive" {
        let options = RedriveOptions { horizon: HORIZON, force: false, now_ms: now_ms() };
        let redriven = letters.redrive(&Filter::default(), &options)?;
        writeln!(output, "{} sent, {} too old", redriven.sent, redriven.too_old)?;
        return Ok(());
    }
    for letter in letters.list(&Filter::default())? {
        let id = letter.header("id").unwrap_or("without an id");
        writeln!(output, "{} {} {id}: {}", letter.at, letter.code, letter.reason)?;
    }
    Ok(())
}
