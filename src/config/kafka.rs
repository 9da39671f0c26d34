//! The options of `[kafka]` itself, in the order of the documentation: brokers, guarantee, batches,
//! limits.

use super::options::{OptionSpec, choice, duration, list, size, text};
use super::values::{Compression, Delivery};
use postrider_core::record::Partitioner;

pub(super) const BROKERS: OptionSpec = list(
    "kafka.brokers",
    "[\"localhost:9092\"]",
    "Bootstrap brokers, `host:port`. The default port is 9092. In a file, one \
     comma-separated string is also accepted.",
);
pub(super) const DELIVERY: OptionSpec = choice(
    "kafka.delivery",
    Delivery::WORDS,
    "\"at_least_once\"",
    "Delivery guarantee. `at_least_once`: after a crash or a broken connection, records \
     after the oldest unconfirmed row may be repeated; first occurrences stay in order. \
     `exactly_once`: no duplicates for consumers with isolation.level=read_committed.",
);
pub(super) const TRANSACTION_AGE: OptionSpec = duration(
    "kafka.transaction_age",
    (0, 1_000),
    "\"5ms\"",
    "exactly_once: time that a Kafka transaction accepts rows before it commits. The relay \
     uses a longer time while rows are old, and a shorter time if there are many.",
);
pub(super) const PARTITIONER: OptionSpec = choice(
    "kafka.partitioner",
    Partitioner::WORDS,
    "\"murmur2_random\"",
    "How a key determines its partition. The default equals that of Java producers and \
     Debezium. Another partitioner moves existing keys to other partitions.",
);
pub(super) const COMPRESSION: OptionSpec = choice(
    "kafka.compression",
    Compression::WORDS,
    "\"lz4\"",
    "Compression codec of record batches.",
);
pub(super) const PASSWORD_COMMAND: OptionSpec = list(
    "kafka.password_command",
    "[]",
    "Like `source.password_command`, for `sasl.password`. Runs whenever the relay creates a \
     Kafka client.",
);
pub(super) const CLIENT_ID: OptionSpec =
    text("kafka.client_id", "\"postrider\"", "Client id that the relay sends to the brokers.");
pub(super) const LINGER: OptionSpec = duration(
    "kafka.linger",
    (0, 1_000),
    "\"0s\"",
    "Time that a batch waits for more records before it is sent. At least 5ms while the \
     relay delivers a backlog of more than 64 MiB of WAL.",
);
pub(super) const MESSAGE_MAX_BYTES: OptionSpec = size(
    "kafka.message_max_bytes",
    (1_000, 1_000_000_000),
    "\"1MB\"",
    "Largest record, with key and headers. A larger record becomes a dead letter. Use at \
     most the topics' `max.message.bytes`.",
);
pub(super) const MAX_IN_FLIGHT: OptionSpec = size(
    "kafka.max_in_flight",
    (1 << 20, 1 << 30),
    "\"32MiB\"",
    "Maximum bytes that are sent and not yet confirmed; it bounds memory. At the limit, the \
     relay stops reading from Postgres. A second limit is 50,000 records. Near brokers lower \
     it to 350 records per millisecond of round trip x partitions / 5, but not below 7,000.",
);
