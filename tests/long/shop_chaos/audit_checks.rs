//! Checks before every run that the audit detects each kind of fault.
//!
//! Input: the state of a small correct run. Output: a panic if a corrupted state passes.

use std::collections::{BTreeMap, BTreeSet};

use crate::shop_chaos::audit::{
    ClientOutcome, FinalState, Inputs, Operation, Order, OrderResponse, Verdict, audit,
};
use crate::shop_chaos::expected::{Lost, Traces, possible};
use crate::shop_chaos::workload::OrderRequest;

/// # Panics
/// If a fault is not detected, or a correct run is reported as faulty.
pub(crate) fn assert_detects_each_fault() {
    let (beginning, books) = sound();
    let verdict = audit(&beginning, &books);
    assert!(verdict.is_sound(), "{verdict:?}");
    let ends = (verdict.confirmed, verdict.cancelled, verdict.dead_letters);
    assert_eq!(ends, (1, 2, 1));
    effects_are_seen();
    balances_are_seen();
    answers_are_seen();
    letters_are_seen();
}

fn judge(spoil: impl FnOnce(&mut Inputs, &mut FinalState)) -> Verdict {
    let (mut beginning, mut books) = sound();
    spoil(&mut beginning, &mut books);
    let verdict = audit(&beginning, &books);
    assert!(!verdict.is_sound() && !verdict.faults.is_empty(), "{verdict:?}");
    verdict
}

fn effects_are_seen() {
    let (_, books) = sound();
    // Every trace of every order, missing and doubled.
    for (id, traces) in &books.traces {
        for trace in traces.keys() {
            let gone = judge(|_, books| books.of(id).retain(|known, _| known != trace));
            assert_eq!((gone.effects_missing, gone.effects_doubled), (1, 0), "{id} {trace}");
            let doubled = judge(|_, books| *books.of(id).get_mut(trace).unwrap() += 1);
            assert_eq!((doubled.effects_missing, doubled.effects_doubled), (0, 1), "{id} {trace}");
        }
    }
    let strange = |_: &mut Inputs, books: &mut FinalState| {
        books.traces.insert("nobody".to_owned(), [("event OrderCreated".to_owned(), 2)].into());
    };
    assert_eq!(judge(strange).effects_doubled, 2);
    let stuck = judge(|_, books| "PAID".clone_into(&mut books.orders[0].saga));
    assert_eq!((stuck.stuck, stuck.confirmed), (1, 0));
    let contrary = judge(|_, books| "CANCELLED".clone_into(&mut books.orders[0].status));
    assert_eq!(contrary.stuck, 1);
    // A declined card, and the order was confirmed all the same.
    let unpaid = |_: &mut Inputs, books: &mut FinalState| {
        let order = &mut books.orders[1];
        "CONFIRMED".clone_into(&mut order.status);
        "CONFIRMED".clone_into(&mut order.saga);
    };
    assert_eq!(judge(unpaid).effects_doubled, 1);
    an_order_that_timed_out_twice_is_audited();
    destroyed_replies_are_audited();
}

fn an_order_that_timed_out_twice_is_audited() {
    let (beginning, mut books) = sound();
    let ways = possible(&beginning.wishes[2].0, false, 2, &Lost::new()).into_iter();
    let ways = ways.map(|way| way.wanted);
    let is_released = |traces: &Traces| traces.contains_key("reservation RELEASED saffron 2");
    // In order three's way, its bookings are in the gateway's books already.
    let mut traces = ways.into_iter().find(is_released).unwrap();
    traces.retain(|trace, _| !trace.starts_with("charge ") && !trace.starts_with("refund "));
    books.traces.insert("o3".to_owned(), traces);
    let verdict = audit(&beginning, &books);
    assert!(verdict.is_sound() && verdict.timed_out == 1, "{verdict:?}");
    // What came in time to be heard of may be there, once.
    for (times, doubled) in [(1, 0), (2, 1)] {
        books.of("o3").insert("heard InventoryReserved".to_owned(), times);
        assert_eq!(audit(&beginning, &books).effects_doubled, doubled);
    }
    books.of("o3").remove("heard InventoryReserved");
    *books.of("o3").get_mut("done shop-inventory OrderTimedOut").unwrap() -= 1;
    assert_eq!(audit(&beginning, &books).effects_missing, 1);
}

fn destroyed_replies_are_audited() {
    let (beginning, mut books) = sound();
    let lost = Lost::from([("PaymentRefunded".to_owned(), 1)]);
    let ways = possible(&beginning.wishes[2].0, false, 1, &lost).into_iter().map(|way| way.wanted);
    // Sold out; the refund was told, and destroyed; so the order was given up, and told again.
    let is_it = |traces: &Traces| {
        traces.contains_key("reservation UNAVAILABLE saffron 0")
            && traces.get("event PaymentRefunded") == Some(&2)
    };
    let mut traces = ways.into_iter().find(is_it).unwrap();
    traces.retain(|trace, _| !trace.starts_with("charge ") && !trace.starts_with("refund "));
    assert_eq!(traces["record PaymentRefunded"], 1);
    books.traces.insert("o3".to_owned(), traces);
    let verdict = audit(&beginning, &books);
    assert!(verdict.is_sound() && verdict.replies_destroyed == 1, "{verdict:?}");
    // It was delivered after all, and done.
    for trace in ["record PaymentRefunded", "done shop-orders PaymentRefunded"] {
        *books.of("o3").get_mut(trace).unwrap() += 1;
        assert_eq!(audit(&beginning, &books).effects_doubled, 1, "{trace}");
        *books.of("o3").get_mut(trace).unwrap() -= 1;
    }
    // One that is missing is not one that was destroyed.
    books.of("o3").remove("lost PaymentRefunded");
    assert!(!audit(&beginning, &books).is_sound());
}

fn balances_are_seen() {
    let twice = judge(|_, books| books.gateway.push(books.gateway[0].clone()));
    assert_eq!((twice.effects_doubled, twice.money_balance), (1, 500));
    let kept = judge(|_, books| books.gateway.retain(|booking| !booking.is_refund));
    assert_eq!((kept.effects_missing, kept.money_balance), (1, 700));
    // Two errors that would cancel out.
    let hidden = |_: &mut Inputs, books: &mut FinalState| {
        let refund = Operation { is_refund: true, ..books.gateway[0].clone() };
        let charge = Operation { order: "o2".to_owned(), ..books.gateway[0].clone() };
        books.gateway.extend([refund, charge]);
    };
    assert_eq!(judge(hidden).money_balance, 1_000);
    let lost = judge(|_, books| *books.available.get_mut("tea").unwrap() -= 1);
    assert_eq!(lost.stock_balance, 1);
    let oversold = judge(|_, books| *books.available.get_mut("saffron").unwrap() += 2);
    assert_eq!(oversold.stock_balance, 2);
}

fn answers_are_seen() {
    let double = |_: &mut Inputs, books: &mut FinalState| {
        let again = Order { id: "o9".to_owned(), ..books.orders[1].clone() };
        let traces = books.traces["o2"].clone();
        books.gateway.push(Operation { order: "o9".to_owned(), ..books.gateway[1].clone() });
        books.traces.insert(again.id.clone(), traces);
        books.orders.push(again);
    };
    let verdict = judge(double);
    assert_eq!((verdict.double_orders, verdict.effects_doubled), (1, 0));
    let nobody = judge(|beginning, _| drop(beginning.wishes.remove(1)));
    assert_eq!(nobody.double_orders, 1);
    let other = |beginning: &mut Inputs, _: &mut FinalState| {
        beginning.wishes[0].1.answers.insert(answer("o2"));
    };
    assert_eq!(judge(other).answers_wrong, 1);
    assert_eq!(judge(|beginning, _| beginning.wishes[0].1 = told("o2")).answers_wrong, 1);
    assert_eq!(
        judge(|beginning, _| beginning.wishes[0].1 = ClientOutcome::default()).answers_wrong,
        1
    );
    assert_eq!(judge(|beginning, _| beginning.wishes[0].1.unanswered = 1).answers_wrong, 1);
    let refused = |beginning: &mut Inputs, _: &mut FinalState| {
        beginning.wishes[0].1.refusals.push("422".to_owned());
    };
    assert_eq!(judge(refused).answers_wrong, 1);
    assert_eq!(judge(|_, books| books.orders[0].quantity = 3).answers_wrong, 1);
}

fn letters_are_seen() {
    assert_eq!(judge(|_, books| books.letters.clear()).dead_letters_wrong, 1);
    for number in [None, Some(8)] {
        let strange = judge(|_, books| books.letters.push(("shop-orders".to_owned(), number)));
        assert_eq!((strange.dead_letters, strange.dead_letters_wrong), (1, 1));
    }
    assert_eq!(judge(|_, books| books.lag = [("p".to_owned(), 2)].into()).lag, 2);
    let (beginning, mut books) = sound();
    books.letters.push(books.letters[0].clone());
    let again = audit(&beginning, &books);
    assert!(again.is_sound() && again.dead_letters_repeated == 1, "{again:?}");
}

impl FinalState {
    fn of(&mut self, order: &str) -> &mut BTreeMap<String, u32> {
        self.traces.get_mut(order).unwrap()
    }
}

/// One order confirmed, one declined, one sold out; one poison.
fn sound() -> (Inputs, FinalState) {
    let wish = |number: u32, sku: &str, amount_cents| OrderRequest {
        key: format!("wish-{number}"),
        sku: sku.to_owned(),
        quantity: 2,
        amount_cents,
    };
    let wishes = [wish(1, "tea", 500), wish(2, "tea", 1_000_000), wish(3, "saffron", 700)];
    let mut books = FinalState::default();
    for (number, wish) in (1..).zip(&wishes) {
        let status = if number == 1 { "CONFIRMED" } else { "CANCELLED" };
        let order = Order {
            id: format!("o{number}"),
            customer: wish.key.clone(),
            sku: wish.sku.clone(),
            quantity: wish.quantity,
            amount_cents: wish.amount_cents,
            status: status.to_owned(),
            saga: status.to_owned(),
        };
        // The first of the possible ways is the plain one.
        let mut traces = possible(wish, number == 1, 0, &Lost::new()).swap_remove(0).wanted;
        let bookings = traces.extract_if(.., |trace, _| {
            trace.starts_with("charge ") || trace.starts_with("refund ")
        });
        for (trace, _) in bookings {
            books.gateway.push(Operation {
                order: order.id.clone(),
                is_refund: trace.starts_with("refund"),
                is_approved: trace.contains("approved"),
                amount_cents: wish.amount_cents,
            });
        }
        books.traces.insert(order.id.clone(), traces);
        books.orders.push(order);
    }
    let stock = |tea: i64| BTreeMap::from([("tea".to_owned(), tea), ("saffron".to_owned(), 1)]);
    books.available = stock(98);
    books.letters = vec![("shop-orders".to_owned(), Some(7))];
    let told = |number: usize| told(&format!("o{number}"));
    let wishes = (1..).zip(wishes).map(|(number, wish)| (wish, told(number)));
    let poison = BTreeSet::from([("shop-orders".to_owned(), 7)]);
    (Inputs { wishes: wishes.collect(), stock: stock(100), poison }, books)
}

fn told(order: &str) -> ClientOutcome {
    ClientOutcome { answers: [answer(order)].into(), ..ClientOutcome::default() }
}

fn answer(order: &str) -> OrderResponse {
    OrderResponse { order: order.to_owned(), body: format!("{{\"id\":\"{order}\"}}") }
}
