//! Encodes pgoutput messages for simulations, benchmarks and dry runs.
//!
//! A length that the protocol cannot represent is cut, and the decoder refuses the message.

use super::message::{Begin, Commit, LogicalMessage, Origin, StreamAbort, Type};
use super::tuple::Column;

/// A table for [`relation`].
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    /// OID.
    pub id: u32,
    /// Schema.
    pub schema: &'a [u8],
    /// Name.
    pub name: &'a [u8],
    /// Column names and type OIDs.
    pub columns: &'a [(&'a [u8], u32)],
}

/// Old row of an UPDATE or DELETE.
#[derive(Debug, Clone, Copy)]
pub enum Old<'a> {
    /// Replica identity.
    Key(&'a [Column<'a>]),
    /// All columns.
    Whole(&'a [Column<'a>]),
}

/// Tag `B`.
pub fn begin(out: &mut Vec<u8>, begin: &Begin) {
    out.push(b'B');
    out.extend(begin.final_lsn.get().to_be_bytes());
    out.extend(begin.commit_time.0.to_be_bytes());
    out.extend(begin.xid.to_be_bytes());
}

/// Tag `C`.
pub fn commit(out: &mut Vec<u8>, commit: &Commit) {
    out.extend([b'C', 0]);
    out.extend(commit.commit_lsn.get().to_be_bytes());
    out.extend(commit.end_lsn.get().to_be_bytes());
    out.extend(commit.commit_time.0.to_be_bytes());
}

/// Tag `O`.
pub fn origin(out: &mut Vec<u8>, origin: &Origin<'_>) {
    out.push(b'O');
    out.extend(origin.commit_lsn.get().to_be_bytes());
    string(out, origin.name);
}

/// Tag `R`, with default replica identity.
pub fn relation(out: &mut Vec<u8>, table: &Table<'_>) {
    relation_with(out, table, &[]);
}

/// Like [`relation`], with type modifiers.
pub fn relation_with(out: &mut Vec<u8>, table: &Table<'_>, modifiers: &[i32]) {
    out.push(b'R');
    out.extend(table.id.to_be_bytes());
    string(out, table.schema);
    string(out, table.name);
    out.push(b'd');
    out.extend(count(table.columns.len()));
    for (index, (name, type_oid)) in table.columns.iter().enumerate() {
        out.push(0);
        string(out, name);
        out.extend(type_oid.to_be_bytes());
        out.extend(modifiers.get(index).copied().unwrap_or(-1).to_be_bytes());
    }
}

/// Tag `Y`.
pub fn type_name(out: &mut Vec<u8>, named: &Type<'_>) {
    out.push(b'Y');
    out.extend(named.id.to_be_bytes());
    string(out, named.schema);
    string(out, named.name);
}

/// Tag `I`.
pub fn insert(out: &mut Vec<u8>, relation: u32, row: &[Column<'_>]) {
    out.push(b'I');
    out.extend(relation.to_be_bytes());
    out.push(b'N');
    tuple(out, row);
}

/// Tag `U`.
pub fn update(out: &mut Vec<u8>, relation: u32, before: Option<Old<'_>>, after: &[Column<'_>]) {
    out.push(b'U');
    out.extend(relation.to_be_bytes());
    if let Some(before) = before {
        old(out, before);
    }
    out.push(b'N');
    tuple(out, after);
}

/// Tag `D`.
pub fn delete(out: &mut Vec<u8>, relation: u32, before: Old<'_>) {
    out.push(b'D');
    out.extend(relation.to_be_bytes());
    old(out, before);
}

/// Tag `T`; see [`super::Truncate::options`].
pub fn truncate(out: &mut Vec<u8>, options: u8, relations: &[u32]) {
    out.push(b'T');
    out.extend(length(relations.len()));
    out.push(options);
    for relation in relations {
        out.extend(relation.to_be_bytes());
    }
}

/// Tag `M`.
pub fn logical(out: &mut Vec<u8>, message: &LogicalMessage<'_>) {
    out.extend([b'M', u8::from(message.transactional)]);
    out.extend(message.lsn.get().to_be_bytes());
    string(out, message.prefix);
    out.extend(length(message.content.len()));
    out.extend(message.content);
}

/// Tag `A`.
pub fn stream_abort(out: &mut Vec<u8>, abort: StreamAbort) {
    out.push(b'A');
    out.extend(abort.xid.to_be_bytes());
    out.extend(abort.subxid.to_be_bytes());
}

fn old(out: &mut Vec<u8>, before: Old<'_>) {
    let (marker, row) = match before {
        Old::Key(row) => (b'K', row),
        Old::Whole(row) => (b'O', row),
    };
    out.push(marker);
    tuple(out, row);
}

fn tuple(out: &mut Vec<u8>, row: &[Column<'_>]) {
    out.extend(count(row.len()));
    for column in row {
        match column {
            Column::Null => out.push(b'n'),
            Column::Unchanged => out.push(b'u'),
            Column::Text(bytes) => value(out, b't', bytes),
            Column::Binary(bytes) => value(out, b'b', bytes),
        }
    }
}

fn value(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    out.push(kind);
    out.extend(length(bytes.len()));
    out.extend(bytes);
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend(text);
    out.push(0);
}

fn count(columns: usize) -> [u8; 2] {
    u16::try_from(columns).unwrap_or(u16::MAX).to_be_bytes()
}

fn length(bytes: usize) -> [u8; 4] {
    i32::try_from(bytes).unwrap_or(i32::MAX).to_be_bytes()
}
