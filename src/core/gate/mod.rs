//! Decides, before a session reads its first row, from which position the replication stream may be
//! resumed.
//!
//! Input: [`Facts`] about the slot, cluster, timeline, publication and tables as they are now, and the
//! [`Progress`] that was stored in Kafka. Output: a [`Resume`] (the mark up to which rows count as
//! delivered, a check of the log, and [`Warning`]s), or a [`GateError`]; errors and warnings have a hint
//! for the operator. Why: a log position has a meaning only within its cluster and timeline, but Postgres
//! accepts one of another cluster without an error; rows would then be skipped or delivered twice.
//! Invariant: the mark is never above the stored progress (G1, G6). No I/O.

use std::collections::{BTreeMap, BTreeSet};

use crate::lsn::Lsn;
use crate::pipeline::{CommitId, Mark, PartialTransaction, PipelineError, ResumeCheck};
use crate::progress::{Lineage, Progress};

/// What a timeline descends from: of each ancestor its number and where it ended, oldest first.
pub type TimelineHistory = Vec<(u32, Lsn)>;

/// The source as it is now. All of it read when the slot was taken already: until then another
/// relay may carry on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Which stream it is.
    pub lineage: Lineage,
    /// End of the server's log.
    pub server: Lsn,
    /// What its timeline descends from.
    pub history: TimelineHistory,
    /// Everything before it is acknowledged: Postgres never sends it again.
    pub confirmed: Lsn,
    /// Whether this process has created the slot.
    pub created: bool,
    /// Whether a row may neither be lost nor repeated; otherwise a gap is told and passed over.
    pub exactly_once: bool,
    /// The publication's name.
    pub publication: String,
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

/// Why the stream cannot be carried on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// Another cluster, database or slot than the record's key says: no relay wrote that.
    #[error("the progress of slot `{slot}` belongs to `{before}`, and this is `{now}`")]
    OtherSource {
        /// The slot.
        slot: String,
        /// System identifier, database and slot it was written for.
        before: String,
        /// The same of this source.
        now: String,
    },
    /// An older copy of the server.
    #[error(
        "the server's log ends at {server}, and rows of slot `{slot}` were delivered up to \
         {delivered}: it is an older copy of the server"
    )]
    Restored {
        /// The slot.
        slot: String,
        /// Where the log ends.
        server: Lsn,
        /// Up to here rows were delivered.
        delivered: Lsn,
    },
    /// A copy of the server that has grown since, so that it has another log where rows were delivered.
    #[error(
        "the server's log does not have the commit of transaction {} at {}, the last one that rows were \
         delivered from: it is another copy of the server, and has rows of its own",
        .delivered.xid, .delivered.lsn
    )]
    OtherLog {
        /// The last commit that rows were delivered from.
        delivered: CommitId,
    },
    /// The server's timeline does not descend from the one that was delivered from.
    #[error(
        "the server is on timeline {now}, which does not descend from timeline {before}, of which \
         rows of slot `{slot}` were delivered up to {delivered}"
    )]
    OtherTimeline {
        /// The slot.
        slot: String,
        /// The timeline that was delivered from.
        before: u32,
        /// The server's.
        now: u32,
        /// Up to here rows were delivered.
        delivered: Lsn,
    },
    /// The slot was moved, or created anew.
    #[error(
        "slot `{slot}` {} {confirmed}, and progress in Kafka ends at {delivered}",
        if *.created { "was gone; a new one begins at" } else { "begins at" }
    )]
    Gap {
        /// The slot.
        slot: String,
        /// Where it begins.
        confirmed: Lsn,
        /// Up to here rows were delivered.
        delivered: Lsn,
        /// Whether this process has created it.
        created: bool,
    },
    /// The slot is not there any more.
    #[error("slot `{slot}` does not exist, and rows of it were delivered up to {delivered}")]
    SlotGone {
        /// The slot.
        slot: String,
        /// Up to here rows were delivered.
        delivered: Lsn,
    },
    /// The slot was used already, and nobody knows how far its rows were delivered.
    #[error("slot `{slot}` is at {confirmed}, and Kafka holds no progress of it")]
    NoProgress {
        /// The slot.
        slot: String,
        /// Its position.
        confirmed: Lsn,
    },
    /// Dropped and created again since the progress was written.
    #[error(
        "the publication of slot `{slot}` was replaced {}", since(*delivered)
    )]
    PublicationReplaced {
        /// The slot.
        slot: String,
        /// Up to here rows were delivered.
        delivered: Lsn,
    },
    /// Renamed, or dropped and created again, since the progress was written.
    #[error(
        "table {table} is not the one that slot `{slot}` delivered rows of: it was renamed, dropped or \
         replaced {}", since(*delivered)
    )]
    TableReplaced {
        /// The table.
        table: String,
        /// The slot.
        slot: String,
        /// Up to here rows were delivered.
        delivered: Lsn,
    },
    /// Taken out of the publication and put in again since the progress was written.
    #[error(
        "table {table} was taken out of the publication of slot `{slot}` and put in again {}",
        since(*delivered)
    )]
    MemberReplaced {
        /// The table.
        table: String,
        /// The slot.
        slot: String,
        /// Up to here rows were delivered.
        delivered: Lsn,
    },
    /// Rows of a half delivered transaction are counted, and the count is of other messages.
    #[error(
        "messages.prefixes has changed within the transaction that commits at {commit}, of which slot \
         `{slot}` has delivered {rows} rows"
    )]
    PrefixesChanged {
        /// The slot.
        slot: String,
        /// The transaction.
        commit: Lsn,
        /// Delivered of it.
        rows: u64,
    },
    /// Rows of a half delivered transaction are counted, and the count is of other tables.
    #[error(
        "source.tables has changed ({table}) within the transaction that commits at {commit}, of \
         which slot `{slot}` has delivered {rows} rows"
    )]
    TablesChanged {
        /// A table that was added or removed.
        table: String,
        /// The slot.
        slot: String,
        /// The transaction.
        commit: Lsn,
        /// Delivered of it.
        rows: u64,
    },
}

impl GateError {
    /// The exact remedy.
    pub fn hint(&self) -> String {
        const ADOPT: &str = "`postrider adopt` (which says what becomes of rows), then `postrider \
                             adopt --execute`";
        match self {
            Self::OtherSource { .. } => format!(
                "its key and its value disagree, so no relay wrote it: look who else writes to the \
                 progress topic (`postrider tail`), then: {ADOPT}"
            ),
            Self::Restored { .. } | Self::OtherLog { .. } | Self::OtherTimeline { .. } => format!(
                "connect to the server that was delivered from; if this one is to take its place: \
                 {ADOPT}, and rows committed since the backup are delivered as new ones"
            ),
            Self::Gap { delivered, confirmed, .. } => format!(
                "if the slot was neither dropped nor moved by hand, and a relay delivered at least once \
                 meanwhile, the rows up to {confirmed} are in Kafka: {ADOPT}. If you are not sure, re-send the \
                 rows committed between {delivered} and {confirmed} that are still in the outbox (some may \
                 come twice), then the same"
            ),
            Self::SlotGone { delivered, .. } => format!(
                "`postrider setup --from-now` (a new slot delivers nothing that was committed before \
                 it), re-send the rows committed after {delivered} that are still in the outbox, \
                 then: {ADOPT}"
            ),
            Self::NoProgress { confirmed, .. } => format!(
                "are kafka.brokers and progress.topic right? With other brokers, rows would go there. If rows were delivered \
                 up to {confirmed}, or none are wanted from before: {ADOPT}; if the progress topic was lost, rows after {confirmed} may come twice"
            ),
            Self::PublicationReplaced { .. } | Self::TableReplaced { .. } => format!(
                "re-send the rows committed since the change, which Postgres passes over, then: \
                 {ADOPT}"
            ),
            Self::MemberReplaced { .. } => format!(
                "re-send the rows committed while it was not published, which Postgres passes over (none, \
                 if it went straight from one published schema into another), then: {ADOPT}"
            ),
            Self::PrefixesChanged { .. } => {
                "start with the former messages.prefixes until it is delivered, then change them"
                    .to_owned()
            }
            Self::TablesChanged { .. } => {
                "start with the former source.tables until it is delivered, then change them"
                    .to_owned()
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

/// Since when something has been replaced: before the first row, the base names it.
fn since(delivered: Lsn) -> String {
    if delivered == Lsn::ZERO {
        return "since the slot was made".to_owned();
    }
    format!("since rows were delivered up to {delivered}")
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
    let (mark, lost_after) = on_this_timeline(now, progress)?;
    let mut warnings = Vec::new();
    if let Some(end) = lost_after {
        let (timeline, delivered) = (before.timeline, furthest(progress.mark));
        warnings.push(Warning::TailLost { timeline, end, delivered });
    }
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
    // A standby that is promoted goes on streaming, and its relay hears of the new timeline a little
    // later: what lies beyond the end of the old one may be of the new one. The log itself tells, for
    // the last commit must be found in it; another standby that was promoted does not have it.
    if progress.lineage.standby && mark.last.is_some() && delivered <= now.server {
        return Ok((mark, None));
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

#[cfg(test)]
mod tests;
