//! Determines which rows are already in Kafka. Pure, with constant memory.
//!
//! Input: rows, records and dead letters, sorted by id. Output: an [`Outcome`] per row. Invariant:
//! a doubtful outcome is unknown, never a guess. A record belongs to a row if both have the same
//! UUID as id, or if topic and content match. A dead letter needs a UUID and the row's table.

use std::fmt;

use serde::Serialize;

use crate::compare::{Entry, IdToken, Kept, Kind, Sorter, SpillError, flag};
use postrider_core::record::Kinship;

/// An id shared by more rows does not identify a row.
const ROWS_MAX: usize = 16;

/// Tolerance between the clocks of a row and of its record.
const CLOCKS_APART_MS: i64 = 10 * 60 * 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Delivered,
    Missing,
    Unknown(UnknownReason),
    LeftOut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownReason {
    /// Only the newest record of a key is guaranteed to exist.
    Compacted,
    /// The topic has lost records from the time of the row.
    Removed,
    OpenTransaction,
    /// Another row or record has this id, and the id is not a UUID or not unique.
    IdShared,
    NoId,
    /// The row may have been committed before the stream began; `setup --existing skip` excludes
    /// such rows.
    BeforeStream,
}

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compacted => "their topic is compacted",
            Self::Removed => "records of their time were removed from their topic",
            Self::OpenTransaction => "a Kafka transaction is open in their topic",
            Self::IdShared => {
                "their id is not unique, or no UUID, and a record of other content has it"
            }
            Self::NoId => "they have no id",
            Self::BeforeStream => "they may have been committed before the stream began",
        })
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Terms {
    pub(super) topics: Vec<Kept>,
    pub(super) dead_letters: u32,
    /// The configuration skips rows that cannot be delivered.
    pub(super) skips_rejected: bool,
}

pub(super) fn judge<E: From<SpillError>>(
    entries: &mut Sorter<Entry>,
    terms: &Terms,
    mut decide: impl FnMut(&Entry, Outcome) -> Result<(), E>,
) -> Result<(), E> {
    let mut same: Option<SameId> = None;
    entries.read::<E>(|entry| {
        if same.as_ref().is_none_or(|same| same.id != entry.id)
            && let Some(done) = same.replace(SameId::new(entry.id))
        {
            done.judge(terms, &mut decide)?;
        }
        let Some(same) = &mut same else { unreachable!("it was made for this id") };
        if same.take(&entry) {
            decide(&entry, Outcome::Unknown(UnknownReason::IdShared))?;
        }
        Ok(())
    })?;
    same.map_or(Ok(()), |done| done.judge(terms, &mut decide))
}

struct SameId {
    id: IdToken,
    rows: Vec<Claim>,
    /// There were more than [`ROWS_MAX`] rows.
    is_crowded: bool,
    /// Records whose content does not match any row.
    others: u64,
    /// Dead letters that do not name a table.
    unnamed_letters: u64,
    other_letters: u64,
}

struct Claim {
    row: Entry,
    records: usize,
    has_letter: bool,
}

impl SameId {
    const fn new(id: IdToken) -> Self {
        let rows = Vec::new();
        Self { id, rows, is_crowded: false, others: 0, unnamed_letters: 0, other_letters: 0 }
    }

    /// Returns `true` for a row beyond [`ROWS_MAX`].
    fn take(&mut self, entry: &Entry) -> bool {
        match entry.kind {
            Kind::Row | Kind::Rejected | Kind::Dropped if self.rows.len() == ROWS_MAX => {
                self.is_crowded = true;
                return true;
            }
            Kind::Row | Kind::Rejected | Kind::Dropped => {
                self.rows.push(Claim { row: *entry, records: 0, has_letter: false });
            }
            Kind::Record => self.take_record(entry),
            Kind::DeadLetter => self.take_letter(entry),
        }
        false
    }

    fn take_record(&mut self, record: &Entry) {
        let mut is_known = false;
        for claim in self.rows.iter_mut().filter(|claim| is_same(&claim.row, record)) {
            claim.records += 1;
            is_known = true;
        }
        let goes_there =
            |claim: &Claim| claim.row.kind != Kind::Row || claim.row.topic == record.topic;
        // A record sent to another topic on purpose is not evidence about the row's own topic.
        let is_elsewhere = record.has(flag::AGAIN) && !self.rows.iter().any(goes_there);
        self.others += u64::from(!is_known && !is_elsewhere);
    }

    fn take_letter(&mut self, letter: &Entry) {
        if letter.index == 0 {
            self.unnamed_letters += 1;
            return;
        }
        let mut is_known = false;
        for claim in self.rows.iter_mut().filter(|claim| claim.row.index == letter.index) {
            claim.has_letter = true;
            is_known = true;
        }
        // A dead letter of another table that names another stream belongs to that stream.
        self.other_letters += u64::from(!is_known && !letter.is_letter(Kinship::Sibling));
    }

    fn judge<E>(
        self,
        terms: &Terms,
        decide: &mut impl FnMut(&Entry, Outcome) -> Result<(), E>,
    ) -> Result<(), E> {
        for claim in &self.rows {
            decide(&claim.row, self.outcome(claim, terms))?;
        }
        Ok(())
    }

    fn outcome(&self, claim: &Claim, terms: &Terms) -> Outcome {
        let row = &claim.row;
        if row.kind == Kind::Dropped || (row.kind == Kind::Rejected && terms.skips_rejected) {
            return Outcome::LeftOut;
        }
        let alike = self.rows.iter().filter(|other| is_same(&other.row, row)).count();
        let of_table = self.rows.iter().filter(|other| other.row.index == row.index).count();
        let is_alone = self.rows.len() == 1 && !self.is_crowded;
        let is_named = self.id.is_uuid() && is_alone;
        let is_delivered = (row.kind == Kind::Row && claim.records > 0 && claim.records >= alike)
            // Other databases may have a table with this name and these ids.
            || (claim.has_letter && of_table == 1 && self.id.is_uuid())
            || (is_named && (self.others > 0 || self.unnamed_letters > 0));
        if is_delivered {
            return Outcome::Delivered;
        }
        let may_be = claim.records > 0
            || claim.has_letter
            || self.is_crowded
            || self.others > 0
            || self.unnamed_letters > 0
            // The letter may come from a table that was renamed.
            || (self.id.is_uuid() && self.other_letters > 0);
        if may_be { Outcome::Unknown(UnknownReason::IdShared) } else { terms.of_no_record(row) }
    }
}

impl Terms {
    fn of_no_record(&self, row: &Entry) -> Outcome {
        let topic = if row.kind == Kind::Rejected { self.dead_letters } else { row.topic };
        let kept = usize::try_from(topic).ok().and_then(|at| self.topics.get(at));
        let kept = kept.copied().unwrap_or_default();
        let is_old = |since: i64| {
            row.time_ms().is_none_or(|time| time <= since.saturating_add(CLOCKS_APART_MS))
        };
        if row.has(flag::BEFORE) {
            Outcome::Unknown(UnknownReason::BeforeStream)
        } else if kept.is_compacted {
            Outcome::Unknown(UnknownReason::Compacted)
        } else if kept.since_ms.is_some_and(is_old) {
            Outcome::Unknown(UnknownReason::Removed)
        } else if kept.is_open {
            Outcome::Unknown(UnknownReason::OpenTransaction)
        } else {
            Outcome::Missing
        }
    }
}

fn is_same(row: &Entry, other: &Entry) -> bool {
    row.kind == Kind::Row
        && matches!(other.kind, Kind::Row | Kind::Record)
        && (row.topic, row.content) == (other.topic, other.content)
}

#[cfg(test)]
mod tests;
