//! `shop dead-letters`: what a consumer could not take, and sending it again.
//!
//! Enters: a consumer's name and which letters are meant. Leaves: a line for each letter, or an account
//! of what was sent. What always holds: no payload is printed; nothing is sent without `redrive`, and
//! what was sent before is not sent again.

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::error::ShopError;
use super::kafka::Kafka;
use postrider_patterns::dead_letter::{
    DeadLetter, DeadLetters, Filter, Origin, PartitionOffset, Redrive, Target, now_ms,
};
use postrider_service::units::parse_duration;

/// Whose letters, and what about them.
#[derive(Debug, Args)]
pub(super) struct LettersArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// One line of JSON for each letter, without its payload
    List(Meant),
    /// Send letters back to the topics they came from, each once; without --execute, count them only
    Redrive {
        #[command(flatten)]
        meant: Meant,
        /// For how long markers are kept: an older letter may have its effects twice elsewhere
        #[arg(long, default_value = "7d", value_name = "TIME",
            value_parser = parse_duration)]
        horizon: Duration,
        /// Send also what is older than that
        #[arg(long)]
        force: bool,
        /// Send them; without it, only print the plan
        #[arg(long)]
        execute: bool,
    },
}

/// Which letters are meant; all of the consumer's without any further flag.
#[derive(Debug, Args)]
struct Meant {
    /// The consumer: shop-orders, shop-payments or shop-inventory
    consumer: String,
    #[command(flatten)]
    kafka: Kafka,
    /// With this reason code
    #[arg(long)]
    code: Option<String>,
    /// From this topic
    #[arg(long)]
    topic: Option<String>,
    /// Of this event type
    #[arg(long)]
    event_type: Option<String>,
    /// With this message id
    #[arg(long)]
    id: Option<String>,
    /// Lying here, as `list` prints it; may be repeated
    #[arg(long = "place", value_name = "PARTITION:OFFSET", value_parser = parse_place)]
    places: Vec<PartitionOffset>,
}

fn parse_place(text: &str) -> Result<PartitionOffset, String> {
    text.parse().map_err(|()| "it is not PARTITION:OFFSET, such as 0:17".to_owned())
}

impl LettersArgs {
    /// Runs it; blocks.
    pub(super) fn run(&self, stdout: &mut dyn Write) -> Result<(), ShopError> {
        match &self.action {
            Action::List(meant) => {
                let letters = meant.letters()?.list(&meant.filter())?;
                for line in letters.iter().filter_map(line) {
                    writeln!(stdout, "{line}").map_err(ShopError::Output)?;
                }
            }
            Action::Redrive { meant, horizon, force, execute } => {
                let how = Redrive { horizon: *horizon, force: *force, now_ms: now_ms() };
                let (letters, filter) = (meant.letters()?, meant.filter());
                let (word, redriven) = if *execute {
                    ("done", letters.redrive(&filter, &how)?)
                } else {
                    ("planned", letters.rehearse(&filter, &how)?)
                };
                writeln!(stdout, "{}", json!({ word: redriven })).map_err(ShopError::Output)?;
            }
        }
        Ok(())
    }
}

impl Meant {
    fn letters(&self) -> Result<DeadLetters, ShopError> {
        Ok(DeadLetters::new(&self.consumer, &self.kafka.settings()?))
    }

    fn filter(&self) -> Filter {
        Filter {
            code: self.code.clone(),
            topic: self.topic.clone(),
            event_type: self.event_type.clone(),
            id: self.id.clone(),
            targets: self.places.iter().copied().map(Target::At).collect(),
            ..Filter::default()
        }
    }
}

fn line(letter: &DeadLetter) -> Option<serde_json::Value> {
    let Origin::Consumer { at, failure } = &letter.origin else { return None };
    Some(json!({
        "place": letter.at.to_string(),
        "code": letter.code,
        "reason": letter.reason,
        "attempts": failure.attempts,
        "failed_ms": failure.failed_ms,
        "topic": letter.topic,
        "partition": at.partition,
        "offset": at.offset,
        "id": letter.header("id"),
        "event_type": letter.header("event_type"),
        "retried": letter.is_retried,
    }))
}
