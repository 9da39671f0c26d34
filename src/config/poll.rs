//! `[source.poll]`: reads rows from their tables if no replication slot is available.
//!
//! Invariant: an option that promises more than polling keeps is a mistake. A marked row is not
//! pending.

use std::time::Duration;

use super::checks;
use super::model::Config;
use super::options::{OptionSpec, choice, count, duration, list, text};
use super::reader::SettingsReader;
use super::values::{Delivery, MarkWord, SourceMode};
use postrider_core::route::RuleAction;
use postrider_service::units::InvalidValue;

/// Enough for the workers of one database, and few enough to lock all in one short statement.
pub const BUCKETS: u32 = 64;
/// Maximum rows of a batch, which may be unconfirmed at a time.
const BATCH_MAX: u64 = 50_000;

pub(super) const MODE: OptionSpec = choice(
    "source.mode",
    SourceMode::WORDS,
    "\"stream\"",
    "Source of rows. `stream`: the WAL, through a replication slot. `poll`: the tables, at \
     least once, for a role without REPLICATION or a server without wal_level=logical; see \
     docs/sources.md.",
);
pub(super) const WORKERS: OptionSpec = count(
    "source.poll.workers",
    (1, BUCKETS as u64),
    "1",
    "Number of batches in flight. Each worker has a thread, a connection and a Kafka client. \
     Rows of one key are never in two batches, even of two processes.",
);
pub(super) const BATCH: OptionSpec = count(
    "source.poll.batch",
    (1, BATCH_MAX),
    "1000",
    "Maximum number of rows in a batch. The rows stay locked until all of them are confirmed \
     and marked.",
);
pub(super) const INTERVAL: OptionSpec = duration(
    "source.poll.interval",
    (10, 3_600_000),
    "\"1s\"",
    "Time that an idle worker waits before it looks for rows again. A notification ends the \
     wait.",
);
pub(super) const NOTIFY: OptionSpec = text(
    "source.poll.notify",
    "\"\"",
    "Channel (LISTEN) that announces new rows to workers. The trigger that `postrider setup` \
     creates, or NOTIFY in the service's transaction, sends to it. If empty, none.",
);
pub(super) const MARK: OptionSpec = choice(
    "source.poll.mark",
    MarkWord::WORDS,
    "\"processed_at\"",
    "How the relay marks a delivered row. `processed_at`: sets a column that was NULL. \
     `status`: sets a column to another value. `delete`: deletes the row.",
);
pub(super) const PROCESSED_AT: OptionSpec = text(
    "source.poll.processed_at",
    "\"processed_at\"",
    "For `mark = \"processed_at\"`: column that receives the time of delivery. The column \
     must be nullable.",
);
pub(super) const STATUS: OptionSpec = text(
    "source.poll.status",
    "\"status\"",
    "For `mark = \"status\"`: status column, of any type that accepts the values below as \
     text.",
);
pub(super) const PENDING: OptionSpec = list(
    "source.poll.pending",
    "[\"pending\"]",
    "For `mark = \"status\"`: values of rows to deliver.",
);
pub(super) const SENT: OptionSpec =
    text("source.poll.sent", "\"sent\"", "For `mark = \"status\"`: value of delivered rows.");
pub(super) const RETRY_COUNT: OptionSpec = text(
    "source.poll.retry_count",
    "\"\"",
    "Column that the relay increments when it marks a row. If empty, none.",
);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollSection {
    /// From 1 to [`BUCKETS`].
    pub workers: u32,
    /// Rows, at least 1.
    pub batch: u32,
    /// Pause between two polls of an idle worker.
    pub interval: Duration,
    /// Channel that notifies workers of rows.
    pub notify: Option<String>,
    pub mark: PollMark,
    pub retry_count: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PollMark {
    /// Column that is NULL until it gets the time.
    ProcessedAt(String),
    /// Column that changes from one of `pending` to `sent`.
    Status {
        column: String,
        pending: Vec<String>,
        /// Not one of `pending`.
        sent: String,
    },
    Delete,
}

impl SettingsReader<'_> {
    /// Reads the section even if polling is off.
    pub(super) fn poll(&mut self) -> Option<PollSection> {
        let workers = self.count(WORKERS.key).and_then(|count| u32::try_from(count).ok());
        let batch = self.count(BATCH.key).and_then(|count| u32::try_from(count).ok());
        let interval = self.duration(INTERVAL.key);
        let notify = self.optional_column(NOTIFY.key);
        let mark = self.mark();
        let retry_count = self.optional_column(RETRY_COUNT.key);
        let (workers, batch) = (workers?, batch?);
        let (interval, notify) = (interval?, notify?);
        Some(PollSection {
            workers,
            batch,
            interval,
            notify,
            mark: mark?,
            retry_count: retry_count?,
        })
    }

    fn mark(&mut self) -> Option<PollMark> {
        let processed_at = self.text(PROCESSED_AT.key, checks::identifier);
        let column = self.text(STATUS.key, checks::identifier);
        let values = |text: &str| Ok(text.to_owned());
        let pending = self.list(PENDING.key, values, "name the value of rows that wait");
        let sent = self.as_typed(SENT.key);
        match self.choice(MARK.key, MarkWord::from_word)? {
            MarkWord::ProcessedAt => processed_at.map(PollMark::ProcessedAt),
            MarkWord::Delete => Some(PollMark::Delete),
            MarkWord::Status => {
                let (column, pending, sent) = (column?, pending?, sent?);
                if pending.contains(&sent) {
                    let reason = format!("`{sent}` is a value of `source.poll.pending` too");
                    let help = "rows would be delivered again and again: name another value";
                    return self.refuse(SENT.key, InvalidValue::new(reason).help(help));
                }
                Some(PollMark::Status { column, pending, sent })
            }
        }
    }

    pub(super) fn polls(&mut self, config: &Config) {
        if config.source.mode == SourceMode::Stream {
            return;
        }
        let stream = "or source.mode = \"stream\"";
        if config.kafka.delivery == Delivery::ExactlyOnce {
            let reason = "source.mode = \"poll\" delivers at least once";
            let help = format!("set kafka.delivery = \"at_least_once\", {stream}");
            self.refuse::<()>("kafka.delivery", InvalidValue::new(reason).help(help));
        }
        if config.progress.at_least_once {
            let reason = "with source.mode = \"poll\" progress is kept in the tables";
            let help = format!("set progress.at_least_once = false, {stream}");
            self.refuse::<()>("progress.at_least_once", InvalidValue::new(reason).help(help));
        }
        if !config.messages.prefixes.is_empty() {
            let reason =
                "logical messages are in the log alone, and source.mode = \"poll\" reads tables";
            let help = format!("set messages.prefixes = [], {stream}");
            self.refuse::<()>("messages.prefixes", InvalidValue::new(reason).help(help));
        }
        let other_key = config.route.rules.iter().position(|rule| match &rule.action {
            RuleAction::Send(destination) => destination.key.is_some(),
            RuleAction::Drop => false,
        });
        if let Some(rule) = other_key.filter(|_| config.source.poll.workers > 1) {
            let reason = format!(
                "several workers keep the order of the column of `route.key`, and `route.rules.{rule}.key` names another \
                 one"
            );
            let help = "set source.poll.workers = 1, or leave the key of that rule out";
            self.refuse::<()>(WORKERS.key, InvalidValue::new(reason).help(help));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileChoice, Inputs, Loaded, load};

    fn loaded(set: &[&str]) -> Result<Loaded, String> {
        let set = set.iter().map(|text| (*text).to_owned()).collect();
        let variables = vec![("PGUSER".into(), "app".into())];
        let inputs = Inputs { file: FileChoice::Absent, set, variables, ..Inputs::default() };
        load(&inputs, &|_| Vec::new()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_tables_of_others_fit_by_their_names() {
        let poll = |set: &[&str]| loaded(set).unwrap().config.source.poll;
        assert_eq!(poll(&[]).mark, PollMark::ProcessedAt("processed_at".to_owned()));
        let status = poll(&[
            "source.mode=poll",
            "source.poll.mark=status",
            "source.poll.status=state",
            "source.poll.pending=NEW,RETRY",
            "source.poll.sent=DONE",
            "source.poll.retry_count=attempts",
            "source.poll.notify=outbox",
            "source.poll.workers=4",
        ]);
        let pending = vec!["NEW".to_owned(), "RETRY".to_owned()];
        let (column, sent) = ("state".to_owned(), "DONE".to_owned());
        assert_eq!(status.mark, PollMark::Status { column, pending, sent });
        assert_eq!(status.retry_count.as_deref(), Some("attempts"));
        assert_eq!((status.notify.as_deref(), status.workers), (Some("outbox"), 4));
    }

    #[test]
    fn what_polling_does_not_keep_is_refused_at_the_option_that_asks_for_it() {
        let cases: [(&[&str], &str); 8] = [
            (&["kafka.delivery=exactly_once"], "kafka.delivery"),
            (&["progress.at_least_once=true"], "progress.at_least_once"),
            (&["messages.prefixes=a"], "messages.prefixes"),
            (&["source.poll.workers=0"], "source.poll.workers"),
            (&["source.poll.batch=50001"], "source.poll.batch"),
            (&["source.poll.mark=status", "source.poll.sent=pending"], "source.poll.sent"),
            (&["source.poll.processed_at="], "source.poll.processed_at"),
            (
                &["source.poll.workers=2", "route.rules.0.glob=A*", "route.rules.0.key=tenant"],
                "source.poll.workers",
            ),
        ];
        for (set, key) in cases {
            let error = loaded(&[&["source.mode=poll"], set].concat()).unwrap_err();
            assert!(error.contains(&format!("`{key}`")), "{set:?}: {error}");
        }
        assert!(loaded(&["kafka.delivery=exactly_once"]).is_ok(), "the log keeps that promise");
        let one = ["source.mode=poll", "route.rules.0.glob=A*", "route.rules.0.key=tenant"];
        assert!(loaded(&one).is_ok());
    }
}
