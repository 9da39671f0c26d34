//! Defines [`OutboxSpec`]: which tables and messages are outboxes, and which columns are read.
//!
//! Default column names here and in Debezium are aliases.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::pgoutput::Relation;

/// A qualified table name. Prints as an SQL identifier, quoted if necessary.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// `pg_namespace.nspname`.
    pub schema: String,
    /// `pg_class.relname`.
    pub name: String,
}

impl TableName {
    /// A table name.
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> Self {
        Self { schema: schema.into(), name: name.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", quoted(&self.schema), quoted(&self.name))
    }
}

pub(super) fn quoted(identifier: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let starts_plain = identifier.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if starts_plain && identifier.bytes().all(plain) {
        identifier.to_owned()
    } else {
        format!("\"{}\"", identifier.replace('"', "\"\""))
    }
}

/// A column that a later stage reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Names to try if the table lacks that one.
    pub aliases: Vec<String>,
    /// Whether a table or row without it is refused.
    pub required: bool,
}

const DEFAULT_NAMES: [(&str, &str); 3] =
    [("aggregate_type", "aggregatetype"), ("aggregate_id", "aggregateid"), ("event_type", "type")];

impl Wanted {
    /// A required column. The default names here and in Debezium are aliases, so either
    /// configuration works with either table.
    pub fn required(name: impl Into<String>) -> Self {
        let name = name.into();
        let other = DEFAULT_NAMES.iter().find_map(|(ours, theirs)| match name.as_str() {
            name if name == *ours => Some((*theirs).to_owned()),
            name if name == *theirs => Some((*ours).to_owned()),
            _ => None,
        });
        Self { name, aliases: other.into_iter().collect(), required: true }
    }

    /// A column that is read if it exists. Debezium's names have no aliases: a Debezium
    /// configuration may expect the column to be absent.
    pub fn optional(name: impl Into<String>) -> Self {
        let required = Self::required(name);
        let is_ours = DEFAULT_NAMES.iter().any(|(ours, _)| *ours == required.name);
        let aliases = if is_ours { required.aliases } else { Vec::new() };
        Self { name: required.name, aliases, required: false }
    }
}

/// Index of a wanted column in rows of the [`super::Outbox`] built from this spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ColumnSlot(pub(super) usize);

/// Configuration for [`super::Outbox::new`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutboxSpec {
    tables: Vec<TableName>,
    oids: BTreeMap<u32, TableName>,
    wanted: Vec<Wanted>,
    messages: MessageSpec,
    not_null: BTreeSet<(TableName, String)>,
    aliases: BTreeMap<String, Vec<String>>,
}

/// Selects the messages of `pg_logical_emit_message` that are rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageSpec {
    /// Globs of prefixes; empty: no message is a row.
    pub prefixes: Vec<String>,
    /// Whether a null member counts as a missing column, if the column is optional.
    pub null_is_missing: bool,
}

impl OutboxSpec {
    /// An outbox of these tables, without wanted columns.
    pub fn new(tables: Vec<TableName>) -> Self {
        Self { tables, ..Self::default() }
    }

    /// Adds logical messages.
    #[must_use]
    pub fn with_messages(self, messages: MessageSpec) -> Self {
        Self { messages, ..self }
    }

    /// Adds column names to try, in order.
    #[must_use]
    pub fn with_aliases(self, aliases: BTreeMap<String, Vec<String>>) -> Self {
        Self { aliases, ..self }
    }

    /// Declares a column NOT NULL, which the stream does not show. Used only for schemas sent with
    /// a value.
    pub fn declare_not_null(&mut self, table: TableName, column: String) {
        self.not_null.insert((table, column));
    }

    /// Sets a table's OID, because older rows may carry another name.
    pub fn identify(&mut self, table: TableName, oid: u32) {
        self.oids.insert(oid, table);
    }

    /// Requests a column, once per name. The column is required if any request was.
    pub fn want(&mut self, mut wanted: Wanted) -> ColumnSlot {
        if let Some(index) = self.wanted.iter().position(|known| known.name == wanted.name) {
            if let Some(known) = self.wanted.get_mut(index) {
                known.required |= wanted.required;
            }
            return ColumnSlot(index);
        }
        if let Some(named) = self.aliases.get(&wanted.name) {
            wanted.aliases.splice(..0, named.iter().cloned());
        }
        self.wanted.push(wanted);
        ColumnSlot(self.wanted.len() - 1)
    }

    /// The outbox table of a Relation: by OID, or else by name, because a replaced table had
    /// another OID.
    pub(super) fn table(&self, relation: &Relation<'_>) -> Option<&TableName> {
        let is_named = |table: &&TableName| {
            table.name.as_bytes() == relation.name && schema_of(table) == relation.schema
        };
        self.oids.get(&relation.id).or_else(|| self.tables.iter().find(is_named))
    }

    /// The tables in the given order.
    pub fn tables(&self) -> &[TableName] {
        &self.tables
    }

    /// Messages that are rows.
    pub fn messages(&self) -> &MessageSpec {
        &self.messages
    }

    pub(super) fn is_not_null(&self, table: &TableName, column: &str) -> bool {
        self.not_null.iter().any(|(known, name)| known == table && name == column)
    }

    /// Requested columns.
    pub fn wanted(&self) -> &[Wanted] {
        &self.wanted
    }
}

/// pgoutput writes an empty name for `pg_catalog`.
fn schema_of(table: &TableName) -> &[u8] {
    if table.schema == "pg_catalog" { &[] } else { table.schema.as_bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_print_as_sql() {
        assert_eq!(TableName::new("public", "outbox").to_string(), "public.outbox");
        assert_eq!(TableName::new("Shop", "a\"b").to_string(), "\"Shop\".\"a\"\"b\"");
        assert_eq!(TableName::new("", "1st").to_string(), "\"\".\"1st\"");
    }

    #[test]
    fn a_column_wanted_twice_has_one_slot_and_the_stricter_rule() {
        let mut spec = OutboxSpec::default();
        let first = spec.want(Wanted::optional("event_type"));
        let other = spec.want(Wanted::required("id"));
        let again = spec.want(Wanted::required("event_type"));
        assert_eq!(first, again);
        assert_ne!(first, other);
        assert!(spec.wanted()[0].required);
        assert_eq!(spec.wanted()[0].aliases, ["type"]);
        assert_eq!(Wanted::required("aggregateid").aliases, ["aggregate_id"]);
        assert!(Wanted::optional("aggregateid").aliases.is_empty());
    }
}
