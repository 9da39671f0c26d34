//! Finds the records that may have caused the brokers to refuse a batch.
//!
//! Invariant: a record is refused for good only if it was alone in its batch or in flight, or if
//! the brokers named it (KIP-467).

use postrider_core::ledger::Ticket;
use postrider_core::pipeline::{Blame, RefusalCause};
use postrider_core::route::Rejection;

use super::SinkError;

/// A batch limit affects every topic, so it is not lower.
const BATCH_BYTES_MIN: u64 = 4 << 10;

#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) topic: String,
    /// Records of one batch are reported together.
    pub(super) batch: u64,
    pub(super) ticket: Ticket,
    pub(super) content: u64,
    pub(super) bytes: u64,
    pub(super) has_key: bool,
    /// True if nothing else was in flight.
    pub(super) alone: bool,
    /// Milliseconds since the Unix epoch.
    pub(super) at_ms: i64,
    pub(super) reason: String,
    pub(super) fault: BatchFault,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BatchFault {
    Size(Rejection),
    Content(Rejection, RefusalCause),
    Others,
    Unclear,
    Theirs,
}

/// If several records are named, librdkafka 2.12 reports INVALID_RECORD for each, whatever the
/// cause.
pub(super) fn verdict(
    refusals: &[Refusal],
    (mut topic, mut reason): (String, String),
    demands_keys: impl Fn(&str) -> bool,
) -> SinkError {
    let mut batch_bytes: Option<u32> = None;
    let mut records = Vec::new();
    for batch in refusals.chunk_by(|one, other| one.batch == other.batch) {
        let found = BatchRefusals::of(batch);
        if let (Some(bytes), Some(first)) = (found.bytes, batch.first())
            && batch_bytes.is_none_or(|least| bytes < least)
        {
            batch_bytes = Some(bytes);
            (topic, reason) = (first.topic.clone(), first.reason.clone());
        }
        let blame = |refusal: &Refusal| found.blame(refusal, &demands_keys);
        records.extend(found.suspects.iter().map(|one| blame(one)));
    }
    SinkError::BatchRefused { topic, reason, records, batch_bytes }
}

struct BatchRefusals<'a> {
    suspects: Vec<&'a Refusal>,
    /// True if these records are known to be at fault.
    is_named: bool,
    is_of_several: bool,
    bytes: Option<u32>,
    spares_keyless: bool,
}

impl<'a> BatchRefusals<'a> {
    fn of(batch: &'a [Refusal]) -> Self {
        let is_single = batch.len() == 1;
        let names = batch.iter().any(|one| one.fault == BatchFault::Others);
        let is_named = is_single || names || batch.iter().any(|one| one.alone);
        let of_size = batch.iter().all(|one| matches!(one.fault, BatchFault::Size(_)));
        let mut suspects: Vec<&Refusal> =
            batch.iter().filter(|one| one.fault != BatchFault::Others).collect();
        let mut bytes = None;
        if of_size && !is_named {
            let sum: u64 = batch.iter().map(|one| one.bytes).sum();
            if let Some(large) = batch.iter().find(|one| one.bytes > sum / 2) {
                // Without it, the rest is less than half.
                suspects = vec![large];
            } else if let (true, Some(first)) = (sum > BATCH_BYTES_MIN, batch.first()) {
                // Shows if the records or their batch are too large.
                suspects = vec![first];
                bytes = Some(u32::try_from((sum / 2).max(BATCH_BYTES_MIN)).unwrap_or(u32::MAX));
            }
        }
        let spares_keyless =
            batch.iter().any(|one| one.fault == BatchFault::Others && !one.has_key);
        let content = |one: &&Refusal| matches!(one.fault, BatchFault::Content(..));
        let is_of_several = batch.iter().filter(content).nth(1).is_some();
        Self { suspects, is_named, is_of_several, bytes, spares_keyless }
    }

    fn blame(&self, refusal: &Refusal, demands_keys: impl Fn(&str) -> bool) -> Blame {
        let (cause, rejection) = match &refusal.fault {
            BatchFault::Size(rejection) => (RefusalCause::Size, Some(rejection)),
            // All records of such a batch are blamed for their time.
            BatchFault::Content(rejection, RefusalCause::Time)
                if !refusal.has_key && self.is_of_several =>
            {
                (RefusalCause::OfSeveral, Some(rejection))
            }
            BatchFault::Content(rejection, RefusalCause::Unknown)
                if !refusal.has_key && !self.spares_keyless && demands_keys(&refusal.topic) =>
            {
                (RefusalCause::Key, Some(rejection))
            }
            BatchFault::Content(rejection, RefusalCause::Unknown) if self.is_of_several => {
                (RefusalCause::OfSeveral, Some(rejection))
            }
            BatchFault::Content(rejection, cause) => (*cause, Some(rejection)),
            BatchFault::Others | BatchFault::Unclear => (RefusalCause::Unknown, None),
            BatchFault::Theirs => (RefusalCause::Brokers, None),
        };
        Blame {
            ticket: refusal.ticket,
            topic: refusal.topic.clone(),
            content: refusal.content,
            alone: refusal.alone,
            cause,
            at_ms: refusal.at_ms,
            reason: refusal.reason.clone(),
            rejection: rejection.filter(|_| self.is_named).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::route::RejectionCode;

    fn rejection() -> Rejection {
        Rejection { code: RejectionCode::TooLarge, reason: "too large".into() }
    }

    fn size() -> BatchFault {
        BatchFault::Size(rejection())
    }

    fn refusal(n: u32, batch: u64, bytes: u64, fault: BatchFault) -> Refusal {
        let (topic, ticket) = ("t".to_owned(), Ticket::new(n, 1));
        let (content, has_key, alone) = (n.into(), true, false);
        let reason = "why so".to_owned();
        let at_ms = 0;
        Refusal { topic, batch, ticket, content, bytes, has_key, alone, at_ms, reason, fault }
    }

    fn content(cause: RefusalCause) -> BatchFault {
        BatchFault::Content(rejection(), cause)
    }

    fn decide(refusals: &[Refusal]) -> (Vec<Blame>, Option<u32>) {
        match verdict(refusals, ("t".into(), "why".into()), |_| true) {
            SinkError::BatchRefused { records, batch_bytes, .. } => (records, batch_bytes),
            error => panic!("{error}"),
        }
    }

    /// True: refused for good.
    fn blamed(refusals: &[Refusal]) -> (Vec<(u64, bool)>, Option<u32>) {
        let (records, batch_bytes) = decide(refusals);
        let of = |one: &Blame| (one.content, one.rejection.is_some());
        (records.iter().map(of).collect(), batch_bytes)
    }

    fn aspects(refusals: &[Refusal]) -> Vec<RefusalCause> {
        decide(refusals).0.iter().map(|one| one.cause).collect()
    }

    #[test]
    fn the_only_record_of_a_batch_is_at_fault() {
        assert_eq!(blamed(&[refusal(1, 0, 9, size())]), (vec![(1, true)], None));
        let two = [refusal(1, 0, 9, size()), refusal(2, 1, 9, size())];
        assert_eq!(blamed(&two), (vec![(1, true), (2, true)], None));
        assert_eq!(blamed(&[refusal(1, 0, 9, BatchFault::Unclear)]), (vec![(1, false)], None));
    }

    #[test]
    fn of_several_records_each_may_be_at_fault() {
        let batch =
            [refusal(1, 0, 10, BatchFault::Unclear), refusal(2, 0, 900, BatchFault::Unclear)];
        assert_eq!(blamed(&batch), (vec![(1, false), (2, false)], None));
        let named = [
            refusal(1, 0, 10, BatchFault::Others),
            refusal(2, 0, 10, content(RefusalCause::Unknown)),
            refusal(3, 0, 10, content(RefusalCause::Unknown)),
        ];
        assert_eq!(blamed(&named), (vec![(2, true), (3, true)], None));
        let another = [
            refusal(1, 0, 10, BatchFault::Others),
            refusal(2, 0, 10, content(RefusalCause::Unknown)),
            refusal(3, 1, 10, content(RefusalCause::Unknown)),
            refusal(4, 1, 10, content(RefusalCause::Unknown)),
        ];
        assert_eq!(blamed(&another), (vec![(2, true), (3, false), (4, false)], None));
    }

    #[test]
    fn a_record_that_outweighs_the_rest_of_its_batch_is_looked_at_first() {
        let mut batch: Vec<_> = (0..1_000).map(|n| refusal(n, 0, 100, size())).collect();
        batch.push(refusal(1_000, 0, 450_000, size()));
        assert_eq!(blamed(&batch), (vec![(1_000, false)], None));
    }

    #[test]
    fn the_topic_that_wants_smaller_batches_is_the_one_that_is_named() {
        let mut batches = vec![refusal(20, 0, 9, content(RefusalCause::Time))];
        batches.extend((0..10).map(|n| refusal(n, 1, 10_000, size())));
        batches.iter_mut().skip(1).for_each(|one| one.topic = "other".into());
        match verdict(&batches, ("t".into(), "time".into()), |_| true) {
            SinkError::BatchRefused { topic, reason, batch_bytes, .. } => {
                assert_eq!((topic.as_str(), reason.as_str()), ("other", "why so"));
                assert_eq!(batch_bytes, Some(50_000));
            }
            error => panic!("{error}"),
        }
    }

    #[test]
    fn where_no_record_stands_out_the_first_is_looked_at_and_then_the_batch_is_too_large() {
        let batch = |bytes| (0..10).map(|n| refusal(n, 0, bytes, size())).collect::<Vec<_>>();
        assert_eq!(blamed(&batch(10_000)), (vec![(0, false)], Some(50_000)));
        assert_eq!(blamed(&batch(600)), (vec![(0, false)], Some(4_096)));
        let (records, batch_bytes) = blamed(&batch(90));
        assert_eq!((records.len(), batch_bytes), (10, None));
    }

    #[test]
    fn a_record_sent_alone_is_at_fault() {
        let alone = Refusal { alone: true, ..refusal(1, 0, 9, size()) };
        assert_eq!(blamed(&[alone]), (vec![(1, true)], None));
    }

    #[test]
    fn what_they_object_to_is_told_as_far_as_it_is_certain() {
        assert_eq!(aspects(&[refusal(1, 0, 9, size())]), [RefusalCause::Size]);
        let time = refusal(1, 0, 9, content(RefusalCause::Time));
        assert_eq!(aspects(std::slice::from_ref(&time)), [RefusalCause::Time]);
        let keyless = |n, fault| Refusal { has_key: false, ..refusal(n, 0, 9, fault) };
        assert_eq!(aspects(&[keyless(1, content(RefusalCause::Unknown))]), [RefusalCause::Key]);
        assert_eq!(
            aspects(&[refusal(1, 0, 9, content(RefusalCause::Unknown))]),
            [RefusalCause::Unknown]
        );
        // All records of a batch are blamed for the time, including those without a key.
        let both = [time, keyless(2, content(RefusalCause::Time))];
        assert_eq!(aspects(&both), [RefusalCause::Time, RefusalCause::OfSeveral]);
        assert_eq!(aspects(&[keyless(2, content(RefusalCause::Time))]), [RefusalCause::Time]);
        let spared = [keyless(1, content(RefusalCause::Unknown)), keyless(2, BatchFault::Others)];
        assert_eq!(aspects(&spared), [RefusalCause::Unknown]);
    }

    #[test]
    fn for_what_a_record_is_refused_is_told_where_it_is_the_only_one_of_its_batch() {
        let named = |n, cause| refusal(n, 0, 9, content(cause));
        let stored = refusal(9, 0, 9, BatchFault::Others);
        let several =
            [named(1, RefusalCause::Unknown), stored.clone(), named(2, RefusalCause::Unknown)];
        assert_eq!(aspects(&several), [RefusalCause::OfSeveral; 2]);
        assert_eq!(blamed(&several).0, [(1, true), (2, true)]);
        for cause in [RefusalCause::Unknown, RefusalCause::Time] {
            let keyless = Refusal { has_key: false, ..named(1, cause) };
            for one in [named(1, cause), keyless] {
                let other = Refusal { has_key: false, ..stored.clone() };
                assert_eq!(aspects(&[one, other]), [cause]);
            }
        }
    }
}
