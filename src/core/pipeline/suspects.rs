//! Remembers the records of a refused batch, so that later sessions find the one at fault. A broker
//! refuses whole batches, and a refusal ends the session.
//!
//! Input: the records that may be at fault, reported by the ended session. Output: whether a row's
//! record (or its dead letter) is sent as usual, sent alone, or not sent again; a
//! [`RefusalAnalysis`] for the next session. Invariant: a row is rejected only if its record, or an
//! identical one, was refused alone or named by the brokers, or if it resembles several records
//! that its topic has just refused (`Inferred`) (G4).
//!
//! Tickets differ between sessions. A record is therefore recognised by its transaction's commit
//! position, its weight, and its topic, key and value; a non-transactional logical message only by
//! position and topic. A polled row has another position in each session, and is recognised by its
//! transaction's number, which is made of table and id ([`Suspects::by_row`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::confirmation::{Blame, RefusalCause};
use super::error::PipelineError;
use super::inferred::{Inferred, Times};
use super::stream_position::StreamPosition;
use crate::ledger::Ledger;
use crate::lsn::Lsn;
use crate::outbox::Position;
use crate::route::{Record, Rejection, RejectionCode, content_of};

/// Attempts for a record alone, if the brokers do not blame it.
const ATTEMPTS_ALONE: u32 = 2;
/// Attempts if the fault may be the brokers' own, with doubling waits.
const ATTEMPTS_LATER: u32 = 8;
/// The first wait; all waits total 32 s.
const FIRST_WAIT: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RecordIdentity {
    commit_lsn: Lsn,
    weight: u64,
    content: u64,
}

impl RecordIdentity {
    /// A non-transactional message.
    fn lone(commit_lsn: Lsn, topic: &str) -> Self {
        Self { commit_lsn, weight: 0, content: content_of(topic, None, None) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Suspect {
    /// Refusals while sent alone, without possible faults of the brokers.
    alone: u32,
    /// Possible faults of the brokers while sent alone.
    faults: u32,
    cause: RefusalCause,
    at_ms: i64,
    rejection: Option<Rejection>,
    /// True once inference has used it.
    is_inferred_from: bool,
    is_seen: bool,
}

enum Treatment {
    Usual,
    Alone,
    Refused(Rejection, RefusalCause),
    /// Not refused itself, but similar to refused ones.
    NotSent(Rejection, RefusalCause),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum LetterTreatment {
    Usual,
    Alone,
    /// Its topic has refused it, or similar ones, for this cause.
    Refused(Rejection, RefusalCause),
}

/// Records that may be the cause of failed sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suspects {
    all: BTreeMap<RecordIdentity, Suspect>,
    /// True if a record may be rejected because of similar ones.
    infers: bool,
    inferred: Inferred,
    /// Topics with a record sent alone since a batch was refused for its size and no record stood
    /// out.
    probed: BTreeSet<String>,
    /// Identity of the current row, if positions are meaningless.
    row: Option<Lsn>,
}

/// Base for the numbers of rows without a log position; above every position.
const ROWS: u64 = 1 << 62;
/// Remembered records of rows without a position; after that the set is cleared. One session has at
/// most as many as may be unconfirmed.
const ROWS_MAX: usize = 100_000;

/// Topics in `probed`; after that the set is cleared.
const PROBED_MAX: usize = 1_000;

/// What a session that ended with a refused batch leaves to the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalAnalysis {
    /// All findings so far.
    pub suspects: Suspects,
    /// True if a finding is new, so that the next session will not fail in the same way.
    pub is_news: bool,
    /// Number of records that the brokers refuse for good.
    pub refused: usize,
    /// True if the topic takes records, but not such a batch. Smaller batches may help.
    pub is_of_the_batch: bool,
    /// Wait before the next session, if the fault may be the brokers' own and temporary; otherwise
    /// zero.
    pub wait: Duration,
}

impl Suspects {
    /// Adds the findings of a session: `blamed` records (those for the topic `letters` are dead
    /// letters), and the topic of a batch refused for its size without a conspicuous record.
    pub(super) fn learn(
        &self,
        blamed: &[Blame],
        letters: Option<&str>,
        ledger: &Ledger,
        unnamed: Option<&str>,
    ) -> Result<RefusalAnalysis, PipelineError> {
        let mut suspects = self.clone();
        suspects.passed(ledger.settled());
        let before = suspects.refused();
        let (mut is_news, mut wait) = (false, Duration::ZERO);
        for blame in blamed {
            let commit_lsn = ledger.commit_lsn(blame.ticket)?;
            let is_lone = StreamPosition::is_lone(commit_lsn, ledger.end(blame.ticket)?);
            let identity = if is_lone && letters != Some(blame.topic.as_str()) {
                RecordIdentity::lone(commit_lsn, &blame.topic)
            } else {
                RecordIdentity { commit_lsn, weight: blame.ticket.weight(), content: blame.content }
            };
            is_news |= suspects.add(identity, blame);
            wait = wait.max(suspects.wait_for(&identity));
        }
        let is_of_the_batch = unnamed.is_some_and(|topic| !suspects.is_first_probe(topic));
        let refused = suspects.refused().saturating_sub(before);
        Ok(RefusalAnalysis { suspects, is_news, refused, is_of_the_batch, wait })
    }

    /// Sets whether records may be rejected because of similar ones.
    pub(super) fn inferring(self, infers: bool) -> Self {
        Self { infers, ..self }
    }

    /// Identifies each transaction as a row by its number, whatever its position.
    pub(super) fn by_row(self) -> Self {
        let mut all = self.all;
        for suspect in all.values_mut() {
            suspect.is_seen = false;
        }
        Self { all, row: Some(Lsn::new(ROWS)), ..self }
    }

    /// Begins a transaction. Returns the position that identifies its records.
    pub(super) fn begins(&mut self, lsn: Lsn, xid: u32) -> Lsn {
        match &mut self.row {
            None => lsn,
            Some(row) => {
                *row = Lsn::new(ROWS | u64::from(xid));
                *row
            }
        }
    }

    /// Every received row is marked, and will not be sent again.
    pub(super) fn marked(&mut self) {
        if self.row.is_some() && !self.all.is_empty() {
            self.all.retain(|_, suspect| !suspect.is_seen);
        }
    }

    /// Everything that committed before `lsn` is settled, and will not be sent again. Records that
    /// were only sent stay known, because they may be sent again.
    pub(super) fn passed(&mut self, lsn: Lsn) {
        let first = self.all.first_key_value();
        if first.is_some_and(|(first, _)| first.commit_lsn < lsn) {
            self.all =
                self.all.split_off(&RecordIdentity { commit_lsn: lsn, weight: 0, content: 0 });
        }
    }

    fn refused(&self) -> usize {
        self.all.values().filter(|suspect| suspect.rejection.is_some()).count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.inferred.is_empty()
    }

    /// Whether a row's record is sent alone; an error if it is not sent. `times`: the row's times,
    /// from which refusals are inferred.
    #[inline]
    pub(super) fn judge(
        &mut self,
        row: (Position, i64),
        record: &Record<'_>,
    ) -> Result<bool, Rejection> {
        if self.is_empty() {
            return Ok(false);
        }
        match self.treatment(row, record) {
            Treatment::Usual => Ok(false),
            Treatment::Alone => Ok(true),
            Treatment::Refused(rejection, _) => Err(rejection),
            // The brokers may have stored it, so its dead letter keeps everything needed to send it
            // again.
            Treatment::NotSent(rejection, _) => {
                Err(Rejection { code: RejectionCode::Refused, ..rejection })
            }
        }
    }

    fn treatment(&mut self, (row, sent_us): (Position, i64), record: &Record<'_>) -> Treatment {
        let times = Times { at_us: row.commit_time.unix_us(), sent_us };
        let found = self.find(row, record).and_then(|identity| self.all.get_mut(&identity));
        let not_sent = |(rejection, cause)| Treatment::NotSent(rejection, cause);
        let Some(suspect) = found else {
            return self.inferred.judge(record, times).map_or(Treatment::Usual, not_sent);
        };
        suspect.is_seen = true;
        let Some(rejection) = suspect.rejection.clone() else {
            // Similar records may have been refused since it became a suspect.
            return self.inferred.judge(record, times).map_or(Treatment::Alone, not_sent);
        };
        // Its timestamp is known only here.
        if self.infers && !std::mem::replace(&mut suspect.is_inferred_from, true) {
            self.inferred.refused((suspect.cause, suspect.at_ms), record, times);
        }
        Treatment::Refused(rejection, suspect.cause)
    }

    pub(super) fn judge_letter(
        &mut self,
        row: (Position, i64),
        letter: &Record<'_>,
    ) -> LetterTreatment {
        if self.is_empty() {
            return LetterTreatment::Usual;
        }
        match self.treatment(row, letter) {
            Treatment::Usual => LetterTreatment::Usual,
            Treatment::Alone => LetterTreatment::Alone,
            Treatment::Refused(rejection, cause) | Treatment::NotSent(rejection, cause) => {
                LetterTreatment::Refused(rejection, cause)
            }
        }
    }

    fn find(&self, row: Position, record: &Record<'_>) -> Option<RecordIdentity> {
        let commit_lsn = self.row.unwrap_or(row.commit_lsn);
        let least = RecordIdentity { commit_lsn, weight: 0, content: 0 };
        let (first, _) = self.all.range(least..).next()?;
        if first.commit_lsn != commit_lsn {
            return None;
        }
        let lone = RecordIdentity::lone(commit_lsn, record.topic);
        if self.all.contains_key(&lone) {
            return Some(lone);
        }
        let least = RecordIdentity { weight: record.weight() as u64, ..least };
        let (first, _) = self.all.range(least..).next()?;
        if (first.commit_lsn, first.weight) != (least.commit_lsn, least.weight) {
            return None;
        }
        let identity =
            RecordIdentity { content: content_of(record.topic, record.key, record.value), ..least };
        self.all.contains_key(&identity).then_some(identity)
    }

    fn add(&mut self, identity: RecordIdentity, blame: &Blame) -> bool {
        let fresh = Suspect {
            alone: 0,
            faults: 0,
            cause: blame.cause,
            at_ms: blame.at_ms,
            rejection: None,
            is_inferred_from: false,
            is_seen: false,
        };
        if self.row.is_some() && self.all.len() >= ROWS_MAX {
            self.all.clear();
        }
        let is_new = !self.all.contains_key(&identity);
        let known = self.all.entry(identity).or_insert(fresh);
        if known.rejection.is_some() {
            return false;
        }
        // Answers of one kind do not count for the other.
        let count = match blame.cause {
            RefusalCause::Brokers => &mut known.faults,
            _ => &mut known.alone,
        };
        *count += u32::from(blame.alone);
        (known.cause, known.at_ms) = (blame.cause, blame.at_ms);
        known.rejection.clone_from(&blame.rejection);
        let is_enough = known.alone >= ATTEMPTS_ALONE || known.faults >= ATTEMPTS_LATER;
        if known.rejection.is_none() && is_enough {
            let Blame { topic, reason, .. } = blame;
            let reason = format!("topic `{topic}` does not take the record: {reason}");
            known.rejection = Some(Rejection { code: RejectionCode::Refused, reason });
        }
        let is_named = known.rejection.is_some();
        if is_named {
            self.probed.remove(&blame.topic);
        }
        is_new || is_named || blame.alone
    }

    fn wait_for(&self, identity: &RecordIdentity) -> Duration {
        let tried = self.all.get(identity).filter(|one| one.rejection.is_none());
        match tried {
            Some(Suspect { faults: faults @ 1.., cause: RefusalCause::Brokers, .. }) => {
                FIRST_WAIT * (1 << (faults - 1))
            }
            _ => Duration::ZERO,
        }
    }

    /// True if this is the topic's first record sent alone.
    fn is_first_probe(&mut self, topic: &str) -> bool {
        if self.probed.len() >= PROBED_MAX {
            self.probed.clear();
        }
        self.probed.insert(topic.to_owned())
    }
}

#[cfg(test)]
mod tests;
