//! Translates the connector's own options: slot, publication, tables and logical messages.
//!
//! Invariant: slot and publication remain Debezium's, so that the relay delivers rows which
//! Debezium had not delivered. A pattern that cannot be translated is refused.

use super::chain::Chain;
use super::draft::{Draft, Taken, list, text};
use super::names::DECODER_NULLS;
use super::options_file::Flavour;
use postrider_core::outbox::TableName;

const CLASS: &str = "io.debezium.connector.postgresql.PostgresConnector";

pub(super) fn source(draft: &mut Draft, chain: &Chain) -> Vec<TableName> {
    if let Some(class) = draft.take("connector.class") {
        if class.text() == CLASS || class.text() == "PostgresConnector" {
            draft.not_needed(class, "PostgreSQL is all that Postrider reads");
        } else {
            let help = "only `io.debezium.connector.postgresql.PostgresConnector` can be imported";
            draft.refuse(class, "is not Debezium's connector for PostgreSQL", help);
        }
    }
    plugin(draft);
    name(draft, "slot.name", "source.slot", "debezium");
    name(draft, "publication.name", "source.publication", "dbz_publication");
    creation(draft);
    tables(draft, chain)
}

fn plugin(draft: &mut Draft) {
    match draft.take("plugin.name") {
        Some(plugin) if plugin.text() == "pgoutput" => {
            draft.not_needed(plugin, "pgoutput is what Postrider always uses");
        }
        Some(plugin) => {
            let note = "a slot keeps the plug-in it was made with, and Postrider reads pgoutput";
            let help = "let Debezium drain this slot; then set `plugin.name` to pgoutput and \
                        `slot.name` to a new name, and create the new slot before writers resume";
            draft.refuse(plugin, note, help);
        }
        None => draft.assume(
            "plugin.name",
            "pgoutput is used, Debezium's default is decoderbufs",
            Some("a slot made for decoderbufs is refused at start: it needs another `slot.name`"),
        ),
    }
}

fn name(draft: &mut Draft, option: &str, setting: &str, default: &str) {
    match draft.take(option) {
        Some(taken) if taken.is_placeholder(draft.flavour) => refuse_placeholder(draft, taken),
        Some(taken) => {
            let value = text(taken.text());
            draft.set_from(setting, value, "as it was, so that nothing is lost between", &[&taken]);
            draft.mapped(taken, setting);
        }
        None => draft.set(setting, text(default), format!("Debezium's default {option}")),
    }
}

/// A placeholder may decide where rows go.
pub(super) fn refuse_placeholder(draft: &mut Draft, taken: Taken) {
    let help = "write the value itself into a copy of the file";
    draft.refuse(taken, "is a placeholder, which is not resolved", help);
}

fn creation(draft: &mut Draft) {
    let setting = "source.create";
    let Some(taken) = draft.take("publication.autocreate.mode") else { return };
    if taken.text().eq_ignore_ascii_case("disabled") {
        let comment = "publication and slot must be there";
        draft.set_from(setting, text("never"), comment, &[&taken]);
        let note = "source.create = \"never\" is about the slot as well, which Debezium would make";
        draft.changed(taken, note, Some("`postrider setup` makes what is missing"));
    } else {
        let note = "nothing is created at start, because a lost slot would be recreated, too; an \
                    existing publication is used unchanged";
        draft.changed(taken, note, Some("`postrider setup` makes what is missing"));
    }
}

fn tables(draft: &mut Draft, chain: &Chain) -> Vec<TableName> {
    let setting = "source.tables";
    let help = "name each table in full: `table.include.list`: public.outbox,billing.outbox";
    let include = draft.take_said("table.include.list");
    let schemas = draft.peek("schema.include.list").unwrap_or("").to_owned();
    if let Some(taken) = include {
        let patterns = taken.text().split(',').map(str::trim).filter(|pattern| !pattern.is_empty());
        let names: Option<Vec<TableName>> = patterns.map(plain_table).collect();
        let Some(mut names) = names else {
            draft.refuse(taken, "is a pattern, and Postrider must know the tables", help);
            return Vec::new();
        };
        let mut seen = Vec::new();
        names.retain(|name| {
            !seen.contains(name) && {
                seen.push(name.clone());
                true
            }
        });
        let others = technical(draft, &mut names);
        let shown: Vec<String> = names.iter().map(ToString::to_string).collect();
        draft.set_from(setting, list(shown.iter().map(String::as_str)), "", &[&taken]);
        if others.is_empty() {
            draft.mapped(taken, setting);
        } else {
            let note = format!(
                "{}: not read, since Debezium's own signals or heartbeats are written there",
                others.join(", ")
            );
            draft.changed(taken, &note, Some("if rows of it are events, add it to source.tables"));
        }
        return names;
    }
    if chain.decoder.is_some() {
        draft.set(setting, list([]), "no table.include.list: logical messages are all there is");
        let note = "is not there: logical messages are read, and no table";
        draft.assume("table.include.list", note, Some("set source.tables to the outbox tables"));
        return Vec::new();
    }
    let schema = plain(&schemas).filter(|parts| parts.len() == 1).and_then(|mut it| it.pop());
    let table = TableName::new(schema.unwrap_or_else(|| "public".to_owned()), "outbox");
    let value = list([table.to_string().as_str()]);
    draft.set(setting, value, "assumed: no table.include.list names the outbox table");
    let note = format!("is not there: {table} is assumed");
    draft.assume("table.include.list", &note, Some("set source.tables to the outbox tables"));
    vec![table]
}

/// Removes Debezium's own tables, for signals and for heartbeats.
fn technical(draft: &Draft, names: &mut Vec<TableName>) -> Vec<String> {
    let signals = draft.peek("signal.data.collection").unwrap_or("");
    let heartbeat = draft.peek("heartbeat.action.query").unwrap_or("");
    let is_in = |text: &str, name: &str| {
        let is_part = |char: char| char.is_alphanumeric() || "_$.".contains(char);
        text.split(|char| !is_part(char)).any(|word| word == name)
    };
    let is_technical = |table: &TableName| {
        let name = format!("{}.{}", table.schema, table.name);
        signals == name || signals.ends_with(&format!(".{name}")) || is_in(heartbeat, &name)
    };
    // A file with a single table means that table.
    if names.iter().all(is_technical) {
        return Vec::new();
    }
    let (others, outboxes) = std::mem::take(names).into_iter().partition(is_technical);
    *names = outboxes;
    let others: Vec<TableName> = others;
    others.iter().map(ToString::to_string).collect()
}

/// `None` unless the pattern matches exactly one table.
fn plain_table(pattern: &str) -> Option<TableName> {
    match plain(pattern)?.as_slice() {
        [schema, name] => Some(TableName::new(schema, name)),
        _ => None,
    }
}

/// Splits a plain name at its dots, escaped or not.
fn plain(pattern: &str) -> Option<Vec<String>> {
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let pattern = pattern.strip_suffix('$').unwrap_or(pattern);
    let mut parts = vec![String::new()];
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        let char =
            if char == '\\' { chars.next().filter(|it| !it.is_alphanumeric())? } else { char };
        match char {
            '.' => parts.push(String::new()),
            char if char.is_alphanumeric() || matches!(char, '_' | '-' | '$' | ' ') => {
                parts.last_mut()?.push(char);
            }
            _ => return None,
        }
    }
    parts.iter().all(|part| !part.is_empty()).then_some(parts)
}

pub(super) fn messages(draft: &mut Draft, chain: &Chain) {
    let include = draft.take_said("message.prefix.include.list");
    let exclude = draft.take_said("message.prefix.exclude.list");
    let Some(decoder) = &chain.decoder else {
        for taken in include.into_iter().chain(exclude) {
            let note = "logical messages are not sent: no DecodeLogicalDecodingMessageContent makes \
                        rows of them";
            draft.changed(taken, note, Some("messages.prefixes makes Postrider read them as rows"));
        }
        return;
    };
    let setting = "messages.prefixes";
    if let Some(taken) = exclude {
        let help = "name the prefixes that are rows in `message.prefix.include.list`";
        draft.refuse(taken, "excludes prefixes, which messages.prefixes cannot", help);
    }
    match include {
        None => {
            draft.set(setting, list(["*"]), "DecodeLogicalDecodingMessageContent: all prefixes");
        }
        Some(taken) => {
            let prefixes: Option<Vec<String>> =
                taken.text().split(',').map(|pattern| glob(pattern.trim())).collect();
            match prefixes {
                Some(globs) => draft.map(taken, setting, list(globs.iter().map(String::as_str))),
                None => draft.refuse(
                    taken,
                    "is a pattern that messages.prefixes cannot say",
                    "write names, and names that end in `.*`",
                ),
            }
        }
    }
    let nulls = draft.take(&format!("{decoder}{DECODER_NULLS}"));
    let nulls =
        nulls.or_else(|| draft.take(&format!("{}{DECODER_NULLS}", super::names::BARE_DECODER)));
    let keep = nulls.as_ref().is_some_and(|nulls| nulls.text().eq_ignore_ascii_case("true"));
    let value = text(if keep { "keep" } else { "drop" });
    match nulls {
        Some(nulls) => draft.map(nulls, "messages.null_members", value),
        None => draft.set("messages.null_members", value, "Debezium's default fields.null.include"),
    }
}

pub(super) fn glob(pattern: &str) -> Option<String> {
    if pattern == ".*" {
        return Some("*".to_owned());
    }
    let (name, star) = match pattern.strip_suffix(".*") {
        Some(name) => (name, "*"),
        None => (pattern, ""),
    };
    // An escaped dot may precede, as in `shop\..*`.
    let (name, dot) = match name.strip_suffix("\\.") {
        Some(name) => (name, "."),
        None => (name, ""),
    };
    Some(format!("{}{dot}{star}", plain(name)?.join(".")))
}

pub(super) fn rest(draft: &mut Draft) {
    if let Some(taken) = draft.take("topic.prefix") {
        if draft.setting("format.value") == Some("\"json_schema\"") {
            let value = text(taken.text());
            draft.map(taken, "format.schema_prefix", value);
        } else {
            draft.not_needed(taken, "names the connector; topics are the router's");
        }
    }
    if let Some(taken) = draft.take("skipped.operations") {
        let skips =
            |wanted: &str| taken.text().split(',').any(|operation| operation.trim() == wanted);
        if skips("c") {
            draft.refuse(taken, "skips inserts, which are all there is to route", "remove c");
        } else if skips("u") {
            draft.set_from("outbox.on_update", text("ignore"), "updates are skipped", &[&taken]);
            draft.mapped(taken, "outbox.on_update");
        } else {
            draft.not_needed(taken, "only inserts are routed");
        }
    }
    if let Some(taken) = draft.take_said("converters") {
        converters(draft, taken);
    }
    snapshot(draft);
}

/// Custom converters change column values before the router sees them.
fn converters(draft: &mut Draft, taken: Taken) {
    let names: Vec<String> = taken.text().split(',').map(|name| name.trim().to_owned()).collect();
    for name in names.into_iter().filter(|name| !name.is_empty()) {
        for part in draft.take_all(&format!("{name}.")) {
            draft.not_needed(part, "goes with `converters`");
        }
    }
    let help = "remove it if it does not touch the outbox table's columns";
    draft.refuse(taken, "names Java classes that rewrite columns", help);
}

fn snapshot(draft: &mut Draft) {
    let note = "rows that were in the table before the slot was made are not sent";
    let help = "with the slot Debezium used there are none that it did not send";
    match draft.take("snapshot.mode") {
        Some(mode) if ["no_data", "never", "schema_only"].contains(&mode.text()) => {
            draft.not_needed(mode, "Postrider never takes snapshots");
        }
        Some(mode) => draft.changed(mode, note, Some(help)),
        None if draft.flavour == Flavour::Router => {}
        None => draft.assume("snapshot.mode", note, Some(help)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_patterns() {
        for (pattern, schema, name) in [
            ("public.outbox", "public", "outbox"),
            ("public\\.outbox", "public", "outbox"),
            ("^public\\.outbox$", "public", "outbox"),
            ("Sales.Outbox Event", "Sales", "Outbox Event"),
        ] {
            assert_eq!(plain_table(pattern), Some(TableName::new(schema, name)), "{pattern}");
        }
        for pattern in [
            "outbox",
            "public.*",
            ".*\\.outbox",
            "public.outbox_\\d+",
            "a.b.c",
            "public.(a|b)",
            "a.",
        ] {
            assert_eq!(plain_table(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn prefixes_become_globs() {
        for (pattern, expected) in [
            ("outbox", "outbox"),
            (".*", "*"),
            ("outbox.*", "outbox*"),
            ("shop\\..*", "shop.*"),
            ("shop.outbox", "shop.outbox"),
        ] {
            assert_eq!(glob(pattern).as_deref(), Some(expected), "{pattern}");
        }
        for pattern in ["", "(a|b)", "a+", "a\\d", "[ab].*"] {
            assert_eq!(glob(pattern), None, "{pattern}");
        }
    }
}
