//! The audit: what clients were told, against the final state.
//!
//! Input: the requests with their outcomes, the [`FinalState`], the poison that was produced. Output: a
//! [`Verdict`]. Pure, and independent of the services. That it detects each kind of fault is asserted before
//! every run (`audit_checks`).

use std::collections::{BTreeMap, BTreeSet};

use crate::shop_chaos::expected::{Expected, Lost, Traces, operation, possible};
use crate::shop_chaos::workload::OrderRequest;

/// What the client of one key received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClientOutcome {
    /// Each different response; there should be one.
    pub(crate) answers: BTreeSet<OrderResponse>,
    /// Unexpected statuses.
    pub(crate) refusals: Vec<String>,
    /// Attempts without any response.
    pub(crate) unanswered: u32,
}

/// A 201.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OrderResponse {
    /// From `location`.
    pub(crate) order: String,
    pub(crate) body: String,
}

/// A row of `orders`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) id: String,
    /// The key of the wish.
    pub(crate) customer: String,
    pub(crate) sku: String,
    pub(crate) quantity: i64,
    pub(crate) amount_cents: i64,
    pub(crate) status: String,
    /// The same by the table of sagas.
    pub(crate) saga: String,
}

/// A booking of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) order: String,
    pub(crate) is_refund: bool,
    pub(crate) is_approved: bool,
    pub(crate) amount_cents: i64,
}

/// Poison that a consumer has dead-lettered, or should: the consumer, and the number of the poison;
/// `None` for what is no poison of ours.
pub(crate) type DeadLetter = (String, Option<u32>);

/// The final state.
#[derive(Debug, Clone, Default)]
pub(crate) struct FinalState {
    pub(crate) orders: Vec<Order>,
    pub(crate) gateway: Vec<Operation>,
    /// By order: rows, events, records, markers, in words.
    pub(crate) traces: BTreeMap<String, Traces>,
    pub(crate) available: BTreeMap<String, i64>,
    pub(crate) letters: Vec<DeadLetter>,
    /// Records that a consumer has not finished with, by consumer and partition.
    pub(crate) lag: BTreeMap<String, usize>,
}

/// The initial state, and the requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inputs {
    pub(crate) wishes: Vec<(OrderRequest, ClientOutcome)>,
    pub(crate) stock: BTreeMap<String, i64>,
    pub(crate) poison: BTreeSet<(String, u32)>,
}

/// Everything that can be wrong, and how it ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) orders: usize,
    /// Orders beyond the one of a key, or of a key that nobody used.
    pub(crate) double_orders: usize,
    /// Keys whose answers differ, are missing, or do not tell of their order as it is.
    pub(crate) answers_wrong: usize,
    pub(crate) confirmed: usize,
    pub(crate) cancelled: usize,
    /// Of the cancelled, those that took too long.
    pub(crate) timed_out: usize,
    pub(crate) stuck: usize,
    /// Replies that were destroyed, of orders that have ended.
    pub(crate) replies_destroyed: u32,
    pub(crate) effects_missing: u32,
    pub(crate) effects_doubled: u32,
    /// Cents: for each order what the gateway holds of it against what it should; the differences,
    /// added without their signs, so that one does not hide another.
    pub(crate) money_balance: u64,
    /// The same of pieces, for each article.
    pub(crate) stock_balance: u64,
    /// Dead letters of our poison.
    pub(crate) dead_letters: usize,
    /// Poison without a dead letter, and dead letters that are not poison.
    pub(crate) dead_letters_wrong: usize,
    /// Letters that are there twice, as a kill between letter and offset leaves them.
    pub(crate) dead_letters_repeated: usize,
    pub(crate) lag: usize,
    /// The same as text.
    pub(crate) faults: Vec<String>,
}

impl Verdict {
    /// Whether there is no fault.
    pub(crate) fn is_sound(&self) -> bool {
        // A fault in words that no number shows is one all the same.
        self.faults.is_empty()
            && self.double_orders + self.answers_wrong + self.stuck == 0
            && self.effects_missing + self.effects_doubled == 0
            && self.money_balance + self.stock_balance == 0
            && self.dead_letters_wrong + self.lag == 0
    }

    fn fault(&mut self, words: String) {
        self.faults.push(words);
    }
}

/// Judges a run.
pub(crate) fn audit(beginning: &Inputs, books: &FinalState) -> Verdict {
    let mut verdict = Verdict { orders: beginning.wishes.len(), ..Verdict::default() };
    let wishes: BTreeMap<&str, &OrderRequest> =
        beginning.wishes.iter().map(|(wish, _)| (wish.key.as_str(), wish)).collect();
    // What explains the rest comes first.
    verdict.lag = books.lag.values().sum();
    for (place, count) in &books.lag {
        verdict.fault(format!("{count} records were not finished with by {place}"));
    }
    count_letters(&mut verdict, &beginning.poison, &books.letters);
    count_orders(&mut verdict, beginning, books);
    for order in &books.orders {
        if let Some(wish) = wishes.get(order.customer.as_str()) {
            judge_order(&mut verdict, wish, order, books);
        }
    }
    let known: BTreeSet<&str> = books.orders.iter().map(|order| order.id.as_str()).collect();
    for (id, traces) in books.traces.iter().filter(|(id, _)| !known.contains(id.as_str())) {
        verdict.effects_doubled += traces.values().sum::<u32>();
        verdict.fault(format!("{id}, which nobody ordered: {traces:?}"));
    }
    balance_money(&mut verdict, books, &wishes);
    balance_stock(&mut verdict, beginning, books);
    verdict
}

/// One order for each key, as it was asked for and told.
fn count_orders(verdict: &mut Verdict, beginning: &Inputs, books: &FinalState) {
    let mut by_key: BTreeMap<&str, Vec<&Order>> = BTreeMap::new();
    for order in &books.orders {
        by_key.entry(order.customer.as_str()).or_default().push(order);
    }
    for (wish, told) in &beginning.wishes {
        let orders = by_key.remove(wish.key.as_str()).unwrap_or_default();
        verdict.double_orders += orders.len().saturating_sub(1);
        if orders.len() > 1 {
            verdict.fault(format!("{}: {} orders", wish.key, orders.len()));
        }
        let is_right = |answer: &OrderResponse| {
            let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap_or_default();
            orders.iter().any(|order| {
                order.id == answer.order
                    && body["id"] == order.id
                    && (order.sku.as_str(), order.quantity) == (wish.sku.as_str(), wish.quantity)
                    && order.amount_cents == wish.amount_cents
            })
        };
        let is_well_told = told.answers.len() == 1
            && told.unanswered == 0
            && told.refusals.is_empty()
            && told.answers.iter().all(is_right);
        if !is_well_told {
            verdict.answers_wrong += 1;
            verdict.fault(format!("{wish:?} was told {told:?}, and there is {orders:?}"));
        }
    }
    for (key, orders) in by_key {
        verdict.double_orders += orders.len();
        verdict.fault(format!("{key}, which nobody used: {orders:?}"));
    }
}

/// How an order ended, and whether everything is there that belongs to this end, once.
fn judge_order(verdict: &mut Verdict, wish: &OrderRequest, order: &Order, books: &FinalState) {
    let is_confirmed = match (order.status.as_str(), order.saga.as_str()) {
        ("CONFIRMED", "CONFIRMED") => true,
        ("CANCELLED", "CANCELLED") => false,
        _ => {
            verdict.stuck += 1;
            verdict.fault(format!("stuck: {order:?}: {:?}", books.traces.get(&order.id)));
            return;
        }
    };
    *(if is_confirmed { &mut verdict.confirmed } else { &mut verdict.cancelled }) += 1;
    let found = books.traces_of(&order.id);
    let timeouts = found.get("event OrderTimedOut").copied().unwrap_or(0);
    verdict.timed_out += usize::from(timeouts > 0);
    let lost: Lost = found
        .iter()
        .filter_map(|(trace, count)| Some((trace.strip_prefix("lost ")?.to_owned(), *count)))
        .collect();
    verdict.replies_destroyed += sum(&lost);
    let ways = possible(wish, is_confirmed, timeouts, &lost).into_iter();
    let differences = ways.map(|Expected { wanted, allowed }| {
        let (missing, surplus) = (lacks(&found, &wanted), lacks(&allowed, &found));
        (sum(&missing) + sum(&surplus), missing, surplus)
    });
    // The way that explains most of what is there.
    let Some((difference, missing, surplus)) = differences.min_by_key(|(size, ..)| *size) else {
        verdict.effects_doubled += 1;
        verdict.fault(format!("{order:?} must not end like this: {wish:?}"));
        return;
    };
    verdict.effects_missing += sum(&missing);
    verdict.effects_doubled += sum(&surplus);
    if difference > 0 {
        let id = &order.id;
        verdict.fault(format!("{id} {}: missing {missing:?}, too many {surplus:?}", order.status));
    }
}

impl FinalState {
    /// All traces of an order, those in the gateway's books included.
    fn traces_of(&self, order: &str) -> Traces {
        let mut traces = self.traces.get(order).cloned().unwrap_or_default();
        for booking in self.gateway.iter().filter(|booking| booking.order == order) {
            let kind = if booking.is_refund { "refund" } else { "charge" };
            let trace = operation(kind, booking.is_approved, booking.amount_cents);
            *traces.entry(trace).or_default() += 1;
        }
        traces
    }
}

/// What `wanted` has and `found` has not.
fn lacks(found: &Traces, wanted: &Traces) -> Traces {
    let lack = |(trace, &count): (&String, &u32)| {
        let missing = count.saturating_sub(found.get(trace).copied().unwrap_or(0));
        (missing > 0).then(|| (trace.clone(), missing))
    };
    wanted.iter().filter_map(lack).collect()
}

fn sum(traces: &Traces) -> u32 {
    traces.values().sum()
}

/// Charged less refunded against what confirmed orders cost, by the gateway's own books.
fn balance_money(
    verdict: &mut Verdict,
    books: &FinalState,
    wishes: &BTreeMap<&str, &OrderRequest>,
) {
    let mut held: BTreeMap<&str, i64> = BTreeMap::new();
    for booking in books.gateway.iter().filter(|booking| booking.is_approved) {
        let amount = if booking.is_refund { -booking.amount_cents } else { booking.amount_cents };
        *held.entry(booking.order.as_str()).or_default() += amount;
    }
    for order in books.orders.iter().filter(|order| order.status == "CONFIRMED") {
        let owed = wishes.get(order.customer.as_str()).map_or(0, |wish| wish.amount_cents);
        *held.entry(order.id.as_str()).or_default() -= owed;
    }
    for (order, cents) in held.into_iter().filter(|(_, cents)| *cents != 0) {
        verdict.money_balance += cents.unsigned_abs();
        verdict.fault(format!("{order}: {cents} cents too many are held"));
    }
}

/// What is gone from the store against what confirmed orders took.
fn balance_stock(verdict: &mut Verdict, beginning: &Inputs, books: &FinalState) {
    let mut rest = beginning.stock.clone();
    for (sku, available) in &books.available {
        *rest.entry(sku.clone()).or_default() -= available;
    }
    for order in books.orders.iter().filter(|order| order.status == "CONFIRMED") {
        *rest.entry(order.sku.clone()).or_default() -= order.quantity;
    }
    for (sku, pieces) in rest.into_iter().filter(|(_, pieces)| *pieces != 0) {
        verdict.stock_balance += pieces.unsigned_abs();
        verdict.fault(format!("{sku}: {pieces} pieces are gone and nobody has them"));
    }
}

/// The poison, all of it, and nothing else.
fn count_letters(verdict: &mut Verdict, poison: &BTreeSet<(String, u32)>, letters: &[DeadLetter]) {
    let mut seen = BTreeSet::new();
    for (consumer, number) in letters {
        let ours = number.map(|number| (consumer.clone(), number));
        match ours.filter(|letter| poison.contains(letter)) {
            Some(letter) if !seen.insert(letter.clone()) => verdict.dead_letters_repeated += 1,
            Some(_) => {}
            None => {
                verdict.dead_letters_wrong += 1;
                verdict.fault(format!("{consumer} dead-lettered what is not poison ({number:?})"));
            }
        }
    }
    verdict.dead_letters = seen.len();
    for (consumer, number) in poison.difference(&seen) {
        verdict.dead_letters_wrong += 1;
        verdict.fault(format!("{consumer} did not dead-letter poison {number}"));
    }
}
