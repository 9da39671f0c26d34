//! Producer settings for a backlog, after late records, and after a refused batch. No I/O.

use postrider_core::ledger::Budget;
use postrider_core::supervisor::{ModeKind, SessionMode};
use postrider_kafka::KafkaSpec;

/// The client library's cost depends on the number of requests. With a longer linger, waiting
/// records occupy room that others could use (decision 0009).
pub(super) const BACKLOG_LINGER_MS: u32 = 5;

/// `kafka.linger` from which batches are large enough without a pause between reads.
const LONG_LINGER_MS: u32 = 20;

/// Maximum bytes in flight after late records. Within `transaction.timeout.ms`, one minute, brokers
/// must store 17 kB of this per second, instead of half a MiB for the usual 32 MiB.
const SMALL_BYTES: u64 = 1 << 20;

pub(super) fn settings(mode: Option<SessionMode>, usual: &KafkaSpec) -> KafkaSpec {
    let usual = usual.clone();
    match mode.map(|mode| mode.kind) {
        None => usual,
        Some(ModeKind::Backlog) => {
            KafkaSpec { linger_ms: usual.linger_ms.max(BACKLOG_LINGER_MS), ..usual }
        }
        Some(ModeKind::Small) => {
            let budget = Budget { bytes: usual.budget.bytes.min(SMALL_BYTES), ..usual.budget };
            KafkaSpec { budget, unconfirmed: budget, ..usual }
        }
        Some(ModeKind::Cautious) => KafkaSpec { cautious: true, ..usual },
    }
}

pub(super) fn batches_wait(mode: Option<SessionMode>, spec: &KafkaSpec) -> bool {
    mode.is_some_and(|mode| mode.kind == ModeKind::Backlog) || spec.linger_ms >= LONG_LINGER_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::lsn::Lsn;

    fn adapt(kind: ModeKind, usual: &KafkaSpec) -> KafkaSpec {
        settings(Some(SessionMode { kind, until: Lsn::new(1) }), usual)
    }

    #[test]
    fn a_backlog_is_sent_in_larger_batches() {
        let usual = KafkaSpec { linger_ms: 0, ..KafkaSpec::default() };
        assert_eq!(adapt(ModeKind::Backlog, &usual).linger_ms, BACKLOG_LINGER_MS);
        let patient = KafkaSpec { linger_ms: 100, ..KafkaSpec::default() };
        assert_eq!(adapt(ModeKind::Backlog, &patient).linger_ms, 100);
    }

    #[test]
    fn the_reference_tells_how_long_a_backlog_waits() {
        let reference = postrider_config::reference_markdown();
        let told = format!("At least {BACKLOG_LINGER_MS}ms while the relay delivers a backlog");
        assert!(reference.contains(&told), "{told}");
    }

    #[test]
    fn g3_what_was_late_is_sent_in_smaller_parts_and_what_may_be_refused_singly() {
        let small = adapt(ModeKind::Small, &KafkaSpec::default());
        assert!(!small.cautious && small.budget.bytes == SMALL_BYTES);
        assert_eq!(small.unconfirmed, small.budget);
        let budget = Budget { bytes: 9, ..Budget::default() };
        let less = KafkaSpec { budget, ..KafkaSpec::default() };
        assert_eq!(adapt(ModeKind::Small, &less).budget.bytes, 9);
        assert!(adapt(ModeKind::Cautious, &KafkaSpec::default()).cautious);
    }
}
