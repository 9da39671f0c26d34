//! Encodes and decodes the progress record, stored in Kafka beside the records.
//!
//! Input: a [`Mark`], and the [`Lineage`] in which positions have a meaning. Output: the Kafka
//! record and [`Progress`] decoded from it. A value from another program or a later version is an
//! error.
//!
//! ```json
//! {"version":2,"system":"7312..","timeline":1,"standby":false,"database":"shop","slot":"postrider",
//!  "publication":16402,"publication_xid":740,"tables":{"public.outbox":16390},
//!  "members":{"public.outbox":16403},"messages":["outbox"],"since":{"lsn":"0/1900000","xid":730,"began":730},"end":"0/1A2B3C0","commit":"0/1A2B3C8","rows":20000,
//!  "last":{"commit":"0/1A2B3C8","xid":741,"time_us":848419200000000},
//!  "written_by":"postrider 0.1.0"}
//! ```
//! `backfill` is present only while rows older than the slot are delivered; positions then count
//! transactions of the backfill. `commit` and `rows` are present only inside a partly delivered
//! transaction, `places` only if a schema is published. `last` is the last commit with rows.
//! Version 1 did not write `last`, `members`, `messages` and `standby`. The first releases with
//! version 2 had no `publication_xid`, `since` and `places`, later ones no `began` in `since`.

mod scope;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::lsn::Lsn;
use crate::pipeline::{CommitId, Mark, PartialTransaction};
use crate::route::{NO_TIMESTAMP, OwnedRecord};

pub use scope::{Moment, RepairScope, UnknownRows};

const VERSION: u32 = 2;
/// Oldest version that is still read.
const VERSION_MIN: u32 = 1;

/// The stream of a position. Order and names of the fields are the record's format.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Lineage {
    /// System identifier (IDENTIFY_SYSTEM). A restored backup shares it with its origin.
    pub system: String,
    /// The cluster's timeline.
    pub timeline: u32,
    /// The database.
    pub database: String,
    /// The slot.
    pub slot: String,
    /// The publication's OID.
    pub publication: u32,
    /// Transaction that last wrote the publication's row when the session began; shows alterations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publication_xid: Option<u32>,
    /// OIDs of the outbox tables.
    pub tables: BTreeMap<String, u32>,
    /// OIDs of the publication's entries; show that a table was removed and added again. Empty: not
    /// known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub members: BTreeMap<String, u32>,
    /// Transactions that put tables into a published schema; show that a table left and returned.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<String, u32>,
    /// Prefixes of the messages that are rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<BTreeSet<String>>,
    /// Whether the server was a standby, whose later timeline is not known.
    #[serde(default)]
    pub standby: bool,
    /// Start of the complete part of the stream, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Since>,
}

/// Every transaction that committed after `lsn` was delivered, or will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Since {
    /// The slot's position.
    pub lsn: Lsn,
    /// At the start, no transaction with this or a later 64-bit number had committed. 0: no row
    /// precedes the start.
    pub xid: u64,
    /// `xid` at the very first start. Earlier rows may never have belonged to the stream. 0: all
    /// rows belong to it. `None`: written by an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<u64>,
}

impl Since {
    /// A start without a predecessor.
    pub const fn first(lsn: Lsn, xid: u64) -> Self {
        Self { lsn, xid, began: Some(xid) }
    }

    /// Earlier rows may never have belonged to the stream.
    pub fn began(&self) -> u64 {
        self.began.unwrap_or(self.xid)
    }
}

impl Lineage {
    /// Key of the stream's progress records; the newest record counts.
    pub fn key(&self) -> String {
        let Self { system, database, slot, .. } = self;
        format!("{system}/{database}/{slot}")
    }

    /// The producer's transactional id. A later producer with this id fences it.
    pub fn transactional_id(&self) -> String {
        let Self { system, database, slot, .. } = self;
        format!("postrider.{system}.{database}.{slot}")
    }
}

/// Progress of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Identity of the stream.
    pub lineage: Lineage,
    /// Position reached.
    pub mark: Mark,
    /// Set while the rows older than the slot are delivered.
    pub backfill: Option<BackfillProgress>,
}

/// Progress with rows older than the slot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BackfillProgress {
    /// The stream's start, before which rows belong to the backfill. `None`: the slot does not
    /// exist yet, and nothing was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins: Option<Lsn>,
    /// Transactions committed at the start (`pg_current_snapshot`).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub snapshot: String,
    /// OIDs of tables with their file nodes at the start. A file rewritten since does not show when
    /// its rows were written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<(u32, u32)>,
    /// The last delivered row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<RowCursor>,
    /// Limits a repair to rows missing in Kafka. `None`: all rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<RepairScope>,
    /// For a repair: see [`Since::began`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<u64>,
}

impl BackfillProgress {
    /// Start of the stream after the backfill.
    pub fn since(&self) -> Option<Since> {
        let lsn = self.begins?;
        let leaves_out = |scope: &RepairScope| {
            let is_part = scope.since.is_some() || scope.until.is_some();
            is_part || scope.unknown == Some(UnknownRows::Skip)
        };
        if !self.repair.as_ref().is_some_and(leaves_out) {
            return Some(Since::first(lsn, 0));
        }
        // `xmin:xmax:..`; no transaction from `xmax` on had committed.
        let xid = self.snapshot.split(':').nth(1)?.parse().ok()?;
        Some(Since { lsn, xid, began: self.began.or(Some(xid)) })
    }

    /// Progress after the row of `cursor`; `None` once complete.
    #[must_use]
    pub fn at(self, reached: Mark, cursor: Option<RowCursor>) -> Option<Self> {
        let is_over = self.begins.is_some_and(|begins| reached.end >= begins);
        (!is_over).then(|| Self { cursor: cursor.or_else(|| self.cursor.clone()), ..self })
    }
}

/// A position after one row of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowCursor {
    /// Table as quoted SQL.
    pub table: String,
    /// Columns that define the order.
    pub order_by: Vec<String>,
    /// The row's values, as text.
    pub after: Vec<String>,
}

/// A record in the progress topic that is not progress.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a record in topic `{topic}` at offset {offset} is not a progress record: {reason}")]
pub struct ProgressSyntax {
    /// Topic.
    pub topic: String,
    /// Offset.
    pub offset: i64,
    /// Reason.
    pub reason: String,
}

#[derive(Serialize, Deserialize)]
struct ProgressJson {
    version: u32,
    #[serde(flatten)]
    lineage: Lineage,
    end: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<WireCommit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backfill: Option<BackfillProgress>,
    #[serde(default)]
    written_by: String,
}

#[derive(Serialize, Deserialize)]
struct WireCommit {
    commit: String,
    xid: u32,
    time_us: i64,
}

impl Progress {
    /// See [`Since::began`]. A backfill covers all rows.
    pub fn began(&self) -> Option<u64> {
        match &self.backfill {
            Some(begun) if begun.repair.is_none() => Some(0),
            Some(begun) => begun.began,
            None => self.lineage.since.map(|since| since.began()),
        }
    }

    /// Encodes the record's value.
    pub fn encode(&self) -> Vec<u8> {
        let last = self.mark.last.map(|CommitId { lsn, xid, time_us }| WireCommit {
            commit: lsn.to_string(),
            xid,
            time_us,
        });
        let wire = ProgressJson {
            version: VERSION,
            lineage: self.lineage.clone(),
            end: self.mark.end.to_string(),
            commit: self.mark.part.map(|part| part.commit_lsn.to_string()),
            rows: self.mark.part.map(|part| part.rows),
            last,
            backfill: self.backfill.clone(),
            written_by: concat!("postrider ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        match serde_json::to_vec(&wire) {
            Ok(value) => value,
            Err(error) => unreachable!("plain strings and numbers can be written: {error}"),
        }
    }

    /// The record for partition 0 of this topic.
    pub fn record(&self, topic: &str) -> OwnedRecord {
        OwnedRecord {
            topic: topic.to_owned(),
            partition: Some(0),
            key: Some(self.lineage.key().into_bytes()),
            value: Some(self.encode()),
            headers: Vec::new(),
            // A broker refuses a timestamp far from its own, which would block a relay with a wrong
            // clock.
            timestamp_ms: NO_TIMESTAMP,
        }
    }

    /// Decodes a record's value.
    pub fn decode(value: &[u8]) -> Result<Self, String> {
        let wire: ProgressJson =
            serde_json::from_slice(value).map_err(|error| error.to_string())?;
        if !(VERSION_MIN..=VERSION).contains(&wire.version) {
            return Err(format!("version {} instead of {VERSION}", wire.version));
        }
        let position =
            |text: &str| text.parse::<Lsn>().map_err(|error| format!("its position: {error}"));
        let part = match (&wire.commit, wire.rows) {
            (None, None) => None,
            (Some(commit), Some(rows @ 1..)) => {
                Some(PartialTransaction { commit_lsn: position(commit)?, rows })
            }
            _ => return Err("`commit` and `rows` belong together".to_owned()),
        };
        let last = wire.last.as_ref().map(|WireCommit { commit, xid, time_us }| {
            Ok::<_, String>(CommitId { lsn: position(commit)?, xid: *xid, time_us: *time_us })
        });
        let mark = Mark { end: position(&wire.end)?, part, last: last.transpose()? };
        Ok(Self { lineage: wire.lineage, mark, backfill: wire.backfill })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(part: Option<PartialTransaction>) -> Progress {
        let lineage = Lineage {
            system: "7312".to_owned(),
            timeline: 3,
            database: "shop".to_owned(),
            slot: "postrider".to_owned(),
            publication: 7,
            publication_xid: Some(10),
            tables: BTreeMap::from([("public.outbox".to_owned(), 8)]),
            members: BTreeMap::from([("public.outbox".to_owned(), 9)]),
            places: BTreeMap::from([("public.outbox".to_owned(), 11)]),
            messages: Some(BTreeSet::from(["outbox".to_owned()])),
            standby: true,
            since: Some(Since { lsn: Lsn::new(8), xid: 1 << 32, began: Some(7) }),
        };
        let last = Some(CommitId { lsn: Lsn::new(9), xid: u32::MAX, time_us: -1 });
        Progress { lineage, mark: Mark { end: Lsn::new(1 << 33), part, last }, backfill: None }
    }

    #[test]
    fn g6_what_the_first_version_wrote_is_still_read() {
        let text = r#"{"version":1,"system":"7312","timeline":3,"database":"shop",
            "slot":"postrider","publication":7,"tables":{"public.outbox":8},"end":"2/0",
            "commit":"2/9","rows":5,"written_by":"postrider 0.1.0"}"#;
        let part = Some(PartialTransaction { commit_lsn: Lsn::new((2 << 32) + 9), rows: 5 });
        let Progress { mut lineage, mut mark, backfill } = progress(part);
        (lineage.members, lineage.messages, lineage.standby) = (BTreeMap::new(), None, false);
        (lineage.publication_xid, lineage.places) = (None, BTreeMap::new());
        lineage.since = None;
        mark.last = None;
        assert_eq!(Progress::decode(text.as_bytes()), Ok(Progress { lineage, mark, backfill }));
    }

    /// Other relays read it, and compaction compares keys, so bytes matter.
    #[test]
    fn g6_the_form_of_a_record_is_as_documented() {
        let part = Some(PartialTransaction { commit_lsn: Lsn::new(9), rows: 5 });
        let text = String::from_utf8(progress(part).encode()).unwrap();
        let (before, _) = text.rsplit_once(",\"written_by\":").unwrap();
        assert_eq!(
            before,
            "{\"version\":2,\"system\":\"7312\",\"timeline\":3,\"database\":\"shop\",\
             \"slot\":\"postrider\",\"publication\":7,\"publication_xid\":10,\"tables\":{\"public.outbox\":8},\
             \"members\":{\"public.outbox\":9},\"places\":{\"public.outbox\":11},\"messages\":[\"outbox\"],\"standby\":true,\
             \"since\":{\"lsn\":\"0/8\",\"xid\":4294967296,\"began\":7},\"end\":\"2/0\",\"commit\":\"0/9\",\"rows\":5,\
             \"last\":{\"commit\":\"0/9\",\"xid\":4294967295,\"time_us\":-1}"
        );
    }

    #[test]
    fn g6_what_is_written_is_read_again() {
        for part in [None, Some(PartialTransaction { commit_lsn: Lsn::new(9), rows: 20_000 })] {
            let progress = progress(part);
            assert_eq!(Progress::decode(&progress.encode()), Ok(progress));
        }
    }

    #[test]
    fn g6_an_unfinished_backfill_is_written_and_read_again() {
        let cursor = RowCursor {
            table: "public.outbox".to_owned(),
            order_by: vec!["created_at".to_owned(), "id".to_owned()],
            after: vec!["2026-11-26 10:00:00+00".to_owned(), "it's \"so\"".to_owned()],
        };
        let begins = Some(Lsn::new(0x1_0000_0002));
        let snapshot = "10:20:10,14".to_owned();
        let started = BackfillProgress::default();
        let files = vec![(16_390, 16_401)];
        let moment = Moment { typed: "2h".to_owned(), at: "2026-11-26T10:00:00Z".to_owned() };
        let unknown = Some(UnknownRows::Skip);
        let repair = Some(RepairScope { since: Some(moment), until: None, unknown });
        let begun =
            BackfillProgress { begins, snapshot, files, cursor: Some(cursor), ..started.clone() };
        let repair = BackfillProgress { repair, began: Some(9), ..begun.clone() };
        for backfill in [started, begun, repair] {
            let progress = Progress { backfill: Some(backfill), ..progress(None) };
            assert_eq!(Progress::decode(&progress.encode()), Ok(progress));
        }
        let bad = r#"{"version":2,"backfill":{"begins":"1"}"#;
        assert!(Progress::decode(bad.as_bytes()).is_err());
    }

    /// Otherwise omitted rows would count as delivered and be pruned.
    #[test]
    fn g1_a_repair_of_some_rows_is_no_beginning_before_which_nothing_is_missing() {
        let moment =
            || Some(Moment { typed: "2h".to_owned(), at: "2026-11-26T10:00:00Z".to_owned() });
        let since = |repair: Option<RepairScope>| {
            let snapshot = "10:4294967300:12".to_owned();
            let begins = Some(Lsn::new(7));
            BackfillProgress { begins, snapshot, repair, ..BackfillProgress::default() }.since()
        };
        let of = |xid| Some(Since::first(Lsn::new(7), xid));
        let (all, some) = (RepairScope::default(), of(4_294_967_300));
        assert_eq!(since(None), of(0));
        assert_eq!(since(Some(all.clone())), of(0));
        let sends = RepairScope { unknown: Some(UnknownRows::Send), ..all.clone() };
        assert_eq!(since(Some(sends)), of(0));
        let skips = RepairScope { unknown: Some(UnknownRows::Skip), ..all.clone() };
        assert_eq!(since(Some(skips.clone())), some);
        let (begins, snapshot) = (Some(Lsn::new(7)), "10:20:12".to_owned());
        let started = BackfillProgress { begins, snapshot, ..BackfillProgress::default() };
        let later = BackfillProgress { repair: Some(skips), began: Some(3), ..started };
        let handed_on = Since { lsn: Lsn::new(7), xid: 20, began: Some(3) };
        assert_eq!(later.since(), Some(handed_on), "when it began first");
        assert_eq!(since(Some(RepairScope { since: moment(), ..all.clone() })), some);
        assert_eq!(since(Some(RepairScope { until: moment(), ..all })), some);
        assert_eq!(BackfillProgress::default().since(), None);
    }

    #[test]
    fn g6_anything_else_is_no_position() {
        let good = String::from_utf8(progress(None).encode()).unwrap();
        for (from, to) in [
            ("\"version\":2", "\"version\":3"),
            ("\"version\":2", "\"version\":0"),
            ("\"xid\":4294967295", "\"xid\":4294967296"),
            ("2/0", "2"),
            ("0/8", "8"),
            ("\"end\":", "\"rows\":5,\"end\":"),
            ("\"end\":", "\"rows\":0,\"commit\":\"0/1\",\"end\":"),
            ("{", "["),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good);
            assert!(Progress::decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_stream_has_one_key_and_one_id_whatever_its_timeline_and_tables() {
        let (mut one, other) = (progress(None).lineage, progress(None).lineage);
        one.timeline = 9;
        one.tables.clear();
        assert_eq!(one.key(), "7312/shop/postrider");
        assert_eq!(one.transactional_id(), "postrider.7312.shop.postrider");
        assert_eq!((one.key(), one.transactional_id()), (other.key(), other.transactional_id()));
    }
}
