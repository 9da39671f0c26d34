//! The workload: order requests and their attempts.
//!
//! Input: a [`Plan`] and a random generator. Output: requests that lead to every outcome, and the stock for
//! them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::shop::payments::CARD_LIMIT_CENTS;
use serde_json::json;

use crate::shop_chaos::settings::Plan;
use support::chance::Chance;

/// Goods with enough stock, and goods without.
const PLENTIFUL: [&str; 4] = ["tea", "coffee", "cocoa", "sugar"];
const SCARCE: [&str; 2] = ["saffron", "truffle"];
/// Stock of the former.
const PLENTY: i64 = 1_000_000;

/// Requests for scarce goods, requests above the card's limit, requests that are sent more than once, attempts
/// whose client disconnects before the response: percent.
const SCARCE_PERCENT: u64 = 30;
const DEAR_PERCENT: u64 = 15;
const AGAIN_PERCENT: u64 = 30;
const HANG_UP_PERCENT: u64 = 4;

/// The latest time at which a request is repeated.
const AGAIN_MS_MAX: u64 = 4_000;

/// The request of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderRequest {
    /// The Idempotency-Key; also the customer, so that the order's row tells whose it is.
    pub(crate) key: String,
    pub(crate) sku: String,
    pub(crate) quantity: i64,
    pub(crate) amount_cents: i64,
}

/// When a request is sent, and to which of the two processes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// After the run's beginning.
    pub(crate) at: Duration,
    pub(crate) door: usize,
    /// The client disconnects after the first request, and retries.
    pub(crate) hangs_up: bool,
}

impl OrderRequest {
    /// The request's body.
    pub(crate) fn body(&self) -> String {
        let Self { key, sku, quantity, amount_cents } = self;
        let body = json!({
            "customer": key, "sku": sku, "quantity": quantity, "amount_cents": amount_cents,
        });
        body.to_string()
    }

    /// Whether the card pays for it.
    pub(crate) fn is_payable(&self) -> bool {
        self.amount_cents <= CARD_LIMIT_CENTS
    }
}

/// All requests, each with its attempts.
pub(crate) fn draw(plan: &Plan, chance: &mut Chance) -> Vec<(OrderRequest, Vec<Attempt>)> {
    let step = plan.placing_time() / u32::try_from(plan.orders).unwrap();
    let at = |number: usize| step * u32::try_from(number).unwrap();
    (0..plan.orders).map(|number| (wish(number, chance), sendings(at(number), chance))).collect()
}

fn wish(number: usize, chance: &mut Chance) -> OrderRequest {
    let is_scarce = chance.percent(SCARCE_PERCENT);
    let goods: &[&str] = if is_scarce { &SCARCE } else { &PLENTIFUL };
    let limit = u64::try_from(CARD_LIMIT_CENTS).unwrap();
    let amount = if chance.percent(DEAR_PERCENT) {
        chance.between(limit + 1, 3 * limit)
    } else {
        // The limit itself now and then.
        chance.between(1, limit + limit / 50).min(limit)
    };
    OrderRequest {
        key: format!("wish-{number:06}"),
        sku: goods[chance.below(goods.len())].to_owned(),
        quantity: i64::try_from(chance.between(1, 5)).unwrap(),
        amount_cents: i64::try_from(amount).unwrap(),
    }
}

fn sendings(at: Duration, chance: &mut Chance) -> Vec<Attempt> {
    let count = if chance.percent(AGAIN_PERCENT) { 2 + chance.below(3) } else { 1 };
    let first = chance.below(2);
    let sending = |number: usize| {
        let is_at_once = chance.percent(50);
        let later =
            if is_at_once { chance.between(0, 5) } else { chance.between(20, AGAIN_MS_MAX) };
        Attempt {
            at: if number == 0 { at } else { at + Duration::from_millis(later) },
            door: (first + if number == 0 { 0 } else { chance.below(2) }) % 2,
            hangs_up: chance.percent(HANG_UP_PERCENT),
        }
    };
    (0..count).map(sending).collect()
}

/// The initial stock: of scarce goods half of the payable demand.
pub(crate) fn stock<'w>(wishes: impl Iterator<Item = &'w OrderRequest>) -> BTreeMap<String, i64> {
    let mut stock: BTreeMap<String, i64> =
        PLENTIFUL.iter().map(|&sku| (sku.to_owned(), PLENTY)).collect();
    for wish in wishes.filter(|wish| wish.is_payable() && SCARCE.contains(&wish.sku.as_str())) {
        *stock.entry(wish.sku.clone()).or_default() += wish.quantity;
    }
    for sku in SCARCE {
        let demanded = stock.entry(sku.to_owned()).or_default();
        *demanded = (*demanded + 1) / 2;
    }
    stock
}
