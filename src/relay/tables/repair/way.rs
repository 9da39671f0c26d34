//! Decides what becomes of the slot: it is made, made anew, or gone on with.
//!
//! Input: the slot as it was found, what is known of the stream, the scope, and the comparison once there is one.
//! Output: a [`Way`], or why nothing is done. Invariant: a slot that is there is not dropped before the comparison has
//! said that rows are missing, or what is noted in Kafka says that a repair has made it or that it was moved. Pure.

use super::{BackfillProgress, Found, GateError, Known, Lineage, RelayError, RepairCounts};
use super::{RepairScope, TableRowsError, UnknownRows, confirmed, seen_alive};
use postrider_core::lsn::Lsn;
use postrider_core::progress::Progress;

/// What becomes of the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    /// There is none: it is made.
    Make,
    /// It is dropped, and made anew.
    Replace,
    /// A repair has made it.
    GoOn(Box<BackfillProgress>),
    /// First the rows that it has passed are compared.
    Compare,
}

/// See the module's documentation.
pub(super) fn way(
    found: &Found,
    lineage: &Lineage,
    known: &Known,
    scope: &RepairScope,
    counts: Option<&RepairCounts>,
) -> Result<Way, RelayError> {
    if !seen_alive(found) {
        return Ok(if found.inspection.slot.is_some() { Way::Replace } else { Way::Make });
    }
    let (slot, at) = (lineage.slot.clone(), confirmed(found));
    match known {
        Known::Begun(begun, has_sent) if begun.begins == at => {
            go_on((begun, *has_sent), scope, slot)
        }
        // It has sent nothing, and what was to be dropped for it may still be there.
        Known::Intended(intended) if intended.repair.is_some() => Ok(Way::Replace),
        Known::Intended(_) => Err(GateError::BackfillUnfinished { slot }.into()),
        Known::Stream(progress) if is_whole(progress, lineage, at) => {
            Err(TableRowsError::NothingMissing { slot, unknown: 0 }.into())
        }
        known => {
            let Some(counts) = counts else { return Ok(Way::Compare) };
            if is_needed(found, known, scope, counts) {
                return Ok(Way::Replace);
            }
            Err(TableRowsError::NothingMissing { slot, unknown: counts.unknown }.into())
        }
    }
}

fn go_on(
    (begun, has_sent): (&BackfillProgress, bool),
    scope: &RepairScope,
    slot: String,
) -> Result<Way, RelayError> {
    let Some(first) = &begun.repair else {
        return Err(GateError::BackfillUnfinished { slot }.into());
    };
    let is_same = first.goes_on_as(scope);
    if !is_same && has_sent {
        return Err(TableRowsError::ScopeChanged { slot, begun: first.options() }.into());
    }
    // Times that are so long ago are those of when it was begun. An attempt that has sent nothing binds nobody.
    let of = if is_same { first } else { scope };
    let repair = Some(RepairScope { unknown: scope.unknown, ..of.clone() });
    Ok(Way::GoOn(Box::new(BackfillProgress { repair, ..begun.clone() })))
}

/// Whether the progress says that the slot has left out no row, and nothing of before it is missing.
fn is_whole(progress: &Progress, lineage: &Lineage, confirmed: Option<Lsn>) -> bool {
    let before = &progress.lineage;
    let Some(since) = before.since.filter(|since| since.xid == 0) else { return false };
    let delivered = if progress.mark.end == Lsn::ZERO { since.lsn } else { progress.mark.end };
    let is_same = before.publication == lineage.publication
        && before.timeline == lineage.timeline
        && lineage.tables.iter().all(|(name, oid)| before.tables.get(name) == Some(oid));
    is_same && confirmed.is_some_and(|confirmed| confirmed <= delivered)
}

/// Whether the slot cannot be left as it is.
fn is_needed(found: &Found, known: &Known, scope: &RepairScope, counts: &RepairCounts) -> bool {
    let is_moved = match known {
        Known::Stream(progress) => {
            let delivered = progress.mark.end;
            delivered > Lsn::ZERO && confirmed(found).is_some_and(|at| at > delivered)
        }
        // Another one than it has made, or a slot of which progress should be kept and is not.
        Known::Begun(..) | Known::Nothing => found.plan.keeps_progress(),
        Known::Intended(_) => true,
    };
    // Where nothing is kept nobody knows whether a repair before this one has ended.
    let is_open = !found.plan.keeps_progress()
        && (counts.pending > 0 || (counts.unknown > 0 && scope.unknown == Some(UnknownRows::Send)));
    counts.missing > 0 || is_moved || is_open
}
