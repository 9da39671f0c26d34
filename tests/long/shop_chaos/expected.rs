//! The scenarios of an order, and the traces of each.
//!
//! Input: a [`OrderRequest`], how its order ended, how often it was given up, and which replies about it were
//! destroyed. Output: [`Expected`] traces,
//! in the words of [`crate::shop_chaos::final_state`]. Invariant: a story names every trace, so one too many is
//! seen as well as one that is not there. Written from the shop's description, without its code. Pure.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::shop_chaos::consumers::{CONSUMERS, consumers_of};
use crate::shop_chaos::workload::OrderRequest;

/// Traces of one order, and how often each is there.
pub(crate) type Traces = BTreeMap<String, u32>;

/// Replies about one order that were destroyed, by type: events that exist, and that no consumer gets.
pub(crate) type Lost = BTreeMap<String, u32>;

/// What one way leaves behind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    /// What must be there, and so often.
    pub(crate) wanted: Traces,
    /// What may be there, and so often at most: what is wanted, and what depends on the order in which
    /// messages came.
    pub(crate) allowed: Traces,
}

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
struct Scenario {
    is_confirmed: bool,
    /// The payment's last status.
    payment: &'static str,
    /// Whether the gateway approved; `None` where it was never asked.
    charged: Option<bool>,
    stock: Stock,
    /// What is told besides OrderCreated and the end; OrderTimedOut at each deadline anew, and so is the
    /// answer to it.
    events: &'static [&'static str],
}

/// What the saga writes down only where it changes the picture: a charge that is heard of after its
/// refund does not, nor does anything after the end.
const MAY_COME_LATE: [&str; 3] = ["PaymentProcessed", "InventoryReserved", "InventoryReleased"];

const STORIES: [Scenario; 9] = [
    story("CHARGED", Some(true), Stock::Reserved, &["PaymentProcessed", "InventoryReserved"]),
    story("DECLINED", Some(false), Stock::Untouched, &["PaymentFailed"]),
    story(
        "REFUNDED",
        Some(true),
        Stock::Unavailable,
        &["PaymentProcessed", "InventoryUnavailable", "PaymentRefunded"],
    ),
    // Given up before the payment service had begun to charge.
    story("VOIDED", None, Stock::Barred, &["OrderTimedOut", "PaymentFailed", "InventoryReleased"]),
    // Given up, and then declined.
    story(
        "DECLINED",
        Some(false),
        Stock::Barred,
        &["OrderTimedOut", "PaymentFailed", "InventoryReleased"],
    ),
    // Timed out while the charge was in progress.
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
) -> Scenario {
    let is_confirmed = matches!(stock, Stock::Reserved);
    Scenario { is_confirmed, payment, charged, stock, events }
}

/// All that could be there for an order that was given up so many times: one expectation for each way
/// in which it may have gone.
pub(crate) fn possible(
    wish: &OrderRequest,
    is_confirmed: bool,
    timeouts: u32,
    lost: &Lost,
) -> Vec<Expected> {
    let is_possible = |story: &&Scenario| {
        let is_paid_right = story.charged.is_none_or(|charged| charged == wish.is_payable());
        story.is_confirmed == is_confirmed && is_paid_right
    };
    let mut ways = Vec::new();
    for story in STORIES.iter().filter(is_possible) {
        let timeouts = if story.is_given_up() { timeouts.max(1) } else { 0 };
        // What was voided may have been heard of, or not.
        let unheard = story.charged.is_none().then_some(0);
        for amount in unheard.into_iter().chain([wish.amount_cents]) {
            for answers in story.payment_answers(timeouts, lost) {
                ways.push(story.expected(wish, amount, &Counts { timeouts, answers, lost }));
            }
        }
    }
    ways
}

/// How often an order was given up, how often the payment service answered that, and what was destroyed.
struct Counts<'l> {
    timeouts: u32,
    answers: u32,
    lost: &'l Lost,
}

/// How many events of a type there are, and how many of them have been destroyed.
#[derive(Clone, Copy)]
struct Told {
    count: u32,
    lost: u32,
}

impl Expected {
    fn want(&mut self, trace: String, count: u32) {
        *self.wanted.entry(trace.clone()).or_default() += count;
        self.allow(trace, count);
    }

    fn allow(&mut self, trace: String, count: u32) {
        *self.allowed.entry(trace).or_default() += count;
    }

    fn want_rows(&mut self, story: &Scenario, wish: &OrderRequest, intended_cents: i64) {
        let OrderRequest { sku, quantity, amount_cents, .. } = wish;
        self.want(format!("payment {} {intended_cents}", story.payment), 1);
        if let Some(charged) = story.charged {
            self.want(operation("charge", charged, *amount_cents), 1);
        }
        if story.payment == "REFUNDED" {
            self.want(operation("refund", true, *amount_cents), 1);
        }
        let reservation = match story.stock {
            Stock::Untouched => return,
            Stock::Reserved => format!("RESERVED {sku} {quantity}"),
            Stock::Unavailable => format!("UNAVAILABLE {sku} 0"),
            Stock::Released => format!("RELEASED {sku} {quantity}"),
            Stock::Barred => "RELEASED  0".to_owned(),
        };
        self.want(format!("reservation {reservation}"), 1);
    }

    fn want_event(&mut self, event: &str, told: Told) {
        self.want(format!("event {event}"), told.count);
        if told.lost > 0 {
            self.want(format!("lost {event}"), told.lost);
        }
        let delivered = told.count.saturating_sub(told.lost);
        if delivered == 0 {
            return;
        }
        self.want(format!("record {event}"), delivered);
        for reader in consumers_of(event) {
            self.want(format!("done {reader} {event}"), delivered);
        }
    }
}

impl Scenario {
    fn is_given_up(&self) -> bool {
        self.events.contains(&"OrderTimedOut")
    }

    /// How often the payment service tells its end: a request to undo that comes before the end is answered
    /// by it, and each later one again.
    fn payment_answers(&self, timeouts: u32, lost: &Lost) -> RangeInclusive<u32> {
        let unheard = lost.get("InventoryUnavailable").copied().unwrap_or(0);
        match self.payment {
            "VOIDED" => timeouts..=timeouts,
            "DECLINED" => 1..=1 + timeouts,
            // That it is sold out is told to the payment service too, at each deadline again.
            "REFUNDED" if self.stock == Stock::Unavailable => {
                1..=(1 + 2 * timeouts).saturating_sub(unheard)
            }
            "REFUNDED" => 1..=timeouts,
            _ => 1..=1,
        }
    }

    fn expected(&self, wish: &OrderRequest, intended_cents: i64, counts: &Counts) -> Expected {
        let Counts { timeouts, answers, lost } = *counts;
        let mut expected = Expected::default();
        expected.want_rows(self, wish, intended_cents);
        let end = if self.is_confirmed { "OrderConfirmed" } else { "OrderCancelled" };
        for event in ["OrderCreated", end] {
            expected.want_event(event, Told { count: 1, lost: 0 });
        }
        expected.want("heard OrderCreated".to_owned(), 1);
        let orders = CONSUMERS[0].name;
        for &event in self.events {
            let count = match event {
                "OrderTimedOut" | "InventoryReleased" => timeouts,
                "InventoryUnavailable" => 1 + timeouts,
                "PaymentFailed" | "PaymentRefunded" => answers,
                _ => 1,
            };
            let lost = lost.get(event).copied().unwrap_or(0);
            expected.want_event(event, Told { count, lost });
            if count <= lost {
                continue;
            }
            if event == "OrderTimedOut" {
                // The first alone changes the picture.
                expected.want("heard DeadlinePassed".to_owned(), 1);
            } else if consumers_of(event).any(|reader| reader == orders) {
                let heard = format!("heard {event}");
                if !self.is_confirmed && MAY_COME_LATE.contains(&event) {
                    expected.allow(heard, 1);
                } else {
                    expected.want(heard, 1);
                }
            }
        }
        if self.payment == "REFUNDED" && self.stock != Stock::Unavailable {
            // Refunded alone is not undone: it ends when both are heard of.
            expected.wanted.insert("heard InventoryReleased".to_owned(), 1);
        }
        expected
    }
}

/// A booking of the gateway.
pub(crate) fn operation(kind: &str, is_approved: bool, amount_cents: i64) -> String {
    let outcome = if is_approved { "approved" } else { "declined" };
    format!("{kind} {outcome} {amount_cents}")
}
