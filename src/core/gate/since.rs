//! Determines since when a stream has omitted no row.
//!
//! A slot that replaces a lost one looks like its predecessor; only its position lies beyond the
//! stored progress. A session inherits the start only if it resumes where the previous one ended.

use super::{Facts, Resume, Warning, oids};
use crate::lsn::Lsn;
use crate::progress::{Lineage, Progress, Since};

/// The start in the progress, if nothing was omitted before the slot's position.
pub fn unbroken(now: &Facts, progress: &Progress, resume: &Resume) -> Option<Since> {
    let since = progress.lineage.since?;
    let breaks = |warning: &Warning| match warning {
        Warning::TailLost { .. } => false,
        // The rows that an altered publication omitted are not known.
        Warning::Gap { .. }
        | Warning::PublicationAltered { .. }
        | Warning::AlteredMeanwhile { .. } => true,
    };
    // Earlier rows of an added table are not in the stream.
    let (before, now_oids) = (oids(&progress.lineage), oids(&now.lineage));
    if resume.warnings.iter().any(breaks) || !now_oids.is_subset(&before) {
        return None;
    }
    // A slot without acknowledgements is still at the start.
    let delivered = if resume.mark.end == Lsn::ZERO { since.lsn } else { resume.mark.end };
    (now.confirmed <= delivered).then_some(since)
}

/// The start of a stream that may lack earlier rows. The very first start is inherited, unless a
/// table was added.
pub fn begins(lsn: Lsn, next_xid: u64, lineage: &Lineage, before: Option<&Progress>) -> Since {
    let before = before.filter(|before| oids(lineage).is_subset(&oids(&before.lineage)));
    let began = before.and_then(Progress::began).unwrap_or(next_xid);
    Since { lsn, xid: next_xid, began: Some(began) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::judge;
    use crate::pipeline::Mark;
    use crate::progress::{BackfillProgress, RepairScope};

    const SINCE: Since = Since { lsn: Lsn::new(40), xid: 7, began: Some(5) };

    fn of(end: u64, change: impl FnOnce(&mut Facts, &mut Progress)) -> Option<Since> {
        let mut now = Facts { confirmed: Lsn::new(50), server: Lsn::new(90), ..Facts::default() };
        let lineage = Lineage { since: Some(SINCE), ..Lineage::default() };
        let mut progress = Progress { lineage, mark: Mark::at(Lsn::new(end)), backfill: None };
        change(&mut now, &mut progress);
        let resume = judge(&now, Some(&progress)).unwrap();
        unbroken(&now, &progress, &resume)
    }

    #[test]
    fn g1_a_beginning_is_handed_on_where_the_slot_is_not_ahead_of_the_progress() {
        assert_eq!(of(50, |_, _| ()), Some(SINCE));
        assert_eq!(of(60, |_, _| ()), Some(SINCE), "acknowledgements follow the progress");
        assert_eq!(of(49, |_, _| ()), None, "a slot that was made anew, or moved");
        assert_eq!(of(50, |_, progress| progress.lineage.since = None), None);
    }

    #[test]
    fn g1_before_the_first_row_the_slot_must_be_where_it_was_made() {
        assert_eq!(of(0, |now, _| now.confirmed = SINCE.lsn), Some(SINCE));
        assert_eq!(of(0, |_, _| ()), None, "another one was made behind it");
    }

    #[test]
    fn g1_a_table_that_came_later_begins_anew() {
        let table = |lineage: &mut Lineage| {
            lineage.tables.insert("public.outbox".to_owned(), 8);
        };
        let both = |now: &mut Facts, progress: &mut Progress| {
            table(&mut now.lineage);
            table(&mut progress.lineage);
        };
        assert_eq!(of(50, both), Some(SINCE));
        assert_eq!(of(50, |now, _| table(&mut now.lineage)), None);
        assert_eq!(of(50, |_, progress| table(&mut progress.lineage)), Some(SINCE));
    }

    #[test]
    fn when_a_stream_began_first_is_handed_on_whatever_it_has_left_out_since() {
        let of = |tables: u32, backfill: Option<BackfillProgress>| {
            let mut lineage = Lineage { since: Some(SINCE), ..Lineage::default() };
            lineage.tables.insert("public.outbox".to_owned(), 8);
            let before = Progress { lineage: lineage.clone(), mark: Mark::default(), backfill };
            lineage.tables.insert("public.outbox".to_owned(), tables);
            begins(Lsn::new(90), 99, &lineage, Some(&before))
        };
        let began = |began| Since { lsn: Lsn::new(90), xid: 99, began: Some(began) };
        assert_eq!(of(8, None), began(5));
        assert_eq!(of(9, None), began(99), "another table has other rows before it");
        assert_eq!(of(8, Some(BackfillProgress::default())), began(0), "it is about all rows");
        let repair = Some(RepairScope::default());
        let repair = BackfillProgress { repair, began: Some(6), ..BackfillProgress::default() };
        assert_eq!(of(8, Some(repair)), began(6));
        assert_eq!(begins(Lsn::new(90), 99, &Lineage::default(), None), began(99));
        assert_eq!(Since { began: None, ..SINCE }.began(), 7, "as earlier versions wrote it");
    }

    #[test]
    fn g1_a_publication_that_was_altered_ends_what_is_known() {
        let altered = |now: &mut Facts, progress: &mut Progress| {
            progress.lineage.publication_xid = Some(1);
            now.lineage.publication_xid = Some(2);
        };
        assert_eq!(of(50, altered), None);
    }
}
