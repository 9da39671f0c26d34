//! Replies that are lost for good do not keep an order from its end.
//!
//! The test forwards the rows of the outbox itself, in place of the relay, and drops some of them for ever.

use std::collections::{BTreeMap, BTreeSet};

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::services::dead_letters::headers;
use crate::services::stage::{LIMIT, Stage};
use support::http::place;
use support::sql::Sql;
use support::wait::wait_until;

const ROWS: &str =
    "SELECT id::text, aggregate_id, event_type, payload::text FROM outbox ORDER BY id";
const OPEN: &str = "SELECT count(*) FROM sagas WHERE ended_at IS NULL";

/// Forwards rows of the outbox to Kafka, each once, but for those that it loses.
struct LossyRelay {
    sql: Sql,
    producer: BaseProducer,
    seen: BTreeSet<String>,
    /// By order: event types whose first record is lost.
    to_lose: BTreeMap<String, Vec<&'static str>>,
}

impl LossyRelay {
    fn new(stage: &Stage, to_lose: BTreeMap<String, Vec<&'static str>>) -> Self {
        let bootstrap = stage.bootstrap();
        let producer = ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
        Self { sql: stage.database.sql(), producer, seen: BTreeSet::new(), to_lose }
    }

    fn forward(&mut self) {
        for row in self.sql.rows(ROWS) {
            let [id, order, event_type, payload]: [String; 4] =
                row.into_iter().map(Option::unwrap).collect::<Vec<_>>().try_into().unwrap();
            if !self.seen.insert(id.clone()) {
                continue;
            }
            let to_lose = self.to_lose.get_mut(&order).unwrap();
            if let Some(place) = to_lose.iter().position(|lost| *lost == event_type) {
                to_lose.remove(place);
                continue;
            }
            let record = BaseRecord::to(&event_type).key(&order).payload(&payload);
            self.producer
                .send(record.headers(headers(&id, &event_type)))
                .map_err(|(error, _)| error)
                .unwrap();
        }
        self.producer.flush(LIMIT).unwrap();
    }
}

/// What is lost of each order: amount, article, event types.
const LOSSES: [(i64, &str, &[&str]); 5] = [
    (100, "tea", &["InventoryReserved", "PaymentRefunded", "InventoryReleased"]),
    (100, "tea", &["PaymentProcessed", "PaymentRefunded", "InventoryReleased"]),
    (100, "tea", &["OrderCreated", "PaymentFailed", "InventoryReleased"]),
    (90_000, "tea", &["PaymentFailed", "InventoryReleased"]),
    (100, "none", &["InventoryUnavailable", "PaymentRefunded"]),
];

#[test]
fn an_order_ends_though_every_reply_is_lost_once_for_good() {
    let stage = Stage::set();
    stage.run("INSERT INTO stock VALUES ('tea', 10), ('none', 0)");
    let orders = stage.start(&["orders", "--patience", "1h"]);
    let others = [stage.start(&["payments"]), stage.start(&["inventory"])];
    let mut to_lose = BTreeMap::new();
    for (number, (amount, sku, lost)) in LOSSES.into_iter().enumerate() {
        let body =
            format!(r#"{{"customer":"ada","sku":"{sku}","quantity":1,"amount_cents":{amount}}}"#);
        let placed = place(&orders.address, &format!("k-{number}"), &body).unwrap();
        assert_eq!(placed.status, 201, "{placed:?}");
        to_lose.insert(placed.json()["id"].as_str().unwrap().to_owned(), lost.to_vec());
    }
    let mut relay = LossyRelay::new(&stage, to_lose);
    // Charged thrice and declined once, one of the three was reserved and one was sold out: nobody hears.
    let settled = "SELECT count(*) FROM payments WHERE status NOT IN ('PENDING', 'REFUNDING')";
    wait_until("payments and reservations", || {
        relay.forward();
        stage.count(settled) == 4 && stage.count("SELECT count(*) FROM reservations") == 2
    });
    assert_eq!(stage.count(OPEN), 5);
    wait_until("the end of all orders", || {
        // One by one: a batch of the consumer locks several sagas, in the order of its messages.
        for order in relay.to_lose.keys() {
            let due = "UPDATE sagas SET deadline = now() WHERE ended_at IS NULL";
            stage.run(&format!("{due} AND id = '{order}'"));
        }
        relay.forward();
        stage.count(OPEN) == 0
    });
    let rest: Vec<_> = relay.to_lose.values().flatten().collect();
    assert_eq!(rest, Vec::<&&str>::new(), "all were there to be lost");
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'CANCELLED'"), 5);
    let held =
        "SELECT sum(CASE kind WHEN 'charge' THEN amount_cents ELSE -amount_cents END)::bigint
                FROM gateway_operations WHERE declined IS NULL";
    assert_eq!(stage.count(held), 0, "the money is back");
    assert_eq!(stage.count("SELECT available FROM stock WHERE sku = 'tea'"), 10);
    for service in others {
        service.stop();
    }
    orders.stop();
}
