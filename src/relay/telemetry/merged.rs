//! Adds up the snapshots of parallel workers, so that observers see one relay. The result is ready
//! only if every worker is ready.

use super::snapshot::{Count, Snapshot, TopicCount};

pub(super) fn merged<'a>(parts: impl Iterator<Item = &'a Snapshot>) -> Snapshot {
    parts.cloned().reduce(both).unwrap_or_default()
}

fn both(one: Snapshot, other: Snapshot) -> Snapshot {
    let state = if one.state.rank() >= other.state.rank() { one.state } else { other.state };
    let of_one = one.last_failure.is_some() && (state == one.state || other.last_failure.is_none());
    let (last_failure, failed_part, failure_help) = if of_one {
        (one.last_failure, one.failed_part, one.failure_help)
    } else {
        (other.last_failure, other.failed_part, other.failure_help)
    };
    let has_gone = one.unavailable.named.is_empty();
    Snapshot {
        state,
        last_failure,
        failed_part,
        is_polled: one.is_polled || other.is_polled,
        failure_help,
        holds_slot: one.holds_slot && other.holds_slot,
        broker_connected: one.broker_connected && other.broker_connected,
        unconfirmed_for: one.unconfirmed_for.max(other.unconfirmed_for),
        // The workers share one view of the topics.
        unavailable: if has_gone { other.unavailable } else { one.unavailable },
        received_lsn: one.received_lsn.max(other.received_lsn),
        settled_lsn: one.settled_lsn.max(other.settled_lsn),
        last_progress: one.last_progress.zip(other.last_progress).map(|(a, b)| a.min(b)),
        messages: counts(one.messages, &other.messages),
        received_bytes: one.received_bytes + other.received_bytes,
        topics: topics(one.topics, &other.topics),
        // Workers poll, and do not read the log.
        catch_up: None,
        confirmed: one.confirmed + other.confirmed,
        rejections: counts(one.rejections, &other.rejections),
        ignored: counts(one.ignored, &other.ignored),
        transactions_settled: one.transactions_settled + other.transactions_settled,
        in_flight_records: one.in_flight_records + other.in_flight_records,
        in_flight_bytes: one.in_flight_bytes + other.in_flight_bytes,
        locked_rows: one.locked_rows.or(other.locked_rows),
        back_pressure: one.back_pressure + other.back_pressure,
        commit_to_confirm: one.commit_to_confirm.and(&other.commit_to_confirm),
        exemplars: one.exemplars.and(&other.exemplars),
        oldest_unacknowledged_us: [one.oldest_unacknowledged_us, other.oldest_unacknowledged_us]
            .into_iter()
            .flatten()
            .min(),
        restarts: counts(one.restarts, &other.restarts),
    }
}

fn counts(mut one: Vec<Count>, other: &[Count]) -> Vec<Count> {
    for (name, count) in other {
        match one.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += count,
            None => one.push((name, *count)),
        }
    }
    one
}

fn topics(mut one: Vec<TopicCount>, other: &[TopicCount]) -> Vec<TopicCount> {
    for count in other {
        match one.iter_mut().find(|known| known.topic == count.topic) {
            Some(sum) => {
                sum.sent += count.sent;
                sum.dead_lettered += count.dead_lettered;
                sum.bytes += count.bytes;
            }
            None => one.push(count.clone()),
        }
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::RelayState;

    #[test]
    fn counts_are_sums_and_the_state_is_that_of_the_one_that_delivers_least() {
        let topic =
            |name: &str, sent| TopicCount { topic: name.into(), sent, dead_lettered: 1, bytes: 10 };
        let part = |state, sent, oldest| Snapshot {
            state,
            holds_slot: true,
            topics: vec![topic("a", sent)],
            restarts: vec![("kafka", 1)],
            oldest_unacknowledged_us: oldest,
            confirmed: sent,
            ..Snapshot::default()
        };
        let parts = [
            part(RelayState::Streaming, 3, None),
            Snapshot { topics: vec![topic("b", 7)], ..part(RelayState::Retrying, 4, Some(9)) },
            part(RelayState::Stopped, 5, Some(7)),
        ];
        let all = merged(parts.iter());
        assert_eq!((all.state, all.confirmed), (RelayState::Retrying, 12));
        assert_eq!(all.oldest_unacknowledged_us, Some(7));
        assert_eq!(all.restarts, [("kafka", 3)]);
        let sent: Vec<_> = all.topics.iter().map(|count| (&*count.topic, count.sent)).collect();
        assert_eq!(sent, [("a", 8), ("b", 7)]);
    }
}
