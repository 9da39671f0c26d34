//! Picks rows whose traces become exemplars of their transaction's latency.
//!
//! The headers of only a few rows per turn are inspected, so a row usually costs one comparison.

use crate::route::{Record, TraceContext};

/// Rows to inspect after each [`TraceSampler::arm`].
const LOOKS: u8 = 8;

/// Picks one row at a time.
#[derive(Debug, Default)]
pub struct TraceSampler {
    looks: u8,
    picked: Option<(i64, TraceContext)>,
}

impl TraceSampler {
    /// Allows a row to be picked. Call it in each turn.
    pub fn arm(&mut self) {
        self.looks = if self.picked.is_some() { 0 } else { LOOKS };
    }

    #[inline]
    pub(super) fn consider(&mut self, record: &Record<'_>, commit_time_us: i64) {
        if self.looks > 0 {
            self.look(record, commit_time_us);
        }
    }

    fn look(&mut self, record: &Record<'_>, commit_time_us: i64) {
        self.looks -= 1;
        let context = record.trace().filter(|context| context.is_sampled);
        if let Some(context) = context {
            (self.looks, self.picked) = (0, Some((commit_time_us, context)));
        }
    }

    /// The picked trace of a settled transaction.
    pub fn settled(&mut self, commit_time_us: i64) -> Option<TraceContext> {
        let (_, context) = self.picked.take_if(|(time, _)| *time == commit_time_us)?;
        Some(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{NO_TIMESTAMP, TRACEPARENT_HEADER};

    const SAMPLED: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const UNSAMPLED: &[u8] = b"00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn record(trace: &'static [u8]) -> Record<'static> {
        let mut record = Record {
            topic: "t",
            partition: None,
            key: None,
            value: None,
            headers: smallvec::SmallVec::new(),
            timestamp_ms: NO_TIMESTAMP,
        };
        record.headers.push((TRACEPARENT_HEADER, Some(trace)));
        record
    }

    #[test]
    fn one_sampled_row_at_a_time_stands_for_its_transaction() {
        let mut sampler = TraceSampler::default();
        sampler.consider(&record(SAMPLED), 1);
        assert_eq!(sampler.settled(1), None, "nobody asked for one");
        sampler.arm();
        sampler.consider(&record(UNSAMPLED), 2);
        sampler.consider(&record(SAMPLED), 3);
        sampler.arm();
        sampler.consider(&record(SAMPLED), 4);
        assert_eq!(sampler.settled(2), None);
        let trace = sampler.settled(3).map(|context| context.trace_id());
        assert_eq!(trace.as_deref(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        assert_eq!(sampler.settled(4), None);
    }

    #[test]
    fn of_few_rows_the_headers_are_looked_at() {
        let mut sampler = TraceSampler::default();
        sampler.arm();
        (0..LOOKS).for_each(|_| sampler.consider(&record(b"no trace"), 1));
        sampler.consider(&record(SAMPLED), 2);
        assert_eq!(sampler.settled(2), None);
    }
}
