//! Tracks which partitions are assigned to this group member, since when, and up to which offset each is
//! handled.
//!
//! Input: assignments and revocations, where each is to be read from, received records, handled records, in
//! any order, what the database has. Output: whether a record is still this member's, the offsets to store in
//! the database and to commit in Kafka, and the lag. Invariant: an offset has no received record before it
//! that is not handled; each assignment has an epoch, and a record received in an older epoch moves no offset,
//! even if the partition was reassigned to the same member meanwhile; a partition is read only once its start
//! was decided; no offset is committed in Kafka that the database has not. Pure.

use std::collections::{BTreeMap, BTreeSet};

use postrider_core::record::StoredRecord;

/// A partition by its topic and number.
pub(super) type Partition = (String, i32);

/// A record, and its position.
#[derive(Debug)]
pub(super) struct ReceivedRecord {
    pub(super) record: StoredRecord,
    pub(super) position: RecordPosition,
}

/// The position of a record, and the epoch of the assignment in which it was received.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordPosition {
    partition: Partition,
    offset: i64,
    epoch: u64,
}

/// The current assignment.
#[derive(Debug, Default)]
pub(super) struct Assignments {
    partitions: BTreeMap<Partition, Assignment>,
    /// The epoch of the last assignment, from 1.
    epoch: u64,
    /// Partitions that some member of the group has read.
    known: BTreeSet<Partition>,
}

#[derive(Debug)]
struct Assignment {
    epoch: u64,
    /// Whether it is decided where to read from.
    has_begun: bool,
    /// The offset after the last record that was handled in this assignment.
    after_handled: Option<i64>,
    /// The offset after the last record that was received, or else where it starts, once that is known.
    expected: Option<i64>,
    /// Records that were received and are not handled.
    unhandled: BTreeSet<i64>,
    /// What the database had last.
    stored: Option<i64>,
    /// What Kafka was told last.
    committed: Option<i64>,
}

/// A partition of which is to be decided where it is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unverified {
    pub(super) partition: Partition,
    pub(super) epoch: u64,
    /// The next offset, if this member has handled a record of this assignment.
    pub(super) handled: Option<i64>,
    /// What the database had last, if this member knows.
    pub(super) stored: Option<i64>,
}

/// A step of one partition's offset in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Advance {
    pub(super) partition: Partition,
    /// The assignment's epoch, in which the records were received.
    pub(super) epoch: u64,
    /// What the database had last. If it has less, it has gone back.
    pub(super) at_least: i64,
    /// Everything before this offset is handled.
    pub(super) next: i64,
}

impl RecordPosition {
    /// Its partition.
    pub(super) fn partition(&self) -> &Partition {
        &self.partition
    }
}

impl Assignments {
    /// These are assigned from now on, and read once it is decided where from.
    pub(super) fn assign(&mut self, partitions: impl IntoIterator<Item = Partition>) {
        self.epoch += 1;
        let epoch = self.epoch;
        self.partitions.extend(partitions.into_iter().map(|it| (it, Assignment::new(epoch))));
    }

    /// These are not assigned any more.
    pub(super) fn revoke(&mut self, partitions: &[Partition]) {
        self.partitions.retain(|partition, _| !partitions.contains(partition));
    }

    /// Of all it is to be decided anew where they are read from. What was received of them is dropped.
    pub(super) fn recheck(&mut self) {
        self.epoch += 1;
        for assignment in self.partitions.values_mut() {
            // What is not handled is received again from there.
            assignment.after_handled = assignment.next();
            assignment.expected = assignment.unhandled.first().copied().or(assignment.expected);
            assignment.unhandled.clear();
            assignment.epoch = self.epoch;
            assignment.has_begun = false;
        }
    }

    /// Those of which that is to be decided.
    pub(super) fn unverified(&self) -> Vec<Unverified> {
        let waiting = self.partitions.iter().filter(|(_, assignment)| !assignment.has_begun);
        let unverified = |(partition, assignment): (&Partition, &Assignment)| Unverified {
            partition: partition.clone(),
            epoch: assignment.epoch,
            handled: assignment.next(),
            stored: assignment.stored,
        };
        waiting.map(unverified).collect()
    }

    /// The partition is read from `position`, if the assignment is still the one with this epoch; the database
    /// has `stored`.
    pub(super) fn begin(&mut self, partition: &Partition, epoch: u64, position: i64, stored: i64) {
        let assignment = self.partitions.get_mut(partition).filter(|it| it.epoch == epoch);
        if let Some(assignment) = assignment {
            assignment.has_begun = true;
            assignment.expected = Some(position);
            // Unless it is read again.
            assignment.after_handled = assignment.after_handled.filter(|next| *next == position);
            assignment.stored = Some(stored);
            assignment.committed = None;
            self.known.insert(partition.clone());
        }
    }

    /// Those that are read.
    pub(super) fn begun(&self) -> Vec<Partition> {
        let begun = self.partitions.iter().filter(|(_, assignment)| assignment.has_begun);
        begun.map(|(partition, _)| partition.clone()).collect()
    }

    /// What the database has for the partition, as far as this member knows.
    pub(super) fn stored(&self, partition: &Partition) -> Option<i64> {
        self.partitions.get(partition)?.stored
    }

    /// Notes what the database has.
    pub(super) fn set_stored(&mut self, advances: &[Advance]) {
        for Advance { partition, epoch, next, .. } in advances {
            let assignment = self.partitions.get_mut(partition).filter(|it| it.epoch == *epoch);
            if let Some(assignment) = assignment {
                assignment.stored = assignment.stored.max(Some(*next));
            }
        }
    }

    /// What the database is to be told in the transaction that handles these: for each of their partitions
    /// the first record that is not handled then. One that is not this member's any more is left out.
    pub(super) fn advances<'p>(
        &self,
        positions: impl IntoIterator<Item = &'p RecordPosition>,
    ) -> Vec<Advance> {
        let mut by_partition: BTreeMap<&Partition, BTreeSet<i64>> = BTreeMap::new();
        for position in positions.into_iter().filter(|position| self.is_current(position)) {
            by_partition.entry(&position.partition).or_default().insert(position.offset);
        }
        let advance = |(partition, offsets): (&Partition, BTreeSet<i64>)| {
            let assignment = self.partitions.get(partition)?;
            let after_handled =
                assignment.after_handled.max(offsets.last().map(|last| last + 1))?;
            let mut unhandled = assignment.unhandled.iter().filter(|it| !offsets.contains(it));
            Some(Advance {
                partition: partition.clone(),
                epoch: assignment.epoch,
                at_least: assignment.stored?,
                next: unhandled.next().map_or(after_handled, |&first| first.min(after_handled)),
            })
        };
        by_partition.into_iter().filter_map(advance).collect()
    }

    /// What is handled and not in the database.
    pub(super) fn not_stored(&self) -> Vec<Advance> {
        let begun = self.partitions.iter().filter(|(_, assignment)| assignment.has_begun);
        begun
            .filter_map(|(partition, assignment)| {
                let (next, at_least) = (assignment.next()?, assignment.stored?);
                let (partition, epoch) = (partition.clone(), assignment.epoch);
                (next > at_least).then_some(Advance { partition, epoch, at_least, next })
            })
            .collect()
    }

    /// Whether the database has less than it had of a partition that is read.
    pub(super) fn is_ahead_of(&self, database: &BTreeMap<Partition, i64>) -> bool {
        let mut begun = self.partitions.iter().filter(|(_, assignment)| assignment.has_begun);
        begun.any(|(partition, assignment)| assignment.stored > database.get(partition).copied())
    }

    /// Notes which partitions the members of the group have read.
    pub(super) fn set_known(&mut self, partitions: impl IntoIterator<Item = Partition>) {
        self.known = partitions.into_iter().collect();
    }

    /// Whether all known partitions are assigned.
    pub(super) fn has_all(&self) -> bool {
        self.known.iter().all(|partition| self.partitions.contains_key(partition))
    }

    /// How many are assigned.
    pub(super) fn count(&self) -> usize {
        self.partitions.len()
    }

    /// The epoch of the last assignment; 0 before the first.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Notes that it was received, and tags it with the current epoch; `None` if its partition is not assigned,
    /// or not yet read. One that comes again is of another log, which ended before what was asked for:
    /// it is decided anew where that is read from, and what is known of the one before does not count.
    pub(super) fn tag(&mut self, record: StoredRecord) -> Option<ReceivedRecord> {
        let partition = (record.topic.clone(), record.partition);
        let assignment = self.partitions.get_mut(&partition).filter(|it| it.has_begun)?;
        if Some(record.offset) < assignment.expected {
            self.epoch += 1;
            *assignment = Assignment { stored: assignment.stored, ..Assignment::new(self.epoch) };
            return None;
        }
        assignment.expected = Some(record.offset + 1);
        assignment.unhandled.insert(record.offset);
        let position = RecordPosition { partition, offset: record.offset, epoch: assignment.epoch };
        Some(ReceivedRecord { record, position })
    }

    /// Whether its partition has been assigned, and read without a step back, ever since it was received.
    pub(super) fn is_current(&self, position: &RecordPosition) -> bool {
        let assignment = self.partitions.get(&position.partition);
        assignment.is_some_and(|assignment| assignment.epoch == position.epoch)
    }

    /// An offset of its partition that Kafka may be told while the record is not handled; `None` if it is not
    /// current.
    pub(super) fn offset_before(&self, position: &RecordPosition) -> Option<(Partition, i64)> {
        let current = self.partitions.get(&position.partition);
        let assignment = current.filter(|assignment| assignment.epoch == position.epoch)?;
        let first = assignment.unhandled.first().copied().unwrap_or(position.offset);
        Some((position.partition.clone(), first.min(assignment.stored?)))
    }

    /// Notes that these are handled.
    pub(super) fn mark_handled<'p>(
        &mut self,
        positions: impl IntoIterator<Item = &'p RecordPosition>,
    ) {
        for RecordPosition { partition, offset, epoch } in positions {
            let assignment = self.partitions.get_mut(partition);
            if let Some(assignment) = assignment.filter(|it| it.epoch == *epoch) {
                assignment.unhandled.remove(offset);
                assignment.after_handled = assignment.after_handled.max(Some(offset + 1));
            }
        }
    }

    /// The offsets to commit in Kafka, of the partitions that match.
    pub(super) fn to_commit(
        &self,
        wanted: impl Fn(&Partition) -> bool,
    ) -> BTreeMap<Partition, i64> {
        let known = self.partitions.iter().filter(|(partition, _)| wanted(partition));
        let to_commit = |(partition, assignment): (&Partition, &Assignment)| {
            Some((partition.clone(), assignment.to_commit()?))
        };
        known.filter_map(to_commit).collect()
    }

    /// Those of them that have changed since they were last taken.
    pub(super) fn take_changed(&mut self) -> BTreeMap<Partition, i64> {
        let mut changed = BTreeMap::new();
        for (partition, assignment) in &mut self.partitions {
            if let Some(next) = assignment.to_commit()
                && assignment.committed.replace(next) != Some(next)
            {
                changed.insert(partition.clone(), next);
            }
        }
        changed
    }

    /// All assigned partitions.
    pub(super) fn partitions(&self) -> Vec<Partition> {
        self.partitions.keys().cloned().collect()
    }

    /// Those without a known start.
    pub(super) fn unknown(&self) -> Vec<Partition> {
        let known = self.partitions.iter().filter(|(_, assignment)| assignment.expected.is_none());
        known.map(|(partition, _)| partition.clone()).collect()
    }

    /// Sets the start offsets of partitions without one.
    pub(super) fn set_start(&mut self, offsets: &BTreeMap<Partition, i64>) {
        for (partition, offset) in offsets {
            if let Some(assignment) = self.partitions.get_mut(partition) {
                assignment.expected.get_or_insert(*offset);
            }
        }
    }

    /// Messages that are not handled, up to these high watermarks: those that were received, and offsets after them.
    pub(super) fn lag(&self, ends: &BTreeMap<Partition, i64>) -> u64 {
        let lag = ends.iter().filter_map(|(partition, end)| {
            let Assignment { expected, unhandled, .. } = self.partitions.get(partition)?;
            let after = u64::try_from(end.saturating_sub((*expected)?)).unwrap_or(0);
            Some(after.saturating_add(u64::try_from(unhandled.len()).ok()?))
        });
        lag.sum()
    }
}

impl Assignment {
    fn new(epoch: u64) -> Self {
        Self {
            epoch,
            has_begun: false,
            after_handled: None,
            expected: None,
            unhandled: BTreeSet::new(),
            stored: None,
            committed: None,
        }
    }

    /// The next offset to read after a restart, once a record was handled: of the first that is not.
    fn next(&self) -> Option<i64> {
        let after_handled = self.after_handled?;
        Some(self.unhandled.first().map_or(after_handled, |&first| first.min(after_handled)))
    }

    fn to_commit(&self) -> Option<i64> {
        Some(self.next()?.min(self.stored?))
    }
}

#[cfg(test)]
mod tests;
