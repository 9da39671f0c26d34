//! Fixed-size entries on disk that represent rows and records during a comparison. Pure.
//!
//! Invariant: two ids have the same [`IdToken`] only if they are equal. The token of an id over 30
//! bytes holds its beginning and a 128-bit hash.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use postrider_core::record::Kinship;

pub const ENTRY_BYTES: usize = 80;

const TOKEN_BYTES: usize = 32;

/// Fits a UUID (16 bytes in binary), a ULID (26) or a number.
const WHOLE_BYTES_MAX: u8 = 30;

const BEGINNING_BYTES: usize = 15;

const UUID: u8 = 0xFE;
const LONG: u8 = 0xFF;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdToken([u8; TOKEN_BYTES]);

impl IdToken {
    /// The first byte is the id's length, or marks a UUID or a long id.
    pub fn of(id: &[u8]) -> Self {
        let mut token = [0; TOKEN_BYTES];
        let length = u8::try_from(id.len()).ok().filter(|length| *length <= WHOLE_BYTES_MAX);
        let (kind, body) = match (uuid_of(id), length) {
            (Some(uuid), _) => (UUID, uuid.to_vec()),
            (None, Some(length)) => (length, id.to_vec()),
            (None, None) => {
                let beginning = id.get(..BEGINNING_BYTES).unwrap_or(id);
                let hash = [hash_of(&(0_u8, id)), hash_of(&(1_u8, id))];
                let hash = hash.iter().flat_map(|half| half.to_be_bytes());
                (LONG, beginning.iter().copied().chain(hash).collect())
            }
        };
        for (to, from) in token.iter_mut().zip([kind].into_iter().chain(body)) {
            *to = from;
        }
        Self(token)
    }

    /// Entries with equal UUIDs belong to one row.
    pub const fn is_uuid(&self) -> bool {
        let [kind, ..] = self.0;
        kind == UUID
    }

    pub fn shown(&self) -> String {
        let [kind, body @ ..] = &self.0;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match *kind {
            UUID => {
                let (uuid, _) = body.split_at(16);
                uuid::Uuid::from_slice(uuid).map_or_else(|_| text(uuid), |uuid| uuid.to_string())
            }
            LONG => text(body.get(..BEGINNING_BYTES).unwrap_or(body)) + "..",
            length => text(body.get(..usize::from(length)).unwrap_or(body)),
        }
    }
}

/// Parses only the form that Postgres prints.
fn uuid_of(id: &[u8]) -> Option<[u8; 16]> {
    let text = str::from_utf8(id).ok().filter(|text| text.len() == 36)?;
    let uuid = uuid::Uuid::try_parse(text).ok()?;
    let mut canonical = [0; 36];
    (uuid.hyphenated().encode_lower(&mut canonical) == text).then(|| uuid.into_bytes())
}

/// 64-bit hash that is stable between runs.
pub(super) fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Hash of a table's SQL-quoted name; never 0.
pub(super) fn table_mark(table: &str) -> u32 {
    let [.., a, b, c, d] = hash_of(&table).to_be_bytes();
    u32::from_be_bytes([a, b, c, d]) | 1
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Row,
    Rejected,
    Dropped,
    Record,
    DeadLetter,
}

impl Kind {
    const ALL: [Self; 5] =
        [Self::Row, Self::Rejected, Self::Dropped, Self::Record, Self::DeadLetter];

    pub const fn is_row(self) -> bool {
        matches!(self, Self::Row | Self::Rejected | Self::Dropped)
    }
}

pub mod flag {
    /// The slot had not passed the row's transaction.
    pub const NOT_PASSED: u8 = 1;
    /// The row has a number in the order column, or the record has a log position.
    pub const RANKED: u8 = 2;
    /// The record was sent again on purpose, so its order is not guaranteed.
    pub const AGAIN: u8 = 4;
    /// The record may be newer than the snapshot of the table.
    pub const NEWER: u8 = 8;
    /// The order is unknown or not guaranteed, or the row's record does not have a key.
    pub const UNORDERED: u8 = 16;
    pub const TIMED: u8 = 32;
    /// The row may have been committed before the stream began.
    pub const BEFORE: u8 = 64;
    /// Whether the slot has passed the row is not yet known.
    pub const UNDECIDED: u8 = 128;
}

/// Entries sort by id, rows before records, and records by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub id: IdToken,
    pub kind: Kind,
    pub topic: u32,
    /// For a row, -1 unless its partition is fixed.
    pub partition: i32,
    /// Offset of a record, or ordinal number of a row.
    pub place: u64,
    pub content: u64,
    /// Hash of a record's key, or time of a row.
    pub key: u64,
    /// LSN of a record, or [`Kinship`] of a dead letter. Number of a row in the order column, or
    /// else the hash of its record's key.
    pub rank: u64,
    /// Index of a record's position within its LSN. Otherwise `table_mark`, or 0 without a table
    /// name.
    pub index: u32,
    pub flags: u8,
}

impl Entry {
    /// Milliseconds since the Unix epoch; only for rows.
    pub const fn time_ms(&self) -> Option<i64> {
        if self.has(flag::TIMED) { Some(self.key.cast_signed()) } else { None }
    }

    pub const fn is_letter(&self, kinship: Kinship) -> bool {
        matches!(self.kind, Kind::DeadLetter) && self.rank == kinship as u64
    }

    /// Whether a dead letter concerns this table, or does not name one.
    pub const fn may_be_about(&self, row: &Self) -> bool {
        self.index == 0 || self.index == row.index
    }

    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let parts: [&[u8]; 10] = [
            &self.id.0,
            &self.content.to_be_bytes(),
            &self.key.to_be_bytes(),
            &self.place.to_be_bytes(),
            &self.rank.to_be_bytes(),
            &self.index.to_be_bytes(),
            &self.topic.to_be_bytes(),
            &self.partition.to_be_bytes(),
            &[self.kind as u8],
            &[self.flags],
        ];
        for (to, from) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }

    pub fn of_bytes(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let mut rest = bytes.as_slice();
        let id = IdToken(take(&mut rest)?);
        let content = u64::from_be_bytes(take(&mut rest)?);
        let key = u64::from_be_bytes(take(&mut rest)?);
        let place = u64::from_be_bytes(take(&mut rest)?);
        let rank = u64::from_be_bytes(take(&mut rest)?);
        let index = u32::from_be_bytes(take(&mut rest)?);
        let topic = u32::from_be_bytes(take(&mut rest)?);
        let partition = i32::from_be_bytes(take(&mut rest)?);
        let [kind, flags] = take(&mut rest)?;
        let kind = *Kind::ALL.get(usize::from(kind))?;
        Some(Self { id, kind, topic, partition, place, content, key, rank, index, flags })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

/// Sorts by topic, partition, key and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ordered {
    pub topic: u32,
    pub partition: i32,
    pub key: u64,
    pub offset: u64,
    pub position: Option<(u64, u32)>,
    pub number: Option<i64>,
}

pub const ORDERED_BYTES: usize = 48;

impl Ordered {
    pub fn to_bytes(self) -> [u8; ORDERED_BYTES] {
        let (lsn, index) = self.position.unwrap_or_default();
        let has = u8::from(self.position.is_some()) | u8::from(self.number.is_some()) << 1;
        let mut bytes = [0; ORDERED_BYTES];
        let parts: [&[u8]; 8] = [
            &self.topic.to_be_bytes(),
            &self.partition.to_be_bytes(),
            &self.key.to_be_bytes(),
            &self.offset.to_be_bytes(),
            &lsn.to_be_bytes(),
            &index.to_be_bytes(),
            &self.number.unwrap_or_default().to_be_bytes(),
            &[has],
        ];
        for (to, from) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }

    pub fn of_bytes(bytes: &[u8; ORDERED_BYTES]) -> Option<Self> {
        let mut rest = bytes.as_slice();
        let topic = u32::from_be_bytes(take(&mut rest)?);
        let partition = i32::from_be_bytes(take(&mut rest)?);
        let key = u64::from_be_bytes(take(&mut rest)?);
        let offset = u64::from_be_bytes(take(&mut rest)?);
        let lsn = u64::from_be_bytes(take(&mut rest)?);
        let index = u32::from_be_bytes(take(&mut rest)?);
        let number = i64::from_be_bytes(take(&mut rest)?);
        let [has] = take(&mut rest)?;
        let position = (has & 1 != 0).then_some((lsn, index));
        let number = (has & 2 != 0).then_some(number);
        Some(Self { topic, partition, key, offset, position, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            id: Vec<u8>, numbers: (u64, u64, u64, u64), index: u32, topic: u32, partition: i32,
            kind in 0..5_usize, flags: u8,
        ) {
            let (content, key, place, rank) = numbers;
            let (id, kind) = (IdToken::of(&id), Kind::ALL[kind]);
            let entry = Entry { id, kind, topic, partition, place, content, key, rank, index, flags };
            prop_assert_eq!(Entry::of_bytes(&entry.to_bytes()), Some(entry));
        }

        #[test]
        fn what_is_ordered_is_read(
            topic: u32, partition: i32, key: u64, offset: u64,
            position: Option<(u64, u32)>, number: Option<i64>,
        ) {
            let ordered = Ordered { topic, partition, key, offset, position, number };
            prop_assert_eq!(Ordered::of_bytes(&ordered.to_bytes()), Some(ordered));
        }

        #[test]
        fn ids_that_differ_have_tokens_that_differ(a in "[0-9a-f-]{0,40}", b in "[0-9a-f-]{0,40}") {
            prop_assert_eq!(a == b, IdToken::of(a.as_bytes()) == IdToken::of(b.as_bytes()));
        }

        #[test]
        fn short_ids_are_shown_whole(id in "[ -~]{0,30}") {
            prop_assert_eq!(IdToken::of(id.as_bytes()).shown(), id);
        }
    }

    #[test]
    fn uuids_are_kept_whole_in_the_form_that_postgres_prints_and_no_other() {
        let id = "8f14e45f-ceea-467f-a8f1-2b9a5b9d1c11";
        assert_eq!(IdToken::of(id.as_bytes()).shown(), id);
        let upper = id.to_uppercase();
        assert_ne!(IdToken::of(id.as_bytes()), IdToken::of(upper.as_bytes()));
        assert_eq!(IdToken::of(upper.as_bytes()).shown(), "8F14E45F-CEEA-4..");
    }

    #[test]
    fn an_entry_of_an_unknown_kind_is_none() {
        let mut bytes = [0; ENTRY_BYTES];
        assert!(Entry::of_bytes(&bytes).is_some());
        bytes[76] = 9;
        assert_eq!(Entry::of_bytes(&bytes), None);
    }
}
