//! Assigned partitions, the epoch of each assignment, and the offset up to which it is handled.
//! Pure.
//!
//! Invariants:
//!
//! * Every record received before an offset is handled.
//! * A record received in an older epoch moves no offset, even if the partition was reassigned to
//!   this member.
//! * A partition is read only after its start was decided.
//! * An offset is committed in Kafka only if the database has it.

use std::collections::{BTreeMap, BTreeSet};

use postrider_core::record::StoredRecord;

pub(super) type Partition = (String, i32);

#[derive(Debug)]
pub(super) struct ReceivedRecord {
    pub(super) record: StoredRecord,
    pub(super) position: RecordPosition,
}

/// Position of a record, and the epoch in which it was received.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordPosition {
    partition: Partition,
    offset: i64,
    epoch: u64,
}

#[derive(Debug, Default)]
pub(super) struct Assignments {
    partitions: BTreeMap<Partition, Assignment>,
    /// Epoch of the last assignment, from 1.
    epoch: u64,
    /// Partitions that any member of the group has read.
    known: BTreeSet<Partition>,
}

#[derive(Debug)]
struct Assignment {
    epoch: u64,
    /// Whether the start of reading is decided.
    has_begun: bool,
    after_handled: Option<i64>,
    /// Offset after the last received record, or else the start offset.
    expected: Option<i64>,
    /// Offsets of received, unhandled records.
    unhandled: BTreeSet<i64>,
    stored: Option<i64>,
    committed: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unverified {
    pub(super) partition: Partition,
    pub(super) epoch: u64,
    /// Next offset, if this member has handled a record in this assignment.
    pub(super) handled: Option<i64>,
    pub(super) stored: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Advance {
    pub(super) partition: Partition,
    pub(super) epoch: u64,
    /// A smaller offset means that the database has gone back.
    pub(super) at_least: i64,
    /// Every record before this offset is handled.
    pub(super) next: i64,
}

impl RecordPosition {
    pub(super) fn partition(&self) -> &Partition {
        &self.partition
    }
}

impl Assignments {
    pub(super) fn assign(&mut self, partitions: impl IntoIterator<Item = Partition>) {
        self.epoch += 1;
        let epoch = self.epoch;
        self.partitions.extend(partitions.into_iter().map(|it| (it, Assignment::new(epoch))));
    }

    pub(super) fn revoke(&mut self, partitions: &[Partition]) {
        self.partitions.retain(|partition, _| !partitions.contains(partition));
    }

    /// Decides the start of all partitions again, and drops received records.
    pub(super) fn recheck(&mut self) {
        self.epoch += 1;
        for assignment in self.partitions.values_mut() {
            // Unhandled records are received again from this offset.
            assignment.after_handled = assignment.next();
            assignment.expected = assignment.unhandled.first().copied().or(assignment.expected);
            assignment.unhandled.clear();
            assignment.epoch = self.epoch;
            assignment.has_begun = false;
        }
    }

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

    /// Begins to read from `position`, if the assignment still has this epoch.
    pub(super) fn begin(&mut self, partition: &Partition, epoch: u64, position: i64, stored: i64) {
        let assignment = self.partitions.get_mut(partition).filter(|it| it.epoch == epoch);
        if let Some(assignment) = assignment {
            assignment.has_begun = true;
            assignment.expected = Some(position);
            // Keeps the value only if the partition continues at this offset.
            assignment.after_handled = assignment.after_handled.filter(|next| *next == position);
            assignment.stored = Some(stored);
            assignment.committed = None;
            self.known.insert(partition.clone());
        }
    }

    pub(super) fn begun(&self) -> Vec<Partition> {
        let begun = self.partitions.iter().filter(|(_, assignment)| assignment.has_begun);
        begun.map(|(partition, _)| partition.clone()).collect()
    }

    pub(super) fn stored(&self, partition: &Partition) -> Option<i64> {
        self.partitions.get(partition)?.stored
    }

    pub(super) fn set_stored(&mut self, advances: &[Advance]) {
        for Advance { partition, epoch, next, .. } in advances {
            let assignment = self.partitions.get_mut(partition).filter(|it| it.epoch == *epoch);
            if let Some(assignment) = assignment {
                assignment.stored = assignment.stored.max(Some(*next));
            }
        }
    }

    /// Offsets for the transaction that handles these records: per partition, the first record that
    /// is then still unhandled. Omits partitions of other members.
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

    /// Whether the database has a smaller offset than before.
    pub(super) fn is_ahead_of(&self, database: &BTreeMap<Partition, i64>) -> bool {
        let mut begun = self.partitions.iter().filter(|(_, assignment)| assignment.has_begun);
        begun.any(|(partition, assignment)| assignment.stored > database.get(partition).copied())
    }

    pub(super) fn set_known(&mut self, partitions: impl IntoIterator<Item = Partition>) {
        self.known = partitions.into_iter().collect();
    }

    pub(super) fn has_all(&self) -> bool {
        self.known.iter().all(|partition| self.partitions.contains_key(partition))
    }

    pub(super) fn count(&self) -> usize {
        self.partitions.len()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Tags a record with the epoch. `None` if its partition is not read. A repeated offset comes
    /// from another log that ended earlier, so the start is decided again.
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

    /// Whether the partition stayed assigned, without a step back, since the record was received.
    pub(super) fn is_current(&self, position: &RecordPosition) -> bool {
        let assignment = self.partitions.get(&position.partition);
        assignment.is_some_and(|assignment| assignment.epoch == position.epoch)
    }

    /// An offset that may be committed while the record is unhandled. `None` if it is not current.
    pub(super) fn offset_before(&self, position: &RecordPosition) -> Option<(Partition, i64)> {
        let current = self.partitions.get(&position.partition);
        let assignment = current.filter(|assignment| assignment.epoch == position.epoch)?;
        let first = assignment.unhandled.first().copied().unwrap_or(position.offset);
        Some((position.partition.clone(), first.min(assignment.stored?)))
    }

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

    pub(super) fn partitions(&self) -> Vec<Partition> {
        self.partitions.keys().cloned().collect()
    }

    pub(super) fn unknown(&self) -> Vec<Partition> {
        let known = self.partitions.iter().filter(|(_, assignment)| assignment.expected.is_none());
        known.map(|(partition, _)| partition.clone()).collect()
    }

    pub(super) fn set_start(&mut self, offsets: &BTreeMap<Partition, i64>) {
        for (partition, offset) in offsets {
            if let Some(assignment) = self.partitions.get_mut(partition) {
                assignment.expected.get_or_insert(*offset);
            }
        }
    }

    /// Received unhandled messages, and all later offsets up to these high watermarks.
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

    /// Next offset to read after a restart. `None` if no record was handled.
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
