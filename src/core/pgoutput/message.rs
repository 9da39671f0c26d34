//! Decodes the messages of pgoutput, protocol version 1, into borrowed values.
//!
//! Input: the bytes of one message. Output of [`decode`]: a [`Message`] (Begin, Commit, Origin, Relation,
//! Type, Insert, Update, Delete, Truncate, a logical message or Stream Abort), or an error. Layouts: PostgreSQL
//! documentation, "Logical Replication Message Formats"; unchanged from version 10 to 18. Names are bytes
//! and not text, since in a SQL_ASCII database they need not be UTF-8.

use super::cursor::Cursor;
use super::error::DecodeError;
use super::time::PgTime;
use super::tuple::Tuple;
use crate::lsn::Lsn;

/// One pgoutput message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A transaction's rows follow. Only committed transactions are sent, whole and in commit order.
    Begin(Begin),
    /// The transaction's end.
    Commit(Commit),
    /// The transaction came to this server by replication.
    Origin(Origin<'a>),
    /// A table's shape; precedes its first row in a session and the first row after each change.
    Relation(Relation<'a>),
    /// The name behind a type that is not built in; precedes the Relation that uses it.
    Type(Type<'a>),
    /// A new row.
    Insert(Insert<'a>),
    /// A changed row.
    Update(Update<'a>),
    /// A deleted row.
    Delete(Delete<'a>),
    /// Emptied tables.
    Truncate(Truncate<'a>),
    /// What `pg_logical_emit_message` wrote; sent only when asked for.
    Logical(LogicalMessage<'a>),
    /// A transaction of which nothing was sent was rolled back.
    StreamAbort(StreamAbort),
}

/// Tag `B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Where the transaction's commit record begins: the same as [`Commit::commit_lsn`].
    pub final_lsn: Lsn,
    /// When it committed.
    pub commit_time: PgTime,
    /// Its 32-bit transaction number; comes around again.
    pub xid: u32,
}

/// Tag `C`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Where the commit record begins. Acknowledging it has the transaction sent again.
    pub commit_lsn: Lsn,
    /// Where the commit record ends: what to acknowledge.
    pub end_lsn: Lsn,
    /// When it committed.
    pub commit_time: PgTime,
}

/// Tag `O`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Commit position on the server of origin.
    pub commit_lsn: Lsn,
    /// The origin's name.
    pub name: &'a [u8],
}

/// Tag `R`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relation<'a> {
    /// The table's OID, by which rows refer to it.
    pub id: u32,
    /// The schema's name; empty for `pg_catalog`.
    pub schema: &'a [u8],
    /// The table's name.
    pub name: &'a [u8],
    /// `relreplident` of `pg_class`: `d`, `n`, `f` or `i`.
    pub replica_identity: u8,
    columns: Description<'a>,
}

impl<'a> Relation<'a> {
    /// The table's columns, in the order of its tuples. Generated columns and those outside a
    /// publication's column list are not among them.
    pub fn columns(&self) -> RelationColumns<'a> {
        RelationColumns { cursor: Cursor::new(self.columns.bytes), left: self.columns.count }
    }
}

/// The checked bytes that describe a Relation's columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Description<'a> {
    count: u16,
    bytes: &'a [u8],
}

/// One column of a [`Relation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelationColumn<'a> {
    /// Whether the column is part of the replica identity.
    pub in_key: bool,
    /// The column's name.
    pub name: &'a [u8],
    /// The type's OID (`pg_type.oid`).
    pub type_oid: u32,
    /// The type's modifier, such as a length; -1 for none.
    pub type_modifier: i32,
}

/// Walks a [`Relation`]'s columns.
#[derive(Debug, Clone)]
pub struct RelationColumns<'a> {
    cursor: Cursor<'a>,
    left: u16,
}

impl<'a> Iterator for RelationColumns<'a> {
    type Item = RelationColumn<'a>;

    fn next(&mut self) -> Option<RelationColumn<'a>> {
        self.left = self.left.checked_sub(1)?;
        match read_relation_column(&mut self.cursor) {
            Ok(column) => Some(column),
            Err(error) => unreachable!("a column was checked with its relation: {error}"),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for RelationColumns<'_> {}

/// Tag `Y`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type<'a> {
    /// The type's OID.
    pub id: u32,
    /// The schema's name, of the *base* type when it is a domain; empty for `pg_catalog`.
    pub schema: &'a [u8],
    /// The type's name, or that of its base type when it is a domain
    /// (`logicalrep_write_typ` in `replication/logical/proto.c`).
    pub name: &'a [u8],
}

/// Tag `I`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insert<'a> {
    /// The table's OID.
    pub relation: u32,
    /// The new row.
    pub tuple: Tuple<'a>,
}

/// What an UPDATE or DELETE tells about the row as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldRow<'a> {
    /// Tag `K`: only the columns of the replica identity, the others NULL.
    Key(Tuple<'a>),
    /// Tag `O`: the whole row (REPLICA IDENTITY FULL).
    Whole(Tuple<'a>),
}

/// Tag `U`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update<'a> {
    /// The table's OID.
    pub relation: u32,
    /// The row before; sent when its identity changed, or always with REPLICA IDENTITY FULL.
    pub old: Option<OldRow<'a>>,
    /// The row after.
    pub new: Tuple<'a>,
}

/// Tag `D`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The table's OID.
    pub relation: u32,
    /// The row that is gone.
    pub old: OldRow<'a>,
}

/// Tag `T`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate<'a> {
    /// Bit 0: CASCADE, bit 1: RESTART IDENTITY.
    pub options: u8,
    relations: &'a [u8],
}

impl<'a> Truncate<'a> {
    /// The OIDs of the emptied tables.
    pub fn relations(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.relations.as_chunks::<4>().0.iter().map(|oid| u32::from_be_bytes(*oid))
    }
}

/// Tag `M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// Whether it belongs to the transaction it is sent in.
    pub transactional: bool,
    /// Where it lies.
    pub lsn: Lsn,
    /// The prefix its writer chose.
    pub prefix: &'a [u8],
    /// Its content.
    pub content: &'a [u8],
}

/// Tag `A`. Belongs to version 2, and takes back what was streamed before its commit. Without streaming
/// there is nothing to take back. PostgreSQL 18 sends it all the same, between transactions: it drops the changes
/// of a large transaction that has been rolled back, and marks the subtransactions as streamed on the way
/// (`ReorderBufferCheckAndTruncateAbortedTXN` in `replication/logical/reorderbuffer.c`; bug 19616 of PostgreSQL).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamAbort {
    /// The transaction's number.
    pub xid: u32,
    /// The number of the subtransaction; that of the transaction if all of it is meant.
    pub subxid: u32,
}

/// Reads one message. It is consumed to its last byte, and the tuples in it are checked, so what
/// is read from them later cannot fail.
pub fn decode(data: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut cursor = Cursor::new(data);
    let tag = cursor.u8("tag").map_err(|_| DecodeError::Empty)?;
    let message = match tag {
        b'B' => Message::Begin(read_begin(&mut cursor)?),
        b'C' => Message::Commit(read_commit(&mut cursor)?),
        b'O' => Message::Origin(Origin {
            commit_lsn: read_lsn(&mut cursor)?,
            name: cursor.string("origin name")?,
        }),
        b'R' => Message::Relation(read_relation(&mut cursor)?),
        b'Y' => Message::Type(Type {
            id: cursor.u32("type OID")?,
            schema: cursor.string("type schema")?,
            name: cursor.string("type name")?,
        }),
        b'I' => Message::Insert(read_insert(&mut cursor)?),
        b'U' => Message::Update(read_update(&mut cursor)?),
        b'D' => Message::Delete(read_delete(&mut cursor)?),
        b'T' => Message::Truncate(read_truncate(&mut cursor)?),
        b'M' => Message::Logical(read_logical(&mut cursor)?),
        b'A' => Message::StreamAbort(read_stream_abort(&mut cursor)?),
        tag => return Err(DecodeError::UnknownTag { tag }),
    };
    cursor.finish()?;
    Ok(message)
}

fn read_lsn(cursor: &mut Cursor<'_>) -> Result<Lsn, DecodeError> {
    cursor.u64("log position").map(Lsn::new)
}

fn read_time(cursor: &mut Cursor<'_>) -> Result<PgTime, DecodeError> {
    cursor.i64("commit time").map(PgTime)
}

fn read_begin(cursor: &mut Cursor<'_>) -> Result<Begin, DecodeError> {
    Ok(Begin {
        final_lsn: read_lsn(cursor)?,
        commit_time: read_time(cursor)?,
        xid: cursor.u32("transaction number")?,
    })
}

fn read_commit(cursor: &mut Cursor<'_>) -> Result<Commit, DecodeError> {
    match cursor.u8("commit flags")? {
        0 => {}
        found => return Err(DecodeError::UnknownMarker { field: "commit flags", found }),
    }
    Ok(Commit {
        commit_lsn: read_lsn(cursor)?,
        end_lsn: read_lsn(cursor)?,
        commit_time: read_time(cursor)?,
    })
}

// Inlined into `decode`, it cost each row 100 instructions: the reads of the cursor were no longer inlined there.
#[cold]
#[inline(never)]
fn read_stream_abort(cursor: &mut Cursor<'_>) -> Result<StreamAbort, DecodeError> {
    Ok(StreamAbort {
        xid: cursor.u32("transaction number")?,
        subxid: cursor.u32("subtransaction number")?,
    })
}

fn read_relation<'a>(cursor: &mut Cursor<'a>) -> Result<Relation<'a>, DecodeError> {
    let id = cursor.u32("relation OID")?;
    let schema = cursor.string("relation schema")?;
    let name = cursor.string("relation name")?;
    let replica_identity = cursor.u8("replica identity")?;
    let count = cursor.u16("number of columns")?;
    let bytes = cursor.span(|cursor| {
        for _ in 0..count {
            read_relation_column(cursor)?;
        }
        Ok(())
    })?;
    Ok(Relation { id, schema, name, replica_identity, columns: Description { count, bytes } })
}

fn read_relation_column<'a>(cursor: &mut Cursor<'a>) -> Result<RelationColumn<'a>, DecodeError> {
    Ok(RelationColumn {
        in_key: cursor.u8("column flags")? & 1 == 1,
        name: cursor.string("column name")?,
        type_oid: cursor.u32("column type")?,
        type_modifier: cursor.i32("column type modifier")?,
    })
}

fn read_insert<'a>(cursor: &mut Cursor<'a>) -> Result<Insert<'a>, DecodeError> {
    let relation = cursor.u32("relation OID")?;
    expect_new(cursor.u8("row marker")?)?;
    Ok(Insert { relation, tuple: Tuple::read(cursor)? })
}

fn read_update<'a>(cursor: &mut Cursor<'a>) -> Result<Update<'a>, DecodeError> {
    let relation = cursor.u32("relation OID")?;
    let marker = cursor.u8("row marker")?;
    let old = if marker == b'N' {
        None
    } else {
        let old = read_old(marker, cursor)?;
        expect_new(cursor.u8("row marker")?)?;
        Some(old)
    };
    Ok(Update { relation, old, new: Tuple::read(cursor)? })
}

fn read_delete<'a>(cursor: &mut Cursor<'a>) -> Result<Delete<'a>, DecodeError> {
    let relation = cursor.u32("relation OID")?;
    let marker = cursor.u8("row marker")?;
    Ok(Delete { relation, old: read_old(marker, cursor)? })
}

fn read_truncate<'a>(cursor: &mut Cursor<'a>) -> Result<Truncate<'a>, DecodeError> {
    let count = cursor.length("number of relations")?;
    let options = cursor.u8("truncate options")?;
    // A count that cannot be multiplied certainly exceeds the message.
    let relations = cursor.bytes(count.saturating_mul(4), "relation OIDs")?;
    Ok(Truncate { options, relations })
}

fn read_logical<'a>(cursor: &mut Cursor<'a>) -> Result<LogicalMessage<'a>, DecodeError> {
    let transactional = match cursor.u8("message flags")? {
        0 => false,
        1 => true,
        found => return Err(DecodeError::UnknownMarker { field: "message flags", found }),
    };
    let lsn = read_lsn(cursor)?;
    let prefix = cursor.string("message prefix")?;
    let length = cursor.length("message length")?;
    Ok(LogicalMessage {
        transactional,
        lsn,
        prefix,
        content: cursor.bytes(length, "message content")?,
    })
}

fn read_old<'a>(marker: u8, cursor: &mut Cursor<'a>) -> Result<OldRow<'a>, DecodeError> {
    match marker {
        b'K' => Tuple::read(cursor).map(OldRow::Key),
        b'O' => Tuple::read(cursor).map(OldRow::Whole),
        found => Err(DecodeError::UnknownMarker { field: "row marker", found }),
    }
}

fn expect_new(marker: u8) -> Result<(), DecodeError> {
    match marker {
        b'N' => Ok(()),
        found => Err(DecodeError::UnknownMarker { field: "row marker", found }),
    }
}
