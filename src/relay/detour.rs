//! Ways of sending that hold up to a position in the log, and no further.
//!
//! Enters: how far behind the slot is when a session begins, and refused batches. Leaves:
//! [`Detour`], with the producer's settings for it. Pure. Owned by `supervise`.

use crate::kafka::KafkaSpec;
use crate::lsn::Lsn;

/// A log this long holds seconds of work, so that what a row waits for its batch is not noticed.
const BACKLOG_BYTES: u64 = 64 << 20;
/// How long a batch may wait for company while a backlog is worked off. The client library's cost
/// goes with the number of requests; beyond this little is gained (decision 0009).
pub(super) const BACKLOG_LINGER_MS: u32 = 20;

/// How a session differs from the usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Old rows are many: larger batches.
    Backlog,
    /// A batch was refused as a whole: single records, so that the culprit is named.
    Cautious,
}

impl Manner {
    /// As the log names it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Backlog => "backlog",
            Self::Cautious => "cautious",
        }
    }
}

/// A manner, and the position where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Detour {
    pub(super) manner: Manner,
    pub(super) until: Lsn,
}

impl Detour {
    /// What a session that begins at `confirmed` needs when the log ends at `current`.
    pub(super) fn of_backlog(confirmed: Lsn, current: Lsn) -> Option<Self> {
        let is_long = current.bytes_since(confirmed) > BACKLOG_BYTES;
        is_long.then_some(Self { manner: Manner::Backlog, until: current })
    }

    /// Past a batch that was refused; it lies before `received`.
    pub(super) const fn past_refusal(received: Lsn) -> Self {
        Self { manner: Manner::Cautious, until: received }
    }

    /// The producer's settings.
    pub(super) fn adapt(self, usual: &KafkaSpec) -> KafkaSpec {
        let usual = usual.clone();
        match self.manner {
            Manner::Backlog => {
                KafkaSpec { linger_ms: usual.linger_ms.max(BACKLOG_LINGER_MS), ..usual }
            }
            Manner::Cautious => KafkaSpec { cautious: true, ..usual },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_AGO: Lsn = Lsn::new(1 << 30);
    const NOW: Lsn = Lsn::new(2 << 30);

    #[test]
    fn a_long_backlog_is_sent_in_larger_batches_as_far_as_it_reaches() {
        let detour = Detour::of_backlog(LONG_AGO, NOW).unwrap();
        assert_eq!(detour, Detour { manner: Manner::Backlog, until: NOW });
        let usual = KafkaSpec { linger_ms: 0, ..KafkaSpec::default() };
        assert_eq!(detour.adapt(&usual).linger_ms, BACKLOG_LINGER_MS);
        let patient = KafkaSpec { linger_ms: 100, ..KafkaSpec::default() };
        assert_eq!(detour.adapt(&patient).linger_ms, 100);
    }

    #[test]
    fn a_short_backlog_is_nothing_special() {
        assert_eq!(Detour::of_backlog(Lsn::new(NOW.get() - BACKLOG_BYTES), NOW), None);
        assert_eq!(Detour::of_backlog(NOW, LONG_AGO), None);
    }

    #[test]
    fn caution_is_the_producers() {
        assert!(Detour::past_refusal(NOW).adapt(&KafkaSpec::default()).cautious);
    }
}
