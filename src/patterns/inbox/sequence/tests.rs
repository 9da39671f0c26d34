//! Tests: for any order of arrival, each aggregate's messages are handled by number, each once.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tokio::time::Instant;

use postrider_core::record::StoredRecord;

use super::*;
use crate::inbox::MessageFormat;
use crate::inbox::assignments::{Assignments, RecordPosition};

fn position() -> RecordPosition {
    let mut assignments = Assignments::default();
    let partition = ("orders".to_owned(), 0);
    assignments.assign([partition.clone()]);
    assignments.begin(&partition, 1, 0, 0);
    let record = StoredRecord { topic: "orders".into(), ..StoredRecord::default() };
    assignments.tag(record).unwrap().position
}

fn message(aggregate: &str, number: i64) -> Pending {
    let header = |name: &str, value: String| (name.to_owned(), Some(value.into_bytes()));
    let record = StoredRecord {
        topic: "orders".into(),
        key: Some(aggregate.as_bytes().to_vec()),
        headers: vec![
            header("id", Uuid::now_v7().to_string()),
            header("event_type", "OrderPlaced".to_owned()),
            header("sequence", number.to_string()),
        ],
        ..StoredRecord::default()
    };
    Pending::new(Message::read(record, &MessageFormat::new()).unwrap(), position())
}

fn numbers(messages: &[Pending]) -> Vec<(&str, i64)> {
    let number = |it: &Pending| it.message.sequence.unwrap();
    messages.iter().map(|it| (it.message.aggregate_id.as_str(), number(it))).collect()
}

fn ids(messages: &[Pending]) -> HashSet<Uuid> {
    messages.iter().map(|pending| pending.message.id).collect()
}

type Steps = Vec<(i64, Option<i64>)>;

fn checked(
    messages: &[Pending],
    lasts: &[(&str, i64)],
    start: SequenceStart,
) -> Result<Steps, Vec<(usize, Option<i64>)>> {
    let last = |(id, last): &(&str, i64)| ((String::new(), (*id).to_owned()), *last);
    let lasts = lasts.iter().map(last).collect();
    let steps = check(messages, ids(messages), &lasts, start);
    let steps = steps.map(|steps| steps.iter().map(|step| (step.last, step.was)).collect());
    steps.map_err(|misplaced| misplaced.iter().map(|it| (it.at, it.last)).collect())
}

#[test]
fn what_is_one_more_than_the_last_is_next_and_nothing_else_is() {
    let batch = [message("a", 3), message("b", 8), message("a", 4)];
    let lasts = [("a", 2), ("b", 7)];
    assert_eq!(checked(&batch, &lasts, SequenceStart::One), Ok(vec![(4, Some(2)), (8, Some(7))]));
    let batch = [message("a", 4), message("a", 5), message("b", 7)];
    let expected = vec![(0, Some(2)), (1, Some(2)), (2, Some(7))];
    assert_eq!(checked(&batch, &lasts, SequenceStart::FirstSeen), Err(expected));
}

#[test]
fn an_aggregate_begins_with_one_or_with_what_is_seen_first() {
    let batch = [message("a", 5), message("a", 6)];
    assert_eq!(checked(&batch, &[], SequenceStart::FirstSeen), Ok(vec![(6, None)]));
    assert_eq!(checked(&batch, &[], SequenceStart::One), Err(vec![(0, None), (1, None)]));
    let batch = [message("a", 1), message("a", 2)];
    assert_eq!(checked(&batch, &[], SequenceStart::One), Ok(vec![(2, None)]));
}

#[test]
fn a_gap_is_skipped_by_a_message_that_may_and_a_late_one_may_not() {
    let may_skip = |number| Pending { may_skip: true, ..message("a", number) };
    let batch = [may_skip(5), message("a", 6)];
    assert_eq!(checked(&batch, &[("a", 2)], SequenceStart::One), Ok(vec![(6, Some(2))]));
    let late = checked(&[may_skip(2)], &[("a", 2)], SequenceStart::One);
    assert_eq!(late, Err(vec![(0, Some(2))]));
}

#[test]
fn what_was_handled_before_or_has_no_number_is_no_step() {
    let mut unnumbered = message("a", 1);
    unnumbered.message.sequence = None;
    let batch = [message("a", 9), unnumbered];
    assert_eq!(check(&batch, HashSet::new(), &BTreeMap::new(), SequenceStart::One), Ok(vec![]));
    let twice = || {
        let mut twice = [message("a", 3), message("a", 3)];
        twice[1].message.id = twice[0].message.id;
        twice
    };
    let twice = twice();
    assert_eq!(checked(&twice, &[("a", 2)], SequenceStart::One), Ok(vec![(3, Some(2))]));
}

#[test]
fn a_batch_is_put_in_order_within_the_places_of_each_aggregate() {
    let batch = ["a3", "b9", "a1", "b8", "a2"];
    let batch = batch.map(|text| message(&text[..1], text[1..].parse().unwrap()));
    let arranged = arrange(batch.into());
    assert_eq!(numbers(&arranged), [("a", 1), ("b", 8), ("a", 2), ("b", 9), ("a", 3)]);
}

fn buffer(buffer_max: usize, start: SequenceStart) -> ReorderBuffer {
    let spec = SequenceSpec { buffer_max, start, ..SequenceSpec::default() };
    ReorderBuffer::new(spec, Instant::now())
}

fn ids_of(ids: &[&str]) -> BTreeSet<Aggregate> {
    ids.iter().map(|id| (String::new(), (*id).to_owned())).collect()
}

#[test]
fn what_waits_in_vain_is_given_up_and_progress_begins_the_wait_anew() {
    let (mut buffer, begin) = (buffer(10, SequenceStart::One), Instant::now());
    let (minute, none) = (Duration::from_mins(1), BTreeSet::new());
    buffer.hold(message("a", 5), Some(2), begin);
    buffer.hold(message("b", 5), Some(2), begin);
    assert!(buffer.follow(message("a", 4), begin).is_none());
    assert!(buffer.follow(message("a", 3), begin).is_some());
    buffer.reach(&(String::new(), "a".into()), 3, begin + minute / 2);
    assert_eq!(numbers(&buffer.take_ready()), [("a", 4), ("a", 5)]);
    buffer.hold(message("a", 9), Some(5), begin + minute / 2);
    assert!(buffer.take_given_up(&none, false, begin + minute / 2).is_none());
    let given_up = buffer.take_given_up(&none, false, begin + minute).unwrap();
    assert_eq!((numbers(&given_up.messages), given_up.last), (vec![("b", 5)], Some(2)));
    assert!(buffer.take_given_up(&ids_of(&["a"]), false, begin + 2 * minute).is_none());
    assert!(buffer.take_given_up(&none, false, begin + 2 * minute).is_none());
    assert!(buffer.take_given_up(&none, false, begin + 3 * minute).is_some());
    assert_eq!((buffer.len(), buffer.next_due()), (0, None));
}

#[test]
fn the_aggregate_that_has_most_is_given_up_early_if_no_partition_can_be_read() {
    let (mut buffer, begin) = (buffer(4, SequenceStart::One), Instant::now());
    let now = begin + Duration::from_secs(10);
    let (none, all) = (BTreeSet::new(), ids_of(&["a", "b"]));
    for (aggregate, number) in [("a", 7), ("b", 3), ("b", 5), ("b", 4)] {
        assert!(buffer.take_given_up(&none, true, now).is_none() && !buffer.is_over());
        buffer.hold(message(aggregate, number), Some(1), begin);
    }
    assert_eq!(buffer.take_check(now).len(), 2);
    assert!(buffer.is_over());
    assert!(buffer.take_given_up(&all, true, begin).is_none() && !buffer.is_over());
    assert_eq!(buffer.behind_retried().count(), buffer.len());
    assert!(buffer.take_given_up(&none, false, now).is_none());
    assert!(buffer.take_given_up(&none, true, begin + Duration::from_secs(9)).is_none());
    let given_up = buffer.take_given_up(&none, true, now).unwrap();
    assert_eq!(numbers(&given_up.messages), [("b", 3), ("b", 4), ("b", 5)]);
    assert!(buffer.take_given_up(&none, true, now).is_none() && buffer.len() == 1);
    buffer.retain(|_| false);
    assert_eq!(buffer.len(), 0);
    // A message behind a known gap has already waited. After progress it waits as usual.
    buffer.hold(message("b", 6), Some(1), now);
    assert!(buffer.take_given_up(&none, false, now + Duration::from_secs(9)).is_none());
    assert!(buffer.take_given_up(&none, false, now + Duration::from_secs(10)).is_some());
    buffer.hold(message("b", 6), Some(4), now);
    assert!(buffer.take_given_up(&none, false, now + Duration::from_secs(59)).is_none());
}

#[test]
fn after_a_new_assignment_messages_wait_as_long_again() {
    let (mut buffer, begin) = (buffer(10, SequenceStart::One), Instant::now());
    let (minute, none) = (Duration::from_mins(1), BTreeSet::new());
    buffer.follow_assignment(1, begin);
    buffer.hold(message("a", 5), Some(2), begin);
    buffer.follow_assignment(1, begin + minute / 2);
    buffer.follow_assignment(2, begin + minute / 2);
    assert!(buffer.take_given_up(&none, false, begin + minute).is_none());
    assert!(buffer.take_given_up(&none, false, begin + minute * 3 / 2).is_some());
}

proptest! {
    /// Acts like a consumer. Another member handles some of the messages, and this one asks the
    /// database about them.
    #[test]
    fn whatever_the_order_of_arrival_numbers_are_handled_in_order_and_once(
        arrivals in Just((0..3).flat_map(|a| (1..=8).map(move |n| (a, n))).collect::<Vec<_>>())
            .prop_shuffle(),
        sizes in prop::collection::vec(1..6_usize, 24),
        others in prop::collection::vec(any::<bool>(), 24),
    ) {
        let (mut buffer, now) = (buffer(100, SequenceStart::One), Instant::now());
        let mut database: BTreeMap<Aggregate, i64> = BTreeMap::new();
        let mut handled: Vec<(String, i64)> = Vec::new();
        let mut elsewhere: Vec<(Aggregate, i64)> = Vec::new();
        let mut arrivals = arrivals.into_iter().zip(others);
        for size in sizes {
            let mut batch = Vec::new();
            for ((aggregate, number), is_others) in arrivals.by_ref().take(size) {
                let pending = message(&aggregate.to_string(), number);
                if is_others {
                    elsewhere.push(place(&pending.message).unwrap());
                } else {
                    batch.extend(buffer.follow(pending, now));
                }
            }
            elsewhere.sort();
            elsewhere.retain(|(aggregate, number)| {
                let is_next = database.get(aggregate).copied().unwrap_or(0) + 1 == *number;
                if is_next {
                    database.insert(aggregate.clone(), *number);
                    handled.push((aggregate.1.clone(), *number));
                }
                !is_next
            });
            for (aggregate, last) in &database {
                buffer.reach(aggregate, *last, now);
            }
            batch.extend(buffer.take_ready());
            while !batch.is_empty() {
                batch = arrange(batch);
                match check(&batch, ids(&batch), &database, SequenceStart::One) {
                    Ok(steps) => {
                        handled.extend(numbers(&batch).iter().map(|(a, n)| ((*a).to_owned(), *n)));
                        for SequenceStep { aggregate, last, .. } in steps {
                            buffer.reach(&aggregate, last, now);
                            database.insert(aggregate, last);
                        }
                        batch = buffer.take_ready();
                    }
                    Err(misplaced) => {
                        for it in misplaced.iter().rev() {
                            buffer.hold(batch.remove(it.at), it.last, now);
                        }
                    }
                }
            }
        }
        for aggregate in 0..3 {
            let name = aggregate.to_string();
            let own = handled.iter().filter(|(id, _)| *id == name).map(|(_, number)| *number);
            let own: Vec<i64> = own.collect();
            let waiting = elsewhere.iter().filter(|((_, id), _)| *id == name).count();
            prop_assert!(own.iter().copied().eq(1..=i64::try_from(own.len()).unwrap()), "{own:?}");
            // An unhandled message waits for one that the other member has not reached.
            prop_assert!(own.len() == 8 || waiting > 0);
        }
    }
}
