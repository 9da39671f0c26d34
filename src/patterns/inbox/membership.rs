//! Which partitions this member of the group holds, since when, and how far each is settled.
//!
//! Enters: what the group gives and takes, what is received, what is settled. Leaves: whether a record
//! is still this member's, the offsets to commit, and how many messages are left. What always holds:
//! each assignment of a partition has a number, and what was received in an older one moves no offset,
//! also when the partition came back to the same member meanwhile. Pure.

use std::collections::BTreeMap;

use postrider_core::record::StoredRecord;

/// A partition by its topic and number.
pub(super) type Partition = (String, i32);

/// A record, and the assignment in which it came.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) record: StoredRecord,
    assignment: u64,
}

/// Where a record lies, and the assignment in which it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    partition: Partition,
    offset: i64,
    assignment: u64,
}

/// All that is held now.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    held: BTreeMap<Partition, Holding>,
    /// The number of the last assignment, from 1.
    last: u64,
}

#[derive(Debug)]
struct Holding {
    assignment: u64,
    /// The offset that it began at, as far as that was asked for.
    begin: Option<i64>,
    /// The next to read, as far as anything is settled in this assignment.
    next: Option<i64>,
}

impl Received {
    /// Where it lies.
    pub(super) fn place(&self) -> Place {
        let StoredRecord { topic, partition, offset, .. } = &self.record;
        let partition = (topic.clone(), *partition);
        Place { partition, offset: *offset, assignment: self.assignment }
    }
}

impl Holdings {
    /// These are held from now on.
    pub(super) fn assign(&mut self, partitions: impl IntoIterator<Item = Partition>) {
        self.last += 1;
        let assignment = self.last;
        let new = || Holding { assignment, begin: None, next: None };
        self.held.extend(partitions.into_iter().map(|partition| (partition, new())));
    }

    /// These are not held any more.
    pub(super) fn revoke(&mut self, partitions: &[Partition]) {
        self.held.retain(|partition, _| !partitions.contains(partition));
    }

    /// How many are held.
    pub(super) fn count(&self) -> usize {
        self.held.len()
    }

    /// The number of the last assignment; 0 before the first.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// What came just now; `None` if its partition is not held.
    pub(super) fn receive(&self, record: StoredRecord) -> Option<Received> {
        let holding = self.held.get(&(record.topic.clone(), record.partition))?;
        Some(Received { assignment: holding.assignment, record })
    }

    /// Whether its partition has been held ever since it came.
    pub(super) fn holds(&self, received: &Received) -> bool {
        let StoredRecord { topic, partition, .. } = &received.record;
        let holding = self.held.get(&(topic.clone(), *partition));
        holding.is_some_and(|holding| holding.assignment == received.assignment)
    }

    /// Notes that these are settled, and gives the offsets that changed by it.
    pub(super) fn settle(&mut self, places: &[Place]) -> BTreeMap<Partition, i64> {
        let mut changed = BTreeMap::new();
        for Place { partition, offset, assignment } in places {
            let holding = self.held.get_mut(partition);
            if let Some(holding) = holding.filter(|it| it.assignment == *assignment) {
                holding.next = Some(offset + 1);
                changed.insert(partition.clone(), offset + 1);
            }
        }
        changed
    }

    /// The offsets that are settled, of the partitions that are wanted.
    pub(super) fn settled(&self, wanted: impl Fn(&Partition) -> bool) -> BTreeMap<Partition, i64> {
        let held = self.held.iter().filter(|(partition, _)| wanted(partition));
        held.filter_map(|(partition, holding)| Some((partition.clone(), holding.next?))).collect()
    }

    /// All that are held.
    pub(super) fn partitions(&self) -> Vec<Partition> {
        self.held.keys().cloned().collect()
    }

    /// Those of which it is not known how far they are settled.
    pub(super) fn unknown(&self) -> Vec<Partition> {
        let held = self.held.iter().filter(|(_, holding)| holding.from().is_none());
        held.map(|(partition, _)| partition.clone()).collect()
    }

    /// Notes where these began.
    pub(super) fn begin(&mut self, offsets: &BTreeMap<Partition, i64>) {
        for (partition, offset) in offsets {
            if let Some(holding) = self.held.get_mut(partition) {
                holding.begin = Some(*offset);
            }
        }
    }

    /// Messages that are not settled, up to these ends.
    pub(super) fn behind(&self, ends: &BTreeMap<Partition, i64>) -> u64 {
        let behind = ends.iter().filter_map(|(partition, end)| {
            let from = self.held.get(partition)?.from()?;
            u64::try_from(end.saturating_sub(from)).ok()
        });
        behind.sum()
    }
}

impl Holding {
    fn from(&self) -> Option<i64> {
        self.next.or(self.begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(number: i32) -> Partition {
        ("orders".to_owned(), number)
    }

    fn received(holdings: &Holdings, number: i32, offset: i64) -> Received {
        let record = StoredRecord {
            topic: "orders".into(),
            partition: number,
            offset,
            ..StoredRecord::default()
        };
        holdings.receive(record).unwrap()
    }

    fn offsets(holdings: &Holdings) -> Vec<(i32, i64)> {
        let settled = holdings.settled(|_| true);
        settled.into_iter().map(|((_, number), next)| (number, next)).collect()
    }

    #[test]
    fn a_partition_that_came_back_is_not_settled_by_what_came_before() {
        let mut holdings = Holdings::default();
        holdings.assign([partition(0), partition(1)]);
        let batch = [received(&holdings, 0, 7), received(&holdings, 1, 3)];
        assert!(batch.iter().all(|it| holdings.holds(it)));
        // Both while the batch is at hand.
        holdings.revoke(&[partition(0)]);
        assert!(!holdings.holds(&batch[0]) && holdings.holds(&batch[1]));
        holdings.assign([partition(0)]);
        assert!(!holdings.holds(&batch[0]) && holdings.holds(&batch[1]));
        // The new assignment is further, whoever it was that held the partition in between.
        let newer = received(&holdings, 0, 40);
        let changed = holdings.settle(&[newer.place()]);
        assert_eq!(changed, [(partition(0), 41)].into());
        let changed = holdings.settle(&batch.map(|it| it.place()));
        assert_eq!(changed, [(partition(1), 4)].into());
        assert_eq!(offsets(&holdings), [(0, 41), (1, 4)]);
    }

    #[test]
    fn nothing_is_settled_of_what_just_came_back() {
        let mut holdings = Holdings::default();
        holdings.assign([partition(0)]);
        let old = received(&holdings, 0, 7);
        holdings.revoke(&[partition(0)]);
        assert!(holdings.settle(&[old.place()]).is_empty());
        holdings.assign([partition(0)]);
        assert!(holdings.settle(&[old.place()]).is_empty());
        assert_eq!(offsets(&holdings), []);
    }

    #[test]
    fn what_is_not_held_is_not_received() {
        let mut holdings = Holdings::default();
        holdings.assign([partition(0)]);
        let record = received(&holdings, 0, 1).record;
        holdings.revoke(&[partition(0)]);
        assert!(holdings.receive(record).is_none());
    }

    #[test]
    fn what_is_left_counts_from_what_is_settled_or_else_from_the_beginning() {
        let mut holdings = Holdings::default();
        holdings.assign([partition(0), partition(1)]);
        let ends = [(partition(0), 10), (partition(1), 10), (partition(2), 10)].into();
        assert_eq!((holdings.unknown().len(), holdings.behind(&ends)), (2, 0));
        holdings.begin(&[(partition(0), 4), (partition(1), 12), (partition(2), 0)].into());
        assert_eq!((holdings.unknown().len(), holdings.behind(&ends)), (0, 6));
        let first = received(&holdings, 0, 4);
        holdings.settle(&[first.place()]);
        assert_eq!(holdings.behind(&ends), 5);
    }
}
