//! `shop dead-letters` shows what a service could not take, and sends it again once; and what else a
//! message of a test's own does.

use std::process::Command;
use std::time::{Duration, SystemTime};

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::Value;
use uuid::Uuid;

use crate::services::stage::{LIMIT, Stage};
use support::wait::wait_for;

/// An event without data, written so long ago that an order that is not there will not come.
pub(crate) fn produce(bootstrap: &str, event_type: &str, order: &str) {
    produce_as(bootstrap, event_type, order, ("{}", Uuid::now_v7()));
}

/// The same with this payload and this id.
pub(crate) fn produce_as(
    bootstrap: &str,
    event_type: &str,
    order: &str,
    payload_and_id: (&str, Uuid),
) {
    send(bootstrap, (event_type, order), payload_and_id, SystemTime::now() - LIMIT);
}

/// The headers that a service reads.
pub(crate) fn headers(id: &str, event_type: &str) -> OwnedHeaders {
    let header = |key, value| Header { key, value: Some(value) };
    OwnedHeaders::new().insert(header("id", id)).insert(header("event_type", event_type))
}

fn send(
    bootstrap: &str,
    (event_type, order): (&str, &str),
    (payload, id): (&str, Uuid),
    written: SystemTime,
) {
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
    let headers = headers(&id.to_string(), event_type);
    let written = written.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let record = BaseRecord::to(event_type).key(order).payload(payload).headers(headers);
    let record = record.timestamp(written.as_millis().try_into().unwrap());
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(LIMIT).unwrap();
}

#[test]
fn goods_that_are_no_longer_listed_are_released_all_the_same() {
    let stage = Stage::set();
    let order = Uuid::now_v7().to_string();
    // Reserved, and then taken off the list: there is no such row in `stock`.
    stage.run(&format!(
        "INSERT INTO reservations (order_id, sku, quantity, status)
         VALUES ('{order}', 'gone', 2, 'RESERVED')"
    ));
    let service = stage.start(&["inventory"]);
    produce(&stage.bootstrap(), "OrderTimedOut", &order);
    let events = "SELECT count(*) FROM outbox WHERE event_type = 'InventoryReleased'";
    wait_for("InventoryReleased", || (stage.count(events) == 1).then_some(()));
    let released = "SELECT count(*) FROM reservations WHERE status = 'RELEASED'";
    assert_eq!(stage.count(released), 1);
    service.stop();
}

fn insert_order(order: &str) -> String {
    format!(
        "INSERT INTO orders (id, customer, amount_cents, status) VALUES ('{order}', 'a', 1, '');
         INSERT INTO sagas (kind, id, state, status) VALUES ('order', '{order}',
             '{{\"payment\": \"awaited\", \"stock\": \"awaited\", \"given_up\": false}}', 'PENDING')"
    )
}

#[test]
fn a_reply_that_is_there_before_its_order_is_visible_waits_for_it() {
    let stage = Stage::set();
    let service = stage.orders();
    let order = Uuid::now_v7().to_string();
    // By a clock that is ahead, as those of two machines are.
    let written = SystemTime::now() + Duration::from_secs(20);
    send(&stage.bootstrap(), ("PaymentProcessed", &order), ("{}", Uuid::now_v7()), written);
    service.wait_for(&["\nshop_consumer_waiting_messages 1\n"]);
    stage.run(&insert_order(&order));
    let paid = "SELECT count(*) FROM sagas WHERE status = 'PAID'";
    wait_for("the effect", || (stage.count(paid) == 1).then_some(()));
    assert_eq!(stage.dead_letters(&["list", "shop-orders"]), "");
    service.stop();
}

#[test]
fn a_dead_letter_is_listed_sent_again_and_then_has_its_effect() {
    let stage = Stage::set();
    let service = stage.orders();
    let order = Uuid::now_v7().to_string();
    produce(&stage.bootstrap(), "PaymentProcessed", &order);
    let list = || stage.dead_letters(&["list", "shop-orders", "--code", "poison"]);
    let letter = wait_for("a dead letter", || {
        let line = list().lines().next()?.to_owned();
        Some(serde_json::from_str::<Value>(&line).unwrap())
    });
    assert_eq!(letter["reason"], "there is no such order");
    assert_eq!((&letter["topic"], &letter["retried"]), (&"PaymentProcessed".into(), &false.into()));
    assert_eq!(stage.dead_letters(&["list", "shop-orders", "--code", "unknown_type"]), "");
    // The relay's command reads it too, and leaves sending to the shop, which knows the horizon.
    let relays = |command: &str| -> Value {
        let from = ["--from", "shop-orders.dead-letters", "-b", &stage.bootstrap()];
        let mut run = Command::new(env!("CARGO_BIN_EXE_postrider"));
        run.env_clear().env("PGUSER", "nobody").current_dir("/");
        run.args(["dead-letters", command, "--output", "json"]).args(from);
        serde_json::from_slice(&run.output().unwrap().stdout).unwrap()
    };
    let line = relays("list");
    assert_eq!((&line["topic"], &line["id"]), (&"PaymentProcessed".into(), &letter["id"]));
    assert_eq!((&line["reason"], &line["table"]), (&letter["reason"], &Value::Null));
    assert_eq!(relays("retry")["cannot"][0]["offset"], line["offset"]);

    stage.run(&insert_order(&order));
    let place = letter["place"].as_str().unwrap();
    let only = |args: &[&str]| -> Value {
        let args = [&["redrive", "shop-orders", "--place", place], args].concat();
        serde_json::from_str(&stage.dead_letters(&args)).unwrap()
    };
    assert_eq!(only(&[])["planned"]["sent"], 1);
    assert!(list().contains("\"retried\":false"), "nothing was sent");
    assert_eq!(stage.dead_letters(&["list", "shop-orders", "--place", place]).lines().count(), 1);
    let redrive = || -> Value {
        serde_json::from_str(&stage.dead_letters(&["redrive", "shop-orders", "--execute"])).unwrap()
    };
    assert_eq!(only(&["--execute"])["done"]["sent"], 1);
    let paid = "SELECT count(*) FROM sagas WHERE status = 'PAID'";
    wait_for("the effect", || (stage.count(paid) == 1).then_some(()));
    let again = &redrive()["done"];
    assert_eq!((&again["sent"], &again["already"]), (&0.into(), &1.into()));
    assert!(list().contains("\"retried\":true"));
    service.stop();
}
