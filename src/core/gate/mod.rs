//! Decides from which position a replication stream may resume.
//!
//! Input: [`Facts`], and the [`Progress`] in Kafka. Output: a [`Resume`] or a [`GateError`]. A log
//! position has a meaning only within its cluster and timeline, but Postgres accepts any. The mark
//! is never above the stored progress (G1, G6).

mod error;
mod promotion;
mod since;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::lsn::Lsn;
use crate::pipeline::{Mark, PartialTransaction, PipelineError, ResumeCheck};
use crate::progress::{Lineage, Progress};

pub use error::GateError;
pub use promotion::{Promotion, judge_promotion, promotion};
pub use since::{begins, unbroken};

/// Number and end of each ancestor, oldest first.
pub type TimelineHistory = Vec<(u32, Lsn)>;

/// The current source. Read all facts after the slot was taken, because until then another relay
/// may advance the stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Identity.
    pub lineage: Lineage,
    /// End of the server's log. Read it after the progress: an earlier reading may fall short of
    /// the progress although nothing is wrong.
    pub server: Lsn,
    /// Ancestors of the server's timeline.
    pub history: TimelineHistory,
    /// The slot's acknowledged position. Read it before the progress, unless the slot is held: a
    /// live relay moves both.
    pub confirmed: Lsn,
    /// Whether this process created the slot.
    pub created: bool,
    /// Whether a gap is an error instead of a warning.
    pub exactly_once: bool,
    /// Name of the publication.
    pub publication: String,
    /// No transaction with this or a later 64-bit number has committed.
    pub next_xid: u64,
}

/// How the stream resumes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resume {
    /// Earlier rows were delivered.
    pub mark: Mark,
    /// Evidence to find in the log.
    pub check: Option<ResumeCheck>,
    /// Warnings for the operator.
    pub warnings: Vec<Warning>,
}

/// A change that does not prevent resuming.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// The new server had not received everything.
    #[error(
        "timeline {timeline} ended at {end}, and rows up to {delivered} had been delivered: what was \
         committed between them is in Kafka and no longer in Postgres"
    )]
    TailLost {
        /// Old timeline.
        timeline: u32,
        /// Its end.
        end: Lsn,
        /// End of the delivered rows.
        delivered: Lsn,
    },
    /// [`GateError::Gap`] that is acceptable.
    #[error(
        "slot `{slot}` is at {confirmed}, and the newest progress names {delivered}: if the slot was \
         moved, rows committed between them are not delivered"
    )]
    Gap {
        /// Slot.
        slot: String,
        /// End of the delivered rows.
        delivered: Lsn,
        /// Position of the slot.
        confirmed: Lsn,
    },
    /// The publication was altered since the progress was written.
    #[error(
        "publication `{publication}` was altered since {}: rows committed while it left out inserts are \
         not delivered", began(slot, *delivered)
    )]
    PublicationAltered {
        /// Publication.
        publication: String,
        /// Slot.
        slot: String,
        /// End of the delivered rows.
        delivered: Lsn,
    },
    /// The publication was altered between two checks.
    #[error(
        "publication `{publication}` was altered after {since} in the server's log: rows committed \
         while it left out inserts are not delivered"
    )]
    AlteredMeanwhile {
        /// Publication.
        publication: String,
        /// End of the log when the publication was last seen unaltered.
        since: Lsn,
    },
}

impl Warning {
    /// Advice for the operator.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::TailLost { .. } => {
                "nothing to do for new rows, none is lost; compare what consumers made of the rows \
                 that Postgres forgot, and see synchronous_standby_names"
            }
            Self::Gap { .. } => {
                "nothing to do where relays took turns at the slot: the one that ended may have kept \
                 progress last. Otherwise re-send the rows committed between them, if they are still in \
                 the outbox"
            }
            Self::PublicationAltered { .. } | Self::AlteredMeanwhile { .. } => {
                "nothing to do if `publish` contained insert all the time (and \
                 publish_via_partition_root did not change, for a partitioned table); otherwise re-send \
                 the rows committed meanwhile that are still in the outbox"
            }
        }
    }
}

fn began(slot: &str, delivered: Lsn) -> String {
    if delivered == Lsn::ZERO {
        return format!("slot `{slot}` was made");
    }
    format!("the session began that delivered rows of slot `{slot}` up to {delivered}")
}

/// Decides from where the stream may resume.
pub fn judge(now: &Facts, progress: Option<&Progress>) -> Result<Resume, GateError> {
    let slot = || now.lineage.slot.clone();
    let Some(progress) = progress else {
        if now.exactly_once {
            return Err(GateError::NoProgress { slot: slot(), confirmed: now.confirmed });
        }
        return Ok(Resume::default());
    };
    let before = &progress.lineage;
    if before.key() != now.lineage.key() {
        let (before, now) = (before.key(), now.lineage.key());
        return Err(GateError::OtherSource { slot: slot(), before, now });
    }
    if let Some(unfinished) = unfinished(progress) {
        return Err(unfinished);
    }
    let (mark, lost_after) = on_this_timeline(now, progress)?;
    let mut warnings = Vec::new();
    if let Some(end) = lost_after {
        let (timeline, delivered) = (before.timeline, furthest(progress.mark));
        warnings.push(Warning::TailLost { timeline, end, delivered });
    }
    // A slot that no relay has read from is still at its start.
    let begins = before.since.filter(|_| progress.mark == Mark::default());
    let lost_after = lost_after.or(begins.map(|since| since.lsn));
    if let Some(delivered) = delivered_before_gap(mark, lost_after, now.confirmed) {
        let confirmed = now.confirmed;
        if now.exactly_once {
            let created = now.created;
            return Err(GateError::Gap { slot: slot(), confirmed, delivered, created });
        }
        warnings.push(Warning::Gap { slot: slot(), delivered, confirmed });
    }
    same_tables(&now.lineage, progress, mark)?;
    warnings.extend(altered(now, progress));
    let same_rows = oids(before).eq(&oids(&now.lineage)) && before.messages == now.lineage.messages;
    let check = ResumeCheck::new(mark, now.confirmed, same_rows);
    Ok(Resume { mark, check, warnings })
}

/// The error while older rows are to be delivered.
pub fn unfinished(progress: &Progress) -> Option<GateError> {
    let slot = progress.lineage.slot.clone();
    let backfill = progress.backfill.as_ref()?;
    Some(match backfill.repair {
        Some(_) => GateError::RepairUnfinished { slot },
        None => GateError::BackfillUnfinished { slot },
    })
}

/// The error if the log differs.
pub const fn other_log(error: &PipelineError) -> Option<GateError> {
    match error {
        PipelineError::OtherLog { delivered } => {
            Some(GateError::OtherLog { delivered: *delivered })
        }
        _ => None,
    }
}

/// Delivered progress in the log, and the position after which some is missing.
fn on_this_timeline(now: &Facts, progress: &Progress) -> Result<(Mark, Option<Lsn>), GateError> {
    let (mark, timeline) = (progress.mark, progress.lineage.timeline);
    let slot = || now.lineage.slot.clone();
    let delivered = furthest(mark);
    // A restarted standby may show an earlier timeline until it has replayed its log.
    let may_replay = progress.lineage.standby || timeline >= now.lineage.timeline;
    if now.server < delivered && now.lineage.standby && may_replay {
        let server = now.server;
        return Err(GateError::StandbyBehind { slot: slot(), server, delivered });
    }
    if timeline == now.lineage.timeline {
        if now.server < delivered {
            return Err(GateError::Restored { slot: slot(), server: now.server, delivered });
        }
        return Ok((mark, None));
    }
    let ancestor = now.history.iter().find(|(ancestor, _)| *ancestor == timeline);
    let Some(&(_, end)) = ancestor.filter(|_| timeline < now.lineage.timeline) else {
        let (before, now) = (timeline, now.lineage.timeline);
        return Err(GateError::OtherTimeline { slot: slot(), before, now, delivered });
    };
    // With at-least-once delivery, the last commit may belong to a transaction that was open at the
    // end and is lost with the rest.
    let last = mark.last.filter(|last| last.lsn < end);
    if delivered <= end {
        return Ok((Mark { last, ..mark }, None));
    }
    if progress.lineage.standby {
        // A standby keeps streaming across a promotion, so positions after the old end may belong
        // to the new timeline. The last commit in the log proves it, or else the slot's
        // acknowledged position.
        let is_known = mark.last.is_some() || now.confirmed > end;
        if is_known && delivered <= now.server {
            return Ok((mark, None));
        }
    }
    // A partly delivered transaction is lost too, and another may occupy its position.
    Ok((Mark { last, ..Mark::at(mark.end.min(end)) }, Some(end)))
}

/// End that the log must have if this was delivered. Postgres sends rows only after the commit
/// record is written.
fn furthest(mark: Mark) -> Lsn {
    mark.part.map_or(mark.end, |part| mark.end.max(part.commit_lsn.next()))
}

/// End of the delivered rows, if the slot starts later. A mark without an end predates the slot,
/// which may start anywhere up to the mark.
fn delivered_before_gap(mark: Mark, lost_after: Option<Lsn>, confirmed: Lsn) -> Option<Lsn> {
    let delivered = match (mark.end, mark.part, lost_after) {
        (Lsn::ZERO, Some(part), _) => part.commit_lsn,
        (Lsn::ZERO, None, lost_after) => lost_after?,
        (end, ..) => end,
    };
    (confirmed > delivered).then_some(delivered)
}

/// Warns only: most alterations are harmless, and the content published in between is not known.
fn altered(now: &Facts, progress: &Progress) -> Option<Warning> {
    let (before, after) = (progress.lineage.publication_xid?, now.lineage.publication_xid?);
    (before != after).then(|| Warning::PublicationAltered {
        publication: now.publication.clone(),
        slot: now.lineage.slot.clone(),
        delivered: progress.mark.end,
    })
}

/// Tables may come and go between transactions, but not take over a name.
fn same_tables(now: &Lineage, progress: &Progress, mark: Mark) -> Result<(), GateError> {
    let (before, slot) = (&progress.lineage, || now.slot.clone());
    let delivered = mark.end;
    // A base from before the slot names no publication.
    if before.publication != 0 && before.publication != now.publication {
        return Err(GateError::PublicationReplaced { slot: slot(), delivered });
    }
    for (table, oid) in &before.tables {
        if now.tables.get(table).is_some_and(|now| now != oid) {
            let table = table.clone();
            return Err(GateError::TableReplaced { table, slot: slot(), delivered });
        }
    }
    // By OID: a renamed table may have left the publication for a while.
    for (before_name, oid) in &before.tables {
        let Some((name, _)) = now.tables.iter().find(|(_, now)| *now == oid) else { continue };
        let differs = |before: &BTreeMap<String, u32>, now: &BTreeMap<String, u32>| {
            let both = before.get(before_name).zip(now.get(name));
            both.is_some_and(|(before, now)| before != now)
        };
        if differs(&before.members, &now.members) || differs(&before.places, &now.places) {
            let table = name.clone();
            return Err(GateError::MemberReplaced { table, slot: slot(), delivered });
        }
    }
    let Some(PartialTransaction { commit_lsn: commit, rows }) = mark.part else { return Ok(()) };
    if before.messages.is_some() && before.messages != now.messages {
        return Err(GateError::PrefixesChanged { slot: slot(), commit, rows });
    }
    // Rows name their table by OID.
    let (old, new) = (oids(before), oids(now));
    let removed = before.tables.iter().find(|(_, oid)| !new.contains(oid));
    let added = now.tables.iter().find(|(_, oid)| !old.contains(oid));
    match removed.or(added).map(|(table, _)| table.clone()) {
        Some(table) => Err(GateError::TablesChanged { table, slot: slot(), commit, rows }),
        None => Ok(()),
    }
}

fn oids(lineage: &Lineage) -> BTreeSet<u32> {
    lineage.tables.values().copied().collect()
}
