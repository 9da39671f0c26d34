//! Compares the rows of the tables with the records of the topics.
//!
//! Invariant: the unknown is never a finding. A row that the slot has not passed, or whose record
//! may be in an open transaction, is pending. A row whose record the topic may have removed is
//! unknown. A record without a row is a phantom only if all rows are kept. Ids that are not unique
//! are not judged. Memory is constant. Only routing is shared with the relay.

use super::verdict::{Fault, Finding, Verdict};
use postrider_core::record::Kinship;
use postrider_relay::compare::{Entry, IdToken, Kept, Kind, Ordered, Sorter, SpillError, flag};

#[derive(Debug, Clone, Default)]
pub(super) struct Terms {
    /// Retention by the topic's number.
    pub(super) topics: Vec<Kept>,
    pub(super) dead_letters: u32,
    /// Undeliverable rows are left out by the policy.
    pub(super) skips_rejected: bool,
    /// No row was ever deleted, and the tables were read whole.
    pub(super) all_rows_kept: bool,
}

impl Terms {
    fn kept(&self, topic: u32) -> Kept {
        usize::try_from(topic).ok().and_then(|at| self.topics.get(at)).copied().unwrap_or_default()
    }
}

pub(super) fn judge(
    entries: &mut Sorter<Entry>,
    terms: &Terms,
    mut order: Sorter<Ordered>,
) -> Result<Verdict, SpillError> {
    let mut verdict = Verdict::default();
    let mut same: Option<SameId> = None;
    entries.read(|entry| {
        if entry.is_letter(Kinship::Sibling) {
            if let Some(same) = same.as_mut().filter(|same| same.id == entry.id) {
                same.take_sibling(&entry);
            }
            return Ok(());
        }
        verdict.count(entry.kind);
        if same.as_ref().is_none_or(|same| same.id != entry.id)
            && let Some(done) = same.replace(SameId::new(entry.id))
        {
            done.judge(terms, &mut verdict);
        }
        let Some(same) = &mut same else { unreachable!("it was made for this id") };
        match same.take(&entry) {
            Some(ordered) => order.push(ordered),
            None => Ok(()),
        }
    })?;
    if let Some(done) = same {
        done.judge(terms, &mut verdict);
    }
    judge_order(&mut order, &mut verdict)?;
    name(entries, &mut verdict)?;
    Ok(verdict)
}

struct SameId {
    id: IdToken,
    row: Option<Entry>,
    rows: u64,
    records: u64,
    again: u64,
    /// Repeats in another topic than the row's, which prove nothing about the row.
    elsewhere: u64,
    letters: u64,
    /// Letters that may belong to another stream.
    strange: u64,
    /// A letter about this row may name a former name of this stream.
    has_sibling: bool,
    /// All records may be newer than the snapshot of the table.
    all_newer: bool,
    first: Option<Entry>,
    repeat: Option<Entry>,
    /// First record that differs from today's routing.
    different: Option<Entry>,
    ordered_in: Option<(u32, i32)>,
}

impl SameId {
    const fn new(id: IdToken) -> Self {
        Self {
            id,
            row: None,
            rows: 0,
            records: 0,
            again: 0,
            elsewhere: 0,
            letters: 0,
            strange: 0,
            has_sibling: false,
            all_newer: true,
            first: None,
            repeat: None,
            different: None,
            ordered_in: None,
        }
    }

    /// Returns the order of the first record in a partition.
    fn take(&mut self, entry: &Entry) -> Option<Ordered> {
        match entry.kind {
            Kind::Row | Kind::Rejected | Kind::Dropped => {
                self.rows += 1;
                self.row.get_or_insert(*entry);
                return None;
            }
            Kind::DeadLetter => {
                if self.letters > 0 {
                    self.repeat.get_or_insert(*entry);
                }
                self.letters += 1;
                self.strange += u64::from(entry.is_letter(Kinship::Unknown));
            }
            Kind::Record => self.take_record(entry),
        }
        self.all_newer &= entry.has(flag::NEWER);
        self.first.get_or_insert(*entry);
        self.ordered(entry)
    }

    /// A letter of another stream is not a repeat, and means nothing without a row.
    fn take_sibling(&mut self, letter: &Entry) {
        self.has_sibling |= self.row.as_ref().is_some_and(|row| letter.may_be_about(row));
    }

    fn take_record(&mut self, entry: &Entry) {
        let again = entry.has(flag::AGAIN);
        let is_elsewhere = |row: &Entry| row.kind == Kind::Row && row.topic != entry.topic;
        if again && self.row.as_ref().is_some_and(is_elsewhere) {
            self.elsewhere += 1;
            return;
        }
        if again {
            self.again += 1;
        } else {
            if self.records > 0 {
                self.repeat.get_or_insert(*entry);
            }
            self.records += 1;
        }
        let Some(row) = &self.row else { return };
        let is_other = match row.kind {
            Kind::Row => {
                let elsewhere = row.partition >= 0 && row.partition != entry.partition;
                elsewhere || row.content != entry.content
            }
            // The cause may have been fixed before it was sent again.
            _ => !again,
        };
        if is_other {
            self.different.get_or_insert(*entry);
        }
    }

    fn ordered(&mut self, entry: &Entry) -> Option<Ordered> {
        let place = (entry.topic, entry.partition);
        let promises_none = entry.has(flag::AGAIN) || entry.has(flag::UNORDERED);
        if entry.kind != Kind::Record || promises_none || self.ordered_in == Some(place) {
            return None;
        }
        self.ordered_in = Some(place);
        let number = self.row.filter(|row| row.has(flag::RANKED) && self.rows == 1);
        Some(Ordered {
            topic: entry.topic,
            partition: entry.partition,
            key: entry.key,
            offset: entry.place,
            position: entry.has(flag::RANKED).then_some((entry.rank, entry.index)),
            number: number.map(|row| row.rank.cast_signed()),
        })
    }

    fn judge(mut self, terms: &Terms, verdict: &mut Verdict) {
        if self.rows > 1 {
            verdict.find(Fault::NotUnique, || Finding::of_id(self.id));
            return;
        }
        let arrived = self.records + self.again + self.letters;
        verdict.sent_again += self.again + self.elsewhere;
        let Some(row) = self.row else {
            if self.all_newer {
                verdict.newer += arrived;
                return;
            }
            // Without a row, letters of unknown streams prove nothing.
            self.letters -= self.strange;
            self.count_repeats(verdict);
            verdict.without_row += 1;
            if terms.all_rows_kept && arrived > self.strange {
                verdict.find(Fault::Phantom, || Finding::at(self.id, self.first));
            }
            return;
        };
        self.count_repeats(verdict);
        if self.different.is_some() {
            verdict.find(Fault::Different, || Finding::at(self.id, self.different));
        }
        if arrived > 0 || self.has_sibling {
            verdict.dead_lettered += u64::from(self.records + self.again == 0);
            return;
        }
        let topic = match row.kind {
            Kind::Dropped => return,
            Kind::Rejected if terms.skips_rejected => return,
            Kind::Rejected => terms.dead_letters,
            _ => row.topic,
        };
        let kept = terms.kept(topic);
        if row.has(flag::NOT_PASSED) || kept.is_open {
            verdict.pending += 1;
        } else if kept.may_lack(row.time_ms()) {
            verdict.unknown += 1;
        } else {
            verdict.find(Fault::Lost, || Finding::missing(self.id, topic));
        }
    }

    fn count_repeats(&self, verdict: &mut Verdict) {
        let repeats = self.records.saturating_sub(1) + self.letters.saturating_sub(1);
        verdict.duplicated += repeats;
        if repeats > 0 {
            verdict.sample(Fault::Duplicated, || Finding::at(self.id, self.repeat));
        }
    }
}

/// In a partition, no record of a key may follow a later one.
fn judge_order(order: &mut Sorter<Ordered>, verdict: &mut Verdict) -> Result<(), SpillError> {
    let mut last: Option<Ordered> = None;
    order.read(|entry| {
        let before = last.filter(|last| {
            (last.topic, last.partition, last.key) == (entry.topic, entry.partition, entry.key)
        });
        if entry.position.is_some() || entry.number.is_some() {
            verdict.ordered += 1;
        } else {
            verdict.unordered += 1;
        }
        // `None` is less than any value.
        let (position, number) = before.map_or((None, None), |it| (it.position, it.number));
        let is_late = (entry.position.is_some() && entry.position < position)
            || (entry.number.is_some() && entry.number < number);
        if is_late {
            verdict.find(Fault::Reordered, || Finding::in_place(&entry));
        }
        let (position, number) = (entry.position.max(position), entry.number.max(number));
        last = Some(Ordered { position, number, ..entry });
        Ok(())
    })
}

fn name(entries: &mut Sorter<Entry>, verdict: &mut Verdict) -> Result<(), SpillError> {
    if !verdict.has_unnamed() {
        return Ok(());
    }
    entries.read(|entry| {
        if entry.kind == Kind::Record {
            verdict.name(&entry);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests;
