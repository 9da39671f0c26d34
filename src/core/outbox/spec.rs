//! Defines [`OutboxSpec`]: which tables and message prefixes are outboxes, and which columns are read.
//!
//! Configuration and router fill it in; the relation cache reads it. A column may have aliases: of required
//! columns, the default names here and Debezium's stand for each other. [`TableName`] prints as a quoted
//! SQL identifier; [`ColumnSlot`] is the index by which a wanted column is found in each row.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::pgoutput::Relation;

/// A table's full name. Prints as an SQL identifier, quoted where it must be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// The schema, as in `pg_namespace.nspname`.
    pub schema: String,
    /// The table, as in `pg_class.relname`.
    pub name: String,
}

impl TableName {
    /// Joins the two halves, as they are in the catalog.
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> Self {
        Self { schema: schema.into(), name: name.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", quoted(&self.schema), quoted(&self.name))
    }
}

/// An identifier, in double quotes unless it is plain lower case.
pub(super) fn quoted(identifier: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let starts_plain = identifier.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if starts_plain && identifier.bytes().all(plain) {
        identifier.to_owned()
    } else {
        format!("\"{}\"", identifier.replace('"', "\"\""))
    }
}

/// A column that somebody downstream reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Names to try, in order, where the table has no column of that name.
    pub aliases: Vec<String>,
    /// Whether a table without it is refused at start, and a row without it rejected.
    pub required: bool,
}

/// The default column names here and those of Debezium, each an alias of the other.
const DEFAULT_NAMES: [(&str, &str); 3] =
    [("aggregate_type", "aggregatetype"), ("aggregate_id", "aggregateid"), ("event_type", "type")];

impl Wanted {
    /// A column that every outbox table must have. A default name has the other default as its
    /// alias, so that an outbox made for Debezium is understood without configuration, and a
    /// configuration made for Debezium finds the columns of an outbox made here.
    pub fn required(name: impl Into<String>) -> Self {
        let name = name.into();
        let other = DEFAULT_NAMES.iter().find_map(|(ours, theirs)| match name.as_str() {
            name if name == *ours => Some((*theirs).to_owned()),
            name if name == *theirs => Some((*ours).to_owned()),
            _ => None,
        });
        Self { name, aliases: other.into_iter().collect(), required: true }
    }

    /// A column that is read where there is one. Debezium's names stand for nothing but themselves
    /// here: what a configuration made for Debezium may miss must not be found elsewhere.
    pub fn optional(name: impl Into<String>) -> Self {
        let required = Self::required(name);
        let is_ours = DEFAULT_NAMES.iter().any(|(ours, _)| *ours == required.name);
        let aliases = if is_ours { required.aliases } else { Vec::new() };
        Self { name: required.name, aliases, required: false }
    }
}

/// Where the value of a wanted column is found in an [`super::OutboxRow`]. Valid only for rows of
/// the [`super::Outbox`] built from the spec that issued it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ColumnSlot(pub(super) usize);

/// What the relation cache must know: built by the configuration and by the router, then given to
/// [`super::Outbox::new`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutboxSpec {
    tables: Vec<TableName>,
    /// By OID: the tables as they are now, whatever they were called when a row was written.
    oids: BTreeMap<u32, TableName>,
    wanted: Vec<Wanted>,
    messages: MessageSpec,
    not_null: BTreeSet<(TableName, String)>,
    /// By a column's name: others to try where a table has none of that name.
    aliases: BTreeMap<String, Vec<String>>,
}

/// Which logical messages (`pg_logical_emit_message`) are rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageSpec {
    /// Globs of prefixes; none: no message is a row.
    pub prefixes: Vec<String>,
    /// Whether a member that is null counts as a missing column, where a column may be missing.
    pub null_is_missing: bool,
}

impl OutboxSpec {
    /// An outbox of these tables, of which no column is wanted yet.
    pub fn new(tables: Vec<TableName>) -> Self {
        Self { tables, ..Self::default() }
    }

    /// The same, with these logical messages.
    #[must_use]
    pub fn with_messages(self, messages: MessageSpec) -> Self {
        Self { messages, ..self }
    }

    /// The same, with further names for columns, in the order in which they are tried.
    #[must_use]
    pub fn with_aliases(self, aliases: BTreeMap<String, Vec<String>>) -> Self {
        Self { aliases, ..self }
    }

    /// Says that a column is declared NOT NULL, which the stream does not tell. Only schemas that
    /// are sent along with a value say so.
    pub fn declare_not_null(&mut self, table: TableName, column: String) {
        self.not_null.insert((table, column));
    }

    /// Says which OID the table with this name has. Its rows are told by that, too: the log has those
    /// of before it was renamed, or moved to another schema, under the name that it had.
    pub fn identify(&mut self, table: TableName, oid: u32) {
        self.oids.insert(oid, table);
    }

    /// Asks for a column. Asking twice for one name gives the same slot, required if either was.
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

    /// The table that a Relation describes, if it is one of ours: the one with its OID, or else, as a
    /// table that was replaced had another, the one with its name. A replaced table that has another
    /// name now is ours only where the log was written under the old one.
    pub(super) fn table(&self, relation: &Relation<'_>) -> Option<&TableName> {
        let is_named = |table: &&TableName| {
            table.name.as_bytes() == relation.name && schema_of(table) == relation.schema
        };
        self.oids.get(&relation.id).or_else(|| self.tables.iter().find(is_named))
    }

    /// The tables, in the order given.
    pub fn tables(&self) -> &[TableName] {
        &self.tables
    }

    /// The logical messages that are rows.
    pub fn messages(&self) -> &MessageSpec {
        &self.messages
    }

    /// Whether [`OutboxSpec::declare_not_null`] said so.
    pub(super) fn is_not_null(&self, table: &TableName, column: &str) -> bool {
        self.not_null.iter().any(|(known, name)| known == table && name == column)
    }

    /// The columns asked for so far.
    pub fn wanted(&self) -> &[Wanted] {
        &self.wanted
    }
}

/// pgoutput writes `pg_catalog` as the empty string.
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
