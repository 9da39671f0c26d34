//! What is kept on disk of a row or a record while both sides are compared: entries of one fixed size.
//!
//! Input: an id, hashes of what must be equal, and a place. Output: 80 bytes, and the same entry from them.
//! Invariant: two ids have one [`IdToken`] only if they are equal, but for ids of more than 30 bytes, of which
//! the beginning is kept and a hash of the whole (128 bits). Pure.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use postrider_core::record::Kinship;

/// Bytes of an entry on disk.
pub const ENTRY_BYTES: usize = 80;

const TOKEN_BYTES: usize = 32;

/// Ids of up to so many bytes are kept whole: a UUID (16 as binary), a ULID (26), a number.
const WHOLE_BYTES_MAX: u8 = 30;

/// Of longer ones so many bytes are kept to show.
const BEGINNING_BYTES: usize = 15;

const UUID: u8 = 0xFE;
const LONG: u8 = 0xFF;

/// Stands for an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdToken([u8; TOKEN_BYTES]);

impl IdToken {
    /// The first byte is the id's length, or says that it is a UUID or a long one.
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

    /// Whether the id is a UUID in the form in which Postgres prints it: two that are equal are of one row.
    pub const fn is_uuid(&self) -> bool {
        let [kind, ..] = self.0;
        kind == UUID
    }

    /// The id, or of a long one its beginning, to be read by people.
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

/// The number of a UUID in the form in which Postgres prints it.
fn uuid_of(id: &[u8]) -> Option<[u8; 16]> {
    let text = str::from_utf8(id).ok().filter(|text| text.len() == 36)?;
    let uuid = uuid::Uuid::try_parse(text).ok()?;
    let mut canonical = [0; 36];
    (uuid.hyphenated().encode_lower(&mut canonical) == text).then(|| uuid.into_bytes())
}

/// Of 64 bits, the same in every run.
pub(super) fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Stands for a table, by its name as SQL quotes it; never 0.
pub(super) fn table_mark(table: &str) -> u32 {
    let [.., a, b, c, d] = hash_of(&table).to_be_bytes();
    u32::from_be_bytes([a, b, c, d]) | 1
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A row that has a record.
    Row,
    /// A row that cannot be delivered as it is.
    Rejected,
    /// A row that a rule leaves out.
    Dropped,
    /// A record of a topic for rows.
    Record,
    /// A dead letter of the relay's.
    DeadLetter,
}

impl Kind {
    const ALL: [Self; 5] =
        [Self::Row, Self::Rejected, Self::Dropped, Self::Record, Self::DeadLetter];

    /// Whether it comes from the table.
    pub const fn is_row(self) -> bool {
        matches!(self, Self::Row | Self::Rejected | Self::Dropped)
    }
}

/// Bits of [`Entry::flags`].
pub mod flag {
    /// A row whose transaction the slot had not passed.
    pub const NOT_PASSED: u8 = 1;
    /// A row that has a number in the column of the order, or a record that has a position.
    pub const RANKED: u8 = 2;
    /// A record that was sent again on purpose: it promises no order.
    pub const AGAIN: u8 = 4;
    /// A record that may be newer than what was seen of the table.
    pub const NEWER: u8 = 8;
    /// A record of which no order is promised, or none can be known; a row whose record has no key.
    pub const UNORDERED: u8 = 16;
    /// A row whose time is known.
    pub const TIMED: u8 = 32;
    /// A row that may have been committed before the stream began.
    pub const BEFORE: u8 = 64;
    /// A row of which it cannot be told yet whether the slot has passed it.
    pub const UNDECIDED: u8 = 128;
}

/// A row or a record. Sorts by id, rows first, records by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Of a row, a record or a dead letter.
    pub id: IdToken,
    /// What it is.
    pub kind: Kind,
    /// A number of the topic.
    pub topic: u32,
    /// Of a row -1, unless it is fixed.
    pub partition: i32,
    /// Of a record the offset; of a row which one it was.
    pub place: u64,
    /// Of topic, key, value and headers.
    pub content: u64,
    /// Of a record: a hash of its key.
    pub key: u64,
    /// Of a record its position: LSN, then index. Of a row its number in the column of the order; without such a
    /// column a hash of its record's key. Of a dead letter its [`Kinship`].
    pub rank: u64,
    /// Of a row or a dead letter `table_mark` of its table; 0 if it names none.
    pub index: u32,
    /// Bits of [`flag`].
    pub flags: u8,
}

impl Entry {
    /// Of a row: its time in milliseconds since the Unix epoch, which lies where a record has its key.
    pub const fn time_ms(&self) -> Option<i64> {
        if self.has(flag::TIMED) { Some(self.key.cast_signed()) } else { None }
    }

    /// Whether a dead letter is related to the stream in this way.
    pub const fn is_letter(&self, kinship: Kinship) -> bool {
        matches!(self.kind, Kind::DeadLetter) && self.rank == kinship as u64
    }

    /// Whether a dead letter may be about a row of this table: it names that table, or none.
    pub const fn may_be_about(&self, row: &Self) -> bool {
        self.index == 0 || self.index == row.index
    }

    /// Whether a flag is set.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// As it lies on disk.
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

    /// The same again; `None` of bytes that are no entry.
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

/// A record for the check of the order: it sorts by topic, partition, key and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ordered {
    /// The number of its topic.
    pub topic: u32,
    /// Its partition.
    pub partition: i32,
    /// A hash of its key.
    pub key: u64,
    /// Its offset.
    pub offset: u64,
    /// The position in the log, if it has one.
    pub position: Option<(u64, u32)>,
    /// The row's number in the column of the order, if it has one.
    pub number: Option<i64>,
}

/// Bytes of an [`Ordered`] on disk.
pub const ORDERED_BYTES: usize = 48;

impl Ordered {
    /// As it lies on disk.
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

    /// The same again; `None` of too few bytes.
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
