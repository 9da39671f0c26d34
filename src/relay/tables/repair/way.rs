//! Decides whether a repair creates, replaces, resumes or leaves the slot. Pure.
//!
//! Invariant: a healthy slot is dropped only if [`is_needed`] holds: rows that it has passed must be
//! sent, or the note in Kafka shows a repair or a moved slot. An undecodable slot is dropped only
//! if the loss of its undelivered messages is allowed.

use super::{BackfillProgress, Found, GateError, Known, Lineage, RelayError, RepairCounts};
use super::{RepairScope, TableRowsError, UnknownReason, UnknownRows};
use crate::tables::error::nothing_missing;
use postrider_core::lsn::Lsn;
use postrider_core::progress::Progress;
use postrider_postgres::control::ControlError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    Missing,
    Lost,
    /// No session can decode one of the slot's changes.
    Unreadable,
    /// The slot has passed all changes before this position.
    At(Lsn),
}

impl SlotState {
    /// Fails while the slot is still being created.
    pub(super) fn of(found: &Found) -> Result<Self, ControlError> {
        let Some(slot) = &found.inspection.slot else { return Ok(Self::Missing) };
        if let Some(unfinished) = slot.unfinished(&found.plan.config.source.slot) {
            return Err(unfinished);
        }
        Ok(match slot.confirmed_flush {
            Some(confirmed) if !slot.is_lost() => Self::At(confirmed),
            _ => Self::Lost,
        })
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) slot: SlotState,
    pub(super) lineage: &'a Lineage,
    pub(super) keeps_progress: bool,
    pub(super) scope: &'a RepairScope,
    pub(super) drops_slot: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    Make,
    Replace,
    GoOn(Box<BackfillProgress>),
    Compare,
    /// The slot has left out no row. The sentence explains this to the operator.
    Leave(String),
}

pub(super) fn way(
    terms: &Terms<'_>,
    known: &Known,
    counts: Option<&RepairCounts>,
) -> Result<Way, RelayError> {
    let at = match terms.slot {
        SlotState::Missing => return Ok(Way::Make),
        SlotState::Lost | SlotState::Unreadable => return Ok(Way::Replace),
        SlotState::At(at) => at,
    };
    let slot = terms.lineage.slot.clone();
    match known {
        Known::Begun(begun, has_sent) if begun.begins == Some(at) => {
            go_on((begun, *has_sent), terms.scope, slot)
        }
        // The attempt has not sent any rows, and the slot that it wanted to drop may still exist.
        Known::Intended(intended) if intended.repair.is_some() => Ok(Way::Replace),
        Known::Intended(_) => Err(GateError::BackfillUnfinished { slot }.into()),
        Known::Stream(progress) if is_whole(progress, terms.lineage, at) => {
            Ok(Way::Leave(nothing_missing(&slot, 0, false)))
        }
        known => {
            let Some(counts) = counts else { return Ok(Way::Compare) };
            if is_needed(terms, at, known, counts) {
                return Ok(Way::Replace);
            }
            if counts.undecided > 0 {
                return Err(TableRowsError::Undecided { slot, rows: counts.undecided }.into());
            }
            let (unknown, scope) = (counts.unknown, terms.scope);
            let is_of_window = scope.since.is_some() || scope.until.is_some();
            if unknown > 0 && scope.unknown == Some(UnknownRows::Send) {
                return Err(TableRowsError::NothingMissing { slot, unknown, is_of_window }.into());
            }
            Ok(Way::Leave(nothing_missing(&slot, unknown, is_of_window)))
        }
    }
}

/// First transaction number from which the stream has left out no row, if the slot is at the
/// position in the progress.
pub(super) fn whole_since(terms: &Terms<'_>, known: &Known) -> Option<u64> {
    let (Known::Stream(progress), SlotState::At(at)) = (known, terms.slot) else { return None };
    unbroken(progress, terms.lineage, at)
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
    // Relative times count from the start of the first attempt. An attempt that has not sent any
    // rows does not bind a later one with another scope.
    let of = if is_same { first } else { scope };
    let repair = Some(RepairScope { unknown: scope.unknown, ..of.clone() });
    Ok(Way::GoOn(Box::new(BackfillProgress { repair, ..begun.clone() })))
}

fn is_whole(progress: &Progress, lineage: &Lineage, confirmed: Lsn) -> bool {
    unbroken(progress, lineage, confirmed) == Some(0)
}

fn unbroken(progress: &Progress, lineage: &Lineage, confirmed: Lsn) -> Option<u64> {
    let before = &progress.lineage;
    let since = before.since?;
    let delivered = if progress.mark.end == Lsn::ZERO { since.lsn } else { progress.mark.end };
    let is_same = before.publication == lineage.publication
        && before.timeline == lineage.timeline
        && lineage.tables.iter().all(|(name, oid)| before.tables.get(name) == Some(oid));
    // An altered publication may have excluded inserts, or the rows of a removed table.
    let is_altered = before.publication_xid.is_some_and(|xid| Some(xid) != lineage.publication_xid)
        || before.members.iter().any(|(name, oid)| lineage.members.get(name) != Some(oid));
    (is_same && !is_altered && confirmed <= delivered).then_some(since.xid)
}

fn is_needed(terms: &Terms<'_>, at: Lsn, known: &Known, counts: &RepairCounts) -> bool {
    let is_moved = match known {
        Known::Stream(progress) => {
            let delivered = progress.mark.end;
            delivered > Lsn::ZERO && at > delivered
        }
        // The repair created another slot, or progress that should exist is missing.
        Known::Begun(..) | Known::Nothing => terms.keeps_progress,
        Known::Intended(_) => true,
    };
    // Without stored progress, it is unknown whether an earlier repair has ended.
    let is_sent = counts.unknown > 0 && terms.scope.unknown == Some(UnknownRows::Send);
    let is_open = !terms.keeps_progress && (is_sent || terms.drops_slot && counts.pending > 0);
    // Rows from before the stream are found in the topics once sent. Other unknown rows are not.
    let before = counts.unknown_because.contains_key(&UnknownReason::BeforeStream);
    counts.missing > 0 || is_moved || is_open || (is_sent && before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::pipeline::Mark;
    use postrider_core::progress::{Moment, Since};

    const AT: SlotState = SlotState::At(Lsn::new(50));

    fn scope(since: &str) -> RepairScope {
        let moment = Moment { typed: since.to_owned(), at: since.to_owned() };
        RepairScope { since: Some(moment), ..RepairScope::default() }
    }

    fn begun(begins: u64, repair: Option<RepairScope>) -> BackfillProgress {
        let begins = (begins > 0).then(|| Lsn::new(begins));
        BackfillProgress { begins, repair, ..BackfillProgress::default() }
    }

    fn stream(end: u64, xid: u64) -> Known {
        let lineage =
            Lineage { since: Some(Since::first(Lsn::new(50), xid)), ..Lineage::default() };
        let mark = Mark::at(Lsn::new(end));
        Known::Stream(Box::new(Progress { lineage, mark, backfill: None }))
    }

    fn of(slot: SlotState, known: &Known, counts: Option<&RepairCounts>) -> Result<Way, String> {
        let keeps_progress = true;
        let (lineage, scope) = (&Lineage::default(), &RepairScope::default());
        let terms = Terms { slot, lineage, keeps_progress, scope, drops_slot: false };
        way(&terms, known, counts).map_err(|error| error.to_string())
    }

    fn found(missing: u64, pending: u64) -> RepairCounts {
        RepairCounts { missing, pending, undecided: pending, ..RepairCounts::default() }
    }

    #[test]
    fn g6_a_slot_that_is_not_there_is_made_whatever_is_known() {
        let repair = || Some(RepairScope::default());
        for known in [
            Known::Nothing,
            Known::Intended(begun(0, repair())),
            Known::Begun(begun(50, repair()), true),
            Known::Begun(begun(50, None), true),
            stream(50, 0),
        ] {
            assert_eq!(of(SlotState::Missing, &known, None), Ok(Way::Make), "{known:?}");
            for slot in [SlotState::Lost, SlotState::Unreadable] {
                assert_eq!(of(slot, &known, None), Ok(Way::Replace), "{known:?}");
            }
        }
    }

    #[test]
    fn g6_a_slot_that_is_there_is_replaced_only_where_rows_are_missing_or_it_was_moved() {
        let untouched = |known: &Known, missing, pending| {
            let result = of(AT, known, Some(&found(missing, pending)));
            result.is_ok_and(|way| matches!(way, Way::Leave(why) if why.starts_with("nothing is to be repaired")))
        };
        assert!(untouched(&stream(50, 0), 5, 0) && untouched(&stream(0, 0), 5, 0));
        // Postgres has not yet shown whether the slot has passed the rows before the stream.
        let undecided = of(AT, &stream(50, 7), Some(&found(0, 9))).unwrap_err();
        assert!(undecided.contains("cannot be told yet"), "{undecided}");
        assert!(untouched(&stream(50, 7), 0, 0));
        let waiting = RepairCounts { undecided: 0, ..found(0, 9) };
        let waits = of(AT, &stream(50, 7), Some(&waiting));
        assert!(matches!(waits, Ok(Way::Leave(_))), "they are of a stream that has left out none");
        assert_eq!(of(AT, &stream(50, 7), None), Ok(Way::Compare));
        assert_eq!(of(AT, &stream(50, 7), Some(&found(1, 0))), Ok(Way::Replace));
        assert_eq!(of(AT, &stream(49, 0), None), Ok(Way::Compare));
        assert_eq!(of(AT, &stream(49, 0), Some(&found(0, 9))), Ok(Way::Replace));
        let moved = Known::Begun(begun(40, Some(RepairScope::default())), true);
        for known in [moved, Known::Nothing] {
            assert_eq!(of(AT, &known, None), Ok(Way::Compare), "{known:?}");
            assert_eq!(of(AT, &known, Some(&found(0, 0))), Ok(Way::Replace), "{known:?}");
        }
    }

    #[test]
    fn what_was_not_compared_is_not_said_to_be_whole() {
        let (lineage, scope) = (Lineage::default(), scope("2h"));
        let (keeps_progress, drops_slot) = (true, false);
        let terms =
            Terms { slot: AT, lineage: &lineage, keeps_progress, scope: &scope, drops_slot };
        let Ok(Way::Leave(why)) = way(&terms, &stream(50, 7), Some(&found(0, 0))) else {
            unreachable!("nothing is missing")
        };
        assert!(why.ends_with("of that time (no others were compared)"), "{why}");
    }

    #[test]
    fn g6_a_repair_that_has_made_the_slot_is_gone_on_with_and_a_backfill_is_not() {
        let repair = Some(RepairScope::default());
        let same = Known::Begun(begun(50, repair.clone()), true);
        assert_eq!(of(AT, &same, None), Ok(Way::GoOn(Box::new(begun(50, repair)))));
        let sent = Known::Begun(begun(50, Some(scope("2h"))), true);
        assert!(of(AT, &sent, None).unwrap_err().contains("--since '2h'"));
        let nothing_sent = Known::Begun(begun(50, Some(scope("2h"))), false);
        let all = Some(RepairScope::default());
        assert_eq!(of(AT, &nothing_sent, None), Ok(Way::GoOn(Box::new(begun(50, all.clone())))));
        for backfill in [Known::Begun(begun(50, None), true), Known::Intended(begun(0, None))] {
            assert!(of(AT, &backfill, None).unwrap_err().contains("backfill"), "{backfill:?}");
        }
        assert_eq!(of(AT, &Known::Intended(begun(0, all)), None), Ok(Way::Replace));
    }

    #[test]
    fn g1_where_no_progress_is_kept_a_slot_is_dropped_only_for_rows_that_are_missing_for_certain() {
        let (lineage, sends) = (Lineage::default(), RepairScope::default());
        let of = |counts: &RepairCounts, unknown| {
            let scope = &RepairScope { unknown, ..sends.clone() };
            let (keeps_progress, drops_slot) = (false, false);
            let terms = Terms { slot: AT, lineage: &lineage, keeps_progress, scope, drops_slot };
            way(&terms, &Known::Nothing, Some(counts)).ok().filter(|way| *way == Way::Replace)
        };
        assert_eq!(of(&found(0, 0), None), None);
        assert_eq!(of(&found(0, 1), None), None, "it may deliver them");
        assert_eq!(of(&found(1, 1), None), Some(Way::Replace));
        let unknown = || RepairCounts { unknown: 1, ..found(0, 0) };
        assert_eq!(of(&unknown(), Some(UnknownRows::Send)), Some(Way::Replace));
        assert_eq!(of(&unknown(), Some(UnknownRows::Skip)), None);
    }

    #[test]
    fn g6_rows_of_before_the_stream_are_sent_beside_its_slot_when_somebody_says_so() {
        let of = |reason, unknown| {
            let (lineage, scope) =
                (&Lineage::default(), &RepairScope { unknown, ..RepairScope::default() });
            let (keeps_progress, drops_slot) = (true, false);
            let terms = Terms { slot: AT, lineage, keeps_progress, scope, drops_slot };
            let unknown_because = [(reason, 3)].into();
            let counts = RepairCounts { unknown: 3, unknown_because, ..found(0, 0) };
            way(&terms, &stream(50, 7), Some(&counts)).ok().filter(|way| *way == Way::Replace)
        };
        let (before, send) = (UnknownReason::BeforeStream, Some(UnknownRows::Send));
        assert_eq!(of(before, send), Some(Way::Replace));
        assert_eq!(of(before, None), None);
        assert_eq!(of(before, Some(UnknownRows::Skip)), None);
        // These rows stay unknown, and each repair would send them again.
        assert_eq!(of(UnknownReason::Compacted, send), None);
    }
}
