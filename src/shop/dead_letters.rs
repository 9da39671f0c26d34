//! `shop dead-letters`: lists the messages that a consumer could not process, and sends them back
//! to their topics. No payload is printed.

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::error::ShopError;
use super::kafka::KafkaArgs;
use postrider_patterns::dead_letter::{
    DeadLetter, DeadLetterOrigin, DeadLetters, Filter, PartitionOffset, RedriveOptions, Target,
    now_ms,
};
use postrider_service::units::parse_duration;

/// Arguments of `shop dead-letters`.
#[derive(Debug, Args)]
pub(super) struct DeadLettersArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print one line of JSON for each dead letter, without its payload
    List(Selection),
    /// Send dead letters back to the topics they came from, each once; without --execute, only count them
    Redrive {
        #[command(flatten)]
        selection: Selection,
        /// How long markers are kept; an older message may be processed twice by other consumers
        #[arg(long, default_value = "7d", value_name = "TIME",
            value_parser = parse_duration)]
        horizon: Duration,
        /// Send older dead letters as well
        #[arg(long)]
        force: bool,
        /// Send them; without it, only print the plan
        #[arg(long)]
        execute: bool,
    },
}

/// Which dead letters; without further flags, all of the consumer's.
#[derive(Debug, Args)]
struct Selection {
    /// The consumer: shop-orders, shop-payments, shop-inventory or shop-notifications
    consumer: String,
    #[command(flatten)]
    kafka: KafkaArgs,
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
    /// At this position, as printed by `list`; may be repeated
    #[arg(long = "place", value_name = "PARTITION:OFFSET", value_parser = parse_place)]
    places: Vec<PartitionOffset>,
}

fn parse_place(text: &str) -> Result<PartitionOffset, String> {
    text.parse().map_err(|()| "expected PARTITION:OFFSET, such as 0:17".to_owned())
}

impl DeadLettersArgs {
    /// Blocks.
    pub(super) fn run(&self, stdout: &mut dyn Write) -> Result<(), ShopError> {
        match &self.action {
            Action::List(selection) => {
                let dead_letters = selection.dead_letters()?.list(&selection.filter())?;
                for line in dead_letters.iter().filter_map(line) {
                    writeln!(stdout, "{line}").map_err(ShopError::Output)?;
                }
            }
            Action::Redrive { selection, horizon, force, execute } => {
                let how = RedriveOptions { horizon: *horizon, force: *force, now_ms: now_ms() };
                let (dead_letters, filter) = (selection.dead_letters()?, selection.filter());
                let (word, redriven) = if *execute {
                    ("done", dead_letters.redrive(&filter, &how)?)
                } else {
                    ("planned", dead_letters.plan_redrive(&filter, &how)?)
                };
                writeln!(stdout, "{}", json!({ word: redriven })).map_err(ShopError::Output)?;
            }
        }
        Ok(())
    }
}

impl Selection {
    fn dead_letters(&self) -> Result<DeadLetters, ShopError> {
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
    let DeadLetterOrigin::Consumer { at, failure } = &letter.origin else { return None };
    Some(json!({
        "place": letter.at.to_string(),
        "code": letter.code,
        "reason": letter.reason,
        "attempts": failure.attempts,
        "failed_ms": failure.failed_ms,
        "topic": letter.topic,
        "partition": at.partition,
        "offset": at.offset,
        "id": letter.id().map(String::from_utf8_lossy),
        "event_type": letter.event_type(),
        "retried": letter.is_retried,
    }))
}
