//! Remembers the timeline and the delivered position of this process's last session, for
//! at-least-once delivery. Progress in Kafka lags behind.
//!
//! Output: warnings if the server was promoted since, or the reason why the stream cannot resume.
//! Upholds G1.

use std::sync::{Arc, Mutex, PoisonError};

use crate::delivered::Delivered;
use postrider_core::gate::{Facts, GateError, Warning, judge_promotion, promotion};
use postrider_core::lsn::Lsn;
use postrider_kafka::Lineage;

/// Clones share the timelines.
#[derive(Debug, Clone, Default)]
pub(super) struct Timelines {
    last: Arc<Mutex<Option<Lineage>>>,
    up_to: Lsn,
    pub(super) delivered: Delivered,
}

impl Timelines {
    /// Copy for a session that starts after rows were delivered up to this position.
    pub(super) fn up_to(&self, delivered: Lsn) -> Self {
        let (last, up_to) = (Arc::clone(&self.last), delivered);
        Self { last, up_to, delivered: self.delivered.clone() }
    }

    /// Compares a session with the previous one, and remembers it. Existing progress takes
    /// precedence, because it knows of slots that other relays have moved.
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

pub(super) fn tell(facts: &Facts, before: &Lineage, delivered: Lsn) {
    if let Some(promotion) = promotion(facts, before, delivered) {
        tracing::info!("{promotion}");
    }
}
