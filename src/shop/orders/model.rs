//! One order among all three services, every message delivered at any time, some twice, the deadline
//! at any time: it ends, and money and goods end where its end says. Payment and inventory are modelled
//! after their effects (`payments/effects`, `payments/settlement`, `inventory/effects`).

use proptest::prelude::*;

use super::process::{Fact, OrderProcess};
use postrider_patterns::saga::Saga as _;

/// Enough for everything to come to rest.
const ROUNDS: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Payment {
    Unheard,
    /// Whether it is to be undone, whether the gateway has been asked.
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
    Unheard,
    Reserved,
    Unavailable,
    Released,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    Orders,
    Payments,
    Inventory,
}

struct World {
    process: OrderProcess,
    payment: Payment,
    stock: Stock,
    card_is_good: bool,
    is_on_the_shelf: bool,
    /// What lies in the topics, for each that reads it.
    messages: Vec<(Reader, &'static str)>,
    ends: Vec<&'static str>,
}

impl World {
    fn new(card_is_good: bool, is_on_the_shelf: bool) -> Self {
        let (process, payment, stock) = (OrderProcess::default(), Payment::Unheard, Stock::Unheard);
        let messages = vec![(Reader::Payments, "OrderCreated")];
        Self { process, payment, stock, card_is_good, is_on_the_shelf, messages, ends: Vec::new() }
    }

    fn tell(&mut self, event: &'static str) {
        let readers: &[Reader] = match event {
            "OrderTimedOut" => &[Reader::Payments, Reader::Inventory],
            "PaymentProcessed" => &[Reader::Orders, Reader::Inventory],
            "InventoryUnavailable" => &[Reader::Orders, Reader::Payments],
            "OrderConfirmed" | "OrderCancelled" => {
                self.ends.push(event);
                &[]
            }
            _ => &[Reader::Orders],
        };
        self.messages.extend(readers.iter().map(|reader| (*reader, event)));
    }

    fn hear(&mut self, fact: &Fact) {
        for emitted in self.process.on(fact) {
            self.tell(emitted.event_type);
        }
    }

    /// Delivers one message, and leaves it there to come again if it is to.
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
            (Reader::Orders, event) => self.hear(&Fact::of_event(event, None).unwrap()),
            (Reader::Payments, "OrderCreated") => {
                if self.payment == Payment::Unheard {
                    self.payment = Payment::Pending { undo: false, begun: false };
                }
            }
            (Reader::Payments, _) => self.undo_payment(),
            (Reader::Inventory, "PaymentProcessed") => self.reserve(),
            (Reader::Inventory, _) => self.release(),
        }
    }

    fn undo_payment(&mut self) {
        match self.payment {
            Payment::Unheard | Payment::Pending { begun: false, .. } => {
                self.payment = Payment::Voided;
                self.tell("PaymentFailed");
            }
            Payment::Pending { begun, .. } => {
                self.payment = Payment::Pending { undo: true, begun };
            }
            Payment::Charged => self.payment = Payment::Refunding,
            _ => {}
        }
    }

    fn reserve(&mut self) {
        if self.stock != Stock::Unheard {
            return;
        }
        let (stock, event) = if self.is_on_the_shelf {
            (Stock::Reserved, "InventoryReserved")
        } else {
            (Stock::Unavailable, "InventoryUnavailable")
        };
        self.stock = stock;
        self.tell(event);
    }

    fn release(&mut self) {
        if matches!(self.stock, Stock::Unheard | Stock::Reserved) {
            self.stock = Stock::Released;
            self.tell("InventoryReleased");
        }
    }

    /// The gateway is asked, then answers: two steps.
    fn settle(&mut self) {
        match self.payment {
            Payment::Pending { undo, begun: false } => {
                self.payment = Payment::Pending { undo, begun: true };
            }
            Payment::Pending { .. } if !self.card_is_good => {
                self.payment = Payment::Declined;
                self.tell("PaymentFailed");
            }
            Payment::Pending { undo: true, .. } => self.payment = Payment::Refunding,
            Payment::Pending { .. } => {
                self.payment = Payment::Charged;
                self.tell("PaymentProcessed");
            }
            Payment::Refunding => {
                self.payment = Payment::Refunded;
                self.tell("PaymentRefunded");
            }
            _ => {}
        }
    }

    fn step(&mut self, choice: u8) {
        match choice % 8 {
            0 => self.hear(&Fact::DeadlinePassed),
            1 | 2 => self.settle(),
            3 => self.deliver(usize::from(choice / 8), true),
            _ => self.deliver(usize::from(choice / 8), false),
        }
    }

    /// Everything is delivered, and time goes on.
    fn come_to_rest(&mut self) {
        for _ in 0..ROUNDS {
            while !self.messages.is_empty() {
                self.deliver(0, false);
            }
            self.settle();
            if self.messages.is_empty() && !self.process.has_ended() {
                self.hear(&Fact::DeadlinePassed);
            }
        }
    }
}

proptest! {
    #[test]
    fn every_order_ends_with_money_and_goods_where_its_end_says(
        card_is_good in any::<bool>(),
        is_on_the_shelf in any::<bool>(),
        choices in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut world = World::new(card_is_good, is_on_the_shelf);
        for choice in choices {
            world.step(choice);
        }
        world.come_to_rest();
        prop_assert_eq!(world.ends.len(), 1, "{:?}", world.process);
        let is_confirmed = world.ends == ["OrderConfirmed"];
        prop_assert_eq!(world.payment == Payment::Charged, is_confirmed);
        prop_assert_eq!(world.stock == Stock::Reserved, is_confirmed);
        prop_assert_eq!(world.process.status() == "CONFIRMED", is_confirmed);
    }
}
