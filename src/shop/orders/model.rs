//! Tests the order, payment and inventory services together in a model of one order.
//!
//! Messages are delivered in any order, some twice, some are lost permanently, and the deadline
//! passes at any time. The order must end, and payment and stock must match its end.

use proptest::prelude::*;

use super::process::{Fact, OrderProcess};
use postrider_patterns::saga::Saga as _;

const ROUNDS: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Payment {
    Unknown,
    /// `begun`: the gateway was asked.
    Pending {
        undo: bool,
        begun: bool,
    },
    Charged,
    Declined,
    Refunding,
    Refunded,
    Voided,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stock {
    Unknown,
    Reserved,
    Unavailable,
    Released,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Orders,
    Payments,
    Inventory,
}

struct World {
    process: OrderProcess,
    payment: Payment,
    stock: Stock,
    card_is_good: bool,
    is_in_stock: bool,
    messages: Vec<(Service, &'static str)>,
    ends: Vec<&'static str>,
}

impl World {
    fn new(card_is_good: bool, is_in_stock: bool) -> Self {
        let (process, payment, stock) = (OrderProcess::default(), Payment::Unknown, Stock::Unknown);
        let messages = vec![(Service::Payments, "OrderCreated")];
        Self { process, payment, stock, card_is_good, is_in_stock, messages, ends: Vec::new() }
    }

    fn emit(&mut self, event: &'static str) {
        let services: &[Service] = match event {
            "OrderTimedOut" => &[Service::Payments, Service::Inventory],
            "PaymentProcessed" => &[Service::Orders, Service::Inventory],
            "InventoryUnavailable" => &[Service::Orders, Service::Payments],
            "OrderConfirmed" | "OrderCancelled" => {
                self.ends.push(event);
                &[]
            }
            _ => &[Service::Orders],
        };
        self.messages.extend(services.iter().map(|service| (*service, event)));
    }

    fn apply(&mut self, fact: &Fact) {
        for emitted in self.process.apply(fact) {
            self.emit(emitted.event_type);
        }
    }

    fn deliver(&mut self, place: usize, again: bool) {
        if self.messages.is_empty() {
            return;
        }
        let place = place % self.messages.len();
        let message = self.messages[place];
        if !again {
            self.messages.remove(place);
        }
        match message {
            (Service::Orders, event) => self.apply(&Fact::of_event(event, None).unwrap()),
            (Service::Payments, "OrderCreated") => {
                if self.payment == Payment::Unknown {
                    self.payment = Payment::Pending { undo: false, begun: false };
                }
            }
            (Service::Payments, _) => self.undo_payment(),
            (Service::Inventory, "PaymentProcessed") => self.reserve(),
            (Service::Inventory, _) => self.release(),
        }
    }

    /// Like a deleted topic or a dead letter that is never redriven.
    fn lose(&mut self, place: usize) {
        if !self.messages.is_empty() {
            let place = place % self.messages.len();
            self.messages.remove(place);
        }
    }

    fn undo_payment(&mut self) {
        match self.payment {
            Payment::Unknown | Payment::Pending { begun: false, .. } => {
                self.payment = Payment::Voided;
                self.emit("PaymentFailed");
            }
            Payment::Pending { begun, .. } => {
                self.payment = Payment::Pending { undo: true, begun };
            }
            Payment::Charged => self.payment = Payment::Refunding,
            // The result follows.
            Payment::Refunding => {}
            // The answer is repeated, because the first one may be lost permanently.
            Payment::Voided | Payment::Declined => self.emit("PaymentFailed"),
            Payment::Refunded => self.emit("PaymentRefunded"),
        }
    }

    fn reserve(&mut self) {
        if self.stock != Stock::Unknown {
            return;
        }
        let (stock, event) = if self.is_in_stock {
            (Stock::Reserved, "InventoryReserved")
        } else {
            (Stock::Unavailable, "InventoryUnavailable")
        };
        self.stock = stock;
        self.emit(event);
    }

    fn release(&mut self) {
        if self.stock == Stock::Unavailable {
            self.emit("InventoryUnavailable");
        } else {
            self.stock = Stock::Released;
            self.emit("InventoryReleased");
        }
    }

    /// Two steps: the call, and its reply.
    fn settle(&mut self) {
        match self.payment {
            Payment::Pending { undo, begun: false } => {
                self.payment = Payment::Pending { undo, begun: true };
            }
            Payment::Pending { .. } if !self.card_is_good => {
                self.payment = Payment::Declined;
                self.emit("PaymentFailed");
            }
            Payment::Pending { undo: true, .. } => self.payment = Payment::Refunding,
            Payment::Pending { .. } => {
                self.payment = Payment::Charged;
                self.emit("PaymentProcessed");
            }
            Payment::Refunding => {
                self.payment = Payment::Refunded;
                self.emit("PaymentRefunded");
            }
            _ => {}
        }
    }

    fn step(&mut self, choice: u8) {
        let place = usize::from(choice / 10);
        match choice % 10 {
            0 => self.apply(&Fact::DeadlinePassed),
            1 | 2 => self.settle(),
            3 => self.deliver(place, true),
            4 | 5 => self.lose(place),
            _ => self.deliver(place, false),
        }
    }

    fn run_to_end(&mut self) {
        for _ in 0..ROUNDS {
            while !self.messages.is_empty() {
                self.deliver(0, false);
            }
            self.settle();
            if self.messages.is_empty() && !self.process.has_ended() {
                self.apply(&Fact::DeadlinePassed);
            }
        }
    }
}

proptest! {
    #[test]
    fn every_order_ends_with_payment_and_stock_that_match_its_end(
        card_is_good in any::<bool>(),
        is_in_stock in any::<bool>(),
        choices in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut world = World::new(card_is_good, is_in_stock);
        for choice in choices {
            world.step(choice);
        }
        world.run_to_end();
        prop_assert_eq!(world.ends.len(), 1, "{:?}", world.process);
        let is_confirmed = world.ends == ["OrderConfirmed"];
        prop_assert_eq!(world.payment == Payment::Charged, is_confirmed);
        prop_assert_eq!(world.stock == Stock::Reserved, is_confirmed);
        prop_assert_eq!(world.process.status() == "CONFIRMED", is_confirmed);
    }
}
