//! The ways in which an order can go, and everything that each leaves behind.
//!
//! Enters: a [`Wish`] and how its order ended. Leaves: the multiset of traces that there should be, in
//! the words of [`crate::books`]. What always holds: a story names every trace, so one too many is
//! seen as well as one that is not there. Written from the shop's description, without its code. Pure.
//! Called by `audit`.

use std::collections::BTreeMap;

use crate::who::{READERS, readers_of};
use crate::wishes::Wish;

/// Traces of one order, and how often each is there.
pub(crate) type Traces = BTreeMap<String, u32>;

/// What becomes of the reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stock {
    /// Nobody asked.
    Untouched,
    Reserved,
    Unavailable,
    /// Reserved, and given back.
    Released,
    /// Given up before anybody asked.
    Barred,
}

/// One way from the beginning to the end.
#[derive(Debug)]
struct Story {
    is_confirmed: bool,
    /// The payment's last status.
    payment: &'static str,
    /// Whether the gateway approved; `None` where it was never asked.
    charged: Option<bool>,
    stock: Stock,
    /// What is told besides OrderCreated and the end.
    events: &'static [&'static str],
}

const STORIES: [Story; 9] = [
    story("CHARGED", Some(true), Stock::Reserved, &["PaymentProcessed", "InventoryReserved"]),
    story("DECLINED", Some(false), Stock::Untouched, &["PaymentFailed"]),
    story(
        "REFUNDED",
        Some(true),
        Stock::Unavailable,
        &["PaymentProcessed", "InventoryUnavailable", "PaymentRefunded"],
    ),
    // Given up before the payment service had heard of the order.
    story("VOIDED", None, Stock::Barred, &["OrderTimedOut", "PaymentFailed", "InventoryReleased"]),
    // Given up, and then declined.
    story(
        "DECLINED",
        Some(false),
        Stock::Barred,
        &["OrderTimedOut", "PaymentFailed", "InventoryReleased"],
    ),
    // Given up while the charge was under way.
    story(
        "REFUNDED",
        Some(true),
        Stock::Barred,
        &["OrderTimedOut", "PaymentRefunded", "InventoryReleased"],
    ),
    // Given up after the charge, before the reservation.
    story(
        "REFUNDED",
        Some(true),
        Stock::Barred,
        &["PaymentProcessed", "OrderTimedOut", "PaymentRefunded", "InventoryReleased"],
    ),
    // Given up after both.
    story(
        "REFUNDED",
        Some(true),
        Stock::Released,
        &[
            "PaymentProcessed",
            "InventoryReserved",
            "OrderTimedOut",
            "PaymentRefunded",
            "InventoryReleased",
        ],
    ),
    // Given up, and sold out besides.
    story(
        "REFUNDED",
        Some(true),
        Stock::Unavailable,
        &["PaymentProcessed", "InventoryUnavailable", "OrderTimedOut", "PaymentRefunded"],
    ),
];

const fn story(
    payment: &'static str,
    charged: Option<bool>,
    stock: Stock,
    events: &'static [&'static str],
) -> Story {
    let is_confirmed = matches!(stock, Stock::Reserved);
    Story { is_confirmed, payment, charged, stock, events }
}

/// All that could be there for this order: one multiset for each way in which it may have gone.
pub(crate) fn possible(wish: &Wish, is_confirmed: bool) -> Vec<Traces> {
    let is_possible = |story: &&Story| {
        let is_paid_right = story.charged.is_none_or(|charged| charged == wish.is_payable());
        story.is_confirmed == is_confirmed && is_paid_right
    };
    STORIES.iter().filter(is_possible).map(|story| story.traces(wish)).collect()
}

impl Story {
    fn traces(&self, wish: &Wish) -> Traces {
        let Wish { sku, quantity, amount_cents, .. } = wish;
        let mut traces = Traces::new();
        let mut leave = |trace: String| *traces.entry(trace).or_default() += 1;
        // Nothing is known of an order that was voided before it was heard of.
        let intended = if self.charged.is_some() { *amount_cents } else { 0 };
        leave(format!("payment {} {intended}", self.payment));
        if let Some(charged) = self.charged {
            leave(operation("charge", charged, *amount_cents));
        }
        if self.payment == "REFUNDED" {
            leave(operation("refund", true, *amount_cents));
        }
        match self.stock {
            Stock::Untouched => {}
            Stock::Reserved => leave(format!("reservation RESERVED {sku} {quantity}")),
            Stock::Unavailable => leave(format!("reservation UNAVAILABLE {sku} 0")),
            Stock::Released => leave(format!("reservation RELEASED {sku} {quantity}")),
            Stock::Barred => leave("reservation RELEASED  0".to_owned()),
        }
        let end = if self.is_confirmed { "OrderConfirmed" } else { "OrderCancelled" };
        let orders = READERS[0].name;
        leave("heard OrderCreated".to_owned());
        for event in ["OrderCreated"].iter().chain(self.events).chain([&end]) {
            leave(format!("event {event}"));
            leave(format!("record {event}"));
            for reader in readers_of(event) {
                leave(format!("done {reader} {event}"));
                if reader == orders {
                    leave(format!("heard {event}"));
                }
            }
            if *event == "OrderTimedOut" {
                leave("heard DeadlinePassed".to_owned());
            }
        }
        traces
    }
}

/// A booking of the gateway.
pub(crate) fn operation(kind: &str, is_approved: bool, amount_cents: i64) -> String {
    let outcome = if is_approved { "approved" } else { "declined" };
    format!("{kind} {outcome} {amount_cents}")
}
