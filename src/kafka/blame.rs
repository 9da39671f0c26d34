//! Which records of a refused batch may be at fault.
//!
//! Enters: the delivery reports of a session that is over. Leaves: [`SinkError::BatchRefused`] with the
//! records to look at. Pure. Called by `deliveries`. What always holds: a record is refused for good
//! only where nothing else was in its batch, or where the brokers named it (KIP-467).

use crate::ledger::Ticket;
use crate::pipeline::Blame;
use crate::route::Rejection;

use super::SinkError;

/// Batches are not made smaller than this: what a topic refuses below is a record's fault, and cutting
/// every topic's batches further would cost more than sending these records alone.
const BATCH_BYTES_MIN: u64 = 16 << 10;

/// One record that was refused with its batch.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) ticket: Ticket,
    pub(super) content: u64,
    /// Key, value and headers.
    pub(super) bytes: u64,
    /// Nothing else was under way.
    pub(super) alone: bool,
    pub(super) fault: Fault,
}

/// What the brokers said of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// A record of the batch is too large, or the batch is.
    Size(Rejection),
    /// A record of the batch is not to be stored.
    Content(Rejection),
    /// Another record of the batch is.
    Others,
    /// Nothing that is the record's fault for certain.
    Unclear,
}

/// What a session's refused batches come to.
pub(super) fn verdict(refusals: &[Refusal], topic: String, reason: String) -> SinkError {
    let mut batch_bytes = None;
    let mut records = Vec::new();
    for refusal in refusals.iter().filter(|one| one.fault != Fault::Others) {
        let batch = || refusals.iter().filter(|one| is_of_one_batch(one, refusal));
        let is_named =
            refusal.alone || batch().count() == 1 || batch().any(|one| one.fault == Fault::Others);
        let (sum, largest) =
            batch().fold((0, 0), |(sum, largest), one| (sum + one.bytes, one.bytes.max(largest)));
        let rejection = match &refusal.fault {
            // No record stands out: the topic takes smaller batches only.
            Fault::Size(_) if !is_named && largest <= sum / 2 && sum > BATCH_BYTES_MIN => {
                let half = u32::try_from((sum / 2).max(BATCH_BYTES_MIN)).unwrap_or(u32::MAX);
                batch_bytes = Some(batch_bytes.unwrap_or(half).min(half));
                continue;
            }
            Fault::Size(rejection) | Fault::Content(rejection) if is_named => {
                Some(rejection.clone())
            }
            _ => None,
        };
        records.push(Blame {
            ticket: refusal.ticket,
            topic: refusal.topic.clone(),
            content: refusal.content,
            alone: refusal.alone,
            rejection,
        });
    }
    SinkError::BatchRefused { topic, reason, records, batch_bytes }
}

/// The library sends one batch of a partition after the other, so that those refused in one session are
/// most often one. If they are two, more records are looked at than need be.
fn is_of_one_batch(one: &Refusal, other: &Refusal) -> bool {
    one.partition == other.partition && one.topic == other.topic
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::RejectionCode;

    fn rejection() -> Rejection {
        Rejection { code: RejectionCode::TooLarge, reason: "too large".into() }
    }

    fn size() -> Fault {
        Fault::Size(rejection())
    }

    fn refusal(n: u32, partition: i32, bytes: u64, fault: Fault) -> Refusal {
        let (topic, ticket) = ("t".to_owned(), Ticket::new(n, 1));
        Refusal { topic, partition, ticket, content: n.into(), bytes, alone: false, fault }
    }

    /// Who is blamed, and whether for good; and the size that batches are cut down to.
    fn blamed(refusals: &[Refusal]) -> (Vec<(u64, bool)>, Option<u32>) {
        match verdict(refusals, "t".into(), "why".into()) {
            SinkError::BatchRefused { records, batch_bytes, .. } => {
                let of = |one: &Blame| (one.content, one.rejection.is_some());
                (records.iter().map(of).collect(), batch_bytes)
            }
            error => panic!("{error}"),
        }
    }

    #[test]
    fn the_only_record_of_a_batch_is_at_fault() {
        assert_eq!(blamed(&[refusal(1, 0, 9, size())]), (vec![(1, true)], None));
        let two = [refusal(1, 0, 9, size()), refusal(2, 1, 9, size())];
        assert_eq!(blamed(&two), (vec![(1, true), (2, true)], None));
        assert_eq!(blamed(&[refusal(1, 0, 9, Fault::Unclear)]), (vec![(1, false)], None));
    }

    #[test]
    fn of_several_records_each_may_be_at_fault() {
        let batch = [refusal(1, 0, 10, size()), refusal(2, 0, 900, size())];
        assert_eq!(blamed(&batch), (vec![(1, false), (2, false)], None));
        let named = [
            refusal(1, 0, 10, Fault::Others),
            refusal(2, 0, 10, Fault::Content(rejection())),
            refusal(3, 0, 10, Fault::Content(rejection())),
        ];
        assert_eq!(blamed(&named), (vec![(2, true), (3, true)], None));
    }

    #[test]
    fn a_batch_of_which_no_record_stands_out_is_itself_too_large() {
        let batch = |bytes| (0..10).map(|n| refusal(n, 0, bytes, size())).collect::<Vec<_>>();
        assert_eq!(blamed(&batch(10_000)), (vec![], Some(50_000)));
        assert_eq!(blamed(&batch(2_000)), (vec![], Some(16_384)));
        // Nobody's batches are cut down to a few records for the sake of one topic.
        let (records, batch_bytes) = blamed(&batch(900));
        assert_eq!((records.len(), batch_bytes), (10, None));
    }

    #[test]
    fn a_record_sent_alone_is_at_fault() {
        let alone = Refusal { alone: true, ..refusal(1, 0, 9, size()) };
        assert_eq!(blamed(&[alone]), (vec![(1, true)], None));
    }
}
