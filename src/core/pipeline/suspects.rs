//! Remembers the records of a refused batch, so that later sessions find the faulty one. A broker
//! refuses whole batches, and a refusal ends the session.
//!
//! A row is rejected only if its record, or an identical one, was refused alone or named by the
//! brokers. The exception is a record that resembles several refused ones (`Inferred`) (G4).
//!
//! Tickets differ between sessions, so a record is recognised by commit position, weight and
//! content; a non-transactional message by position and topic; a polled row by its number
//! ([`Suspects::by_row`]).

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

/// Attempts alone for a record that the brokers do not blame.
const ATTEMPTS_ALONE: u32 = 2;
/// Attempts if the fault may be the brokers'.
const ATTEMPTS_LATER: u32 = 8;
/// First of the doubling waits, 32 s in total.
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
    /// Refusals while alone.
    alone: u32,
    /// Possible faults of the brokers while alone.
    faults: u32,
    cause: RefusalCause,
    at_ms: i64,
    rejection: Option<Rejection>,
    is_inferred_from: bool,
    is_seen: bool,
}

enum Treatment {
    Usual,
    Alone,
    Refused(Rejection, RefusalCause),
    /// Similar to refused records.
    NotSent(Rejection, RefusalCause),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum LetterTreatment {
    Usual,
    Alone,
    /// Its topic has refused it, or similar ones, for this cause.
    Refused(Rejection, RefusalCause),
}

/// Records that may have caused failed sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suspects {
    all: BTreeMap<RecordIdentity, Suspect>,
    /// Whether records may be rejected because of similar ones.
    infers: bool,
    inferred: Inferred,
    /// Topics with a record sent alone since they refused a batch for its size and no record stood
    /// out.
    probed: BTreeSet<String>,
    /// Current row, if positions are meaningless.
    row: Option<Lsn>,
}

/// Base for row numbers; above every position.
const ROWS: u64 = 1 << 62;
/// Beyond this the set is cleared. One session adds at most as many records as may be unconfirmed.
const ROWS_MAX: usize = 100_000;

const PROBED_MAX: usize = 1_000;

/// Findings for the next session after a refused batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalAnalysis {
    /// All findings so far.
    pub suspects: Suspects,
    /// Whether the next session will fail differently.
    pub is_news: bool,
    /// Records that the brokers refuse for good.
    pub refused: usize,
    /// Whether smaller batches may help.
    pub is_of_the_batch: bool,
    /// Wait before the next session, if the brokers may recover.
    pub wait: Duration,
}

impl Suspects {
    /// Blamed records of the topic `letters` are dead letters.
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

    pub(super) fn inferring(self, infers: bool) -> Self {
        Self { infers, ..self }
    }

    /// Identifies each transaction as a row by its number, which is made of table and id.
    pub(super) fn by_row(self) -> Self {
        let mut all = self.all;
        for suspect in all.values_mut() {
            suspect.is_seen = false;
        }
        Self { all, row: Some(Lsn::new(ROWS)), ..self }
    }

    /// Returns the position that identifies the transaction's records.
    pub(super) fn begins(&mut self, lsn: Lsn, xid: u32) -> Lsn {
        match &mut self.row {
            None => lsn,
            Some(row) => {
                *row = Lsn::new(ROWS | u64::from(xid));
                *row
            }
        }
    }

    /// Received rows will not be sent again.
    pub(super) fn marked(&mut self) {
        if self.row.is_some() && !self.all.is_empty() {
            self.all.retain(|_, suspect| !suspect.is_seen);
        }
    }

    /// Settled records are forgotten. Records that were only sent may be sent again.
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

    /// Whether a row's record is sent alone; an error if it is not sent.
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
            // The brokers may have stored it, so its dead letter keeps everything.
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
            // Similar records may have been refused since.
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

    fn is_first_probe(&mut self, topic: &str) -> bool {
        if self.probed.len() >= PROBED_MAX {
            self.probed.clear();
        }
        self.probed.insert(topic.to_owned())
    }
}

#[cfg(test)]
mod tests;
