//! Remembers the records of a refused batch, so that the next sessions find the one at fault: a broker
//! refuses a batch as a whole, which ends the session.
//!
//! Input: the records that may be at fault, reported by the session that ended. Output: for a row's record
//! (or its dead letter) whether it is sent as usual, alone in its batch, or not again; for the next session
//! a [`RefusalAnalysis`]. Invariant: a row is rejected only if its record, or an identical one, was refused
//! alone or named by the brokers, or because it resembles several that its topic has just refused
//! (`Inferred`) (G4).
//!
//! Tickets differ between sessions, so a record is recognised by its transaction's commit position, its
//! weight, and its topic, key and value; a non-transactional logical message by its position and topic
//! alone. A row that was polled stands at another position in each session: it is recognised by the number
//! of its transaction, which is made of its table and id ([`Suspects::by_row`]).

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

/// Attempts that a record gets alone, where the brokers do not say that it is at fault.
const ATTEMPTS_ALONE: u32 = 2;
/// The same where the fault may be the brokers' own, with waits between them that double.
const ATTEMPTS_LATER: u32 = 8;
/// The first of these; 32 s in all.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// What identifies a record from one session to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RecordIdentity {
    commit_lsn: Lsn,
    weight: u64,
    content: u64,
}

impl RecordIdentity {
    /// A message outside of all transactions.
    fn lone(commit_lsn: Lsn, topic: &str) -> Self {
        Self { commit_lsn, weight: 0, content: content_of(topic, None, None) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Suspect {
    /// How often it was refused when it was sent alone, but for what may be the brokers' own fault.
    alone: u32,
    /// How often it met such a fault when it was sent alone.
    faults: u32,
    cause: RefusalCause,
    /// See [`Blame::at_ms`].
    at_ms: i64,
    rejection: Option<Rejection>,
    /// What it says of others is known.
    is_inferred_from: bool,
    /// It came again, in this session.
    is_seen: bool,
}

/// How a row's record is treated.
enum Treatment {
    Usual,
    Alone,
    Refused(Rejection, RefusalCause),
    /// It was not refused, but others like it were.
    NotSent(Rejection, RefusalCause),
}

/// How the dead letter of a row is treated.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LetterTreatment {
    Usual,
    Alone,
    /// Its topic has refused it, or others like it, for this cause.
    Refused(Rejection, RefusalCause),
}

/// The records that may be at fault for the end of sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suspects {
    all: BTreeMap<RecordIdentity, Suspect>,
    /// Whether a record may be refused for what was said of others.
    infers: bool,
    inferred: Inferred,
    /// Topics of which a record went alone since a batch was refused for its size and none stood out.
    probed: BTreeSet<String>,
    /// What the row in hand is known by, where positions say nothing.
    row: Option<Lsn>,
}

/// Above each position that rows without one in the log are counted by.
const ROWS: u64 = 1 << 62;
/// Records of rows without a position that are remembered; beyond that it begins anew. Of one session there are no
/// more than may be unconfirmed.
const ROWS_MAX: usize = 100_000;

/// Topics in `probed`; beyond that it begins anew.
const PROBED_MAX: usize = 1_000;

/// What a session that ended for a refused batch leaves to the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalAnalysis {
    /// What is known now.
    pub suspects: Suspects,
    /// Something of it was not known before, so that the next session will not end the same way.
    pub is_news: bool,
    /// How many records were found that the brokers refuse for good.
    pub refused: usize,
    /// The topic takes records, and no such batch of them: smaller ones may help.
    pub is_of_the_batch: bool,
    /// How long the next session is to wait, where the fault may be the brokers' own, and pass; zero
    /// otherwise.
    pub wait: Duration,
}

impl Suspects {
    /// Adds what one more session has found: `blamed`, of which those for the topic `letters` are dead
    /// letters, and the topic of a batch that was refused for its size, where no record stood out.
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

    /// The same; whether a record is refused for what was said of others.
    pub(super) fn inferring(self, infers: bool) -> Self {
        Self { infers, ..self }
    }

    /// The same; each transaction is a row that is known by the transaction's number, whatever its position.
    pub(super) fn by_row(self) -> Self {
        let mut all = self.all;
        for suspect in all.values_mut() {
            suspect.is_seen = false;
        }
        Self { all, row: Some(Lsn::new(ROWS)), ..self }
    }

    /// A transaction begins. Returns the position by which its records are known.
    pub(super) fn begins(&mut self, lsn: Lsn, xid: u32) -> Lsn {
        match &mut self.row {
            None => lsn,
            Some(row) => {
                *row = Lsn::new(ROWS | u64::from(xid));
                *row
            }
        }
    }

    /// Every row that came is marked, and not sent again.
    pub(super) fn marked(&mut self) {
        if self.row.is_some() && !self.all.is_empty() {
            self.all.retain(|_, suspect| !suspect.is_seen);
        }
    }

    /// Whatever committed before `lsn` is settled, and not sent again. What was only sent may be: it stays
    /// known, or the next session would meet it as if for the first time.
    pub(super) fn passed(&mut self, lsn: Lsn) {
        let first = self.all.first_key_value();
        if first.is_some_and(|(first, _)| first.commit_lsn < lsn) {
            self.all =
                self.all.split_off(&RecordIdentity { commit_lsn: lsn, weight: 0, content: 0 });
        }
    }

    /// How many rows are refused for good.
    fn refused(&self) -> usize {
        self.all.values().filter(|suspect| suspect.rejection.is_some()).count()
    }

    /// Whether no record needs another treatment than usual.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.inferred.is_empty()
    }

    /// Whether a row's record goes alone; an error if it is not sent. Of the row its position is asked for,
    /// and what the server's clock showed when it was sent, in microseconds since 2000.
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
            // The brokers may have taken it, so its dead letter keeps all that it can be sent from.
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
            // Others like it may have been refused since it came under suspicion.
            return self.inferred.judge(record, times).map_or(Treatment::Alone, not_sent);
        };
        // Only here its timestamp is known.
        if self.infers && !std::mem::replace(&mut suspect.is_inferred_from, true) {
            self.inferred.refused((suspect.cause, suspect.at_ms), record, times);
        }
        Treatment::Refused(rejection, suspect.cause)
    }

    /// The same for the dead letter of a row.
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

    /// Whether that was not known.
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
        // An answer of one kind says nothing of how often the other one came.
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

    /// How long to wait before the record is sent again.
    fn wait_for(&self, identity: &RecordIdentity) -> Duration {
        let tried = self.all.get(identity).filter(|one| one.rejection.is_none());
        match tried {
            Some(Suspect { faults: faults @ 1.., cause: RefusalCause::Brokers, .. }) => {
                FIRST_WAIT * (1 << (faults - 1))
            }
            _ => Duration::ZERO,
        }
    }

    /// Whether a record of the topic, that is to go alone, is the first that does.
    fn is_first_probe(&mut self, topic: &str) -> bool {
        if self.probed.len() >= PROBED_MAX {
            self.probed.clear();
        }
        self.probed.insert(topic.to_owned())
    }
}

#[cfg(test)]
mod tests;
