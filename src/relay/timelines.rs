//! Remembers which timeline the last session of this process streamed from, and how far it came, for a relay that
//! delivers at least once: progress in Kafka, if it keeps any, is behind that.
//!
//! Input: the facts of a session that holds its slot, and how far this process has delivered. Output: what the operator is to
//! be told if the server was promoted since, or why the stream cannot go on. Invariant: what was told or refused is judged by
//! the core; a session that passes is remembered. Upholds G1.

use std::sync::{Arc, Mutex, PoisonError};

use crate::delivered::Delivered;
use postrider_core::gate::{Facts, GateError, Warning, judge_promotion, promotion};
use postrider_core::lsn::Lsn;
use postrider_kafka::Lineage;

/// See the module. Copies share what they know.
#[derive(Debug, Clone, Default)]
pub(super) struct Timelines {
    last: Arc<Mutex<Option<Lineage>>>,
    up_to: Lsn,
    /// What sessions delivered.
    pub(super) delivered: Delivered,
}

impl Timelines {
    /// A copy for a session that begins when rows were delivered up to here.
    pub(super) fn up_to(&self, delivered: Lsn) -> Self {
        let (last, up_to) = (Arc::clone(&self.last), delivered);
        Self { last, up_to, delivered: self.delivered.clone() }
    }

    /// Judges a session against the one before, and remembers it. Returns what is to be told besides what its progress
    /// says, if it has some: that knows of slots which other relays have moved.
    pub(super) fn follow(
        &self,
        facts: &Facts,
        has_progress: bool,
        mut told: Vec<Warning>,
    ) -> Result<Vec<Warning>, GateError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = last.as_ref() {
            let is_tail = |warning: &Warning| matches!(warning, Warning::TailLost { .. });
            let mut ours = judge_promotion(facts, before, self.up_to)?;
            ours.retain(|warning| is_tail(warning) || !has_progress);
            if ours.iter().any(is_tail) {
                told.retain(|warning| !is_tail(warning));
            }
            told.extend(ours);
            if told.is_empty() {
                tell(facts, before, self.up_to);
            }
        }
        *last = Some(facts.lineage.clone());
        Ok(told)
    }
}

/// Says that the slot goes on where it was, if the server was promoted and it does.
pub(super) fn tell(facts: &Facts, before: &Lineage, delivered: Lsn) {
    if let Some(promotion) = promotion(facts, before, delivered) {
        tracing::info!("{promotion}");
    }
}
