//! The final state: tables, topics, dead letters, offsets.
//!
//! Input: a [`Stage`] at rest. Output: [`FinalState`], in which each trace of an order is one word of SQL's
//! or of a topic's. Invariant: the services are not involved.

use std::collections::BTreeMap;

use crate::shop_chaos::audit::{FinalState, Operation, Order};
use crate::shop_chaos::databases::{Sessions, Written};
use crate::shop_chaos::duplicates::Copies;
use crate::shop_chaos::expected::Traces;
use crate::shop_chaos::stage::Stage;
use crate::shop_chaos::topics;
use support::sql::Sql;
use support::topic::Stored;

/// By order: each row of payment, of reservation, each event that has changed the saga.
const PAYMENTS: &str =
    "SELECT order_id::text, 'payment ' || status || ' ' || amount_cents FROM payments";
const RESERVATIONS: &str = "\
    SELECT order_id::text, 'reservation ' || status || ' ' || sku || ' ' || quantity \
    FROM reservations";
const HEARD: &str = "SELECT id, 'heard ' || event FROM saga_history";

const MARKERS: &str = "SELECT consumer, message_id::text FROM processed_messages";

const ORDERS: &str = "\
    SELECT orders.id::text, customer, sku, quantity, amount_cents, orders.status, sagas.status \
    FROM orders LEFT JOIN sagas ON sagas.id = orders.id::text AND kind = 'order'";

/// The keys are the payment service's: `charge-` or `refund-`, and the order.
const GATEWAY: &str = "\
    SELECT regexp_replace(key, '^(charge|refund)-', ''), kind, declined, amount_cents \
    FROM gateway_operations";

/// Reads everything. `copies` is how often the echo has repeated each record.
pub(crate) fn read(stage: &Stage, copies: &Copies) -> FinalState {
    let databases = stage.databases.connect();
    let records = topics::read(&stage.bootstrap);
    let mut traces: BTreeMap<String, Traces> = BTreeMap::new();
    let mut leave = |order: String, trace: String, count: u32| {
        *traces.entry(order).or_default().entry(trace).or_default() += count;
    };
    let Sessions { orders, payments, inventory } = &databases;
    for (sql, rows) in [(payments, PAYMENTS), (inventory, RESERVATIONS), (orders, HEARD)] {
        for row in sql.rows(rows) {
            let [order, trace] = texts(row);
            leave(order, trace, 1);
        }
    }
    let events: BTreeMap<String, Written> =
        databases.events().into_iter().map(|event| (event.id.clone(), event)).collect();
    for Written { order, event, is_lost, .. } in events.values() {
        leave(order.clone(), format!("event {event}"), 1);
        if *is_lost {
            leave(order.clone(), format!("lost {event}"), 1);
        }
    }
    for row in databases.each().into_iter().flat_map(|sql| sql.rows(MARKERS)) {
        let [consumer, message] = texts(row);
        // Others are poison.
        if let Some(Written { order, event, .. }) = events.get(&message) {
            leave(order.clone(), format!("done {consumer} {event}"), 1);
        }
    }
    for (order, event, count) in deliveries(&events, &records, copies) {
        leave(order, format!("record {event}"), count);
    }
    FinalState {
        orders: orders.rows(ORDERS).into_iter().map(order).collect(),
        gateway: payments.rows(GATEWAY).into_iter().map(operation).collect(),
        traces,
        available: available(inventory),
        letters: topics::letters(&stage.bootstrap),
        lag: topics::lag(&stage.bootstrap, &records),
    }
}

/// Records of each row of the outboxes in its topic, without the echo's; and of each row that there is
/// none of. A reply that was destroyed has none.
fn deliveries(
    events: &BTreeMap<String, Written>,
    records: &[Stored],
    copies: &Copies,
) -> Vec<(String, String, u32)> {
    let mut found: BTreeMap<(String, String), u32> = BTreeMap::new();
    let is_poison = |record: &&Stored| record.header(crate::shop_chaos::poison::HEADER).is_some();
    for record in records.iter().filter(|record| !is_poison(record)) {
        let id = record.header("id").unwrap_or("(no id)");
        *found.entry((id.to_owned(), record.topic.clone())).or_default() += 1;
    }
    let mut deliveries = Vec::new();
    for Written { id, order, event, .. } in events.values() {
        let repeated = copies.get(id).copied().unwrap_or(0);
        let all = found.remove(&(id.clone(), event.clone())).unwrap_or(0);
        // A missing duplicate is not an error of the services.
        let count = if all == 0 { 0 } else { all.saturating_sub(repeated) };
        deliveries.push((order.clone(), event.clone(), count));
    }
    let strays = found
        .into_iter()
        .map(|((id, topic), count)| (format!("(record {id} without a row)"), topic, count));
    deliveries.extend(strays);
    deliveries.retain(|(.., count)| *count > 0);
    deliveries
}

fn order(row: Vec<Option<String>>) -> Order {
    let [id, customer, sku, quantity, amount_cents, status, saga] = texts(row);
    let (quantity, amount_cents) = (quantity.parse().unwrap_or(0), amount_cents.parse().unwrap());
    Order { id, customer, sku, quantity, amount_cents, status, saga }
}

fn operation(row: Vec<Option<String>>) -> Operation {
    let is_approved = row[2].is_none();
    let [order, kind, _, amount_cents] = texts(row);
    let (is_refund, amount_cents) = (kind == "refund", amount_cents.parse().unwrap());
    Operation { order, is_refund, is_approved, amount_cents }
}

fn available(sql: &Sql) -> BTreeMap<String, i64> {
    let rows = sql.rows("SELECT sku, available FROM stock").into_iter().map(texts);
    rows.map(|[sku, available]| (sku, available.parse().unwrap())).collect()
}

/// A row of so many columns; NULL is nothing.
fn texts<const COLUMNS: usize>(row: Vec<Option<String>>) -> [String; COLUMNS] {
    let texts: Vec<String> = row.into_iter().map(Option::unwrap_or_default).collect();
    texts.try_into().unwrap()
}
