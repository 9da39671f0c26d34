//! Tests by example, then random histories against a naive model.

use std::cell::Cell;
use std::convert::Infallible;

use super::*;
use proptest::prelude::*;

fn ledger() -> Ledger {
    Ledger::new(Budget::default())
}

fn transaction(ledger: &mut Ledger, records: usize, end: u64) -> Vec<Ticket> {
    ledger.begin(Lsn::ZERO, i64::try_from(end).unwrap()).unwrap();
    let tickets = send(ledger, records);
    ledger.commit(Lsn::new(end)).unwrap();
    tickets
}

fn send(ledger: &mut Ledger, records: usize) -> Vec<Ticket> {
    (0..records).map(|_| sent(ledger, 1)).collect()
}

fn sent(ledger: &mut Ledger, weight: usize) -> Ticket {
    let Ok(ticket) = ledger.send(weight, Ok::<_, Infallible>).unwrap();
    ticket
}

#[test]
fn g1_a_later_transaction_waits_for_an_earlier_one() {
    let mut ledger = ledger();
    let first = transaction(&mut ledger, 2, 10);
    let second = transaction(&mut ledger, 1, 20);
    ledger.confirm(second[0]).unwrap();
    assert_eq!(ledger.progress(), LedgerProgress::default());
    ledger.confirm(first[0]).unwrap();
    assert_eq!(ledger.progress(), LedgerProgress { settled: Lsn::ZERO, confirmed: 1 });
    assert_eq!(ledger.settled(), Lsn::ZERO);
    ledger.confirm(first[1]).unwrap();
    assert_eq!(ledger.settled(), Lsn::new(20));
    assert_eq!(ledger.in_flight(), InFlight::default());
}

#[test]
fn g1_nothing_settles_before_the_commit_is_seen() {
    let mut ledger = ledger();
    ledger.begin(Lsn::ZERO, 0).unwrap();
    let tickets = send(&mut ledger, 1);
    ledger.confirm(tickets[0]).unwrap();
    assert_eq!(ledger.settled(), Lsn::ZERO);
    ledger.commit(Lsn::new(10)).unwrap();
    assert_eq!(ledger.settled(), Lsn::new(10));
}

#[test]
fn g1_a_keepalive_waits_for_the_rows_before_it() {
    let mut ledger = ledger();
    let tickets = transaction(&mut ledger, 1, 10);
    ledger.keepalive(Lsn::new(50));
    assert_eq!(ledger.settled(), Lsn::ZERO);
    ledger.confirm(tickets[0]).unwrap();
    assert_eq!(ledger.settled(), Lsn::new(50));
}

#[test]
fn g1_a_keepalive_inside_a_transaction_settles_nothing() {
    let mut ledger = ledger();
    transaction(&mut ledger, 0, 10);
    ledger.begin(Lsn::ZERO, 0).unwrap();
    ledger.keepalive(Lsn::new(40));
    assert_eq!(ledger.settled(), Lsn::new(10));
    let tickets = send(&mut ledger, 1);
    ledger.keepalive(Lsn::new(41));
    ledger.confirm(tickets[0]).unwrap();
    assert_eq!(ledger.settled(), Lsn::new(10));
    ledger.commit(Lsn::new(42)).unwrap();
    assert_eq!(ledger.settled(), Lsn::new(42));
}

#[test]
fn g1_a_commit_below_what_was_promised_is_an_error() {
    let mut ledger = ledger();
    ledger.keepalive(Lsn::new(50));
    ledger.begin(Lsn::ZERO, 0).unwrap();
    let refused = ledger.commit(Lsn::new(50));
    assert_eq!(refused, Err(LedgerError::Backwards { end: Lsn::new(50), horizon: Lsn::new(50) }));
}

#[test]
fn g5_keepalives_and_empty_transactions_move_an_idle_slot_without_memory() {
    let mut ledger = ledger();
    for round in 1..1_000_u64 {
        transaction(&mut ledger, 0, round * 10);
        ledger.keepalive(Lsn::new(round * 10 + 5));
        assert_eq!(ledger.settled(), Lsn::new(round * 10 + 5));
        assert_eq!(ledger.in_flight().transactions, 0);
    }
    ledger.keepalive(Lsn::new(3));
    assert_eq!(ledger.settled(), Lsn::new(9_995), "a late keepalive must not take back");
    assert_eq!(ledger.drain_settled_times().count(), 0, "no records, no samples");
}

#[test]
fn g3_each_limit_closes_the_door_and_a_confirmation_opens_it() {
    let wide = Budget { records: 100, bytes: 1_000, transactions: 100 };
    let budgets = [
        Budget { records: 2, ..wide },
        Budget { bytes: 2, ..wide },
        Budget { transactions: 2, ..wide },
    ];
    for budget in budgets {
        let mut ledger = Ledger::new(budget);
        let first = transaction(&mut ledger, 1, 10);
        assert!(ledger.has_room(), "{budget:?}");
        transaction(&mut ledger, 1, 20);
        assert!(!ledger.has_room(), "{budget:?}");
        ledger.confirm(first[0]).unwrap();
        assert!(ledger.has_room(), "{budget:?}");
    }
}

#[test]
fn g3_the_smallest_budget_still_makes_progress() {
    let mut ledger = Ledger::new(Budget { records: 1, bytes: 1, transactions: 1 });
    for end in 1..50 {
        assert!(ledger.has_room());
        ledger.begin(Lsn::ZERO, 0).unwrap();
        assert!(ledger.has_room(), "an open transaction must be able to send");
        let ticket = sent(&mut ledger, 1_000);
        assert!(!ledger.has_room());
        ledger.confirm(ticket).unwrap();
        ledger.commit(Lsn::new(end)).unwrap();
    }
    assert_eq!(ledger.settled(), Lsn::new(49));
}

#[test]
fn a_confirmation_nobody_waits_for_is_an_error_and_changes_nothing() {
    let mut ledger = ledger();
    let stray = LedgerError::UnknownTicket { transaction: 0 };
    assert_eq!(ledger.confirm(Ticket::new(0, 1)), Err(stray.clone()));
    let tickets = transaction(&mut ledger, 1, 10);
    let waiting = transaction(&mut ledger, 1, 20);
    ledger.confirm(tickets[0]).unwrap();
    assert_eq!(ledger.confirm(tickets[0]), Err(stray));
    ledger.begin(Lsn::ZERO, 0).unwrap();
    let open = Cell::new(None);
    let refuse = |ticket| {
        open.set(Some(ticket));
        Err::<(), _>("full")
    };
    assert_eq!(ledger.send(1, refuse), Ok(Err("full")));
    let open = open.get().unwrap();
    let twice = LedgerError::ConfirmedTwice { transaction: 2 };
    assert_eq!(ledger.confirm(open), Err(twice), "a record that was not taken");
    assert_eq!(ledger.in_flight().records, 1);
    ledger.confirm(waiting[0]).unwrap();
    assert_eq!(ledger.settled(), Lsn::new(20));
}

#[test]
fn steps_out_of_order_are_errors() {
    let mut ledger = ledger();
    assert_eq!(ledger.send(1, Ok::<_, Infallible>), Err(LedgerError::NotOpen));
    assert_eq!(ledger.commit(Lsn::new(1)), Err(LedgerError::NotOpen));
    ledger.begin(Lsn::ZERO, 0).unwrap();
    assert_eq!(ledger.begin(Lsn::ZERO, 0), Err(LedgerError::AlreadyOpen));
}

#[test]
fn numbers_wrap_after_four_billion_transactions() {
    let mut ledger = ledger();
    ledger.front = u32::MAX;
    let last = transaction(&mut ledger, 1, 10);
    let first = transaction(&mut ledger, 1, 20);
    assert_eq!((last[0].transaction(), first[0].transaction()), (u32::MAX, 0));
    ledger.confirm(first[0]).unwrap();
    ledger.confirm(last[0]).unwrap();
    assert_eq!(ledger.settled(), Lsn::new(20));
}

#[test]
fn commit_times_come_out_as_transactions_settle() {
    let mut ledger = ledger();
    let first = transaction(&mut ledger, 1, 10);
    let second = transaction(&mut ledger, 1, 20);
    assert_eq!(ledger.oldest_commit_time(), Some(10));
    ledger.confirm(second[0]).unwrap();
    assert_eq!(ledger.drain_settled_times().count(), 0);
    ledger.confirm(first[0]).unwrap();
    assert_eq!(ledger.drain_settled_times().collect::<Vec<_>>(), [10, 20]);
    assert_eq!(ledger.oldest_commit_time(), None);
}

/// Positions are relative, so that they rise.
#[derive(Debug, Clone)]
enum Step {
    Begin,
    Send(u16),
    Commit(u64),
    Keepalive(u64),
    Confirm(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Begin),
        4 => (0..2_000_u16).prop_map(Step::Send),
        2 => (1..9_u64).prop_map(Step::Commit),
        1 => (0..9_u64).prop_map(Step::Keepalive),
        4 => any::<prop::sample::Index>().prop_map(Step::Confirm),
    ];
    prop::collection::vec(step, 0..200)
}

/// Keeps and searches every record and promise.
#[derive(Default)]
struct Naive {
    /// (transaction, its end once committed)
    ends: Vec<Option<u64>>,
    /// (transaction, ticket), unconfirmed
    unconfirmed: Vec<(usize, Ticket)>,
    /// (transactions begun before, position)
    keepalives: Vec<(usize, u64)>,
    position: u64,
}

impl Naive {
    fn settled(&self) -> u64 {
        let first_unsettled = (0..self.ends.len())
            .find(|&at| self.ends[at].is_none() || self.unconfirmed.iter().any(|r| r.0 == at))
            .unwrap_or(self.ends.len());
        let ends = self.ends[..first_unsettled].iter().flatten().copied();
        let keepalives =
            self.keepalives.iter().filter(|k| k.0 <= first_unsettled).map(|&(_, end)| end);
        ends.chain(keepalives).max().unwrap_or(0)
    }

    fn is_open(&self) -> bool {
        self.ends.last().is_some_and(Option::is_none)
    }
}

proptest! {
    /// Covers G1, G3 and G5.
    #[test]
    fn g1_the_ring_agrees_with_a_naive_model(steps in steps()) {
        let mut ledger = ledger();
        let mut model = Naive::default();
        for step in steps {
            match step {
                Step::Begin if !model.is_open() => {
                    ledger.begin(Lsn::ZERO, 0).unwrap();
                    model.ends.push(None);
                }
                Step::Send(weight) if model.is_open() => {
                    let ticket = sent(&mut ledger, usize::from(weight));
                    model.unconfirmed.push((model.ends.len() - 1, ticket));
                }
                Step::Commit(distance) if model.is_open() => {
                    model.position += distance;
                    ledger.commit(Lsn::new(model.position)).unwrap();
                    *model.ends.last_mut().unwrap() = Some(model.position);
                }
                Step::Keepalive(distance) => {
                    ledger.keepalive(Lsn::new(model.position + distance));
                    if !model.is_open() {
                        model.position += distance;
                        model.keepalives.push((model.ends.len(), model.position));
                    }
                }
                Step::Confirm(index) if !model.unconfirmed.is_empty() => {
                    let at = index.index(model.unconfirmed.len());
                    ledger.confirm(model.unconfirmed.swap_remove(at).1).unwrap();
                }
                _ => {}
            }
            prop_assert_eq!(ledger.settled(), Lsn::new(model.settled()));
            let weights = model.unconfirmed.iter().map(|record| record.1.weight());
            prop_assert_eq!(ledger.in_flight().records, model.unconfirmed.len() as u64);
            prop_assert_eq!(ledger.in_flight().bytes, weights.sum::<u64>());
        }
    }
}
