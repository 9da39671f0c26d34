//! Defines [`GateError`]: why a stream cannot be carried on, with a remedy for each reason.

use crate::lsn::Lsn;
use crate::pipeline::CommitId;

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
    /// A standby that has yet to replay what it, or its primary, has sent: it has been started again, or another
    /// server has been read from until now.
    #[error(
        "the standby has replayed its log up to {server}, and rows of slot `{slot}` were delivered up to {delivered}"
    )]
    StandbyBehind {
        /// The slot.
        slot: String,
        /// Up to where it has replayed.
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
    /// The rows that were there before the slot are being delivered; the stream begins after them.
    #[error(
        "the backfill of slot `{slot}` has not ended: rows that were there before the slot are missing"
    )]
    BackfillUnfinished {
        /// The slot.
        slot: String,
    },
    /// Rows that an earlier slot has not delivered are being delivered; the stream begins after them.
    #[error("the repair of slot `{slot}` has not ended: rows of before the slot are missing")]
    RepairUnfinished {
        /// The slot.
        slot: String,
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
            Self::StandbyBehind { .. } => {
                "nothing to do while it catches up: the relay tries again. One that stays behind receives nothing: see \
                 pg_stat_wal_receiver there"
                    .to_owned()
            }
            Self::OtherTimeline { before, now, .. } if now < before => format!(
                "it is the old primary of a failover, or a copy of it: stop it, and make it a standby of the server \
                 that is on timeline {before}; if it is to take that one's place: {ADOPT} (where no progress is kept \
                 in Kafka, start the relay again), and rows of its own are delivered"
            ),
            Self::Restored { .. } | Self::OtherLog { .. } | Self::OtherTimeline { .. } => format!(
                "connect to the server that was delivered from; if this one is to take its place: \
                 {ADOPT}, and rows committed since the backup are delivered as new ones (where no progress is \
                 kept in Kafka, start the relay again)"
            ),
            Self::Gap { delivered, confirmed, .. } => format!(
                "`postrider repair` finds out which rows are missing in Kafka, and with --execute sends them and \
                 makes the slot anew. If the slot was neither dropped nor moved by hand, and a relay delivered at \
                 least once meanwhile, the rows up to {confirmed} are in Kafka: {ADOPT}. By hand: re-send the \
                 rows committed between {delivered} and {confirmed} that are still in the outbox (some may \
                 come twice), then the same"
            ),
            Self::SlotGone { delivered, .. } => format!(
                "`postrider repair` finds out which rows are missing in Kafka, and with --execute sends them and \
                 makes the slot; then start the relay. By hand: `postrider setup --from-now` (a new slot delivers \
                 nothing that was committed before it), re-send the rows committed after {delivered} that are \
                 still in the outbox, then: {ADOPT}"
            ),
            Self::NoProgress { confirmed, .. } => format!(
                "are kafka.brokers and progress.topic right? With other brokers, rows would go there. If rows were delivered \
                 up to {confirmed}, or none are wanted from before: {ADOPT}; if the progress topic was lost, rows after {confirmed} may come twice"
            ),
            Self::BackfillUnfinished { .. } => {
                "`postrider backfill --execute` goes on where it was; then start the relay"
                    .to_owned()
            }
            Self::RepairUnfinished { .. } => {
                "`postrider repair --execute` with the options that it was begun with compares again and goes on; \
                 then start the relay"
                    .to_owned()
            }
            Self::PublicationReplaced { .. } | Self::TableReplaced { .. } => format!(
                "{ADOPT}\nstart the relay, and stop it a minute later\n`postrider repair --execute` re-sends the \
                 rows committed since the change that are still in the outbox, because Postgres passes over them"
            ),
            Self::MemberReplaced { .. } => format!(
                "{ADOPT}\nstart the relay, and stop it a minute later\n`postrider repair --execute` re-sends the \
                 rows committed while it was not published that are still in the outbox, because Postgres passes over \
                 them (none, if it went straight from one published schema into another)"
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

/// Since when something has been replaced: before the first row, the base names it.
fn since(delivered: Lsn) -> String {
    if delivered == Lsn::ZERO {
        return "since the slot was made".to_owned();
    }
    format!("since rows were delivered up to {delivered}")
}
