//! Decides, before a session reads its first row, from which position the replication stream may be
//! resumed.
//!
//! Input: [`Facts`] about the slot, cluster, timeline, publication and tables as they are now, and the
//! [`Progress`] that was stored in Kafka. Output: a [`Resume`] (the mark up to which rows count as
//! delivered, a check of the log, and [`Warning`]s), or a [`GateError`]; errors and warnings have a hint
//! for the operator. Why: a log position has a meaning only within its cluster and timeline, but Postgres
//! accepts one of another cluster without an error; rows would then be skipped or delivered twice.
//! Invariant: the mark is never above the stored progress (G1, G6). No I/O.

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

/// What a timeline descends from: of each ancestor its number and where it ended, oldest first.
pub type TimelineHistory = Vec<(u32, Lsn)>;

/// The source as it is now. All of it read when the slot was taken already: until then another
/// relay may carry on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Which stream it is.
    pub lineage: Lineage,
    /// End of the server's log, read after the progress: one that was read before it may be behind it though nothing
    /// is wrong.
    pub server: Lsn,
    /// What its timeline descends from.
    pub history: TimelineHistory,
    /// Everything before it is acknowledged: Postgres never sends it again. Read before the progress, unless the slot
    /// is held: a live relay moves both.
    pub confirmed: Lsn,
    /// Whether this process has created the slot.
    pub created: bool,
    /// Whether a row may neither be lost nor repeated; otherwise a gap is told and passed over.
    pub exactly_once: bool,
    /// The publication's name.
    pub publication: String,
    /// No transaction of this number or a later one, in 64 bits, has committed.
    pub next_xid: u64,
}

/// How to carry on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resume {
    /// Rows before it were delivered.
    pub mark: Mark,
    /// What must be found in the log before that is believed.
    pub check: Option<ResumeCheck>,
    /// What the operator should know.
    pub warnings: Vec<Warning>,
}

/// What happened to the source, where it can be carried on nevertheless.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// A failover to a server that had not received everything.
    #[error(
        "timeline {timeline} ended at {end}, and rows up to {delivered} had been delivered: what was \
         committed between them is in Kafka and no longer in Postgres"
    )]
    TailLost {
        /// The timeline that the server has left.
        timeline: u32,
        /// Where.
        end: Lsn,
        /// Up to here rows had been delivered.
        delivered: Lsn,
    },
    /// What [`GateError::Gap`] is, where duplicates and losses are borne.
    #[error(
        "slot `{slot}` is at {confirmed}, and the newest progress names {delivered}: if the slot was \
         moved, rows committed between them are not delivered"
    )]
    Gap {
        /// The slot.
        slot: String,
        /// Up to here rows were delivered.
        delivered: Lsn,
        /// Where the slot begins.
        confirmed: Lsn,
    },
    /// Its options were changed since the session began that wrote the progress.
    #[error(
        "publication `{publication}` was altered since {}: rows committed while it left out inserts are \
         not delivered", began(slot, *delivered)
    )]
    PublicationAltered {
        /// The publication.
        publication: String,
        /// The slot.
        slot: String,
        /// Up to here rows were delivered.
        delivered: Lsn,
    },
    /// The same between two looks at it.
    #[error(
        "publication `{publication}` was altered after {since} in the server's log: rows committed \
         while it left out inserts are not delivered"
    )]
    AlteredMeanwhile {
        /// The publication.
        publication: String,
        /// Where the log ended when it was not altered yet.
        since: Lsn,
    },
}

impl Warning {
    /// What the operator can do about it.
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

/// Since when a publication has been another one.
fn began(slot: &str, delivered: Lsn) -> String {
    if delivered == Lsn::ZERO {
        return format!("slot `{slot}` was made");
    }
    format!("the session began that delivered rows of slot `{slot}` up to {delivered}")
}

/// Decides from where the stream may be carried on.
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
    // A slot that no relay has read from yet stands where its stream begins.
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

/// That the stream has not begun: rows of before its slot are still to be delivered.
pub fn unfinished(progress: &Progress) -> Option<GateError> {
    let slot = progress.lineage.slot.clone();
    let backfill = progress.backfill.as_ref()?;
    Some(match backfill.repair {
        Some(_) => GateError::RepairUnfinished { slot },
        None => GateError::BackfillUnfinished { slot },
    })
}

/// Whether the session has found another log than the one that rows were delivered from.
pub const fn other_log(error: &PipelineError) -> Option<GateError> {
    match error {
        PipelineError::OtherLog { delivered } => {
            Some(GateError::OtherLog { delivered: *delivered })
        }
        _ => None,
    }
}

/// What of the progress the server's log still has, and after which position it lacks some.
fn on_this_timeline(now: &Facts, progress: &Progress) -> Result<(Mark, Option<Lsn>), GateError> {
    let (mark, timeline) = (progress.mark, progress.lineage.timeline);
    let slot = || now.lineage.slot.clone();
    let delivered = furthest(mark);
    // Of a standby that starts anew even the timeline may be an earlier one until it has replayed again what it had.
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
    // At least once the last commit may be that of a transaction which was open then, and is gone with
    // what followed.
    let last = mark.last.filter(|last| last.lsn < end);
    if delivered <= end {
        return Ok((Mark { last, ..mark }, None));
    }
    if progress.lineage.standby {
        // A standby goes on streaming when it is promoted, or follows another server that was, and its relay hears of
        // the new timeline a little later, or in its next session: what lies beyond the end of the old one may be of
        // the new one. The log itself tells, for the last commit must be found in it; another standby that was
        // promoted does not have it. Where none was delivered yet, the slot was told a position of the new timeline.
        let is_known = mark.last.is_some() || now.confirmed > end;
        if is_known && delivered <= now.server {
            return Ok((mark, None));
        }
    }
    // A transaction that was half delivered is gone too, and another may be where it was.
    Ok((Mark { last, ..Mark::at(mark.end.min(end)) }, Some(end)))
}

/// The end of the log that must be there if this was delivered. Of a transaction in pieces, that is
/// its commit record: rows come only when it is written.
fn furthest(mark: Mark) -> Lsn {
    mark.part.map_or(mark.end, |part| mark.end.max(part.commit_lsn.next()))
}

/// Up to where rows were delivered, if the slot begins later. A mark without an end was written
/// before there was a slot, which then began wherever it did, but not above what the mark names.
fn delivered_before_gap(mark: Mark, lost_after: Option<Lsn>, confirmed: Lsn) -> Option<Lsn> {
    let delivered = match (mark.end, mark.part, lost_after) {
        (Lsn::ZERO, Some(part), _) => part.commit_lsn,
        (Lsn::ZERO, None, lost_after) => lost_after?,
        (end, ..) => end,
    };
    (confirmed > delivered).then_some(delivered)
}

/// A publication whose own row was written since. Most of what an operator alters there is harmless, and
/// what it published in between nobody can tell.
fn altered(now: &Facts, progress: &Progress) -> Option<Warning> {
    let (before, after) = (progress.lineage.publication_xid?, now.lineage.publication_xid?);
    (before != after).then(|| Warning::PublicationAltered {
        publication: now.publication.clone(),
        slot: now.lineage.slot.clone(),
        delivered: progress.mark.end,
    })
}

/// Tables may come and go between two transactions; none may take another's name.
fn same_tables(now: &Lineage, progress: &Progress, mark: Mark) -> Result<(), GateError> {
    let (before, slot) = (&progress.lineage, || now.slot.clone());
    let delivered = mark.end;
    // A base that was written before there was a slot knows of none.
    if before.publication != 0 && before.publication != now.publication {
        return Err(GateError::PublicationReplaced { slot: slot(), delivered });
    }
    for (table, oid) in &before.tables {
        if now.tables.get(table).is_some_and(|now| now != oid) {
            let table = table.clone();
            return Err(GateError::TableReplaced { table, slot: slot(), delivered });
        }
    }
    // Told by its OID: what was renamed meanwhile may have been out of the publication, too.
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
    // Rows are told by the OID of their table: one that was renamed has those that it had.
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
