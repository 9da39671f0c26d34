//! The independent checker: what was committed against what lies in the topics.
//!
//! Input: the oracle's transactions, the records, the status updates. Output: a [`Verdict`]. It
//! knows rows by the `id` header alone, so ids must be unique in a run.

use std::collections::HashMap;

use super::oracle::Committed;
use super::status_log::Status;
use super::topic::Stored;

/// Everything that can be wrong, by the ids it is wrong with.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Rows that were committed.
    pub committed: usize,
    /// Committed rows that lie in a topic, dead letters included.
    pub delivered: usize,
    /// Committed, in no topic.
    pub lost: Vec<String>,
    /// Delivered again, once per surplus record.
    pub duplicated: Vec<String>,
    /// In a topic, never committed.
    pub phantom: Vec<String>,
    /// First delivered after a row of the same key and partition that was committed later.
    pub out_of_order: Vec<String>,
    /// Acknowledged to Postgres before they were in a topic, or beyond what Postgres had sent.
    pub unsafe_acknowledgements: Vec<String>,
}

impl Verdict {
    /// Asserts that every committed row is there exactly once, in order, and safely acknowledged.
    pub fn assert_exactly_once(&self) {
        self.assert_at_least_once();
        assert!(self.duplicated.is_empty(), "duplicated: {self:?}");
    }

    /// The same, except that rows may be there again.
    pub fn assert_at_least_once(&self) {
        let sound = self.lost.is_empty()
            && self.phantom.is_empty()
            && self.out_of_order.is_empty()
            && self.unsafe_acknowledgements.is_empty();
        assert!(sound, "{self:?}");
    }
}

/// Judges a run.
pub fn judge(committed: &[Committed], records: &[Stored], statuses: &[Status]) -> Verdict {
    let order = order_of(committed);
    let mut copies: HashMap<&str, Vec<&Stored>> = HashMap::new();
    for record in records {
        copies.entry(id_of(record)).or_default().push(record);
    }
    let mut verdict = Verdict { committed: order.len(), ..Verdict::default() };
    // Offsets order one partition; records of one key and topic share theirs.
    let mut last: HashMap<(&str, i32, Option<&[u8]>), usize> = HashMap::new();
    for record in records {
        let id = id_of(record);
        let Some(&place) = order.get(id) else {
            verdict.phantom.push(id.to_owned());
            continue;
        };
        let copies = &copies[id];
        if !std::ptr::eq(copies[0], record) {
            verdict.duplicated.push(id.to_owned());
            continue;
        }
        // Without a key the copy that is read first may be the later one, from another partition.
        if record.key.is_none() && copies.len() > 1 {
            continue;
        }
        let lane = (record.topic.as_str(), record.partition, record.key.as_deref());
        let highest = last.entry(lane).or_insert(place);
        if place < *highest {
            verdict.out_of_order.push(id.to_owned());
        }
        *highest = place.max(*highest);
    }
    verdict.delivered = copies.keys().filter(|id| order.contains_key(*id)).count();
    let is_lost = |id: &&String| !copies.contains_key(id.as_str());
    let ids = committed.iter().flat_map(|transaction| &transaction.ids);
    verdict.lost = ids.filter(is_lost).cloned().collect();
    verdict.unsafe_acknowledgements = unsafe_acknowledgements(committed, &copies, statuses);
    verdict
}

fn id_of(record: &Stored) -> &str {
    record.header("id").unwrap_or("(no id)")
}

fn order_of(committed: &[Committed]) -> HashMap<&str, usize> {
    let ids = committed.iter().flat_map(|transaction| &transaction.ids);
    let mut order = HashMap::new();
    for (place, id) in ids.enumerate() {
        assert!(order.insert(id.as_str(), place).is_none(), "id {id} was committed twice");
    }
    order
}

/// G1: when a status update left for Postgres, every row at or below its flush position was in a
/// topic, in whichever of its copies; and no position was beyond what Postgres had sent.
fn unsafe_acknowledgements(
    committed: &[Committed],
    copies: &HashMap<&str, Vec<&Stored>>,
    statuses: &[Status],
) -> Vec<String> {
    let mut found = Vec::new();
    let mut checked = 0;
    for status in statuses {
        if status.flush.max(status.write).max(status.apply) > status.sent {
            found.push(format!("acknowledged beyond what was sent: {:X}", status.flush));
        }
        let ends: HashMap<(&str, i32), i64> = status
            .ends
            .iter()
            .map(|(topic, partition, end)| ((topic.as_str(), *partition), *end))
            .collect();
        // Ends only grow, so what one status update covered need not be looked at again.
        let covered = committed.partition_point(|one| one.end_lsn <= status.flush).max(checked);
        for id in committed[checked..covered].iter().flat_map(|one| &one.ids) {
            let is_stored = |copy: &&Stored| {
                let end = ends.get(&(copy.topic.as_str(), copy.partition));
                end.is_some_and(|end| copy.offset < *end)
            };
            if !copies.get(id.as_str()).is_some_and(|copies| copies.iter().any(is_stored)) {
                found.push(id.clone());
            }
        }
        checked = covered;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(end_lsn: u64, ids: &[&str]) -> Committed {
        Committed { end_lsn, ids: ids.iter().map(ToString::to_string).collect() }
    }

    fn record(offset: i64, id: &str) -> Stored {
        Stored {
            topic: "t".into(),
            partition: 0,
            offset,
            key: Some(b"k".to_vec()),
            value: None,
            headers: vec![("id".into(), Some(id.into()))],
            timestamp_ms: None,
        }
    }

    fn status(flush: u64, sent: u64, end: i64) -> Status {
        Status { write: sent, flush, apply: flush, sent, ends: vec![("t".into(), 0, end)] }
    }

    #[test]
    fn a_sound_run_has_nothing_against_it() {
        let committed = [transaction(10, &["a", "b"]), transaction(20, &["c"])];
        let records = [record(0, "a"), record(1, "b"), record(2, "c")];
        let verdict = judge(&committed, &records, &[status(10, 20, 2), status(20, 20, 3)]);
        verdict.assert_exactly_once();
        assert_eq!((verdict.committed, verdict.delivered), (3, 3));
    }

    #[test]
    fn each_fault_is_seen() {
        let committed = [transaction(10, &["a", "b"]), transaction(20, &["c"])];
        let records = [record(0, "b"), record(1, "a"), record(2, "a"), record(3, "x")];
        let verdict = judge(&committed, &records, &[]);
        assert_eq!(verdict.lost, ["c"]);
        assert_eq!(verdict.out_of_order, ["a"]);
        assert_eq!(verdict.duplicated, ["a"]);
        assert_eq!(verdict.phantom, ["x"]);
    }

    #[test]
    fn g1_an_acknowledgement_ahead_of_the_topic_is_seen() {
        let committed = [transaction(10, &["a"]), transaction(20, &["b"])];
        let records = [record(0, "a"), record(1, "b")];
        let verdict = judge(&committed, &records, &[status(20, 20, 1)]);
        assert_eq!(verdict.unsafe_acknowledgements, ["b"]);
        let verdict = judge(&committed, &records, &[status(25, 20, 2)]);
        assert_eq!(verdict.unsafe_acknowledgements.len(), 1);
    }

    /// Without a key a repeat may go to another partition, which is read before the first one's.
    #[test]
    fn any_copy_of_a_row_covers_its_acknowledgement() {
        let committed = [transaction(10, &["a"])];
        let records = [record(7, "a"), Stored { partition: 1, ..record(0, "a") }];
        let mut told = status(10, 20, 0);
        told.ends.push(("t".into(), 1, 1));
        assert!(judge(&committed, &records, &[told]).unsafe_acknowledgements.is_empty());
    }
}
