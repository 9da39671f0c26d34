//! Poison: records that no service can process, each with the services that must dead-letter it.
//!
//! Input: chance. Output: records in the shop's topics, marked by a header that the services do not
//! know. Invariant: a poison has no effect on any service that reads it.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use uuid::Uuid;

use crate::shop_chaos::consumers::consumers_of;
use support::chance::Chance;
use support::topic;

/// The mark: the poison's number.
pub(crate) const HEADER: &str = "chaos-poison";

/// How long the broker may take.
const FLUSH_LIMIT: Duration = Duration::from_secs(30);

/// How old they are: an order that is not there by then will not come.
const AGE: Duration = Duration::from_mins(1);

/// What is wrong with it.
#[derive(Debug, Clone, Copy)]
enum Kind {
    NoId,
    BadId,
    NoType,
    UnknownType,
    Unparsable,
    /// JSON, and not what the type says.
    OtherPayload,
    BadKey,
    /// An unknown order.
    UnknownOrder,
}

/// Each with a topic all of whose readers must refuse it. A well-formed message about an unknown order
/// is refused by the order service alone: payments and inventory know no orders but from messages.
const POISONS: [(Kind, &str); 16] = [
    (Kind::NoId, "OrderCreated"),
    (Kind::BadId, "PaymentProcessed"),
    (Kind::NoType, "PaymentFailed"),
    (Kind::UnknownType, "InventoryUnavailable"),
    (Kind::Unparsable, "OrderTimedOut"),
    (Kind::OtherPayload, "OrderCreated"),
    (Kind::BadKey, "PaymentProcessed"),
    (Kind::UnknownOrder, "InventoryReserved"),
    (Kind::NoId, "InventoryReleased"),
    (Kind::BadId, "OrderTimedOut"),
    (Kind::NoType, "OrderCreated"),
    (Kind::UnknownType, "PaymentProcessed"),
    (Kind::Unparsable, "PaymentRefunded"),
    (Kind::OtherPayload, "PaymentProcessed"),
    (Kind::BadKey, "InventoryUnavailable"),
    (Kind::UnknownOrder, "PaymentFailed"),
];

/// The poison of a run.
pub(crate) struct Poison {
    producer: BaseProducer,
    chance: Chance,
    laid: u32,
    expected: BTreeSet<(String, u32)>,
}

impl Poison {
    /// How much there is.
    pub(crate) const COUNT: usize = POISONS.len();

    /// Nothing is produced yet.
    pub(crate) fn new(bootstrap: &str, seed: u64) -> Self {
        let producer = topic::client(bootstrap).set("enable.idempotence", "true").create().unwrap();
        Self { producer, chance: Chance::new(seed), laid: 0, expected: BTreeSet::new() }
    }

    /// How much is laid.
    pub(crate) fn laid(&self) -> usize {
        self.laid.try_into().unwrap()
    }

    /// The dead letters that each consumer must write.
    pub(crate) fn expected(&self) -> &BTreeSet<(String, u32)> {
        &self.expected
    }

    /// Produces the next one, if there is one left.
    pub(crate) fn lay(&mut self) {
        let Some(&(kind, topic)) = POISONS.get(self.laid()) else { return };
        let number = self.laid;
        self.laid += 1;
        let key = if matches!(kind, Kind::BadKey) { "no-order".to_owned() } else { self.uuid() };
        let payload = payload(kind, &key);
        let headers = self.headers(kind, topic, number);
        let record = BaseRecord::to(topic).key(&key).payload(&payload).headers(headers);
        // Some time ago, so that nobody waits for an order that is not there.
        let written = (SystemTime::now() - AGE).duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let record = record.timestamp(written.as_millis().try_into().unwrap());
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        self.producer.flush(FLUSH_LIMIT).unwrap();
        self.expected.extend(consumers_of(topic).map(|reader| (reader.to_owned(), number)));
    }

    fn headers(&mut self, kind: Kind, topic: &str, number: u32) -> OwnedHeaders {
        let number = number.to_string();
        let id = match kind {
            Kind::NoId => None,
            Kind::BadId => Some("0199f2a4-7c1e-7cc3-98c4".to_owned()),
            _ => Some(self.uuid()),
        };
        let event_type = match kind {
            Kind::NoType => None,
            Kind::UnknownType => Some("OrderForgotten"),
            _ => Some(topic),
        };
        let headers = [
            ("id", id.as_deref()),
            ("event_type", event_type),
            ("aggregate_type", Some("order")),
            (HEADER, Some(number.as_str())),
        ];
        let mut all = OwnedHeaders::new();
        for (key, value) in headers {
            if let Some(value) = value {
                all = all.insert(Header { key, value: Some(value) });
            }
        }
        all
    }

    fn uuid(&mut self) -> String {
        let mut half = || u128::from(self.chance.between(0, u64::MAX - 1));
        Uuid::from_u128(half() << 64 | half()).to_string()
    }
}

fn payload(kind: Kind, key: &str) -> String {
    match kind {
        Kind::Unparsable => format!("{{\"order_id\":\"{key}\",\"sku\":"),
        Kind::OtherPayload => {
            "{\"sku\":1,\"quantity\":\"two\",\"amount_cents\":\"much\",\"reason\":7}".to_owned()
        }
        _ => format!(
            "{{\"order_id\":\"{key}\",\"customer\":\"ada\",\"sku\":\"tea\",\"quantity\":1,\
             \"amount_cents\":990,\"reason\":\"none\"}}"
        ),
    }
}
