//! Defines [`GateError`]: why a stream cannot be resumed.

use crate::lsn::Lsn;
use crate::pipeline::CommitId;

/// Why the stream cannot be resumed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// The progress names another source than its key, so no relay wrote it.
    #[error("the progress of slot `{slot}` belongs to `{before}`, and this is `{now}`")]
    OtherSource {
        /// Slot.
        slot: String,
        /// Source in the record.
        before: String,
        /// Current source.
        now: String,
    },
    /// The server is an older copy.
    #[error(
        "the server's log ends at {server}, and rows of slot `{slot}` were delivered up to \
         {delivered}: it is an older copy of the server"
    )]
    Restored {
        /// Slot.
        slot: String,
        /// End of the server's log.
        server: Lsn,
        /// End of the delivered rows.
        delivered: Lsn,
    },
    /// The standby has not yet replayed the delivered rows.
    #[error(
        "the standby has replayed its log up to {server}, and rows of slot `{slot}` were delivered up to {delivered}"
    )]
    StandbyBehind {
        /// Slot.
        slot: String,
        /// End of the replayed log.
        server: Lsn,
        /// End of the delivered rows.
        delivered: Lsn,
    },
    /// The server is a copy that has grown since.
    #[error(
        "the server's log does not have the commit of transaction {} at {}, the last one that rows were \
         delivered from: it is another copy of the server, and has rows of its own",
        .delivered.xid, .delivered.lsn
    )]
    OtherLog {
        /// Last delivered commit.
        delivered: CommitId,
    },
    /// The timeline does not descend from the old one.
    #[error(
        "the server is on timeline {now}, which does not descend from timeline {before}, of which \
         rows of slot `{slot}` were delivered up to {delivered}"
    )]
    OtherTimeline {
        /// Slot.
        slot: String,
        /// Timeline of the delivered rows.
        before: u32,
        /// Current timeline.
        now: u32,
        /// End of the delivered rows.
        delivered: Lsn,
    },
    /// The slot was advanced or recreated.
    #[error(
        "slot `{slot}` {} {confirmed}, and progress in Kafka ends at {delivered}",
        if *.created { "was gone; a new one begins at" } else { "begins at" }
    )]
    Gap {
        /// Slot.
        slot: String,
        /// The slot's position.
        confirmed: Lsn,
        /// End of the delivered rows.
        delivered: Lsn,
        /// Whether this process created it.
        created: bool,
    },
    /// The slot no longer exists.
    #[error("slot `{slot}` does not exist, and rows of it were delivered up to {delivered}")]
    SlotGone {
        /// Slot.
        slot: String,
        /// End of the delivered rows.
        delivered: Lsn,
    },
    /// The slot was used, but its progress is not known.
    #[error("slot `{slot}` is at {confirmed}, and Kafka holds no progress of it")]
    NoProgress {
        /// Slot.
        slot: String,
        /// The slot's position.
        confirmed: Lsn,
    },
    /// A backfill must be completed first.
    #[error(
        "the backfill of slot `{slot}` has not ended: rows that were there before the slot are missing"
    )]
    BackfillUnfinished {
        /// Slot.
        slot: String,
    },
    /// A repair must be completed first.
    #[error("the repair of slot `{slot}` has not ended: rows from before the slot are missing")]
    RepairUnfinished {
        /// Slot.
        slot: String,
    },
    /// The publication was recreated since.
    #[error(
        "the publication of slot `{slot}` was replaced {}", since(*delivered)
    )]
    PublicationReplaced {
        /// Slot.
        slot: String,
        /// End of the delivered rows.
        delivered: Lsn,
    },
    /// The table was renamed or recreated since.
    #[error(
        "table {table} is not the one that slot `{slot}` delivered rows of: it was renamed, dropped or \
         replaced {}", since(*delivered)
    )]
    TableReplaced {
        /// Table.
        table: String,
        /// Slot.
        slot: String,
        /// End of the delivered rows.
        delivered: Lsn,
    },
    /// The table left the publication and returned.
    #[error(
        "table {table} was taken out of the publication of slot `{slot}` and put in again {}",
        since(*delivered)
    )]
    MemberReplaced {
        /// Table.
        table: String,
        /// Slot.
        slot: String,
        /// End of the delivered rows.
        delivered: Lsn,
    },
    /// Message prefixes changed within a partly delivered transaction.
    #[error(
        "messages.prefixes has changed within the transaction that commits at {commit}, of which slot \
         `{slot}` has delivered {rows} rows"
    )]
    PrefixesChanged {
        /// Slot.
        slot: String,
        /// Commit position.
        commit: Lsn,
        /// Delivered rows.
        rows: u64,
    },
    /// Tables changed within a partly delivered transaction.
    #[error(
        "source.tables has changed ({table}) within the transaction that commits at {commit}, of \
         which slot `{slot}` has delivered {rows} rows"
    )]
    TablesChanged {
        /// A changed table.
        table: String,
        /// Slot.
        slot: String,
        /// Commit position.
        commit: Lsn,
        /// Delivered rows.
        rows: u64,
    },
}

const ADOPT: &str = "`postrider adopt` (prints the plan), then `postrider adopt --execute`";
/// Begins with [`ADOPT`].
const PASSED_OVER: &str = "`postrider adopt` (prints the plan), then `postrider adopt \
                           --execute`\nstart the relay, and stop it a minute later\n`postrider \
                           repair --execute` re-sends the rows committed since the change that \
                           are still in the outbox, because Postgres passes over them";

impl GateError {
    /// Remedy, step by step.
    pub fn hint(&self) -> String {
        match self {
            Self::OtherSource { .. } => format!(
                "its key and value disagree, so no relay wrote it: find the other writer of the \
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
                "`postrider repair` finds the rows that are missing in Kafka; with --execute it \
                 sends them and creates the slot again. If the slot was neither dropped nor \
                 moved by hand, and a relay delivered at_least_once in the meantime, the rows up \
                 to {confirmed} are in Kafka: {ADOPT}. By hand: re-send the rows committed \
                 between {delivered} and {confirmed} that are still in the outbox (some may come \
                 twice), then the same"
            ),
            Self::SlotGone { delivered, .. } => format!(
                "`postrider repair` finds the rows that are missing in Kafka; with --execute it \
                 sends them and creates the slot; then start the relay. By hand: `postrider \
                 setup --from-now` (a new slot delivers nothing that was committed before it), \
                 re-send the rows committed after {delivered} that are still in the outbox, \
                 then: {ADOPT}"
            ),
            Self::NoProgress { confirmed, .. } => format!(
                "are kafka.brokers and progress.topic right? With other brokers, rows would go there. If rows were delivered \
                 up to {confirmed}, or none are wanted from before: {ADOPT}; if the progress topic was lost, rows after {confirmed} may come twice"
            ),
            Self::BackfillUnfinished { .. } => {
                "`postrider backfill --execute` resumes where it stopped; then start the relay"
                    .to_owned()
            }
            Self::RepairUnfinished { .. } => {
                "`postrider repair --execute` with the options of its first run compares again \
                 and resumes; then start the relay"
                    .to_owned()
            }
            Self::PublicationReplaced { .. } => format!(
                "`postrider repair` says whether the slot can be decoded past the change; if it \
                 cannot, `postrider repair --execute --drop-slot` sends the missing rows and \
                 creates the slot again, and nothing else is needed\n\
                 if it can: {PASSED_OVER}"
            ),
            Self::TableReplaced { .. } => PASSED_OVER.to_owned(),
            Self::MemberReplaced { .. } => format!(
                "{ADOPT}\nstart the relay, and stop it a minute later\n`postrider repair --execute` re-sends the \
                 rows committed while it was not published that are still in the outbox, because Postgres passes over \
                 them (none, if it went straight from one published schema into another)"
            ),
            Self::PrefixesChanged { .. } => deliver_first("messages.prefixes"),
            Self::TablesChanged { .. } => deliver_first("source.tables"),
        }
    }
}

fn deliver_first(option: &str) -> String {
    format!("start with the former {option} until it is delivered, then change them")
}

fn since(delivered: Lsn) -> String {
    if delivered == Lsn::ZERO {
        return "since the slot was made".to_owned();
    }
    format!("since rows were delivered up to {delivered}")
}
