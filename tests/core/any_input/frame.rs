//! Any sequence of frames is relayed or refused (G7), and nothing is settled that was not received
//! or is not confirmed (G1).
//!
//! The input is cut into frames by a kind and a length; some of the kinds are filled out to a
//! message that makes sense, so that the deeper states are reached.

use std::sync::OnceLock;

use postrider::ledger::Budget;
use postrider::lsn::Lsn;
use postrider::outbox::{Outbox, OutboxSpec, TableName, type_oid};
use postrider::pgoutput::encode::{self, Table};
use postrider::pgoutput::{Begin, Column, Commit, Message, PgTime, decode};
use postrider::pipeline::{
    Confirmation, Outcome, Pipeline, PipelineError, Policy, RejectPolicy, UpdatePolicy,
};
use postrider::route::{RouteSpec, Router};
use postrider::wal::Frame;

const COLUMNS: [(&[u8], u32); 5] = [
    (b"id", type_oid::TEXT),
    (b"aggregate_type", type_oid::TEXT),
    (b"aggregate_id", type_oid::TEXT),
    (b"event_type", type_oid::TEXT),
    (b"payload", type_oid::JSONB),
];

/// Tries one input.
pub(crate) fn run(data: &[u8]) {
    let (spec, router) = routing();
    let rejected = RejectPolicy::DeadLetter { topic: "dead".to_owned() };
    let policy = Policy { rejected, on_update: UpdatePolicy::Warn };
    let budget = Budget { records: 4, bytes: 2_000, transactions: 4 };
    let mut pipeline = Pipeline::new(Outbox::new(spec), router, policy, budget);

    let (mut rest, mut received) = (data, Lsn::ZERO);
    let mut outstanding = Vec::new();
    let mut message = Vec::new();
    while let [kind, length, after @ ..] = rest {
        let (body, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        if kind % 8 == 7 || !pipeline.has_room() {
            let Some(ticket) = outstanding.pop() else { return };
            let confirmation = Confirmation { ticket, outcome: Outcome::Stored };
            pipeline.confirm(confirmation).expect("an outstanding ticket");
            continue;
        }
        let frame = fill_out(*kind, body, &mut received, &mut message);
        let settled = pipeline.settled();
        let before = outstanding.len();
        let handled = pipeline.frame::<PipelineError>(frame, |outgoing| {
            outstanding.push(outgoing.ticket);
            Ok(())
        });
        if handled.is_err() {
            return;
        }
        if outstanding.len() > before {
            // One that is a transaction of its own settles nothing either: it waits for its confirmation.
            assert_eq!(pipeline.settled(), settled, "sending settles nothing");
        }
        assert!(pipeline.settled() >= settled);
        assert!(pipeline.settled() <= received);
        assert_eq!(pipeline.in_flight().records, outstanding.len() as u64);
    }
}

/// Compiled once: that takes longer than most inputs.
fn routing() -> (OutboxSpec, Router) {
    static COMPILED: OnceLock<(OutboxSpec, Router)> = OnceLock::new();
    let compiled = COMPILED.get_or_init(|| {
        let mut spec = OutboxSpec::new(vec![TableName::new("public", "outbox")]);
        let router = Router::compile(&RouteSpec::default(), &mut spec).expect("compiles");
        (spec, router)
    });
    compiled.clone()
}

/// Makes the frame of a kind, and notes the position it ends at.
fn fill_out<'a>(
    kind: u8,
    body: &'a [u8],
    received: &mut Lsn,
    message: &'a mut Vec<u8>,
) -> Frame<'a> {
    message.clear();
    let step = body.first().map_or(1, |byte| u64::from(*byte));
    let end = Lsn::new(received.get().saturating_add(step));
    let moment = PgTime(0);
    match kind % 8 {
        0 => {
            *received = end;
            return Frame::Keepalive { end, reply_now: false };
        }
        1 => encode::begin(message, &Begin { final_lsn: end, commit_time: moment, xid: 1 }),
        2 => {
            *received = end;
            let commit = Commit { commit_lsn: *received, end_lsn: end, commit_time: moment };
            encode::commit(message, &commit);
        }
        3 => {
            let table = Table { id: 1, schema: b"public", name: b"outbox", columns: &COLUMNS };
            encode::relation(message, &table);
        }
        4 | 5 => {
            let column = |index: usize| match body.get(index * 4..index * 4 + 4) {
                Some([0, ..]) => Column::Null,
                Some(bytes) => Column::Text(bytes),
                None => Column::Text(b"x"),
            };
            let row: Vec<_> = (0..COLUMNS.len()).map(column).collect();
            encode::insert(message, 1, &row);
        }
        _ => {
            if let Ok(Message::Commit(commit)) = decode(body) {
                *received = commit.end_lsn.max(*received);
            }
            return Frame::Wal { start: Lsn::ZERO, sent_us: 0, data: body };
        }
    }
    Frame::Wal { start: Lsn::ZERO, sent_us: 0, data: message }
}
