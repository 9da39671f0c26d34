//! The cost of the core: from a frame to a record, and from its confirmation to the watermark.

#![expect(clippy::unwrap_used, reason = "a bench that goes wrong should stop")]

use divan::Bencher;
use divan::counter::ItemsCount;
use postrider::ledger::{Budget, Ticket};
use postrider::lsn::Lsn;
use postrider::outbox::{Outbox, OutboxSpec, TableName};
use postrider::pgoutput::encode::{self, Table};
use postrider::pgoutput::{Begin, Column, Commit, PgTime};
use postrider::pipeline::{
    Confirmation, Handled, Outcome, Pipeline, PipelineError, Policy, RejectPolicy, UpdatePolicy,
};
use postrider::route::{RouteSpec, Router};
use postrider::wal::Frame;

/// Shows what a row allocates: nothing, in steady state.
#[global_allocator]
static ALLOCATIONS: divan::AllocProfiler = divan::AllocProfiler::system();

fn main() {
    divan::main();
}

/// Rows per iteration: enough transactions that beginnings and ends weigh what they do in life.
const ROWS: usize = 10_000;

/// Records sent before their confirmations are booked, as one poll of the sink brings them.
const BATCH: usize = 500;

/// The migration's columns: uuid, three texts and a jsonb.
const COLUMNS: [(&[u8], u32); 5] = [
    (b"id", 2950),
    (b"aggregate_type", 25),
    (b"aggregate_id", 25),
    (b"event_type", 25),
    (b"payload", 3802),
];

fn pipeline() -> Pipeline {
    let mut spec = OutboxSpec::new(vec![TableName::new("public", "outbox")]);
    let router = Router::compile(&RouteSpec::default(), &mut spec).unwrap();
    let rejected = RejectPolicy::DeadLetter { topic: "dead".to_owned() };
    let policy = Policy { rejected, on_update: UpdatePolicy::Warn };
    let mut pipeline = Pipeline::new(Outbox::new(spec), router, policy, Budget::default());
    let mut relation = Vec::new();
    let table = Table { id: 1, schema: b"public", name: b"outbox", columns: &COLUMNS };
    encode::relation(&mut relation, &table);
    pass(&mut pipeline, &relation);
    pipeline
}

/// Hands in a frame that is no row.
fn pass(pipeline: &mut Pipeline, data: &[u8]) {
    let handled = pipeline.frame::<PipelineError>(wal(data), |_| unreachable!("no row"));
    assert_eq!(handled, Ok(Handled::Done));
}

fn wal(data: &[u8]) -> Frame<'_> {
    Frame::Wal { start: Lsn::ZERO, sent_us: 0, data }
}

/// One insert per topic, of some 300 bytes.
fn inserts(topics: usize) -> Vec<Vec<u8>> {
    let payload = format!("{{\"lines\": \"{}\"}}", "x".repeat(150));
    let insert = |topic: usize| {
        let event_type = format!("order-{topic}");
        let row = [
            "6f6c7d0e-7c55-4a43-9d0c-5d0a3ba7a001",
            "order",
            "order-4711",
            event_type.as_str(),
            payload.as_str(),
        ];
        let mut data = Vec::new();
        encode::insert(&mut data, 1, &row.map(|text| Column::Text(text.as_bytes())));
        data
    };
    (0..topics).map(insert).collect()
}

fn begin(out: &mut Vec<u8>, position: u64) {
    out.clear();
    let (final_lsn, commit_time) = (Lsn::new(position), PgTime(0));
    encode::begin(out, &Begin { final_lsn, commit_time, xid: 7 });
}

fn commit(out: &mut Vec<u8>, position: u64) {
    out.clear();
    let (commit_lsn, end_lsn) = (Lsn::new(position), Lsn::new(position + 1));
    encode::commit(out, &Commit { commit_lsn, end_lsn, commit_time: PgTime(0) });
}

fn confirm(pipeline: &mut Pipeline, waiting: &mut Vec<Ticket>) {
    for ticket in waiting.drain(..) {
        pipeline.confirm(Confirmation { ticket, outcome: Outcome::Stored }).unwrap();
    }
}

/// One item is one row on its whole way through the core.
#[divan::bench(args = [(1, 5), (1, 50), (100, 5), (100, 50), (1_000, 5)])]
fn rows_per_transaction_and_topics(bencher: Bencher<'_, '_>, case: (usize, usize)) {
    let (rows_per_transaction, topics) = case;
    let inserts = inserts(topics);
    let mut pipeline = pipeline();
    let mut waiting = Vec::with_capacity(BATCH);
    let mut frame = Vec::new();
    let mut position = 0;
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| {
        let mut rows = inserts.iter().cycle();
        for _ in 0..ROWS / rows_per_transaction {
            position += 2;
            begin(&mut frame, position);
            pass(&mut pipeline, &frame);
            for insert in rows.by_ref().take(rows_per_transaction) {
                let handled = pipeline.frame::<PipelineError>(wal(insert), |outgoing| {
                    waiting.push(divan::black_box(outgoing).ticket);
                    Ok(())
                });
                assert_eq!(handled, Ok(Handled::Done));
                if waiting.len() == BATCH {
                    confirm(&mut pipeline, &mut waiting);
                }
            }
            commit(&mut frame, position);
            pass(&mut pipeline, &frame);
        }
        confirm(&mut pipeline, &mut waiting);
        let _ = pipeline.drain_settled_times_us();
        pipeline.settled()
    });
}
