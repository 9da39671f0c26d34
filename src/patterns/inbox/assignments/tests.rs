//! Tests changing assignments, records handled in any order, and databases that go back.

use super::*;

fn partition(number: i32) -> Partition {
    ("orders".to_owned(), number)
}

fn begin(assignments: &mut Assignments) {
    for Unverified { partition, epoch, .. } in assignments.unverified() {
        assignments.begin(&partition, epoch, 0, 0);
    }
}

fn received(assignments: &mut Assignments, number: i32, offset: i64) -> RecordPosition {
    let record = StoredRecord {
        topic: "orders".into(),
        partition: number,
        offset,
        ..StoredRecord::default()
    };
    assignments.tag(record).unwrap().position
}

fn offsets(assignments: &mut Assignments) -> Vec<(i32, i64)> {
    let steps = assignments.not_stored();
    assignments.set_stored(&steps);
    numbers(assignments.to_commit(|_| true))
}

fn numbers(offsets: BTreeMap<Partition, i64>) -> Vec<(i32, i64)> {
    offsets.into_iter().map(|((_, number), next)| (number, next)).collect()
}

fn steps(advances: &[Advance]) -> Vec<(i32, i64, i64)> {
    advances.iter().map(|it| (it.partition.1, it.at_least, it.next)).collect()
}

#[test]
fn a_reassigned_partition_ignores_records_of_its_older_epoch() {
    let mut assignments = Assignments::default();
    assignments.assign([partition(0), partition(1)]);
    begin(&mut assignments);
    let batch = [received(&mut assignments, 0, 7), received(&mut assignments, 1, 3)];
    assert!(batch.iter().all(|it| assignments.is_current(it)));
    assignments.revoke(&[partition(0)]);
    assert!(!assignments.is_current(&batch[0]) && assignments.is_current(&batch[1]));
    assignments.assign([partition(0)]);
    begin(&mut assignments);
    assert!(!assignments.is_current(&batch[0]) && assignments.is_current(&batch[1]));
    assert_eq!(steps(&assignments.advances(&batch)), [(1, 0, 4)]);
    // The new assignment starts further ahead, because another member had the partition in between.
    let newer = received(&mut assignments, 0, 40);
    assignments.mark_handled([&newer]);
    assert_eq!(offsets(&mut assignments), [(0, 41)]);
    assignments.mark_handled(&batch);
    assert_eq!(offsets(&mut assignments), [(0, 41), (1, 4)]);
}

#[test]
fn a_reassigned_partition_has_no_offset_to_commit() {
    let mut assignments = Assignments::default();
    assignments.assign([partition(0)]);
    begin(&mut assignments);
    let old = received(&mut assignments, 0, 7);
    assignments.revoke(&[partition(0)]);
    assignments.mark_handled([&old]);
    assignments.assign([partition(0)]);
    begin(&mut assignments);
    assignments.mark_handled([&old]);
    assert_eq!(assignments.offset_before(&old), None);
    assert_eq!(offsets(&mut assignments), []);
}

#[test]
fn an_offset_passes_no_record_that_is_not_handled() {
    let mut assignments = Assignments::default();
    assignments.assign([partition(0), partition(1)]);
    assignments.begin(&partition(0), 1, 4, 4);
    assignments.begin(&partition(1), 1, 20, 20);
    let batch = [4, 5, 7].map(|offset| received(&mut assignments, 0, offset));
    let other = received(&mut assignments, 1, 20);
    assert_eq!(steps(&assignments.advances(&batch[..1])), [(0, 4, 5)]);
    assert_eq!(steps(&assignments.advances(&batch[1..])), [(0, 4, 4)]);
    let all = [&batch[..], &[other]].concat();
    assert_eq!(steps(&assignments.advances(&all)), [(0, 4, 8), (1, 20, 21)]);

    assignments.mark_handled(&batch[1..2]);
    assert_eq!(steps(&assignments.advances(&batch[2..])), [(0, 4, 4)]);
    assert_eq!(steps(&assignments.advances(&batch[..1])), [(0, 4, 6)]);
    assert_eq!(offsets(&mut assignments), [(0, 4)]);
    assignments.mark_handled(&batch[2..]);
    let newer = received(&mut assignments, 0, 8);
    assert_eq!(steps(&assignments.advances(std::slice::from_ref(&newer))), [(0, 4, 4)]);
    let step = assignments.advances(&batch[..1]);
    assert_eq!(steps(&step), [(0, 4, 8)]);
    assignments.mark_handled(&batch[..1]);
    assignments.set_stored(&step);
    assert_eq!(steps(&assignments.advances(&[newer])), [(0, 8, 9)]);
    assert_eq!(offsets(&mut assignments), [(0, 8)]);
}

#[test]
fn kafka_is_told_what_it_does_not_know() {
    let mut assignments = Assignments::default();
    assignments.assign([partition(0)]);
    begin(&mut assignments);
    let batch = [0, 1, 2].map(|offset| received(&mut assignments, 0, offset));
    assignments.mark_handled(&batch[1..2]);
    assert_eq!(numbers(assignments.take_changed()), [(0, 0)]);
    assignments.mark_handled(&batch[2..]);
    assert_eq!(numbers(assignments.take_changed()), []);
    assignments.mark_handled(&batch[..1]);
    assert_eq!(numbers(assignments.take_changed()), []);
    assert_eq!(offsets(&mut assignments), [(0, 3)]);
    assert_eq!(numbers(assignments.take_changed()), [(0, 3)]);
    assert_eq!(numbers(assignments.take_changed()), []);
}

#[test]
fn a_record_of_a_partition_that_is_not_assigned_is_dropped() {
    let mut assignments = Assignments::default();
    assignments.assign([partition(0)]);
    let record = StoredRecord { topic: "orders".into(), ..StoredRecord::default() };
    assert!(assignments.tag(record.clone()).is_none());
    begin(&mut assignments);
    assert!(assignments.tag(record.clone()).is_some());
    assignments.revoke(&[partition(0)]);
    assert!(assignments.tag(record).is_none());
}

#[test]
fn kafka_is_told_no_more_than_the_database_has() {
    let mut assignments = Assignments::default();
    assignments.assign([partition(0)]);
    assignments.begin(&partition(0), 1, 5, 5);
    let position = received(&mut assignments, 0, 7);
    let waiting = received(&mut assignments, 0, 8);
    assignments.mark_handled([&position]);
    assert_eq!(numbers(assignments.to_commit(|_| true)), [(0, 5)]);
    assert_eq!(assignments.offset_before(&waiting), Some((partition(0), 5)));
    let step = assignments.not_stored();
    assert_eq!(steps(&step), [(0, 5, 8)]);
    assignments.set_stored(&[Advance { epoch: 0, ..step[0].clone() }]);
    assert_eq!(numbers(assignments.to_commit(|_| true)), [(0, 5)]);
    assignments.set_stored(&step);
    assert_eq!(numbers(assignments.to_commit(|_| true)), [(0, 8)]);
    assert_eq!(assignments.offset_before(&waiting), Some((partition(0), 8)));
    assert_eq!(assignments.not_stored(), []);
    assignments.recheck();
    assignments.begin(&partition(0), 2, 2, 8);
    let position = received(&mut assignments, 0, 2);
    assignments.mark_handled([&position]);
    assert_eq!(numbers(assignments.to_commit(|_| true)), [(0, 3)]);
}

#[test]
fn a_database_that_went_back_is_noticed_and_what_was_received_is_dropped() {
    let mut assignments = Assignments::default();
    assignments.assign([partition(0), partition(1)]);
    assignments.begin(&partition(0), 1, 5, 5);
    let waiting = received(&mut assignments, 0, 5);
    assert!(!assignments.is_ahead_of(&[(partition(0), 5)].into()));
    assert!(!assignments.is_ahead_of(&[(partition(0), 6)].into()));
    assert!(assignments.is_ahead_of(&[(partition(0), 4)].into()));
    assert!(assignments.is_ahead_of(&BTreeMap::new()));
    assignments.recheck();
    assert!(!assignments.is_current(&waiting) && assignments.begun().is_empty());
    let stored: Vec<_> = assignments.unverified().iter().map(|it| it.stored).collect();
    assert_eq!(stored, [Some(5), None]);
}

#[test]
fn what_is_decided_anew_is_read_from_the_first_record_that_is_not_handled() {
    let mut assignments = Assignments::default();
    assignments.assign([partition(0)]);
    begin(&mut assignments);
    let batch = [0, 1, 2].map(|offset| received(&mut assignments, 0, offset));
    assignments.mark_handled([&batch[0], &batch[2]]);
    assignments.recheck();
    assert_eq!(assignments.unverified()[0].handled, Some(1));
    assignments.begin(&partition(0), 2, 1, 0);
    assignments.mark_handled(&batch);
    assert_eq!(offsets(&mut assignments), [(0, 1)]);
    let again = [1, 2].map(|offset| received(&mut assignments, 0, offset));
    assert_eq!(steps(&assignments.advances(&again)), [(0, 1, 3)]);
}

#[test]
fn lag_counts_only_messages_that_are_not_handled() {
    let mut assignments = Assignments::default();
    assignments.assign([partition(0), partition(1)]);
    let ends = [(partition(0), 10), (partition(1), 10), (partition(2), 10)].into();
    assert_eq!((assignments.unknown().len(), assignments.lag(&ends)), (2, 0));
    assignments.set_start(&[(partition(0), 4), (partition(1), 12), (partition(2), 0)].into());
    assert_eq!((assignments.unknown().len(), assignments.lag(&ends)), (0, 6));
    assignments.begin(&partition(0), 1, 4, 4);
    // Offset 6 is the end of a Kafka transaction.
    let batch = [4, 5, 7].map(|offset| received(&mut assignments, 0, offset));
    assert_eq!(assignments.lag(&ends), 5);
    assignments.mark_handled(&batch[1..]);
    assert_eq!(assignments.lag(&ends), 3);
    assignments.recheck();
    assert_eq!(assignments.lag(&ends), 6);
    assignments.begin(&partition(0), 2, 4, 4);
    assert_eq!(assignments.lag(&ends), 6);
}

#[test]
fn a_member_has_all_partitions_only_without_those_that_others_have_read() {
    let mut assignments = Assignments::default();
    assignments.assign([partition(0), partition(1)]);
    begin(&mut assignments);
    assert!(assignments.has_all());
    assignments.set_known([0, 1, 2].map(partition));
    assert!(!assignments.has_all(), "another member has read one");
    assignments.assign([partition(2)]);
    assert!(assignments.has_all());
    assignments.revoke(&[partition(0)]);
    assert!(!assignments.has_all());
}
