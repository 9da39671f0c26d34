//! Counts the records that Postgres would send again after a stop.
//!
//! A record counts as confirmed only if this relay or its successor confirmed it (G8). With
//! exactly-once delivery nothing is owed once a later producer has fenced the session's own,
//! because its open transaction is aborted.

use super::Session;
use crate::lsn::Lsn;
use crate::pipeline::Mark;
use crate::sink::Sink;

/// Records that Postgres would send again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owed {
    until: Lsn,
    records: u64,
}

impl Owed {
    /// The debt after a session that settled up to `settled` and sent everything before `reached`.
    /// If a transaction was sent in part and its end was not read, even its confirmed records are
    /// sent again.
    ///
    /// # Panics
    ///
    /// If unconfirmed records are settled.
    #[must_use]
    pub fn after(self, settled: Lsn, reached: Mark, unconfirmed: u64) -> Self {
        let rest = self.settled(settled);
        if unconfirmed == 0 && reached.part.is_none() {
            return rest;
        }
        // A settled position beyond its commit has settled the open transaction.
        let until = reached.part.map_or(reached.end, |part| part.commit_lsn.next());
        assert!(until > settled, "what is unconfirmed lies beyond what is settled");
        Self { until: until.max(rest.until), records: unconfirmed.max(rest.records) }
    }

    /// The debt after an acknowledgement of `last_row` that Postgres may not have received.
    #[must_use]
    pub fn told(self, last_row: Lsn) -> Self {
        Self { until: self.until.max(last_row.next()), ..self }
    }

    /// The debt at a server whose log lacks the delivered rows beyond `end`.
    #[must_use]
    pub fn lost_after(self, end: Lsn) -> Self {
        Self { until: self.until.min(end), ..self }
    }

    /// The debt once everything up to `position` is confirmed.
    #[must_use]
    pub fn settled(self, position: Lsn) -> Self {
        if position >= self.until { Self::default() } else { self }
    }

    /// True without debt.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }

    /// Position that settles the debt.
    pub const fn until(self) -> Lsn {
        self.until
    }

    /// Minimum number of records.
    pub const fn records(self) -> u64 {
        self.records
    }
}

impl Session {
    /// Records that the next start would repeat.
    pub fn owed(&self, sink: &impl Sink) -> Owed {
        let reached = self.pipeline.reached();
        // An open transaction is not repeated if nothing was sent, or if progress counts its rows.
        let is_repeated = !self.pipeline.may_end_here() && !sink.may_end_within();
        let part = reached.part.filter(|_| is_repeated || self.unconfirmed() > 0);
        self.owed.after(self.pipeline.settled(), Mark { part, ..reached }, self.unconfirmed())
    }

    /// The debt when the session ends, including acknowledgements that Postgres may not have
    /// received.
    pub fn leaves(&self, sink: &impl Sink) -> Owed {
        let owed = self.owed(sink);
        let settled = self.settled(sink);
        let told =
            self.pipeline.last_row().filter(|last| self.limits.acknowledge && *last < settled);
        // A session that resumes from Kafka needs no acknowledgement.
        let told = told.filter(|last| sink.kept().is_none_or(|kept| kept <= *last));
        told.map_or(owed, |last| owed.told(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::PartialTransaction;

    fn at(end: u64) -> Mark {
        Mark::at(Lsn::new(end))
    }

    fn after(owed: Owed, settled: u64, reached: Mark, unconfirmed: u64) -> Owed {
        owed.after(Lsn::new(settled), reached, unconfirmed)
    }

    #[test]
    fn g8_what_a_session_leaves_is_owed_until_a_later_one_settles_it() {
        let clean = after(Owed::default(), 100, at(120), 0);
        assert!(clean.is_nothing());
        let owed = after(clean, 100, at(120), 7);
        assert_eq!((owed.records(), owed.until()), (7, Lsn::new(120)));
        assert_eq!(after(owed, 0, at(0), 0), owed);
        assert_eq!(after(owed, 110, at(115), 3), owed);
        assert_eq!(after(owed, 120, at(130), 2).records(), 2);
        assert!(after(owed, 120, at(120), 0).is_nothing());
    }

    #[test]
    fn g8_rows_of_an_open_transaction_are_owed_until_its_commit_is_settled() {
        let part = Some(PartialTransaction { commit_lsn: Lsn::new(500), rows: 1 });
        let owed = after(Owed::default(), 200, Mark { part, ..at(200) }, 1);
        assert_eq!(after(owed, 250, at(250), 0), owed);
        assert_eq!(after(owed, 500, at(500), 0), owed);
        assert!(after(owed, 560, at(560), 0).is_nothing());
        let confirmed = after(Owed::default(), 200, Mark { part, ..at(200) }, 0);
        assert_eq!((confirmed.records(), confirmed.until()), (0, Lsn::new(501)));
    }

    #[test]
    fn g8_what_postgres_may_not_have_heard_is_owed_until_it_has() {
        let owed = after(Owed::default(), 120, at(120), 0).told(Lsn::new(110));
        assert_eq!((owed.records(), owed.until()), (0, Lsn::new(111)));
        assert!(!owed.is_nothing());
        assert_eq!(owed.settled(Lsn::new(110)), owed, "its rows are sent again from there");
        assert!(owed.settled(Lsn::new(111)).is_nothing());
        let more = after(owed, 100, at(130), 4).told(Lsn::new(90));
        assert_eq!((more.records(), more.until()), (4, Lsn::new(130)));
    }

    #[test]
    fn g8_what_a_failover_took_back_is_owed_to_nobody() {
        let owed = after(Owed::default(), 100, at(220), 7);
        assert_eq!(owed.lost_after(Lsn::new(300)), owed, "that came before the end");
        let lost = owed.lost_after(Lsn::new(150));
        assert_eq!((lost.records(), lost.until()), (7, Lsn::new(150)));
        assert!(lost.settled(Lsn::new(150)).is_nothing());
        assert!(Owed::default().lost_after(Lsn::new(150)).is_nothing());
    }

    #[test]
    fn g8_what_another_relay_acknowledges_is_not_owed_any_more() {
        let owed = after(Owed::default(), 100, at(120), 7);
        assert_eq!(owed.settled(Lsn::new(119)), owed);
        assert!(owed.settled(Lsn::new(120)).is_nothing());
    }
}
