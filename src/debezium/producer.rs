//! Translates the Java producer's options to `[kafka]` and librdkafka's properties. No option
//! weakens the guarantees. Every record that Debezium sent fits the maximum size.

use super::draft::{Draft, PRODUCER, Taken, is_placeholder, list, text};
use super::options_file::Flavour;
use super::{names, tls};

pub(super) fn map(draft: &mut Draft) {
    brokers(draft);
    acks(draft);
    sizes(draft);
    partitioner(draft);
    if let Some(taken) = draft.take_producers("compression.type") {
        let word = taken.text().to_ascii_lowercase();
        draft.map(taken, "kafka.compression", text(&word));
    }
    if let Some(taken) = draft.take_producers("client.id") {
        let value = text(taken.text());
        draft.map(taken, "kafka.client_id", value);
    }
    tls::map(draft);
    rest(draft);
}

const REQUIRED: &str = "REQUIRED: the brokers, which the Connect worker knows; without this line, and without \
                        POSTRIDER_KAFKA__BROKERS, it is localhost:9092";

fn brokers(draft: &mut Draft) {
    let help = "set kafka.brokers, or POSTRIDER_KAFKA__BROKERS=host:9092,host:9092";
    match draft.take_producers("bootstrap.servers") {
        Some(taken) if taken.is_placeholder(draft.flavour) => {
            draft.require("kafka.brokers", REQUIRED);
            draft.changed(taken, "is a placeholder, which is not resolved: left out", Some(help));
        }
        Some(taken) => {
            let brokers = list(taken.text().split(',').map(str::trim).filter(|it| !it.is_empty()));
            draft.map(taken, "kafka.brokers", brokers);
        }
        None if draft.flavour == Flavour::Router => {}
        None if draft.flavour == Flavour::Server => {
            let option = "debezium.sink.kafka.producer.bootstrap.servers";
            draft.assume(option, "is not there: localhost:9092 is assumed", Some(help));
        }
        None => {
            let known = draft.peek("signal.kafka.bootstrap.servers").unwrap_or("").to_owned();
            let known = if is_placeholder(&known, draft.flavour) { "" } else { &known };
            let brokers: Vec<&str> =
                known.split(',').map(str::trim).filter(|it| !it.is_empty()).collect();
            if brokers.is_empty() {
                draft.require("kafka.brokers", REQUIRED);
                let note = "is not there: the Connect worker knows the brokers";
                draft.assume("bootstrap.servers", note, Some(help));
            } else {
                let comment =
                    "signal.kafka.bootstrap.servers: check that records go to these brokers too";
                draft.set("kafka.brokers", list(brokers), comment);
                let note =
                    "is not there: the brokers of signal.kafka.bootstrap.servers are assumed";
                draft.assume("bootstrap.servers", note, Some(help));
            }
        }
    }
}

/// Step before the first exactly-once run: a slot of Debezium has no progress in Kafka.
const ADOPT: &str = "before the first run, with Debezium stopped: `postrider adopt --execute`; without it the relay \
                     refuses a slot that it did not create";

fn acks(draft: &mut Draft) {
    if let Some(taken) = draft.take_producers("acks") {
        if ["all", "-1"].contains(&taken.text()) {
            draft.not_needed(taken, "Postrider always waits for all replicas");
        } else {
            let note = "Postrider always waits for all replicas: slower, and nothing gets lost";
            draft.changed(taken, note, None);
        }
    }
    if let Some(taken) = draft.take_producers("enable.idempotence") {
        draft.not_needed(taken, "the producer is always idempotent");
    }
    if draft.peek("exactly.once.support") == Some("required")
        && let Some(taken) = draft.take("exactly.once.support")
    {
        draft.set_from("kafka.delivery", text("exactly_once"), ADOPT, &[&taken]);
        draft.mapped_with(taken, "kafka.delivery", ADOPT);
    }
}

fn sizes(draft: &mut Draft) {
    // KafkaProducer's default.
    const MAX_REQUEST: u64 = 1_048_576;
    let setting = "kafka.message_max_bytes";
    if let Some(taken) = draft.take_producers("max.request.size") {
        number(draft, taken, (setting, "B"), 1_000..=1_000_000_000);
    } else {
        let comment = "the Java producer's default max.request.size";
        draft.set(setting, text(&format!("{MAX_REQUEST}B")), comment);
    }
    if let Some(taken) = draft.take_producers("buffer.memory") {
        number(draft, taken, ("kafka.max_in_flight", "B"), 1 << 20..=1 << 30);
    }
    if let Some(taken) = draft.take_producers("linger.ms") {
        number(draft, taken, ("kafka.linger", "ms"), 0..=1_000);
    }
    if let Some(taken) = draft.take_producers("batch.size") {
        number(draft, taken, ("kafka.properties.batch.size", ""), 1..=i32::MAX as u64);
    }
}

fn number(
    draft: &mut Draft,
    taken: Taken,
    (setting, unit): (&str, &str),
    range: std::ops::RangeInclusive<u64>,
) {
    let Ok(number) = taken.text().parse::<u64>() else {
        return draft.refuse(taken, "is not a number", "write digits only");
    };
    let inside = number.clamp(*range.start(), *range.end());
    let value = text(&format!("{inside}{unit}"));
    if inside == number {
        return draft.map(taken, setting, value);
    }
    draft.set_from(setting, value, "the nearest that is allowed", &[&taken]);
    let note = format!("{setting} is {inside}{unit}, the nearest that is allowed");
    draft.changed(taken, &note, None);
}

fn partitioner(draft: &mut Draft) {
    let setting = "kafka.partitioner";
    draft.set(
        setting,
        text("murmur2_random"),
        "what Java's producer does: keys stay where they are",
    );
    let spread = "gives up the order of a key's records, as it did before";
    if let Some(taken) = draft.take_producers("partitioner.class") {
        let class = taken.text().rsplit(['.', '$']).next().unwrap_or("").to_owned();
        match class.as_str() {
            "DefaultPartitioner" | "" => draft.mapped(taken, setting),
            "RoundRobinPartitioner" | "UniformStickyPartitioner" => {
                draft.set_from(setting, text("random"), spread, &[&taken]);
                draft.changed(taken, "any partition, chosen at random", None);
            }
            _ => draft.refuse(
                taken,
                "is a Java class that decides which partition a key is in",
                "remove it if it does as Java's default; or compute the partition into an integer \
                 column and place that (`table.fields.additional.placement`: column:partition)",
            ),
        }
    }
    if let Some(taken) = draft.take_producers("partitioner.ignore.keys") {
        if taken.text().eq_ignore_ascii_case("true") {
            draft.set_from(setting, text("random"), spread, &[&taken]);
            draft.mapped(taken, setting);
        } else {
            draft.not_needed(taken, "keys choose the partition");
        }
    }
}

const SEEN_TO: [(&str, &str); 21] = [
    ("key.serializer", "keys are bytes by then"),
    ("value.serializer", "values are bytes by then"),
    ("retries", "records are sent until they are stored"),
    ("delivery.timeout.ms", "records never expire in the queue"),
    ("request.timeout.ms", "librdkafka's default serves"),
    ("max.block.ms", "Postrider never blocks: it stops reading"),
    ("max.in.flight.requests.per.connection", "order is kept by an idempotent producer"),
    ("retry.backoff.ms", "librdkafka's default serves"),
    ("retry.backoff.max.ms", "librdkafka's default serves"),
    ("reconnect.backoff.ms", "librdkafka's default serves"),
    ("reconnect.backoff.max.ms", "librdkafka's default serves"),
    ("metadata.max.age.ms", "librdkafka's default serves"),
    ("metadata.max.idle.ms", "librdkafka's default serves"),
    ("connections.max.idle.ms", "librdkafka's default serves"),
    ("send.buffer.bytes", "the system's default serves"),
    ("receive.buffer.bytes", "the system's default serves"),
    ("client.dns.lookup", "librdkafka's default serves"),
    ("metric.reporters", "metrics are served over HTTP"),
    ("metrics.recording.level", "metrics are served over HTTP"),
    ("auto.include.jmx.reporter", "metrics are served over HTTP"),
    ("compression.level", "the codec's default serves"),
];

fn rest(draft: &mut Draft) {
    if let Some(taken) = draft.take_producers("interceptor.classes") {
        draft.changed(taken, "Java classes are not loaded: records are sent without them", None);
    }
    let is_exact = draft.setting("kafka.delivery") == Some(&text("exactly_once"));
    if let Some(taken) = draft.take_producers("transactional.id") {
        if is_exact {
            let note =
                "the relay names its transactions after the server, the database and the slot";
            draft.not_needed(taken, note);
        } else {
            let note = "delivery is at least once: consumers may see repeats after a crash";
            draft.changed(taken, note, Some("they recognise repeats by the `id` header"));
        }
    }
    for taken in draft.take_all(PRODUCER) {
        let known = SEEN_TO.iter().find(|(option, _)| ends_with(taken.name(), option));
        if let Some((_, note)) = known {
            draft.not_needed(taken.known(), note);
            continue;
        }
        let name = taken.name().rsplit("producer.").next().unwrap_or("");
        let name = name.trim_start_matches("override.").to_owned();
        let near = names::near(&name, SEEN_TO.iter().map(|(option, _)| *option).chain(SPELLED));
        let help = near.map(|near| format!("did you mean `{near}`?"));
        let help =
            help.unwrap_or("librdkafka's own properties go into [kafka.properties]".to_owned());
        draft.changed(
            taken,
            "is not an option of the Java producer known here, and ignored",
            Some(&help),
        );
    }
}

const SPELLED: [&str; 12] = [
    "bootstrap.servers",
    "acks",
    "max.request.size",
    "buffer.memory",
    "linger.ms",
    "batch.size",
    "compression.type",
    "client.id",
    "partitioner.class",
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
];

fn ends_with(name: &str, option: &str) -> bool {
    name.strip_suffix(option).is_some_and(|before| before.ends_with('.'))
}
