//! Proves after a promotion that the slot continues where it was.
//!
//! A [`Promotion`] means that nothing is missing: the delivered rows lie on the timelines' common
//! part, and the slot is not beyond them. Without stored progress, [`judge_promotion`] classifies
//! other cases.

use std::fmt;

use super::{Facts, GateError, Warning, delivered_before_gap, on_this_timeline};
use crate::lsn::Lsn;
use crate::pipeline::Mark;
use crate::progress::{Lineage, Progress};

/// A later timeline without missing rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promotion {
    /// Delivered timeline.
    pub before: u32,
    /// Current timeline.
    pub now: u32,
    /// End of the earlier timeline.
    pub end: Lsn,
    /// End of the delivered rows.
    pub delivered: Lsn,
    /// Position of the slot.
    pub confirmed: Lsn,
}

impl fmt::Display for Promotion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, now, end, delivered, confirmed } = self;
        write!(
            f,
            "the server was promoted: timeline {now} descends from timeline {before}, which ended \
             at {end}; rows were delivered up to {delivered}, and the slot is at {confirmed}: \
             delivery resumes there"
        )
    }
}

/// The promotion since rows were delivered from `before`, if nothing is missing.
pub fn promotion(now: &Facts, before: &Lineage, delivered: Lsn) -> Option<Promotion> {
    let is_same = before.key() == now.lineage.key() && before.timeline < now.lineage.timeline;
    let ancestor = now.history.iter().find(|(ancestor, _)| *ancestor == before.timeline);
    let &(before, end) = ancestor.filter(|_| is_same)?;
    let (confirmed, now) = (now.confirmed, now.lineage.timeline);
    let is_inside = delivered <= end && confirmed <= delivered;
    is_inside.then_some(Promotion { before, now, end, delivered, confirmed })
}

/// Warnings about another timeline than the last session's, without stored progress. A former
/// standby is not judged: it kept streaming, and its switch position is not known.
pub fn judge_promotion(
    now: &Facts,
    before: &Lineage,
    delivered: Lsn,
) -> Result<Vec<Warning>, GateError> {
    let slot = || now.lineage.slot.clone();
    if before.key() != now.lineage.key() {
        let (before, now_key) = (before.key(), now.lineage.key());
        return Err(GateError::OtherSource { slot: slot(), before, now: now_key });
    }
    if before.timeline == now.lineage.timeline || before.standby || delivered == Lsn::ZERO {
        return Ok(Vec::new());
    }
    let progress = Progress { lineage: before.clone(), mark: Mark::at(delivered), backfill: None };
    let (mark, lost_after) = on_this_timeline(now, &progress)?;
    let timeline = before.timeline;
    let tail = lost_after.map(|end| Warning::TailLost { timeline, end, delivered });
    let gap = delivered_before_gap(mark, lost_after, now.confirmed);
    let gap =
        gap.map(|delivered| Warning::Gap { slot: slot(), delivered, confirmed: now.confirmed });
    Ok(tail.into_iter().chain(gap).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lineage(system: &str, timeline: u32) -> Lineage {
        let [system, slot] = [system, "s"].map(str::to_owned);
        Lineage { system, timeline, slot, ..Lineage::default() }
    }

    /// Timeline 1 ended at 1000; the slot is at 500.
    fn facts() -> Facts {
        Facts {
            lineage: lineage("7", 2),
            history: vec![(1, Lsn::new(1_000))],
            server: Lsn::new(3_000),
            confirmed: Lsn::new(500),
            ..Facts::default()
        }
    }

    #[test]
    fn g1_a_slot_that_goes_on_where_it_was_is_proven() {
        let before = lineage("7", 1);
        let told = |delivered| promotion(&facts(), &before, Lsn::new(delivered));
        let proven = told(1_000).unwrap();
        assert_eq!((proven.before, proven.now, proven.end), (1, 2, Lsn::new(1_000)));
        assert!(proven.to_string().contains("delivery resumes there"), "{proven}");
        assert!(told(500).is_some());
        assert_eq!(told(1_001), None, "the end of the log is lost");
        assert_eq!(told(499), None, "the slot is beyond what was delivered");
        let one = Lsn::new(600);
        assert_eq!(promotion(&facts(), &lineage("7", 2), one), None, "nothing happened");
        assert_eq!(promotion(&facts(), &lineage("8", 1), one), None, "another cluster");
        assert_eq!(judge_promotion(&facts(), &before, one), Ok(Vec::new()));
    }

    #[test]
    fn g1_what_does_not_go_on_is_told_or_refused() {
        let judged =
            |before: Lineage, delivered| judge_promotion(&facts(), &before, Lsn::new(delivered));
        let [Warning::TailLost { end, delivered, .. }] =
            judged(lineage("7", 1), 1_200).unwrap()[..]
        else {
            panic!("rows between 1000 and 1200 are in Kafka alone")
        };
        assert_eq!((end, delivered), (Lsn::new(1_000), Lsn::new(1_200)));
        let gap = judged(lineage("7", 1), 400).unwrap();
        assert!(matches!(gap[..], [Warning::Gap { .. }]), "{gap:?}");
        let other = judged(lineage("7", 3), 600).unwrap_err();
        assert!(matches!(other, GateError::OtherTimeline { before: 3, now: 2, .. }), "{other}");
        assert!(other.hint().contains("no progress is kept"), "{}", other.hint());
        let other = judged(lineage("8", 1), 600).unwrap_err();
        assert!(matches!(other, GateError::OtherSource { .. }), "{other}");
        let standby = Lineage { standby: true, ..lineage("7", 1) };
        assert_eq!(judged(standby, 1_200), Ok(Vec::new()));
        assert_eq!(judged(lineage("7", 1), 0), Ok(Vec::new()), "nothing was delivered");
    }
}
