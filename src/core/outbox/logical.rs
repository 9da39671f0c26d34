//! Reads a logical message (`pg_logical_emit_message`) as an outbox row.
//!
//! A JSON object's members are columns, as text typed by JSON type; objects and arrays are
//! `type_oid::DOCUMENT`. Other content yields a row with a flaw, which becomes a dead letter (G4,
//! G7).

use super::row::{Cell, ColumnPosition, Format, OutboxRow, Position};
use super::spec::{MessageSpec, OutboxSpec, TableName, Wanted};
use super::type_oid as oid;
use crate::json::{Json, Members};
use crate::pgoutput::{Excerpt, LogicalMessage};

#[derive(Debug, Clone)]
pub(super) struct Content {
    table: TableName,
    /// Columns are the slots themselves.
    places: Vec<Option<ColumnPosition>>,
    cells: Vec<Cell>,
    bytes: Vec<u8>,
}

fn parse(content: &[u8]) -> Result<Json, &'static str> {
    Json::parse(content)
        .map_err(|_| "its content is not JSON in UTF-8, or nested more than 127 deep")
}

impl Default for Content {
    fn default() -> Self {
        let table = TableName::new("message", "");
        Self { table, places: Vec::new(), cells: Vec::new(), bytes: Vec::new() }
    }
}

impl Content {
    pub(super) fn read<'a>(
        &'a mut self,
        message: &LogicalMessage<'a>,
        excerpt: Option<&'a Excerpt>,
        spec: &OutboxSpec,
        position: Position,
    ) -> OutboxRow<'a> {
        self.places.clear();
        self.cells.clear();
        self.bytes.clear();
        if self.table.name.as_bytes() != message.prefix {
            self.table.name = String::from_utf8_lossy(message.prefix).into_owned();
        }
        let parsed = match excerpt {
            None => parse(message.content),
            Some(_) => Ok(Json::Object(Json::parse_beginning(message.content))),
        };
        let (tuple, flaw) = match parsed {
            Ok(Json::Object(members)) => {
                for wanted in spec.wanted() {
                    self.take(wanted, &members, spec.messages());
                }
                (self.bytes.as_slice(), None)
            }
            Ok(_) => (message.content, Some("its content is JSON, but not an object")),
            Err(flaw) => (message.content, Some(flaw)),
        };
        let (table, places, cells) = (&self.table, &self.places, &self.cells);
        let (is_message, names) = (true, &[][..]);
        OutboxRow { table, names, places, cells, tuple, position, is_message, flaw, excerpt }
    }

    fn take(&mut self, wanted: &Wanted, members: &Members, spec: &MessageSpec) {
        let mut names = std::iter::once(&wanted.name).chain(&wanted.aliases);
        let member = names.find_map(|name| members.get(name));
        let member =
            member.filter(|json| !(json.is_null() && spec.null_is_missing && !wanted.required));
        let start = self.bytes.len();
        let type_oid = member.map(|json| self.write(json));
        let end = self.bytes.len();
        let place = |type_oid| {
            let column = self.cells.len();
            ColumnPosition { column, type_oid, modifier: -1, is_nullable: true }
        };
        self.places.push(type_oid.map(place));
        self.cells.push(match member {
            None | Some(Json::Null) => Cell::Null,
            Some(_) => Cell::Bytes { start, end, format: Format::Text },
        });
    }

    /// Appends Postgres's text; returns the narrowest type that Debezium's decoder would choose.
    fn write(&mut self, json: &Json) -> u32 {
        match json {
            Json::Null => oid::TEXT,
            Json::Bool(on) => {
                self.bytes.push(if *on { b't' } else { b'f' });
                oid::BOOL
            }
            Json::Number(number) => {
                self.bytes.extend(number.as_str().as_bytes());
                match number.as_i64() {
                    Some(whole) if i32::try_from(whole).is_ok() => oid::INT4,
                    Some(_) => oid::INT8,
                    None if number.is_whole() => oid::NUMERIC,
                    None => oid::FLOAT8,
                }
            }
            Json::String(text) => {
                self.bytes.extend(text.as_bytes());
                oid::TEXT
            }
            Json::Array(_) | Json::Object(_) => {
                json.write(&mut self.bytes);
                oid::DOCUMENT
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &Json) -> String {
        let mut out = Vec::new();
        json.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn content_keeps_its_numbers_and_has_no_reserved_names() {
        assert_eq!(text(&parse(b"1.50").unwrap()), "1.50");
        let number = r#"{"payload":{"$serde_json::private::Number":"1e9"}}"#;
        assert_eq!(text(&parse(number.as_bytes()).unwrap()), number);
        let deep = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse(deep(128).as_bytes()).unwrap_err().contains("127"));
    }

    #[test]
    fn of_content_that_is_cut_the_members_before_that_are_known() {
        let whole = r#"{"id": 7, "a": {"b": [1]}, "t": "x", "n": 1234, "last": true}"#;
        let names = |end: usize| {
            let members = Json::parse_beginning(&whole.as_bytes()[..end]);
            members
                .into_iter()
                .map(|(name, value)| format!("{name}={}", text(&value)))
                .collect::<Vec<_>>()
        };
        let all = ["id=7", r#"a={"b":[1]}"#, r#"t="x""#, "n=1234", "last=true"];
        assert_eq!(names(whole.len()), all);
        for end in 0..whole.len() {
            let known = names(end);
            assert_eq!(known, all[..known.len()], "cut at {end}");
        }
        assert_eq!(names(whole.find("34").unwrap()), all[..3], "not a number that is cut");
        assert_eq!(names(whole.len() - 1), all[..4]);
        assert!(Json::parse_beginning(br#"[{"id": 7, "a"#).is_empty());
    }
}
