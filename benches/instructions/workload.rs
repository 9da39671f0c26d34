//! The steps of a row's way through the core, each over a number of rows.
//!
//! Input: a step and a number of rows. Output: nothing but the work, or the allocations that it made in steady state.
//! Invariant: every run does the same; each step of `frame_to_..` includes those before it, `pipeline_..` includes
//! the ledger, and `session_..` the pipeline. Payloads have 312 bytes, as in the load that the relay is measured with.

#![expect(clippy::unwrap_used, reason = "a workload that goes wrong should stop")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::hint::black_box;
use std::time::Duration;

use postrider_core::frame::Frame;
use postrider_core::ledger::{Budget, Ledger, Ticket};
use postrider_core::lsn::Lsn;
use postrider_core::outbox::{Outbox, OutboxSpec, Position, TableName, type_oid};
use postrider_core::pgoutput::encode::{self, Table};
use postrider_core::pgoutput::{Begin, Column, Commit, Message, PgTime, decode};
use postrider_core::pipeline::{
    Confirmation, Handled, Outcome, Outgoing, Pipeline, PipelineError, Policy, RejectPolicy,
    UpdatePolicy,
};
use postrider_core::route::{
    DestinationSpec, FormatSpec, PatternSpec, RouteSpec, Router, RuleAction, RuleSpec, ValueFormat,
};
use postrider_core::session::{CoalescingProfile, Limits, Owed, Session};
use postrider_core::sink::{SendError, Sink};
use postrider_core::time::{Instant, Now};

const TABLE: u32 = 16_394;
const COLUMNS: [(&[u8], u32); 6] = [
    (b"id", type_oid::UUID),
    (b"aggregate_type", type_oid::TEXT),
    (b"aggregate_id", type_oid::TEXT),
    (b"event_type", type_oid::TEXT),
    (b"payload", type_oid::JSONB),
    (b"created_at", type_oid::TIMESTAMPTZ),
];
const KINDS: usize = 50;
const PAYLOAD_BYTES: usize = 312;
/// Rows whose frames are made once and passed again and again.
const FRAMES: usize = 500;
/// Records that are sent before their confirmations are booked.
const BATCH: usize = 500;
/// Records before the count begins: every topic is met, and every buffer has grown.
const WARM_UP: usize = 2_000;

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    FrameToMessage,
    FrameToRow,
    FrameToRecord,
    FrameToRecordByRules,
    FrameToRecordAsJson,
    Ledger,
    Pipeline { per_transaction: usize },
    Session { per_transaction: usize },
}

impl Workload {
    /// In the order in which one includes another.
    pub(crate) const ALL: [Self; 10] = [
        Self::FrameToMessage,
        Self::FrameToRow,
        Self::FrameToRecord,
        Self::FrameToRecordByRules,
        Self::FrameToRecordAsJson,
        Self::Ledger,
        Self::Pipeline { per_transaction: 1 },
        Self::Pipeline { per_transaction: 1_000 },
        Self::Session { per_transaction: 1 },
        Self::Session { per_transaction: 1_000 },
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FrameToMessage => "frame_to_message",
            Self::FrameToRow => "frame_to_row",
            Self::FrameToRecord => "frame_to_record",
            Self::FrameToRecordByRules => "frame_to_record_by_rules",
            Self::FrameToRecordAsJson => "frame_to_record_as_json",
            Self::Ledger => "ledger",
            Self::Pipeline { per_transaction: 1 } => "pipeline_1_row",
            Self::Pipeline { .. } => "pipeline_1000_rows",
            Self::Session { per_transaction: 1 } => "session_1_row",
            Self::Session { .. } => "session_1000_rows",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// Passes so many rows.
    pub(crate) fn run(self, rows: usize) {
        self.step()(rows);
    }

    /// What so many rows allocate in steady state.
    pub(crate) fn allocations(self, rows: usize) -> u64 {
        let mut step = self.step();
        step(WARM_UP);
        allocation_counter::measure(|| step(rows)).count_total
    }

    fn step(self) -> Box<dyn FnMut(usize)> {
        let inserts = inserts();
        match self {
            Self::FrameToMessage => Box::new(move |rows| {
                for insert in inserts.iter().cycle().take(rows) {
                    black_box(decode(black_box(insert)).unwrap());
                }
            }),
            Self::FrameToRow => Box::new(read_rows(inserts)),
            Self::FrameToRecord => Box::new(routed(inserts, &RouteSpec::default())),
            Self::FrameToRecordByRules => {
                let rules = (0..7).map(rule).collect();
                Box::new(routed(inserts, &RouteSpec { rules, ..RouteSpec::default() }))
            }
            Self::FrameToRecordAsJson => {
                let format = FormatSpec { value: ValueFormat::Json, ..FormatSpec::default() };
                Box::new(routed(inserts, &RouteSpec { format, ..RouteSpec::default() }))
            }
            Self::Ledger => Box::new(books()),
            Self::Pipeline { per_transaction } => Box::new(piped(inserts, per_transaction)),
            Self::Session { per_transaction } => Box::new(in_session(inserts, per_transaction)),
        }
    }
}

fn inserts() -> Vec<Vec<u8>> {
    let insert = |number: usize| {
        let text = "x".repeat(PAYLOAD_BYTES - 29);
        let payload = format!("{{\"number\": {number:05}, \"text\": \"{text}\"}}");
        let kind = format!("OrderKind{:02}", number % KINDS);
        let key = format!("order-{number:05}");
        let mut data = Vec::new();
        let row = [
            Column::Text(b"da8d6de6-3b77-45ff-8f44-57db55a7a06c"),
            Column::Text(b"Order"),
            Column::Text(key.as_bytes()),
            Column::Text(kind.as_bytes()),
            Column::Text(payload.as_bytes()),
            Column::Text(b"2026-01-01 00:00:00.123456+00"),
        ];
        encode::insert(&mut data, TABLE, &row);
        data
    };
    (0..FRAMES).map(insert).collect()
}

/// By globs and expressions in turn, over two columns; only the last one matches, some rows.
fn rule(number: usize) -> RuleSpec {
    let (column, pattern) = if number.is_multiple_of(2) {
        ("event_type", PatternSpec::Glob(if number == 6 { "*Kind4*" } else { "No*" }.to_owned()))
    } else {
        ("aggregate_type", PatternSpec::Regex("No(.*)".to_owned()))
    };
    let topic = Some(format!("rule-{number}"));
    let action = RuleAction::Send(DestinationSpec { topic, ..DestinationSpec::default() });
    RuleSpec { column: column.to_owned(), pattern, action }
}

fn relation() -> Vec<u8> {
    let mut data = Vec::new();
    let table = Table { id: TABLE, schema: b"public", name: b"outbox", columns: &COLUMNS };
    encode::relation(&mut data, &table);
    data
}

fn compiled(spec: &RouteSpec) -> (Outbox, Router) {
    let mut outbox = OutboxSpec::new(vec![TableName::new("public", "outbox")]);
    let router = Router::compile(spec, &mut outbox).unwrap();
    (Outbox::new(outbox), router)
}

/// The same, with the table known.
fn with_table(spec: &RouteSpec) -> (Outbox, Router) {
    let (mut outbox, router) = compiled(spec);
    let relation = relation();
    let Ok(Message::Relation(relation)) = decode(&relation) else { unreachable!("a relation") };
    outbox.relation(&relation);
    (outbox, router)
}

const fn position(index: u64) -> Position {
    Position { commit_lsn: Lsn::new(1), index, commit_time: PgTime(0) }
}

fn read_rows(inserts: Vec<Vec<u8>>) -> impl FnMut(usize) {
    let (mut outbox, _) = with_table(&RouteSpec::default());
    move |rows| {
        for (index, insert) in (0..).zip(inserts.iter().cycle().take(rows)) {
            let Message::Insert(insert) = decode(black_box(insert)).unwrap() else { continue };
            black_box(outbox.row(&insert, position(index)).unwrap().unwrap());
        }
    }
}

fn routed(inserts: Vec<Vec<u8>>, spec: &RouteSpec) -> impl FnMut(usize) + use<> {
    let (mut outbox, mut router) = with_table(spec);
    move |rows| {
        for (index, insert) in (0..).zip(inserts.iter().cycle().take(rows)) {
            let Message::Insert(insert) = decode(black_box(insert)).unwrap() else { continue };
            let row = outbox.row(&insert, position(index)).unwrap().unwrap();
            black_box(router.route(&row).unwrap());
        }
    }
}

/// Ten records per transaction, confirmed a batch later.
fn books() -> impl FnMut(usize) {
    let mut ledger = Ledger::new(Budget::default());
    let mut waiting: VecDeque<Ticket> = VecDeque::with_capacity(BATCH + 1);
    let mut end = 0;
    move |rows| {
        for _ in 0..rows / 10 {
            end += 1;
            ledger.begin(Lsn::new(end), 0).unwrap();
            for _ in 0..10 {
                let Ok(ticket) = ledger.send(300, Ok::<_, Infallible>).unwrap();
                waiting.push_back(black_box(ticket));
                if waiting.len() > BATCH {
                    ledger.confirm(waiting.pop_front().unwrap()).unwrap();
                }
            }
            end += 1;
            ledger.commit(Lsn::new(end)).unwrap();
            if waiting.len() == BATCH {
                let _ = ledger.drain_settled_times();
            }
        }
        black_box(ledger.settled());
    }
}

fn pipeline() -> Pipeline {
    let (outbox, router) = compiled(&RouteSpec::default());
    let rejected = RejectPolicy::DeadLetter { topic: "dead".to_owned() };
    let policy = Policy { rejected, on_update: UpdatePolicy::Warn };
    Pipeline::new(outbox, router, policy, Budget::default())
}

fn done(handled: &Handled) {
    assert_eq!(*handled, Handled::Done, "no row is refused");
}

const fn wal(data: &[u8]) -> Frame<'_> {
    Frame::Wal { start: Lsn::ZERO, sent_us: 0, data }
}

/// The frames around rows.
#[derive(Default)]
struct Ends {
    position: u64,
    frame: Vec<u8>,
}

impl Ends {
    fn begin(&mut self) -> Frame<'_> {
        self.position += 2;
        self.frame.clear();
        let final_lsn = Lsn::new(self.position);
        encode::begin(&mut self.frame, &Begin { final_lsn, commit_time: PgTime(0), xid: 7 });
        wal(&self.frame)
    }

    fn commit(&mut self) -> Frame<'_> {
        self.frame.clear();
        let (commit_lsn, end_lsn) = (Lsn::new(self.position), Lsn::new(self.position + 1));
        encode::commit(&mut self.frame, &Commit { commit_lsn, end_lsn, commit_time: PgTime(0) });
        wal(&self.frame)
    }
}

fn piped(inserts: Vec<Vec<u8>>, per_transaction: usize) -> impl FnMut(usize) {
    let mut pipeline = pipeline();
    let no_row = |_: &Outgoing<'_>| -> Result<(), SendError<PipelineError>> { Ok(()) };
    done(&pipeline.frame(wal(&relation()), no_row).unwrap());
    let mut waiting: Vec<Ticket> = Vec::with_capacity(BATCH);
    let mut ends = Ends::default();
    move |rows| {
        let mut frames = inserts.iter().cycle();
        for _ in 0..rows / per_transaction {
            done(&pipeline.frame(ends.begin(), no_row).unwrap());
            for insert in frames.by_ref().take(per_transaction) {
                let send = |outgoing: &Outgoing<'_>| -> Result<(), SendError<PipelineError>> {
                    waiting.push(black_box(outgoing).ticket);
                    Ok(())
                };
                done(&pipeline.frame(wal(insert), send).unwrap());
                if waiting.len() == BATCH {
                    for ticket in waiting.drain(..) {
                        let outcome = Outcome::Stored;
                        pipeline.confirm(Confirmation { ticket, outcome }).unwrap();
                    }
                    let _ = pipeline.drain_settled_times_us();
                }
            }
            done(&pipeline.frame(ends.commit(), no_row).unwrap());
        }
        black_box(pipeline.settled());
    }
}

/// Takes every record, and confirms those that it has when it is asked.
#[derive(Default)]
struct Confirming(Vec<Ticket>);

impl Sink for Confirming {
    type Error = Infallible;

    fn send(&mut self, _: Instant, outgoing: &Outgoing<'_>) -> Result<(), SendError<Infallible>> {
        self.0.push(black_box(outgoing).ticket);
        Ok(())
    }

    fn poll(
        &mut self,
        _: Instant,
        confirmations: &mut Vec<Confirmation>,
    ) -> Result<(), Infallible> {
        let stored = |ticket| Confirmation { ticket, outcome: Outcome::Stored };
        confirmations.extend(self.0.drain(..).map(stored));
        Ok(())
    }
}

fn session() -> Session {
    let seconds = Duration::from_secs;
    let limits = Limits {
        status_interval: seconds(1),
        heartbeat: seconds(10),
        silence: seconds(30),
        grace: seconds(25),
        until: None,
        acknowledge: true,
    };
    let profile = CoalescingProfile {
        delay: Duration::from_micros(100),
        batch_max: Duration::from_millis(2),
        batch_bytes: 1 << 20,
    };
    Session::new(pipeline(), limits, profile, Owed::default(), Instant::START)
}

/// A turn of the relay's loop after each batch, of a millisecond.
fn in_session(inserts: Vec<Vec<u8>>, per_transaction: usize) -> impl FnMut(usize) {
    let (mut session, mut sink, mut ends) = (session(), Confirming::default(), Ends::default());
    let mut now = Now { at: Instant::START, unix_us: 0 };
    done(&session.frame(now.at, wal(&relation()), &mut sink).unwrap());
    move |rows| {
        let mut frames = inserts.iter().cycle();
        for _ in 0..rows / per_transaction {
            take(&mut session, now, ends.begin(), &mut sink);
            for insert in frames.by_ref().take(per_transaction) {
                take(&mut session, now, wal(insert), &mut sink);
                if sink.0.len() == BATCH {
                    now.at += Duration::from_millis(1);
                    turn(&mut session, now, &mut sink);
                }
            }
            take(&mut session, now, ends.commit(), &mut sink);
        }
        black_box(session.settled(&sink));
    }
}

fn take(session: &mut Session, now: Now, frame: Frame<'_>, sink: &mut Confirming) {
    assert!(session.takes_frames(sink), "there is room");
    done(&session.frame(now.at, frame, sink).unwrap());
}

fn turn(session: &mut Session, now: Now, sink: &mut Confirming) {
    session.confirm(now, sink).unwrap();
    session.advance(now, sink).unwrap();
    black_box(session.status_due(now, sink));
    let _ = session.pipeline_mut().drain_settled_times_us();
    assert!(session.ended(now, sink).unwrap().is_none(), "nothing ends it");
    black_box(session.next(sink, || Ok::<_, Infallible>(true)).unwrap());
    black_box(session.has_read::<Infallible>(now, 1 << 18, 1 << 18).unwrap());
}
