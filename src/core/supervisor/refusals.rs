//! Remembers what the brokers refused, so that the next session does not fail in the same way.
//!
//! Batches become smaller only for a topic that stores single records, and for an hour (G4).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::failure::{RefusalConsequence, RefusedBatch};
use crate::lsn::Lsn;
use crate::mutants::{self, Mutant};
use crate::pipeline::{Blame, RefusalAnalysis, RefusalCause, Suspects};
use crate::time::Instant;

/// Later sessions may probe the limit again.
const SMALL_BATCHES_FOR: Duration = Duration::from_hours(1);

#[derive(Debug, Default)]
pub(super) struct Refusals {
    suspects: Suspects,
    small_batches: Option<SmallBatches>,
    /// Time when a topic's settings were queried.
    topics: BTreeMap<String, Instant>,
    /// Position settled by the last fruitful session, and the sessions since.
    fruitless: (Lsn, u32),
}

/// Fruitless sessions that need no pause. A record that is sent alone takes at most ten.
const FRUITLESS_MAX: u32 = 20;

const TOPICS_MAX: usize = 1_000;
/// Age of settings to query again, because they may have changed.
const SETTINGS_AGE: Duration = Duration::from_secs(10);
const ASKED_MAX: usize = 10;

#[derive(Debug, Clone, Copy)]
struct SmallBatches {
    bytes: u32,
    since: Instant,
}

impl Refusals {
    pub(super) fn suspects(&self) -> Suspects {
        if mutants::is(Mutant::ForgetsSuspects) {
            return Suspects::default();
        }
        self.suspects.clone()
    }

    /// Largest batch in bytes of the next session.
    pub(super) fn batch_bytes(&mut self, now: Instant) -> Option<u32> {
        self.small_batches.take_if(|small| now - small.since >= SMALL_BATCHES_FOR);
        self.small_batches.map(|small| small.bytes)
    }

    /// Merges a session's result. The result is news unless the next session would fail in the same
    /// way, or too many were fruitless.
    pub(super) fn learn(
        &mut self,
        refused: &RefusedBatch<'_>,
        settled: Lsn,
        now: Instant,
    ) -> RefusalConsequence {
        let analysis = refused.analysis;
        self.suspects = analysis.suspects.clone();
        let is_fruitful = analysis.is_news && self.is_fruitful(analysis, settled);
        let smaller_batches = refused.batch_bytes.filter(|bytes| {
            let before = self.small_batches.map(|small| small.bytes);
            analysis.is_of_the_batch && before.is_none_or(|before| *bytes < before)
        });
        if let Some(bytes) = smaller_batches {
            self.small_batches = Some(SmallBatches { bytes, since: now });
        }
        RefusalConsequence {
            smaller_batches,
            is_news: is_fruitful || smaller_batches.is_some(),
            unexplained: self.unexplained(refused.records, now),
        }
    }

    /// A refusal for size explains itself.
    fn unexplained(&mut self, records: &[Blame], now: Instant) -> Vec<String> {
        let is_unexplained =
            |one: &&Blame| matches!(one.cause, RefusalCause::OfSeveral | RefusalCause::Unknown);
        let refusing: BTreeSet<&String> =
            records.iter().filter(is_unexplained).map(|one| &one.topic).collect();
        let is_due = |topic: &&String| {
            self.topics.get(*topic).is_none_or(|asked| now - *asked >= SETTINGS_AGE)
        };
        let due: Vec<String> =
            refusing.into_iter().filter(is_due).take(ASKED_MAX).cloned().collect();
        if self.topics.len() + due.len() > TOPICS_MAX {
            self.topics.clear();
        }
        self.topics.extend(due.iter().map(|topic| (topic.clone(), now)));
        due
    }

    fn is_fruitful(&mut self, analysis: &RefusalAnalysis, settled: Lsn) -> bool {
        let (place, sessions) = self.fruitless;
        let sessions = match analysis.refused {
            0 if place == settled => sessions.saturating_add(1),
            _ => 0,
        };
        self.fruitless = (settled, sessions);
        sessions < FRUITLESS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ticket;

    fn analysis(is_news: bool, is_of_the_batch: bool) -> RefusalAnalysis {
        RefusalAnalysis {
            suspects: Suspects::default(),
            is_news,
            refused: 0,
            is_of_the_batch,
            wait: Duration::ZERO,
        }
    }

    fn refused_for(cause: RefusalCause) -> Blame {
        Blame {
            ticket: Ticket::new(1, 1),
            topic: "t".into(),
            content: 0,
            alone: true,
            cause,
            at_ms: 0,
            reason: "why".into(),
            rejection: None,
        }
    }

    #[test]
    fn settings_are_asked_for_again_after_a_while_and_of_each_topic() {
        let (mut refusals, now) = (Refusals::default(), Instant::START);
        let refused = [refused_for(RefusalCause::Unknown)];
        assert_eq!(refusals.unexplained(&refused, now), ["t"]);
        assert!(refusals.unexplained(&refused, now + SETTINGS_AGE / 2).is_empty());
        assert_eq!(refusals.unexplained(&refused, now + SETTINGS_AGE), ["t"]);
        let of_size = [refused_for(RefusalCause::Size)];
        assert!(Refusals::default().unexplained(&of_size, now).is_empty(), "it explains itself");
        assert!(Refusals::default().unexplained(&[], now).is_empty());
    }

    #[test]
    fn g4_sessions_that_learn_and_come_to_nothing_are_given_pauses_in_the_end() {
        let (mut refusals, now) = (Refusals::default(), Instant::START);
        let records = [refused_for(RefusalCause::Unknown)];
        let analysis_of_one = analysis(true, false);
        let of_one =
            RefusedBatch { analysis: &analysis_of_one, records: &records, batch_bytes: None };
        let news =
            |refusals: &mut Refusals, lsn| refusals.learn(&of_one, Lsn::new(lsn), now).is_news;
        let sessions = (0..100).take_while(|_| news(&mut refusals, 7)).count();
        assert!((10..=21).contains(&sessions), "{sessions}");
        assert!(news(&mut refusals, 8), "rows were settled");
        let found = RefusalAnalysis { refused: 1, ..analysis(true, false) };
        let records = [refused_for(RefusalCause::Size)];
        let found = RefusedBatch { analysis: &found, records: &records, batch_bytes: None };
        for _ in 0..100 {
            assert!(refusals.learn(&found, Lsn::new(8), now).is_news);
        }
    }

    #[test]
    fn batches_become_smaller_for_an_hour() {
        let mut refusals = Refusals::default();
        let (lsn, now) = (Lsn::new(7), Instant::START);
        let learn = |refusals: &mut Refusals, bytes, analysis: &RefusalAnalysis| {
            let refused = RefusedBatch { analysis, records: &[], batch_bytes: Some(bytes) };
            refusals.learn(&refused, lsn, now)
        };
        assert!(learn(&mut refusals, 9_000, &analysis(true, false)).is_news);
        assert_eq!(refusals.batch_bytes(now), None, "a record goes alone first");
        let learned = learn(&mut refusals, 9_000, &analysis(false, true));
        assert_eq!((learned.is_news, learned.smaller_batches), (true, Some(9_000)));
        assert_eq!(refusals.batch_bytes(now), Some(9_000));
        assert!(!learn(&mut refusals, 9_000, &analysis(false, true)).is_news, "it did not help");
        assert!(learn(&mut refusals, 5_000, &analysis(false, true)).is_news);
        assert_eq!(refusals.batch_bytes(now + SMALL_BATCHES_FOR / 2), Some(5_000));
        assert_eq!(refusals.batch_bytes(now + SMALL_BATCHES_FOR), None);
    }
}
