//! The order saga: a pure function of the facts that payment and inventory reported.
//!
//! Invariant: facts only grow, so their order does not matter. Every order ends once payment and
//! inventory have answered. A cancelled order's money is refunded or was never taken; its stock is
//! released or was never reserved.

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use postrider_patterns::saga::{Emitted, Saga, SagaError};

/// Only moves to later variants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Payment {
    #[default]
    Awaited,
    Charged,
    Failed,
    Refunded,
}

/// Only moves to later variants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stock {
    #[default]
    Awaited,
    Reserved,
    Unavailable,
    Released,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OrderProcess {
    payment: Payment,
    stock: Stock,
    /// True after the deadline or an operator's cancellation: everything is undone.
    given_up: bool,
    /// First reported reason of the cancellation.
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fact {
    PaymentProcessed,
    /// No money was taken.
    PaymentFailed(String),
    PaymentRefunded,
    InventoryReserved,
    InventoryUnavailable(String),
    /// No goods are reserved, and never will be.
    InventoryReleased,
    DeadlinePassed,
    CancelledByOperator,
}

impl Fact {
    /// `None` if orders do not handle the type.
    pub(super) fn of_event(event_type: &str, reason: Option<&str>) -> Option<Self> {
        let reason = || reason.unwrap_or("no reason given").to_owned();
        Some(match event_type {
            "PaymentProcessed" => Self::PaymentProcessed,
            "PaymentFailed" => Self::PaymentFailed(reason()),
            "PaymentRefunded" => Self::PaymentRefunded,
            "InventoryReserved" => Self::InventoryReserved,
            "InventoryUnavailable" => Self::InventoryUnavailable(reason()),
            "InventoryReleased" => Self::InventoryReleased,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OrderOutcome {
    Confirmed,
    Cancelled,
}

impl OrderProcess {
    fn outcome(&self) -> Option<OrderOutcome> {
        let is_whole = self.payment == Payment::Charged && self.stock == Stock::Reserved;
        if is_whole && !self.given_up {
            return Some(OrderOutcome::Confirmed);
        }
        // Goods are reserved only after the payment, so a failed payment leaves nothing to undo.
        let is_undone = self.payment == Payment::Refunded && self.stock >= Stock::Unavailable;
        (self.payment == Payment::Failed || is_undone).then_some(OrderOutcome::Cancelled)
    }

    fn record_fact(&mut self, fact: &Fact) {
        let (payment, stock) = match fact {
            Fact::PaymentProcessed => (Payment::Charged, Stock::Awaited),
            Fact::PaymentFailed(_) => (Payment::Failed, Stock::Awaited),
            Fact::PaymentRefunded => (Payment::Refunded, Stock::Awaited),
            Fact::InventoryReserved => (Payment::Awaited, Stock::Reserved),
            Fact::InventoryUnavailable(_) => (Payment::Awaited, Stock::Unavailable),
            Fact::InventoryReleased => (Payment::Awaited, Stock::Released),
            Fact::DeadlinePassed | Fact::CancelledByOperator => {
                self.given_up = true;
                (Payment::Awaited, Stock::Awaited)
            }
        };
        self.payment = self.payment.max(payment);
        self.stock = self.stock.max(stock);
        let reason = match fact {
            Fact::PaymentFailed(reason) | Fact::InventoryUnavailable(reason) => reason,
            Fact::DeadlinePassed => "it took too long",
            Fact::CancelledByOperator => "an operator cancelled it",
            _ => return,
        };
        self.reason.get_or_insert_with(|| reason.to_owned());
    }

    fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or("no reason given")
    }
}

impl Saga for OrderProcess {
    const KIND: &'static str = "order";
    type Event = Fact;

    fn apply(&mut self, fact: &Fact) -> Vec<Emitted> {
        if self.has_ended() {
            return Vec::new();
        }
        let was_given_up = self.given_up;
        self.record_fact(fact);
        let with_reason =
            |event_type| vec![Emitted::new(event_type, json!({ "reason": self.reason() }))];
        match self.outcome() {
            Some(OrderOutcome::Confirmed) => vec![Emitted::new("OrderConfirmed", json!({}))],
            Some(OrderOutcome::Cancelled) => with_reason("OrderCancelled"),
            // Repeated at each deadline: a service may be able to undo its part by then.
            None if *fact == Fact::DeadlinePassed || self.given_up != was_given_up => {
                with_reason("OrderTimedOut")
            }
            None => Vec::new(),
        }
    }

    fn name(fact: &Fact) -> &'static str {
        match fact {
            Fact::PaymentProcessed => "PaymentProcessed",
            Fact::PaymentFailed(_) => "PaymentFailed",
            Fact::PaymentRefunded => "PaymentRefunded",
            Fact::InventoryReserved => "InventoryReserved",
            Fact::InventoryUnavailable(_) => "InventoryUnavailable",
            Fact::InventoryReleased => "InventoryReleased",
            Fact::DeadlinePassed => "DeadlinePassed",
            Fact::CancelledByOperator => "CancelledByOperator",
        }
    }

    fn status(&self) -> &'static str {
        match (self.outcome(), self.payment, self.stock) {
            (Some(OrderOutcome::Confirmed), ..) => "CONFIRMED",
            (Some(OrderOutcome::Cancelled), ..) => "CANCELLED",
            _ if self.given_up => "CANCELLING",
            (None, _, Stock::Unavailable | Stock::Released) => "REFUNDING",
            (None, Payment::Charged, _) => "PAID",
            (None, ..) => "PENDING",
        }
    }

    fn has_ended(&self) -> bool {
        self.outcome().is_some()
    }

    fn deadline_passed() -> Fact {
        Fact::DeadlinePassed
    }

    fn compensation() -> Fact {
        Fact::CancelledByOperator
    }

    async fn status_changed(
        transaction: &Transaction<'_>,
        id: &str,
        status: &'static str,
    ) -> Result<(), SagaError> {
        let sql = "UPDATE orders SET status = $1 WHERE id = $2::uuid";
        let values: [(&(dyn ToSql + Sync), Type); 2] = [(&status, Type::TEXT), (&id, Type::TEXT)];
        transaction.execute_typed(sql, &values).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused() -> Fact {
        Fact::PaymentFailed("the card was declined".to_owned())
    }

    fn sold_out() -> Fact {
        Fact::InventoryUnavailable("sold out".to_owned())
    }

    fn play(facts: &[Fact]) -> (Vec<&'static str>, Vec<&'static str>) {
        let mut process = OrderProcess::default();
        let (mut statuses, mut emitted) = (Vec::new(), Vec::new());
        for fact in facts {
            emitted.extend(process.apply(fact).into_iter().map(|emitted| emitted.event_type));
            statuses.push(process.status());
        }
        (statuses, emitted)
    }

    #[test]
    fn a_paid_and_reserved_order_is_confirmed() {
        let (statuses, emitted) = play(&[Fact::PaymentProcessed, Fact::InventoryReserved]);
        assert_eq!(statuses, ["PAID", "CONFIRMED"]);
        assert_eq!(emitted, ["OrderConfirmed"]);
    }

    #[test]
    fn a_refused_payment_cancels() {
        let (statuses, emitted) = play(&[refused()]);
        assert_eq!((statuses, emitted), (vec!["CANCELLED"], vec!["OrderCancelled"]));
    }

    #[test]
    fn an_order_that_is_sold_out_is_cancelled_only_when_the_money_is_back() {
        let (statuses, emitted) =
            play(&[Fact::PaymentProcessed, sold_out(), Fact::PaymentRefunded]);
        assert_eq!(statuses, ["PAID", "REFUNDING", "CANCELLED"]);
        assert_eq!(emitted, ["OrderCancelled"]);
    }

    #[test]
    fn an_order_that_took_too_long_waits_until_everything_is_undone() {
        let (statuses, emitted) = play(&[
            Fact::PaymentProcessed,
            Fact::DeadlinePassed,
            Fact::InventoryReserved,
            Fact::PaymentRefunded,
            Fact::DeadlinePassed,
            Fact::InventoryReleased,
        ]);
        let cancelling = ["CANCELLING"; 4];
        assert_eq!(statuses, [&["PAID"][..], &cancelling, &["CANCELLED"]].concat());
        assert_eq!(emitted, ["OrderTimedOut", "OrderTimedOut", "OrderCancelled"]);
    }

    #[test]
    fn an_order_that_an_operator_cancels_is_undone_and_asked_for_once() {
        let (statuses, emitted) = play(&[
            Fact::PaymentProcessed,
            Fact::CancelledByOperator,
            Fact::CancelledByOperator,
            Fact::PaymentRefunded,
            Fact::InventoryReleased,
            Fact::CancelledByOperator,
        ]);
        assert_eq!(statuses.last(), Some(&"CANCELLED"));
        assert_eq!(emitted, ["OrderTimedOut", "OrderCancelled"]);
    }

    #[test]
    fn what_comes_after_the_end_changes_nothing() {
        let (statuses, emitted) = play(&[
            Fact::PaymentProcessed,
            Fact::InventoryReserved,
            Fact::DeadlinePassed,
            refused(),
            Fact::InventoryReserved,
        ]);
        assert_eq!(statuses.last(), Some(&"CONFIRMED"));
        assert_eq!(emitted, ["OrderConfirmed"]);
    }

    fn stories() -> Vec<(Vec<Fact>, &'static str)> {
        vec![
            (vec![Fact::PaymentProcessed, Fact::InventoryReserved], "CONFIRMED"),
            (vec![refused()], "CANCELLED"),
            (vec![Fact::PaymentProcessed, sold_out(), Fact::PaymentRefunded], "CANCELLED"),
            (vec![Fact::DeadlinePassed, refused(), Fact::InventoryReleased], "CANCELLED"),
            (
                vec![
                    Fact::DeadlinePassed,
                    Fact::PaymentProcessed,
                    Fact::PaymentRefunded,
                    Fact::InventoryReserved,
                    Fact::InventoryReleased,
                ],
                "CANCELLED",
            ),
        ]
    }

    proptest! {
        #[test]
        fn the_outcome_does_not_depend_on_order_or_repeats(
            story in 0..5_usize,
            places in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
            seed in any::<u64>(),
        ) {
            let (facts, outcome) = stories().swap_remove(story);
            // The clock is not reordered, because a confirmed order has no deadline.
            let (clock, mut reports): (Vec<_>, Vec<_>) =
                facts.into_iter().partition(|fact| *fact == Fact::DeadlinePassed);
            let repeats: Vec<Fact> =
                places.iter().map(|place| place.get(&reports).clone()).collect();
            reports.extend(repeats);
            let mut state = seed;
            for last in (1..reports.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let other = usize::try_from(state >> 33).unwrap() % (last + 1);
                reports.swap(last, other);
            }
            let (statuses, emitted) = play(&[clock, reports].concat());
            prop_assert_eq!(statuses.last().copied(), Some(outcome));
            let ends = emitted.iter().filter(|event| **event != "OrderTimedOut").count();
            prop_assert_eq!(ends, 1);
        }
    }
}
