//! What must never be.
//!
//! Input: a state. Output: the first [`Violation`] in it. Invariant: duplicates and order
//! are found when a marker makes records visible, everything else in the state itself.

use crate::exactly_once::state::State;
use crate::exactly_once::stream;

/// What the guarantee forbids (G6, and G1 for the acknowledgement).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// A reader of committed records sees a row twice.
    Duplicate,
    /// It sees a row after a later one of the same partition.
    Reordered,
    /// Progress covers a row that is not committed: no later session will send it.
    Lost,
    /// Postgres was told that a row is safe which is not committed.
    AcknowledgedUnsafe,
    /// Postgres was told more than progress covers: the gate of the next start would refuse.
    AcknowledgedAheadOfProgress,
    /// Left alone, a new session does not bring the rest to its end.
    Stuck,
}

/// The first thing wrong with a state.
pub fn judge(state: &State) -> Result<(), Violation> {
    let (rows, progress) = (state.kafka.decided_rows(), state.kafka.decided_progress());
    let acknowledged = stream::end(state.slot.confirmed);
    let holds = |done| stream::rows_within(done) & !rows == 0;
    if !holds(progress) {
        return Err(Violation::Lost);
    }
    if !holds(acknowledged) {
        return Err(Violation::AcknowledgedUnsafe);
    }
    if acknowledged > progress {
        return Err(Violation::AcknowledgedAheadOfProgress);
    }
    Ok(())
}
