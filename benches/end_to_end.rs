//! The hot path whole: bytes as from a walsender, through stream and pipeline, to a sink and back to
//! the position that is acknowledged. Without servers: the bytes come from memory, and the records
//! go to nobody ([`Null`]) or to librdkafka and its embedded broker.

#![expect(clippy::unwrap_used, reason = "a bench that goes wrong should stop")]

use std::io;
use std::time::Duration;

use divan::Bencher;
use divan::counter::ItemsCount;
use postrider::kafka::embedded::Broker;
use postrider::kafka::{KafkaSpec, NullSink, Producer, Sink};
use postrider::ledger::Budget;
use postrider::lsn::Lsn;
use postrider::outbox::{Outbox, OutboxSpec, TableName};
use postrider::pgoutput::encode::{self, Table};
use postrider::pgoutput::{Begin, Column, Commit, PgTime};
use postrider::pipeline::{Handled, Pipeline, Policy, RejectPolicy, UpdatePolicy};
use postrider::route::{RouteSpec, Router};
use postrider::session::{CoalescingProfile, Limits, Next, Owed, Session};
use postrider::time::Now;
use postrider::wal::{FRAME_BYTES_MAX, Stream, Transport};

fn main() {
    divan::main();
}

/// Rows per iteration. The embedded broker keeps 5 MiB per partition and forgets the oldest, which
/// costs it the same throughout.
const ROWS: u64 = 20_000;
/// As in the other benches.
const ROWS_PER_TRANSACTION: u64 = 100;

/// The migration's columns: uuid, three texts and a jsonb.
const COLUMNS: [(&[u8], u32); 5] = [
    (b"id", 2950),
    (b"aggregate_type", 25),
    (b"aggregate_id", 25),
    (b"event_type", 25),
    (b"payload", 3802),
];

/// One item is one row from the wire to its confirmation, with a sink that takes all.
#[divan::bench]
fn rows_to_nobody(bencher: Bencher<'_, '_>) {
    let wire = wire();
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| relay(&wire, &mut NullSink::default()));
}

/// The same through the producer, until the embedded broker has confirmed. One producer for all
/// iterations: to introduce it to its partitions is no part of the steady state.
#[divan::bench(sample_count = 20)]
fn rows_to_the_embedded_broker(bencher: Bencher<'_, '_>) {
    let broker = Broker::start(1, &[("order", 4)]).unwrap();
    let spec = KafkaSpec { brokers: vec![broker.bootstrap()], ..KafkaSpec::default() };
    let mut producer = Producer::open(&spec).unwrap();
    let wire = wire();
    relay(&wire, &mut producer);
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| relay(&wire, &mut producer));
}

/// Drives a session as the relay does. Time stands still, but for what a status update needs.
fn relay<S: Sink>(wire: &[u8], sink: &mut S) -> Lsn
where
    S::Error: std::fmt::Debug,
{
    let mut stream = Stream::over(Tape(wire), FRAME_BYTES_MAX);
    let limits = Limits {
        status_interval: Duration::ZERO,
        heartbeat: Duration::MAX,
        silence: Duration::MAX,
        grace: Duration::MAX,
        until: None,
        acknowledge: true,
    };
    let profile = CoalescingProfile {
        delay: Duration::ZERO,
        batch_max: Duration::ZERO,
        batch_bytes: usize::MAX,
    };
    let mut now = Now::default();
    let mut session = Session::new(pipeline(), limits, profile, Owed::default(), now.at);
    let mut told = Lsn::ZERO;
    loop {
        now.at += Duration::from_secs(1);
        while session.takes_frames(sink) {
            let Some(frame) = stream.peek().unwrap() else { break };
            if session.frame(now.at, frame, sink).unwrap() == Handled::Full {
                break;
            }
            stream.consume();
        }
        session.confirm(now, sink).unwrap();
        session.advance(now, sink).unwrap();
        if let Some(status) = session.status_due(now, sink) {
            told = stream.acknowledge(status.settled, status.ask_reply).unwrap();
        }
        if session.pipeline().counters().confirmed == ROWS {
            assert!(session.pipeline().is_idle());
            return told;
        }
        if let Ok(Next::Read(_)) = session.next(sink, || Ok::<_, ()>(false)) {
            stream.fill(Duration::ZERO).unwrap();
        }
    }
}

fn pipeline() -> Pipeline {
    let mut spec = OutboxSpec::new(vec![TableName::new("public", "outbox")]);
    let route = RouteSpec { topic: "order".to_owned(), ..RouteSpec::default() };
    let router = Router::compile(&route, &mut spec).unwrap();
    let rejected = RejectPolicy::DeadLetter { topic: "dead".to_owned() };
    let policy = Policy { rejected, on_update: UpdatePolicy::Warn };
    Pipeline::new(Outbox::new(spec), router, policy, Budget::default())
}

/// What a walsender sends of [`ROWS`] rows of some 300 bytes, of a thousand keys.
fn wire() -> Vec<u8> {
    let (mut wire, mut message, commit_time) = (Vec::new(), Vec::new(), PgTime(0));
    let table = Table { id: 1, schema: b"public", name: b"outbox", columns: &COLUMNS };
    encode::relation(&mut message, &table);
    frame(&mut wire, &mut message);
    let payload = format!("{{\"lines\": \"{}\"}}", "x".repeat(150));
    for transaction in 1..=ROWS / ROWS_PER_TRANSACTION {
        let (final_lsn, end_lsn) = (Lsn::new(transaction * 2), Lsn::new(transaction * 2 + 1));
        encode::begin(&mut message, &Begin { final_lsn, commit_time, xid: 7 });
        frame(&mut wire, &mut message);
        for row in 0..ROWS_PER_TRANSACTION {
            let id = format!("6f6c7d0e-7c55-4a43-9d0c-{row:012}");
            let key = format!("order-{}", (transaction * ROWS_PER_TRANSACTION + row) % 1_000);
            let columns = [id.as_str(), "order", key.as_str(), "placed", payload.as_str()];
            encode::insert(&mut message, 1, &columns.map(|text| Column::Text(text.as_bytes())));
            frame(&mut wire, &mut message);
        }
        encode::commit(&mut message, &Commit { commit_lsn: final_lsn, end_lsn, commit_time });
        frame(&mut wire, &mut message);
    }
    wire
}

/// Puts a message into CopyData and XLogData, and empties it.
fn frame(wire: &mut Vec<u8>, message: &mut Vec<u8>) {
    wire.push(b'd');
    wire.extend(u32::try_from(4 + 25 + message.len()).unwrap().to_be_bytes());
    wire.push(b'w');
    // As far as the log goes: what is settled may be acknowledged at once.
    wire.extend([u64::MAX, u64::MAX, 0].iter().flat_map(|number| number.to_be_bytes()));
    wire.append(message);
}

/// A server that has said everything already.
struct Tape<'a>(&'a [u8]);

impl Transport for Tape<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (now, later) = self.0.split_at(self.0.len().min(into.len()));
        into.get_mut(..now.len()).unwrap().copy_from_slice(now);
        self.0 = later;
        Ok(now.len())
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn wait(&mut self, _: bool, _: Duration) -> io::Result<()> {
        Ok(())
    }
}
