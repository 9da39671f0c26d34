//! Outbox rows for unit tests, encoded as pgoutput and decoded again.

use super::{Outbox, OutboxError, OutboxRow, OutboxSpec, Position, TableName};
use crate::lsn::Lsn;
use crate::pgoutput::encode::{self, Table};
use crate::pgoutput::{Column, Excerpt, Message, PgTime, Type, decode};

pub(crate) const TABLE: u32 = 16_394;

pub(crate) const POSITION: Position = Position {
    commit_lsn: Lsn::new(0x1_6B37_4D84),
    index: 3,
    // 2026-01-01 00:00:00.123456 UTC
    commit_time: PgTime(820_540_800_123_456),
};

pub(crate) fn spec() -> OutboxSpec {
    OutboxSpec::new(vec![TableName::new("public", "outbox")])
}

pub(crate) fn describe(outbox: &mut Outbox, id: u32, name: &str, columns: &[(&str, u32)]) {
    let columns: Vec<_> = columns.iter().map(|(name, oid)| (name.as_bytes(), *oid)).collect();
    let mut data = Vec::new();
    let table = Table { id, schema: b"public", name: name.as_bytes(), columns: &columns };
    encode::relation(&mut data, &table);
    match decode(&data).expect("well formed") {
        Message::Relation(relation) => outbox.relation(&relation),
        _ => unreachable!("a Relation was encoded"),
    }
}

/// Declares a domain over a built-in type.
pub(crate) fn describe_domain(outbox: &mut Outbox, id: u32, schema: &str, base: &str) {
    outbox.type_name(&Type { id, schema: schema.as_bytes(), name: base.as_bytes() });
}

pub(crate) fn insert<'a>(
    outbox: &'a mut Outbox,
    data: &'a mut Vec<u8>,
    table: u32,
    row: &[Column<'_>],
) -> Result<Option<OutboxRow<'a>>, OutboxError> {
    data.clear();
    encode::insert(data, table, row);
    match decode(data).expect("well formed") {
        Message::Insert(insert) => outbox.row(&insert, POSITION),
        _ => unreachable!("an Insert was encoded"),
    }
}

pub(crate) fn excerpt(row: &[Column<'_>]) -> Excerpt {
    let mut data = Vec::new();
    encode::insert(&mut data, TABLE, row);
    let mut excerpt = Excerpt::begin(data.len());
    excerpt.take(&data).expect("well formed");
    excerpt
}

pub(crate) fn kept<'a>(
    outbox: &'a mut Outbox,
    excerpt: &'a Excerpt,
) -> Result<Option<OutboxRow<'a>>, OutboxError> {
    match decode(excerpt.message()).expect("well formed") {
        Message::Insert(insert) => outbox.row_of(&insert, Some(excerpt), &[], POSITION),
        _ => unreachable!("an Insert was kept"),
    }
}
