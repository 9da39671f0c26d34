//! The options of `[kafka]` itself, in the order of the documentation: brokers, guarantee, batches,
//! limits.

use super::options::{OptionSpec, choice, duration, list, size, text};
use super::values::{Compression, Delivery};
use postrider_core::record::Partitioner;

pub(super) const BROKERS: OptionSpec = list(
    "kafka.brokers",
    "[\"localhost:9092\"]",
    "The bootstrap brokers, `host:port`; the port is 9092 if there is none. In a file, one comma-separated string is also accepted.",
);
pub(super) const DELIVERY: OptionSpec = choice(
    "kafka.delivery",
    Delivery::WORDS,
    "\"at_least_once\"",
    "The delivery guarantee. at_least_once: after a crash or a broken connection, records \
         after the oldest unconfirmed row may be repeated; first occurrences stay in order. \
         exactly_once: no repeats for consumers with isolation.level=read_committed.",
);
pub(super) const TRANSACTION_AGE: OptionSpec = duration(
    "kafka.transaction_age",
    (0, 1_000),
    "\"5ms\"",
    "exactly_once: how long a Kafka transaction accepts rows before it is committed; longer \
         while rows are old, shorter when there are many.",
);
pub(super) const PARTITIONER: OptionSpec = choice(
    "kafka.partitioner",
    Partitioner::WORDS,
    "\"murmur2_random\"",
    "How a key determines its partition. The default is the same as that of Java producers, \
         and so of Debezium; another one moves existing keys to other partitions.",
);
pub(super) const COMPRESSION: OptionSpec = choice(
    "kafka.compression",
    Compression::WORDS,
    "\"lz4\"",
    "The compression codec of record batches.",
);
pub(super) const PASSWORD_COMMAND: OptionSpec = list(
    "kafka.password_command",
    "[]",
    "Like `source.password_command`, for `sasl.password`: run whenever a Kafka client is \
         created.",
);
pub(super) const CLIENT_ID: OptionSpec =
    text("kafka.client_id", "\"postrider\"", "The client id that the relay sends to the brokers.");
pub(super) const LINGER: OptionSpec = duration(
    "kafka.linger",
    (0, 1_000),
    "\"0s\"",
    "How long a batch may wait for more records before it is sent. At least 5ms while a \
         backlog of more than 64 MiB of WAL is being delivered.",
);
pub(super) const MESSAGE_MAX_BYTES: OptionSpec = size(
    "kafka.message_max_bytes",
    (1_000, 1_000_000_000),
    "\"1MB\"",
    "The largest record, key and headers included; a larger record becomes a dead \
         letter. Set it no higher than the topics' `max.message.bytes`.",
);
pub(super) const MAX_IN_FLIGHT: OptionSpec = size(
    "kafka.max_in_flight",
    (1 << 20, 1 << 30),
    "\"32MiB\"",
    "How many bytes may be sent and not yet stored, in addition to a limit of 50,000 records; \
         where brokers are near, of 350 records for each millisecond of round trip x \
         partitions / 5, but 7,000 at least. It bounds memory: at the limit, reading from Postgres pauses.",
);
