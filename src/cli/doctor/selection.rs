//! The ids of `postrider doctor`'s checks, and the selected ones.
//!
//! Invariant: a word that matches no check is a usage error. A check that made a selected one
//! impossible is shown with it.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};

use super::check::{Check, Outcome};
use crate::codes::ErrorCode;
use crate::exit::ExitCode;
use crate::failure::CommandFailure;

/// Reads the beginning of an id, and lists all ids for completion scripts. [`Selection::of`]
/// refuses unknown ones.
#[derive(Debug, Clone)]
pub(super) struct IdParser;

impl TypedValueParser for IdParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(IDS.iter().map(|id| PossibleValue::new(*id))))
    }
}

/// All ids, in the order in which checks are printed.
pub(super) const IDS: [&str; 79] = [
    "config.valid",
    "config.others",
    "config.connection_string",
    "config.file_mode",
    "config.grace",
    "http.port",
    "host.descriptors",
    "host.memory",
    "host.clock",
    "relay.ready",
    "postgres.reachable",
    "postgres.others",
    "postgres.replication",
    "postgres.wal_level",
    "postgres.messages",
    "postgres.role",
    "postgres.streams",
    "postgres.source",
    "postgres.encoding",
    "postgres.version",
    "postgres.tls",
    "postgres.certificate",
    "postgres.client_certificate",
    "postgres.slots_free",
    "postgres.senders_free",
    "postgres.wal_sender_timeout",
    "postgres.open_transactions",
    "postgres.prepared_transactions",
    "postgres.other_slots",
    "publication.exists",
    "publication.inserts",
    "publication.tables",
    "publication.rows",
    "publication.columns",
    "publication.only_inserts",
    "publication.no_other_tables",
    "table.locked",
    "table.exists",
    "table.kind",
    "table.columns",
    "table.readable",
    "table.size",
    "table.dead_rows",
    "table.days",
    "table.prune",
    "table.row_size",
    "slot.exists",
    "slot.kind",
    "slot.alive",
    "slot.two_phase",
    "slot.readable",
    "slot.reserved",
    "slot.reader",
    "slot.copies",
    "slot.idle_timeout",
    "slot.limit",
    "slot.retained",
    "slot.lag",
    "slot.failover",
    "slot.catalog_age",
    "failover.awaited",
    "failover.standby_slot",
    "failover.feedback",
    "failover.sync",
    "failover.database",
    "failover.wal_level",
    "failover.copy",
    "failover.host",
    "rows.deliverable",
    "progress.position",
    "kafka.reachable",
    "kafka.others",
    "kafka.listeners",
    "kafka.tls",
    "kafka.certificate",
    "kafka.client_certificate",
    "kafka.transactions",
    "kafka.transactional_id",
    "kafka.version",
];
pub(super) const TOPIC_IDS: [&str; 7] = [
    "topic.exists",
    "topic.rights",
    "topic.in_sync",
    "topic.partitioner",
    "topic.settings",
    "dead_letters.topic",
    "progress.topic",
];

/// Prefixes of checks that ask Postgres.
const OF_POSTGRES: [&str; 11] = [
    "postgres.",
    "publication.",
    "table.",
    "slot.",
    "failover.",
    "rows.",
    "relay.",
    "host.clock",
    "progress.position",
    "topic.",
    "kafka.transactional_id",
];
const OF_KAFKA: [&str; 4] = ["kafka.", "topic.", "dead_letters.", "progress."];

/// Checks whose failure makes others impossible, with the prefixes of those.
const BLOCKERS: [(&str, &[&str]); 9] = [
    ("config.valid", &[""]),
    ("config.others", &[""]),
    ("postgres.reachable", &OF_POSTGRES),
    ("postgres.others", &OF_POSTGRES),
    ("postgres.source", &OF_POSTGRES),
    ("table.exists", &["table."]),
    ("publication.exists", &["publication."]),
    ("slot.exists", &["slot.", "failover.", "progress.position"]),
    ("kafka.reachable", &OF_KAFKA),
];

#[derive(Debug, Clone, Copy)]
pub(super) struct Selection<'a>(&'a [String]);

impl<'a> Selection<'a> {
    /// An empty list selects everything.
    pub(super) fn of(only: &'a [String]) -> Result<Self, CommandFailure> {
        let fits = |word: &&String| !ids().any(|id| id.starts_with(word.as_str()));
        let Some(word) = only.iter().find(fits) else { return Ok(Self(only)) };
        let what = format!("no check of `postrider doctor` has an id that begins with `{word}`");
        let mut groups = Vec::new();
        for (group, _) in ids().filter_map(|id| id.split_once('.')) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        let known: Vec<_> = match groups.iter().find(|group| word.starts_with(**group)) {
            Some(group) => ids().filter(|id| id.starts_with(group)).collect(),
            None => groups,
        };
        Err(CommandFailure::new(ExitCode::Usage, ErrorCode::USAGE, what)
            .help(format!("there are: {}", known.join(", "))))
    }

    pub(super) fn has(self, id: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|only| id.starts_with(only.as_str()))
    }

    fn has_any(self, prefixes: &[&str]) -> bool {
        let fits = |id: &&str| prefixes.iter().any(|prefix| id.starts_with(prefix));
        ids().filter(fits).any(|id| self.has(id))
    }

    pub(super) fn has_failover(self) -> bool {
        self.has_any(&["slot.failover", "failover."])
    }

    pub(super) fn wants_postgres(self) -> bool {
        self.has_any(&OF_POSTGRES)
    }

    pub(super) fn wants_kafka(self) -> bool {
        self.has_any(&OF_KAFKA)
    }

    pub(super) fn wants_relay(self) -> bool {
        self.has_any(&["relay.", "http."])
    }

    pub(super) fn shows(self, check: &Check) -> bool {
        let stands_in_the_way = || {
            let is_one = check.outcome == Outcome::Fail || check.id.ends_with(".others");
            let mut blocked = BLOCKERS.iter().filter(|(id, _)| *id == check.id);
            is_one && blocked.any(|(_, others)| self.has_any(others))
        };
        self.has(check.id) || stands_in_the_way()
    }
}

fn ids() -> impl Iterator<Item = &'static str> {
    IDS.into_iter().chain(TOPIC_IDS)
}

pub(super) fn is_known(id: &str) -> bool {
    ids().any(|known| known == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_a_selected_check_impossible_is_shown_with_it() {
        let only = vec!["slot.lag".to_owned()];
        let selection = Selection::of(&only).unwrap();
        let shown = |check: Check| selection.shows(&check);
        for id in ["config.valid", "postgres.reachable", "postgres.source", "slot.exists"] {
            assert!(shown(Check::fail(id, "broken", "fix")) && !shown(Check::pass(id, "well")));
        }
        assert!(shown(Check::unknown("config.others", "")) && shown(Check::pass("slot.lag", "")));
        assert!(!shown(Check::fail("kafka.reachable", "broken", "fix")));
        assert!(!shown(Check::fail("slot.limit", "broken", "fix")));
        assert!(selection.wants_postgres() && !selection.wants_kafka() && !selection.wants_relay());
    }

    #[test]
    fn a_word_that_fits_no_check_is_refused_with_those_that_there_are() {
        let refused = |word: &str| {
            let failure = Selection::of(&[word.to_owned()]).map(drop).unwrap_err();
            assert_eq!(failure.exit, ExitCode::Usage);
            failure.findings[0].help.clone().unwrap()
        };
        assert!(refused("slott").contains("slot.exists, slot.kind"));
        assert!(refused("slot.lagg").contains("slot.lag"));
        let groups = refused("kafak");
        assert!(groups.contains("config, http, host, relay, postgres"), "{groups}");
        assert_eq!(groups.matches("progress").count(), 1, "{groups}");
        assert!(Selection::of(&["topic".to_owned(), "dead".to_owned()]).is_ok());
    }
}
