//! Tests of the pause between two transactions.

use super::*;
use crate::route::Headers;

/// Brokers that store everything allowed at once.
#[derive(Debug, Default)]
struct Brokers {
    sent: Vec<Ticket>,
    is_slow: bool,
    is_committed: bool,
}

impl TransactionApi for Brokers {
    type Error = ();

    fn begin(&mut self) -> Result<(), ()> {
        Ok(())
    }

    fn admits(&mut self, _record: &Record<'_>) -> Result<(), SendError<()>> {
        Ok(())
    }

    fn send(&mut self, outgoing: &Outgoing<'_>) -> Result<(), SendError<()>> {
        self.sent.push(outgoing.ticket);
        Ok(())
    }

    fn send_progress(&mut self, _mark: Mark) -> Result<(), SendError<()>> {
        self.sent.push(PROGRESS_TICKET);
        Ok(())
    }

    fn poll(&mut self, reports: &mut Vec<Confirmation>) -> Result<(), ()> {
        if !self.is_slow {
            let stored = |ticket| Confirmation { ticket, outcome: Outcome::Stored };
            reports.extend(self.sent.drain(..).map(stored));
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), ()> {
        self.is_committed = true;
        Ok(())
    }

    fn outcome(&mut self) -> Option<Result<(), ()>> {
        std::mem::take(&mut self.is_committed).then_some(Ok(()))
    }

    fn disturbances(&self) -> u64 {
        0
    }

    fn progress_refused(&self, _rejection: Rejection) {}

    fn ambiguous(&self) {}
}

fn outgoing() -> Outgoing<'static> {
    let record = Record {
        topic: "t",
        partition: None,
        key: None,
        value: None,
        headers: Headers::default(),
        timestamp_ms: 0,
    };
    Outgoing::new(record, Ticket::from_opaque(7))
}

/// Runs a transaction; returns the next pause.
fn pause_after(
    sink: &mut Transactional<Brokers>,
    now: &mut Instant,
    records: u64,
    first_stored: Duration,
) -> Duration {
    sink.client_mut().is_slow = true;
    for _ in 0..records {
        sink.send(*now, &outgoing()).unwrap();
    }
    let mut confirmations = Vec::new();
    *now += first_stored;
    sink.client_mut().is_slow = false;
    sink.poll(*now, &mut confirmations).unwrap();
    let mark = Mark::at(Lsn::new(sink.kept().map_or(0, Lsn::get) + 1));
    let reached = Reached { mark, settled: Lsn::ZERO, behind: false, pressed: false, ending: true };
    sink.reached(*now, reached).unwrap();
    while !matches!(sink.state(), TransactionState::Pausing { .. }) {
        sink.poll(*now, &mut confirmations).unwrap();
    }
    let TransactionState::Pausing { until } = sink.state() else { unreachable!("it pauses") };
    let pause = until - *now;
    *now = until;
    sink.poll(*now, &mut confirmations).unwrap();
    pause
}

#[test]
fn a_transaction_follows_one_of_many_records_at_once() {
    let mut now = Instant::START;
    let limits = BatchLimits::new(Duration::from_millis(10), false);
    let mut sink =
        Transactional::new(Brokers::default(), limits, Duration::ZERO, Mark::default(), now);
    let (quick, put_off) = (Duration::from_millis(1), Duration::from_millis(25));
    assert!(pause_after(&mut sink, &mut now, 1, quick).is_zero());
    let learned = pause_after(&mut sink, &mut now, 1, put_off);
    assert!(!learned.is_zero());
    for _ in 0..5 {
        assert!(pause_after(&mut sink, &mut now, 2_000, put_off).is_zero());
    }
    let after = pause_after(&mut sink, &mut now, 1, quick);
    assert_eq!(after, learned * 2, "in a full queue nothing is learned but by the first");
}

/// Reads with many rows nearly always end within a Postgres transaction.
#[test]
fn what_is_due_within_a_transaction_of_postgres_ends_with_it() {
    let now = Instant::START;
    let age = Duration::from_millis(10);
    let limits = BatchLimits::new(age, false);
    let mut sink =
        Transactional::new(Brokers::default(), limits, Duration::ZERO, Mark::default(), now);
    sink.send(now, &outgoing()).unwrap();
    let mark = Mark::at(Lsn::new(100));
    let part = Some(crate::pipeline::PartialTransaction { commit_lsn: Lsn::new(200), rows: 7 });
    let between =
        Reached { mark, settled: Lsn::ZERO, behind: false, pressed: false, ending: false };
    let within = Reached { mark: Mark { part, ..mark }, ..between };
    sink.reached(now, within).unwrap();
    assert!(!sink.has_enough());
    sink.reached(now + age, within).unwrap();
    assert!(sink.has_enough() && matches!(sink.state(), TransactionState::Open { .. }));
    sink.reached(now, between).unwrap();
    assert!(matches!(sink.state(), TransactionState::Settling { .. }));
}
