//! Decodes the messages of pgoutput, protocol version 1, into borrowed values.
//!
//! [`decode`] returns a borrowed [`Message`]. Layouts: PostgreSQL documentation, "Logical
//! Replication Message Formats"; unchanged from version 10 to 18. Names are bytes, because a
//! SQL_ASCII database may contain names that are not UTF-8.

use super::cursor::Cursor;
use super::error::DecodeError;
use super::time::PgTime;
use super::tuple::Tuple;
use crate::lsn::Lsn;

/// One pgoutput message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// Postgres sends only committed transactions, in commit order.
    Begin(Begin),
    /// End of a transaction.
    Commit(Commit),
    /// The transaction was replicated to this server.
    Origin(Origin<'a>),
    /// A table's shape, before its first row in a session and after changes.
    Relation(Relation<'a>),
    /// A type that is not built in, before its Relation.
    Type(Type<'a>),
    /// A new row.
    Insert(Insert<'a>),
    /// A changed row.
    Update(Update<'a>),
    /// A deleted row.
    Delete(Delete<'a>),
    /// Emptied tables.
    Truncate(Truncate<'a>),
    /// Content of `pg_logical_emit_message`; sent only on request.
    Logical(LogicalMessage<'a>),
    /// Rollback of a transaction that was not sent.
    StreamAbort(StreamAbort),
}

/// Tag `B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Start of the commit record.
    pub final_lsn: Lsn,
    /// Commit time.
    pub commit_time: PgTime,
    /// Transaction number, which wraps around.
    pub xid: u32,
}

/// Tag `C`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Start of the commit record. Acknowledging it would repeat the transaction.
    pub commit_lsn: Lsn,
    /// End of the commit record, to acknowledge.
    pub end_lsn: Lsn,
    /// Commit time.
    pub commit_time: PgTime,
}

/// Tag `O`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Commit position at the origin.
    pub commit_lsn: Lsn,
    /// Name.
    pub name: &'a [u8],
}

/// Tag `R`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relation<'a> {
    /// Table OID.
    pub id: u32,
    /// Schema; empty for `pg_catalog`.
    pub schema: &'a [u8],
    /// Table.
    pub name: &'a [u8],
    /// `pg_class.relreplident`.
    pub replica_identity: u8,
    columns: Description<'a>,
}

impl<'a> Relation<'a> {
    /// Published columns in tuple order, without generated ones.
    pub fn columns(&self) -> RelationColumns<'a> {
        RelationColumns { cursor: Cursor::new(self.columns.bytes), left: self.columns.count }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Description<'a> {
    count: u16,
    bytes: &'a [u8],
}

/// One column of a [`Relation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelationColumn<'a> {
    /// Whether the replica identity contains it.
    pub in_key: bool,
    /// Name.
    pub name: &'a [u8],
    /// `pg_type.oid`.
    pub type_oid: u32,
    /// Type modifier; -1 for none.
    pub type_modifier: i32,
}

/// Iterator over [`RelationColumn`]s.
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
    /// Type OID.
    pub id: u32,
    /// Schema (a domain's: the base type's); empty for `pg_catalog`.
    pub schema: &'a [u8],
    /// Name (a domain's: the base type's; `logicalrep_write_typ` in `replication/logical/proto.c`).
    pub name: &'a [u8],
}

/// Tag `I`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insert<'a> {
    /// Table OID.
    pub relation: u32,
    /// The new row.
    pub tuple: Tuple<'a>,
}

/// The old row of an UPDATE or DELETE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldRow<'a> {
    /// Tag `K`: columns outside the replica identity are NULL.
    Key(Tuple<'a>),
    /// Tag `O`: REPLICA IDENTITY FULL.
    Whole(Tuple<'a>),
}

/// Tag `U`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update<'a> {
    /// Table OID.
    pub relation: u32,
    /// The old row, if its identity changed or is FULL.
    pub old: Option<OldRow<'a>>,
    /// The new row.
    pub new: Tuple<'a>,
}

/// Tag `D`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delete<'a> {
    /// Table OID.
    pub relation: u32,
    /// The deleted row.
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
    /// OIDs of the emptied tables.
    pub fn relations(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.relations.as_chunks::<4>().0.iter().map(|oid| u32::from_be_bytes(*oid))
    }
}

/// Tag `M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// True if the message belongs to the surrounding transaction.
    pub transactional: bool,
    /// Position in the log.
    pub lsn: Lsn,
    /// The writer's prefix.
    pub prefix: &'a [u8],
    /// Content.
    pub content: &'a [u8],
}

/// Tag `A` of version 2. PostgreSQL 18 sends it even without streaming, between transactions, if it
/// drops the changes of a large rolled-back transaction (`ReorderBufferCheckAndTruncateAbortedTXN`
/// in `replication/logical/reorderbuffer.c`; bug 19616 of PostgreSQL).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamAbort {
    /// Transaction.
    pub xid: u32,
    /// Subtransaction; equals `xid` for a whole transaction.
    pub subxid: u32,
}

/// Decodes one message to its last byte, and checks tuples so that later reads cannot fail.
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

// Inlined into `decode`, this cost 100 instructions per row, because the cursor's reads were no
// longer inlined there.
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
    // An overflowing product certainly exceeds the message.
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
