//! Tracks which partitions are assigned to this group member, since when, and up to which offset each is
//! handled.
//!
//! Input: assignments and revocations, received records, handled records, in any order. Output: whether a
//! record is still this member's, the offsets to commit, and the lag. Invariant: an offset to commit has no
//! received record before it that is not handled; each assignment has an epoch, and a record received in an
//! older epoch moves no offset, even if the partition was reassigned to the same member meanwhile. Pure.

use std::collections::{BTreeMap, BTreeSet};

use postrider_core::record::StoredRecord;

/// A partition by its topic and number.
pub(super) type Partition = (String, i32);

/// A record, and the epoch of the assignment in which it was received.
#[derive(Debug)]
pub(super) struct ReceivedRecord {
    pub(super) record: StoredRecord,
    epoch: u64,
}

/// The position of a record, and the epoch of the assignment in which it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

#[derive(Debug)]
struct Assignment {
    epoch: u64,
    /// The offset that it started at, once that was requested.
    start: Option<i64>,
    /// The offset after the last record that was handled in this assignment.
    after_handled: Option<i64>,
    /// Records that were received and are not handled.
    unhandled: BTreeSet<i64>,
}

impl ReceivedRecord {
    /// Its position.
    pub(super) fn position(&self) -> RecordPosition {
        let StoredRecord { topic, partition, offset, .. } = &self.record;
        let partition = (topic.clone(), *partition);
        RecordPosition { partition, offset: *offset, epoch: self.epoch }
    }
}

impl RecordPosition {
    /// Its partition.
    pub(super) fn partition(&self) -> &Partition {
        &self.partition
    }
}

impl Assignments {
    /// These are assigned from now on.
    pub(super) fn assign(&mut self, partitions: impl IntoIterator<Item = Partition>) {
        self.epoch += 1;
        let epoch = self.epoch;
        let new =
            || Assignment { epoch, start: None, after_handled: None, unhandled: BTreeSet::new() };
        self.partitions.extend(partitions.into_iter().map(|partition| (partition, new())));
    }

    /// These are not assigned any more.
    pub(super) fn revoke(&mut self, partitions: &[Partition]) {
        self.partitions.retain(|partition, _| !partitions.contains(partition));
    }

    /// How many are assigned.
    pub(super) fn count(&self) -> usize {
        self.partitions.len()
    }

    /// The epoch of the last assignment; 0 before the first.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Notes that it was received, and tags it with the current epoch; `None` if its partition is not assigned.
    pub(super) fn tag(&mut self, record: StoredRecord) -> Option<ReceivedRecord> {
        let assignment = self.partitions.get_mut(&(record.topic.clone(), record.partition))?;
        assignment.unhandled.insert(record.offset);
        Some(ReceivedRecord { epoch: assignment.epoch, record })
    }

    /// Whether its partition has been assigned ever since it was received.
    pub(super) fn is_current(&self, position: &RecordPosition) -> bool {
        let assignment = self.partitions.get(&position.partition);
        assignment.is_some_and(|assignment| assignment.epoch == position.epoch)
    }

    /// The first record of its partition that is not handled, or itself; `None` if it is not current.
    pub(super) fn first_unhandled(&self, position: &RecordPosition) -> Option<(Partition, i64)> {
        let assignment = self.partitions.get(&position.partition)?;
        let first = assignment.unhandled.first().copied().unwrap_or(position.offset);
        (assignment.epoch == position.epoch).then(|| (position.partition.clone(), first))
    }

    /// Notes that these are handled, and returns the offsets to commit that changed.
    pub(super) fn mark_handled(
        &mut self,
        positions: &[RecordPosition],
    ) -> BTreeMap<Partition, i64> {
        let mut changed = BTreeMap::new();
        for RecordPosition { partition, offset, epoch } in positions {
            let assignment = self.partitions.get_mut(partition);
            if let Some(assignment) = assignment.filter(|it| it.epoch == *epoch) {
                let before = assignment.next();
                assignment.unhandled.remove(offset);
                assignment.after_handled = assignment.after_handled.max(Some(offset + 1));
                if let Some(next) = assignment.next().filter(|_| assignment.next() != before) {
                    changed.insert(partition.clone(), next);
                }
            }
        }
        changed
    }

    /// The offsets to commit, of the partitions that match.
    pub(super) fn handled(&self, wanted: impl Fn(&Partition) -> bool) -> BTreeMap<Partition, i64> {
        let known = self.partitions.iter().filter(|(partition, _)| wanted(partition));
        known
            .filter_map(|(partition, assignment)| Some((partition.clone(), assignment.next()?)))
            .collect()
    }

    /// All assigned partitions.
    pub(super) fn partitions(&self) -> Vec<Partition> {
        self.partitions.keys().cloned().collect()
    }

    /// Those without a known start or next offset.
    pub(super) fn unknown(&self) -> Vec<Partition> {
        let known = self.partitions.iter().filter(|(_, assignment)| assignment.from().is_none());
        known.map(|(partition, _)| partition.clone()).collect()
    }

    /// Sets the start offsets.
    pub(super) fn set_start(&mut self, offsets: &BTreeMap<Partition, i64>) {
        for (partition, offset) in offsets {
            if let Some(assignment) = self.partitions.get_mut(partition) {
                assignment.start = Some(*offset);
            }
        }
    }

    /// Messages that are not handled, up to these high watermarks.
    pub(super) fn lag(&self, ends: &BTreeMap<Partition, i64>) -> u64 {
        let lag = ends.iter().filter_map(|(partition, end)| {
            let from = self.partitions.get(partition)?.from()?;
            u64::try_from(end.saturating_sub(from)).ok()
        });
        lag.sum()
    }
}

impl Assignment {
    /// The next offset to read after a restart, once a record was handled: of the first that is not.
    fn next(&self) -> Option<i64> {
        let after_handled = self.after_handled?;
        Some(self.unhandled.first().map_or(after_handled, |&first| first.min(after_handled)))
    }

    fn from(&self) -> Option<i64> {
        self.next().or(self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(number: i32) -> Partition {
        ("orders".to_owned(), number)
    }

    fn received(assignments: &mut Assignments, number: i32, offset: i64) -> ReceivedRecord {
        let record = StoredRecord {
            topic: "orders".into(),
            partition: number,
            offset,
            ..StoredRecord::default()
        };
        assignments.tag(record).unwrap()
    }

    fn offsets(assignments: &Assignments) -> Vec<(i32, i64)> {
        let handled = assignments.handled(|_| true);
        handled.into_iter().map(|((_, number), next)| (number, next)).collect()
    }

    #[test]
    fn a_reassigned_partition_ignores_records_of_its_older_epoch() {
        let mut assignments = Assignments::default();
        assignments.assign([partition(0), partition(1)]);
        let batch = [received(&mut assignments, 0, 7), received(&mut assignments, 1, 3)];
        let batch = batch.map(|it| it.position());
        assert!(batch.iter().all(|it| assignments.is_current(it)));
        // Both while the batch is being processed.
        assignments.revoke(&[partition(0)]);
        assert!(!assignments.is_current(&batch[0]) && assignments.is_current(&batch[1]));
        assignments.assign([partition(0)]);
        assert!(!assignments.is_current(&batch[0]) && assignments.is_current(&batch[1]));
        // The new assignment is further, because another member had the partition in between.
        let newer = received(&mut assignments, 0, 40);
        let changed = assignments.mark_handled(&[newer.position()]);
        assert_eq!(changed, [(partition(0), 41)].into());
        let changed = assignments.mark_handled(&batch);
        assert_eq!(changed, [(partition(1), 4)].into());
        assert_eq!(offsets(&assignments), [(0, 41), (1, 4)]);
    }

    #[test]
    fn a_reassigned_partition_has_no_offset_to_commit() {
        let mut assignments = Assignments::default();
        assignments.assign([partition(0)]);
        let old = received(&mut assignments, 0, 7);
        assignments.revoke(&[partition(0)]);
        assert!(assignments.mark_handled(&[old.position()]).is_empty());
        assignments.assign([partition(0)]);
        assert!(assignments.mark_handled(&[old.position()]).is_empty());
        assert_eq!(offsets(&assignments), []);
    }

    #[test]
    fn an_offset_waits_for_every_record_before_it() {
        let mut assignments = Assignments::default();
        assignments.assign([partition(0)]);
        let batch = [4, 5, 7].map(|offset| received(&mut assignments, 0, offset).position());
        assert_eq!(assignments.mark_handled(&batch[1..2]), [(partition(0), 4)].into());
        // Nothing that the brokers do not know.
        assert!(assignments.mark_handled(&batch[2..]).is_empty());
        assert_eq!(assignments.first_unhandled(&batch[2]), Some((partition(0), 4)));
        let newer = received(&mut assignments, 0, 8);
        assert_eq!(assignments.mark_handled(&batch[..1]), [(partition(0), 8)].into());
        assert_eq!(assignments.mark_handled(&[newer.position()]), [(partition(0), 9)].into());
        assignments.assign([partition(0)]);
        assert_eq!(assignments.first_unhandled(&batch[2]), None);
    }

    #[test]
    fn a_record_of_a_partition_that_is_not_assigned_is_dropped() {
        let mut assignments = Assignments::default();
        assignments.assign([partition(0)]);
        let record = received(&mut assignments, 0, 1).record;
        assignments.revoke(&[partition(0)]);
        assert!(assignments.tag(record).is_none());
    }

    #[test]
    fn lag_counts_from_the_next_offset_or_else_from_the_start() {
        let mut assignments = Assignments::default();
        assignments.assign([partition(0), partition(1)]);
        let ends = [(partition(0), 10), (partition(1), 10), (partition(2), 10)].into();
        assert_eq!((assignments.unknown().len(), assignments.lag(&ends)), (2, 0));
        assignments.set_start(&[(partition(0), 4), (partition(1), 12), (partition(2), 0)].into());
        assert_eq!((assignments.unknown().len(), assignments.lag(&ends)), (0, 6));
        let first = received(&mut assignments, 0, 4);
        assignments.mark_handled(&[first.position()]);
        assert_eq!(assignments.lag(&ends), 5);
    }
}
