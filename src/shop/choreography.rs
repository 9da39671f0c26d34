//! The order process without a saga, for comparison; for tests only. docs/patterns/saga.md compares
//! the two.
//!
//! Invariant: without a lost message every order ends, and its payment and stock match its end.

use proptest::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    OrderPlaced,
    PaymentTaken,
    PaymentRefused,
    StockReserved,
    StockMissing,
    MoneyReturned,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Payment {
    #[default]
    Unknown,
    Taken,
    Refused,
    Returned,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stock {
    #[default]
    Unknown,
    Reserved,
    Missing,
    /// Released, or never to be reserved.
    Released,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Placed,
    Confirmed,
    Cancelled,
}

#[derive(Debug, Clone, Copy)]
struct World {
    card_is_good: bool,
    is_in_stock: bool,
}

fn payments(payment: &mut Payment, event: Event, world: World) -> Option<Event> {
    let (after, emitted) = match (*payment, event) {
        (Payment::Unknown, Event::OrderPlaced) if world.card_is_good => {
            (Payment::Taken, Event::PaymentTaken)
        }
        (Payment::Unknown, Event::OrderPlaced) => (Payment::Refused, Event::PaymentRefused),
        (Payment::Taken, Event::StockMissing) => (Payment::Returned, Event::MoneyReturned),
        _ => return None,
    };
    *payment = after;
    Some(emitted)
}

/// Knows payments, which it should not need to know.
fn inventory(stock: &mut Stock, event: Event, world: World) -> Option<Event> {
    let (after, emitted) = match (*stock, event) {
        (Stock::Unknown, Event::PaymentTaken) if world.is_in_stock => {
            (Stock::Reserved, Some(Event::StockReserved))
        }
        (Stock::Unknown, Event::PaymentTaken) => (Stock::Missing, Some(Event::StockMissing)),
        (Stock::Unknown | Stock::Reserved, Event::MoneyReturned) => (Stock::Released, None),
        _ => return None,
    };
    *stock = after;
    emitted
}

/// Only watches: the payment decides.
fn orders(order: &mut Order, event: Event) {
    match event {
        Event::PaymentRefused | Event::MoneyReturned => *order = Order::Cancelled,
        Event::StockReserved if *order == Order::Placed => *order = Order::Confirmed,
        _ => {}
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Orders,
    Payments,
    Inventory,
}

struct Shop {
    world: World,
    order: Order,
    payment: Payment,
    stock: Stock,
    messages: Vec<(Service, Event)>,
}

impl Shop {
    fn new(card_is_good: bool, is_in_stock: bool) -> Self {
        let mut shop = Self {
            world: World { card_is_good, is_in_stock },
            order: Order::default(),
            payment: Payment::default(),
            stock: Stock::default(),
            messages: Vec::new(),
        };
        shop.emit(Event::OrderPlaced);
        shop
    }

    fn emit(&mut self, event: Event) {
        let all = [Service::Orders, Service::Payments, Service::Inventory];
        self.messages.extend(all.map(|service| (service, event)));
    }

    fn deliver(&mut self, place: usize, again: bool) {
        let place = place % self.messages.len();
        let (service, event) = self.messages[place];
        if !again {
            self.messages.remove(place);
        }
        let emitted = match service {
            Service::Payments => payments(&mut self.payment, event, self.world),
            Service::Inventory => inventory(&mut self.stock, event, self.world),
            Service::Orders => {
                orders(&mut self.order, event);
                None
            }
        };
        if let Some(event) = emitted {
            self.emit(event);
        }
    }

    fn run_to_end(&mut self) {
        while !self.messages.is_empty() {
            self.deliver(0, false);
        }
    }

    fn lose(&mut self, lost: (Service, Event)) {
        let place = self.messages.iter().position(|message| *message == lost).unwrap();
        self.messages.remove(place);
    }

    fn deliver_to(&mut self, to: Service, event: Event) {
        let place = self.messages.iter().position(|message| *message == (to, event)).unwrap();
        self.deliver(place, false);
    }

    fn ends(&self) -> (Order, Payment, Stock) {
        (self.order, self.payment, self.stock)
    }
}

proptest! {
    #[test]
    fn choreographed_orders_end_with_payment_and_stock_that_match_if_no_message_is_lost(
        card_is_good in any::<bool>(),
        is_in_stock in any::<bool>(),
        choices in prop::collection::vec((any::<usize>(), any::<bool>()), 0..40),
    ) {
        let mut shop = Shop::new(card_is_good, is_in_stock);
        for (place, again) in choices {
            if shop.messages.is_empty() {
                break;
            }
            shop.deliver(place, again);
        }
        shop.run_to_end();
        let expected = match (card_is_good, is_in_stock) {
            (true, true) => (Order::Confirmed, Payment::Taken, Stock::Reserved),
            (true, false) => (Order::Cancelled, Payment::Returned, Stock::Missing),
            (false, _) => (Order::Cancelled, Payment::Refused, Stock::Unknown),
        };
        prop_assert_eq!(shop.ends(), expected);
    }
}

#[test]
fn choreographed_nobody_notices_a_message_that_is_lost() {
    let mut shop = Shop::new(true, true);
    shop.deliver_to(Service::Payments, Event::OrderPlaced);
    shop.lose((Service::Inventory, Event::PaymentTaken));
    shop.run_to_end();
    let hangs = (Order::Placed, Payment::Taken, Stock::Unknown);
    assert_eq!(shop.ends(), hangs, "paid, and nothing will ever happen");
}

#[test]
fn choreographed_a_timer_of_one_service_takes_back_an_order_that_was_confirmed() {
    let mut shop = Shop::new(true, true);
    shop.deliver_to(Service::Payments, Event::OrderPlaced);
    shop.deliver_to(Service::Inventory, Event::PaymentTaken);
    shop.deliver_to(Service::Orders, Event::StockReserved);
    assert_eq!(shop.order, Order::Confirmed, "and the customer was told so");
    // Payments received no event for too long, and no event shows that another service decided.
    shop.payment = Payment::Returned;
    shop.emit(Event::MoneyReturned);
    shop.run_to_end();
    assert_eq!(shop.ends(), (Order::Cancelled, Payment::Returned, Stock::Released));
}
