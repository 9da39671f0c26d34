//! The cost of the books: opening, counting, confirming and settling.

#![expect(clippy::unwrap_used, reason = "a bench that goes wrong should stop")]

use std::collections::VecDeque;
use std::convert::Infallible;

use divan::Bencher;
use divan::counter::ItemsCount;
use postrider::ledger::{Budget, Ledger, Ticket};
use postrider::lsn::Lsn;

fn main() {
    divan::main();
}

/// Records of one run; long enough that the ring's growth does not show.
const RECORDS: u64 = 100_000;

/// How many records the broker is behind: about what is in flight at 100,000 rows per second over
/// 10 ms.
const BEHIND: usize = 1_000;

/// One item is one record, from its ticket to the settled watermark.
#[divan::bench(args = [1, 10, 1_000])]
fn record_to_watermark(bencher: Bencher<'_, '_>, records_per_transaction: u64) {
    bencher
        .counter(ItemsCount::new(RECORDS))
        .with_inputs(|| (Ledger::new(Budget::default()), VecDeque::with_capacity(BEHIND + 1)))
        .bench_local_values(|(mut ledger, mut waiting)| {
            for transaction in 1..=RECORDS / records_per_transaction {
                ledger.begin(Lsn::ZERO, 0).unwrap();
                for _ in 0..records_per_transaction {
                    let ticket = sent(&mut ledger, 300);
                    waiting.push_back(ticket);
                    if waiting.len() > BEHIND {
                        ledger.confirm(waiting.pop_front().unwrap()).unwrap();
                    }
                }
                ledger.commit(Lsn::new(transaction)).unwrap();
            }
            while let Some(ticket) = waiting.pop_front() {
                ledger.confirm(ticket).unwrap();
            }
            let _ = ledger.drain_settled_times();
            ledger.settled()
        });
}

/// One item is one keepalive or transaction of other tables while 1,000 records are in flight.
#[divan::bench]
fn nothing_to_deliver(bencher: Bencher<'_, '_>) {
    let mut ledger = Ledger::new(Budget::default());
    ledger.begin(Lsn::ZERO, 0).unwrap();
    for _ in 0..BEHIND {
        sent(&mut ledger, 300);
    }
    ledger.commit(Lsn::new(1)).unwrap();
    let mut position = 1;
    bencher.counter(ItemsCount::new(1_u32)).bench_local(|| {
        position += 2;
        ledger.begin(Lsn::ZERO, 0).unwrap();
        ledger.commit(Lsn::new(position)).unwrap();
        ledger.keepalive(Lsn::new(position + 1));
    });
}

/// Sends a record of so many bytes in the open transaction.
fn sent(ledger: &mut Ledger, weight: usize) -> Ticket {
    let Ok(ticket) = ledger.send(weight, Ok::<_, Infallible>).unwrap();
    ticket
}
