//! Converts the rows of tables to the entries that the current routing produces.
//!
//! Invariant: the pipeline of the relay alone determines the records, which are not sent.

use std::collections::BTreeMap;

use super::content::Content;
use super::entry::{Entry, IdToken, Kind, flag, hash_of, table_mark};
use super::error::CompareError;
use super::sorter::Sorter;
use super::topics::TopicNumbers;
use postrider_core::frame::Frame;
use postrider_core::outbox::TableName;
use postrider_core::pgoutput::{Column, Insert, Message, Relation, decode};
use postrider_core::pipeline::{Confirmation, Handled, Outcome, Outgoing, Pipeline, Translator};
use postrider_core::route::parse_time;

/// Columns with facts about a row that its record does not contain.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    /// Name of the id column, and its aliases.
    pub id: Vec<String>,
    pub time: Option<TimeColumn>,
    /// Column with the row's number in the order of its key.
    pub order: Option<String>,
}

#[derive(Debug, Clone)]
pub struct TimeColumn {
    pub name: String,
    /// A table without this column is refused.
    pub is_needed: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Places {
    /// `table_mark` of the table.
    table: u32,
    id: Option<usize>,
    time: Option<usize>,
    order: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    NoRow,
    NoId,
    Row(Entry),
}

#[derive(Debug, Default)]
struct Facts {
    table: u32,
    id: Option<IdToken>,
    time_ms: Option<i64>,
    number: Option<i64>,
}

#[derive(Debug)]
pub struct Expected {
    pipeline: Pipeline,
    translator: Option<Translator>,
    content: Content,
    columns: Columns,
    places: BTreeMap<u32, Places>,
    /// Flags that are set for every row.
    flags: u8,
    pub rows: u64,
    pub without_id: u64,
}

impl Expected {
    /// `flags` are set for every row. The pipeline must be new, and must skip rejected rows.
    pub fn new(
        pipeline: Pipeline,
        translator: Option<Translator>,
        content: Content,
        columns: Columns,
        flags: u8,
    ) -> Self {
        let places = BTreeMap::new();
        Self { pipeline, translator, content, columns, places, flags, rows: 0, without_id: 0 }
    }

    /// Adds the frame's row, if it has an id.
    pub fn take(
        &mut self,
        frame: Frame<'_>,
        numbers: &mut TopicNumbers,
        out: &mut Sorter<Entry>,
    ) -> Result<(), CompareError> {
        match self.look(frame, numbers)? {
            Seen::Row(entry) => Ok(out.push(entry)?),
            Seen::NoRow | Seen::NoId => Ok(()),
        }
    }

    pub fn look(
        &mut self,
        frame: Frame<'_>,
        numbers: &mut TopicNumbers,
    ) -> Result<Seen, CompareError> {
        let Self { pipeline, translator, content, columns, places, .. } = self;
        let frame = match translator {
            Some(translator) => translator.frame(frame)?,
            None => frame,
        };
        let message = match frame {
            Frame::Wal { data, .. } | Frame::Untranslatable { data, .. } => Some(decode(data)?),
            Frame::Excerpt { .. } | Frame::Keepalive { .. } => None,
        };
        let mut facts = Facts::default();
        let is_row = match &message {
            Some(Message::Relation(relation)) => {
                places.insert(relation.id, columns.places_in(relation)?);
                false
            }
            Some(Message::Insert(insert)) => {
                facts =
                    Facts::of(insert, places.get(&insert.relation).copied().unwrap_or_default());
                true
            }
            _ => matches!(frame, Frame::Excerpt { .. }),
        };
        let mut sent = None;
        let handled = pipeline.frame::<CompareError>(frame, |outgoing| {
            sent = Some((content.of_row(outgoing, numbers), outgoing.ticket));
            Ok(())
        })?;
        let entry = match (handled, sent) {
            (_, Some((entry, ticket))) => {
                pipeline.confirm(Confirmation { ticket, outcome: Outcome::Stored })?;
                entry
            }
            (Handled::Skipped(skipped), None) => {
                let told = skipped.id.as_deref().map(|id| IdToken::of(id.as_bytes()));
                facts.id.or(told).map(|id| blank(Kind::Rejected, id))
            }
            (_, None) => facts.id.map(|id| blank(Kind::Dropped, id)),
        };
        if let Some(translator) = translator {
            translator.consume();
        }
        Ok(if is_row { self.seen(entry, &facts) } else { Seen::NoRow })
    }

    fn seen(&mut self, entry: Option<Entry>, facts: &Facts) -> Seen {
        self.rows += 1;
        let Some(mut entry) = entry else {
            self.without_id += 1;
            return Seen::NoId;
        };
        entry.place = self.rows;
        entry.index = facts.table;
        entry.flags |= self.flags;
        if let Some(time_ms) = facts.time_ms {
            entry.flags |= flag::TIMED;
            entry.key = time_ms.cast_unsigned();
        }
        if let Some(number) = facts.number {
            entry.flags |= flag::RANKED;
            entry.rank = number.cast_unsigned();
        }
        Seen::Row(entry)
    }
}

impl Columns {
    fn places_in(&self, relation: &Relation<'_>) -> Result<Places, CompareError> {
        let place =
            |name: &str| relation.columns().position(|column| column.name == name.as_bytes());
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let table = TableName::new(text(relation.schema), text(relation.name)).to_string();
        let mark = table_mark(&table);
        let wanted = |column: &str, option| {
            let (table, column_name) = (table.clone(), column.to_owned());
            let missing = || CompareError::ColumnMissing { table, column: column_name, option };
            place(column).map(Some).ok_or_else(missing)
        };
        let time = match &self.time {
            Some(TimeColumn { name, is_needed: true }) => wanted(name, "outbox.created_at")?,
            Some(TimeColumn { name, is_needed: false }) => place(name),
            None => None,
        };
        let order = self.order.as_deref().map(|column| wanted(column, "--order-column"));
        let order = order.transpose()?.flatten();
        Ok(Places { table: mark, id: self.id.iter().find_map(|name| place(name)), time, order })
    }
}

/// Whether a time includes its zone, as a `timestamptz` does. Without a zone, the moment is
/// unknown.
fn has_zone(text: &[u8]) -> bool {
    const DATE: usize = "2026-01-01".len();
    text.iter().skip(DATE).any(|byte| matches!(byte, b'+' | b'-' | b'Z'))
}

impl Facts {
    fn of(insert: &Insert<'_>, places: Places) -> Self {
        let mut facts = Self { table: places.table, ..Self::default() };
        for (at, column) in insert.tuple.columns().enumerate() {
            let Column::Text(text) = column else { continue };
            if places.id == Some(at) {
                facts.id = Some(IdToken::of(text));
            }
            if places.time == Some(at) {
                let time = Some(text).filter(|text| has_zone(text)).and_then(parse_time);
                facts.time_ms = time.map(|us| us.div_euclid(1_000));
            }
            if places.order == Some(at) {
                facts.number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
            }
        }
        facts
    }
}

impl Content {
    /// Expects the id as the first header.
    fn of_row(&self, outgoing: &Outgoing<'_>, numbers: &mut TopicNumbers) -> Option<Entry> {
        let record = &outgoing.record;
        let (_, id) = record.headers.first()?;
        let headers = record.headers.iter().copied();
        Some(Entry {
            topic: numbers.of(record.topic),
            partition: record.partition.unwrap_or(-1),
            content: self.hash(record.topic, record.key, record.value, headers),
            rank: hash_of(&record.key),
            flags: if record.key.is_none_or(<[u8]>::is_empty) { flag::UNORDERED } else { 0 },
            ..blank(Kind::Row, IdToken::of((*id)?))
        })
    }
}

const fn blank(kind: Kind, id: IdToken) -> Entry {
    Entry {
        id,
        kind,
        topic: 0,
        partition: -1,
        place: 0,
        content: 0,
        key: 0,
        rank: 0,
        index: 0,
        flags: 0,
    }
}
