//! Reports every option that no other module translated. An unlisted option is reported as unknown,
//! with the nearest known name.

use super::draft::{Draft, Taken};
use super::names;
use super::options_file::Flavour;

#[derive(Clone, Copy)]
enum Handling {
    /// Not needed, whatever its value is.
    NotNeeded,
    /// Not needed with one of these values; otherwise a difference.
    Unless(&'static [&'static str]),
    Changed,
    /// Recommended action. An empty option is ignored.
    Refused(&'static str),
}

use Handling::{Changed, NotNeeded, Refused, Unless};

/// An option, or a family of options if it ends in a star.
type KnownOption = (&'static str, Handling, &'static str);

const OFFSETS: &str = "the slot is the only position there is";
const SNAPSHOTS: &str = "Postrider never takes snapshots";
const RETRIES: &str = "Postrider keeps trying; [retry] bounds it";
const IDLE: &str = "an idle slot advances by itself";
const SIGNALS: &str = "Postrider takes signals from the operating system only";
const QUEUES: &str = "kafka.max_in_flight bounds memory";
const METRICS: &str = "metrics are served over HTTP, without tags";
const TYPES: &str = "columns of this type in keys, headers and envelopes are written as by default";
const ROWS_ONLY: &str =
    "only the outbox tables are read, and of them only the columns that are named";
const WORKER: &str = "belongs to the Connect worker";
const ENGINE: &str = "belongs to Debezium's engine";
const SERVER: &str = "belongs to Debezium Server";

/// Exact names precede families.
const KNOWN: &[KnownOption] = &[
    ("name", NotNeeded, "the slot's name tells relays apart"),
    ("tasks", NotNeeded, WORKER),
    ("type", NotNeeded, WORKER),
    ("initial_state", NotNeeded, WORKER),
    ("tasks.max", NotNeeded, "a slot has one reader"),
    ("tasks.max.enforce", NotNeeded, "a slot has one reader"),
    ("config.action.reload", NotNeeded, WORKER),
    ("errors.deadletterqueue.*", NotNeeded, "Connect has it for sinks only; dead letters are on"),
    ("errors.max.retries", NotNeeded, RETRIES),
    ("errors.retry.*", NotNeeded, RETRIES),
    ("errors.tolerance", NotNeeded, "rows that cannot be delivered become dead letters"),
    ("errors.log.*", NotNeeded, "dead letters say why, and are counted"),
    ("exactly.once.support", Unless(&["requested"]), "delivery is at least once unless required"),
    ("transaction.boundary*", NotNeeded, "goes with exactly.once.support"),
    ("offsets.storage.topic", NotNeeded, OFFSETS),
    ("offset.mismatch.strategy", NotNeeded, OFFSETS),
    ("offset.*", NotNeeded, OFFSETS),
    ("consumer.*", NotNeeded, "Postrider consumes nothing"),
    ("admin.*", NotNeeded, "topics are created by the relay's own client"),
    ("config.*", NotNeeded, WORKER),
    ("status.storage.*", NotNeeded, WORKER),
    ("group.id", NotNeeded, WORKER),
    ("rest.*", NotNeeded, WORKER),
    ("listeners", NotNeeded, WORKER),
    ("plugin.path", NotNeeded, WORKER),
    ("plugin.discovery", NotNeeded, WORKER),
    ("internal.*", NotNeeded, WORKER),
    ("transforms.*", NotNeeded, "belongs to no transformation that `transforms` names"),
    ("predicates.*", NotNeeded, "no transformation uses it"),
    (
        "slot.drop.on.stop",
        Unless(&["false"]),
        "Debezium drops the slot when it stops, and with it what is committed after that: set it \
         to false there before you stop it",
    ),
    (
        "slot.failover",
        NotNeeded,
        "a slot that Postrider makes follows a failover (source.failover)",
    ),
    ("slot.stream.params", Unless(&[]), "is not handed to pgoutput"),
    ("slot.max.retries", NotNeeded, RETRIES),
    ("slot.retry.delay.ms", NotNeeded, RETRIES),
    ("retriable.restart.connector.wait.ms", NotNeeded, RETRIES),
    (
        "publish.via.partition.root",
        Unless(&["false"]),
        "a publication that Postrider makes does not set it; one that exists keeps it",
    ),
    (
        "replica.identity.autoset.values",
        NotNeeded,
        "only inserts are read, which need no replica identity",
    ),
    ("schema.include.list", NotNeeded, ROWS_ONLY),
    ("schema.exclude.list", NotNeeded, ROWS_ONLY),
    ("table.exclude.list", NotNeeded, ROWS_ONLY),
    ("table.ignore.builtin", NotNeeded, ROWS_ONLY),
    ("column.include.list", NotNeeded, ROWS_ONLY),
    ("column.exclude.list", NotNeeded, ROWS_ONLY),
    ("column.propagate.source.type", Unless(&[]), "schemas have no parameters"),
    ("datatype.propagate.source.type", Unless(&[]), "schemas have no parameters"),
    (
        "column.mask.*",
        Refused(
            "mask the values where they are written, or remove it if no column is the outbox's",
        ),
        "masks columns, which Postrider would send in clear",
    ),
    (
        "column.truncate.*",
        Refused("remove it if no column is the outbox's"),
        "cuts columns, which Postrider would send whole",
    ),
    ("message.key.columns", NotNeeded, "the router names the key"),
    ("skip.messages.without.change", NotNeeded, "only inserts are routed"),
    ("tombstones.on.delete", NotNeeded, "a DELETE of an outbox row sends nothing"),
    ("time.precision.mode", Unless(&["adaptive"]), TYPES),
    ("decimal.handling.mode", Unless(&["precise"]), TYPES),
    ("hstore.handling.mode", Unless(&["json"]), TYPES),
    ("interval.handling.mode", Unless(&["numeric"]), TYPES),
    ("money.fraction.digits", Unless(&["2"]), TYPES),
    ("include.unknown.datatypes", Unless(&["false"]), TYPES),
    ("include.schema.comments", NotNeeded, "schemas have no comments"),
    ("unavailable.value.placeholder", NotNeeded, "an inserted row has all of its values"),
    ("schema.name.adjustment.mode", Unless(&["none"]), "names of schemas do not change"),
    (
        "field.name.adjustment.mode",
        Unless(&["none"]),
        "names of members do not change; Debezium renames them and loses their values",
    ),
    ("schema.refresh.mode", NotNeeded, "the stream itself announces a table's shape"),
    ("schema.history.*", NotNeeded, "PostgreSQL needs none"),
    ("database.history.*", NotNeeded, "PostgreSQL needs none"),
    ("database.initial.statements", Unless(&[]), "is not run; a role's own settings are in force"),
    ("database.query.timeout.ms", NotNeeded, "the few queries have timeouts of their own"),
    ("database.socketTimeout", NotNeeded, "a silent connection is noticed by itself"),
    ("database.loginTimeout", NotNeeded, "`connect_timeout` in source.url bounds it"),
    ("database.server.id", NotNeeded, "belongs to MySQL"),
    ("driver.*", Changed, "is pgjdbc's; what libpq has like it goes into source.url"),
    ("snapshot.*", NotNeeded, SNAPSHOTS),
    ("incremental.snapshot.*", NotNeeded, SNAPSHOTS),
    ("streaming.delay.ms", NotNeeded, SNAPSHOTS),
    ("read.only", NotNeeded, "Postrider writes nothing to the database"),
    ("signal.*", NotNeeded, SIGNALS),
    ("notification.*", NotNeeded, "changes of state are logged, and shown over HTTP"),
    ("heartbeat.*", NotNeeded, IDLE),
    ("topic.heartbeat.*", NotNeeded, IDLE),
    ("provide.transaction.metadata", Unless(&["false"]), "there is no topic of transactions"),
    ("topic.transaction", NotNeeded, "there is no topic of transactions"),
    ("transaction.metadata.factory", NotNeeded, "there is no topic of transactions"),
    ("topic.naming.strategy", NotNeeded, "topics are the router's"),
    ("topic.delimiter", NotNeeded, "topics are the router's"),
    ("topic.cache.size", NotNeeded, "topics are the router's"),
    (
        "lsn.flush.mode",
        Unless(&["true", "connector", "connector_and_driver"]),
        "Postrider tells the slot itself how far it got",
    ),
    ("lsn.flush.*", NotNeeded, "Postrider tells the slot once a second how far it got"),
    ("status.update.interval.ms", NotNeeded, "source.status_interval is a second"),
    ("xmin.fetch.interval.ms", NotNeeded, OFFSETS),
    (
        "event.processing.failure.handling.mode",
        NotNeeded,
        "rows that cannot be delivered become dead letters",
    ),
    ("max.batch.size", NotNeeded, QUEUES),
    ("max.queue.*", NotNeeded, QUEUES),
    ("poll.interval.ms", NotNeeded, "rows are sent as they come"),
    ("query.fetch.size", NotNeeded, SNAPSHOTS),
    ("custom.metric.tags", NotNeeded, METRICS),
    ("advanced.metrics.enable", NotNeeded, METRICS),
    ("statistics.metrics.enabled", NotNeeded, METRICS),
    (
        "custom.sanitize.pattern",
        NotNeeded,
        "secrets are masked by the option's name and by the value",
    ),
    (
        "extended.headers.enabled",
        NotNeeded,
        "Debezium's `__debezium.context.*` headers are not sent",
    ),
    ("guardrail.*", NotNeeded, "the tables are named"),
    ("openlineage.*", NotNeeded, "Postrider reports no lineage"),
    ("create.slot.command.timeout", NotNeeded, "a slot that waits for a transaction says which"),
    ("executor.shutdown.timeout.ms", NotNeeded, "shutdown.grace bounds a clean stop"),
    ("record.processing.*", NotNeeded, ENGINE),
    ("task.management.timeout.ms", NotNeeded, ENGINE),
    ("sink.kafka.*", NotNeeded, "belongs to Debezium Server's sink"),
    ("sink.*", NotNeeded, "belongs to another sink"),
    ("engine.*", NotNeeded, ENGINE),
    ("unread.api.*", NotNeeded, SERVER),
    ("unread.quarkus.*", NotNeeded, SERVER),
    ("unread.*", Changed, "is in no section that Debezium Server reads, and ignored there too"),
];

pub(super) fn settle(draft: &mut Draft) {
    sink(draft);
    for (key, again, taken) in draft.take_rest() {
        match lookup(&key) {
            Some((pattern, fate, note)) => {
                let taken = if is_foreign(pattern) { taken } else { taken.known() };
                apply(draft, taken, *fate, note);
            }
            None if again => {
                draft.not_needed(taken, "another option of the file says the same");
            }
            None => unknown(draft, taken, &key),
        }
    }
}

/// Arbitrary options may contain secrets under any name, so their values are not shown.
const FOREIGN: [&str; 11] = [
    "column.mask.*",
    "config.*",
    "consumer.*",
    "admin.*",
    "internal.*",
    "transforms.*",
    "driver.*",
    "sink.kafka.*",
    "sink.*",
    "engine.*",
    "unread.*",
];

fn is_foreign(pattern: &str) -> bool {
    FOREIGN.contains(&pattern)
}

/// Debezium Server supports many sinks, Postrider only one.
fn sink(draft: &mut Draft) {
    match draft.take("sink.type") {
        Some(taken) if taken.text().eq_ignore_ascii_case("kafka") => {
            draft.not_needed(taken, "Kafka is all that Postrider writes to");
        }
        Some(taken) => {
            draft.refuse(taken, "is not Kafka", "Postrider writes to Kafka only");
        }
        None => {}
    }
    let by_event = ["outbox.timestamp", "route.partition"];
    let lost: Vec<&str> = by_event.into_iter().filter(|it| draft.setting(it).is_some()).collect();
    if draft.flavour == Flavour::Server && !lost.is_empty() {
        let note =
            format!("Debezium Server loses what {} says; Postrider sends it", lost.join(" and "));
        draft.assume("debezium.sink.kafka", &note, None);
    }
}

fn lookup(key: &str) -> Option<&'static KnownOption> {
    KNOWN.iter().find(|(pattern, ..)| match pattern.strip_suffix('*') {
        Some(family) => key.starts_with(family),
        None => key == *pattern,
    })
}

fn apply(draft: &mut Draft, taken: Taken, fate: Handling, note: &str) {
    let value = taken.text().to_ascii_lowercase();
    match fate {
        NotNeeded => draft.not_needed(taken, note),
        Unless(harmless) if value.is_empty() || harmless.contains(&value.as_str()) => {
            draft.not_needed(taken, "is as Postrider does it");
        }
        Unless(_) | Changed => draft.changed(taken, note, None),
        Refused(_) if value.is_empty() => draft.not_needed(taken, "is empty"),
        Refused(help) => draft.refuse(taken, note, help),
    }
}

fn unknown(draft: &mut Draft, taken: Taken, key: &str) {
    let exact = KNOWN.iter().map(|(pattern, ..)| *pattern).filter(|it| !it.ends_with('*'));
    let near = names::near(key, exact.chain(DEALT_WITH).chain(names::ROUTER));
    let help = near.map(|near| format!("did you mean `{near}`?"));
    draft.changed(taken, "is not a documented Debezium option, and is ignored", help.as_deref());
}

const DEALT_WITH: [&str; 24] = [
    "connector.class",
    "plugin.name",
    "slot.name",
    "publication.name",
    "publication.autocreate.mode",
    "table.include.list",
    "message.prefix.include.list",
    "message.prefix.exclude.list",
    "skipped.operations",
    "snapshot.mode",
    "topic.prefix",
    "converters",
    "binary.handling.mode",
    "key.converter",
    "value.converter",
    "header.converter",
    "transforms",
    "predicates",
    "database.hostname",
    "database.port",
    "database.user",
    "database.password",
    "database.dbname",
    "database.sslmode",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_entry_is_hidden_by_an_earlier_one() {
        for (pattern, ..) in KNOWN {
            let (found, ..) = lookup(&pattern.replace('*', "x")).unwrap();
            assert_eq!(found, pattern);
        }
    }
}
