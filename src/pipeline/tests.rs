//! What scripts and simulation cannot say: hostile frames, and whom an error concerns.
//! fixtures/scenarios and tests/sim hold the rest of the contract.

use super::*;
use crate::lsn::Lsn;
use crate::outbox::{OutboxSpec, TableName};
use crate::pgoutput::encode::{self, Table};
use crate::pgoutput::{Begin, Column, Commit, PgTime};
use crate::route::{EpochUnit, RejectionCode, RouteSpec, TIMESTAMP_HEADER, TimestampSource};
use proptest::prelude::*;

const COLUMNS: [(&[u8], u32); 5] = [
    (b"id", 25),
    (b"aggregate_type", 25),
    (b"aggregate_id", 25),
    (b"event_type", 25),
    (b"payload", 25),
];

fn pipeline(rejected: RejectPolicy) -> Pipeline {
    routed(&RouteSpec::default(), rejected)
}

fn routed(route: &RouteSpec, rejected: RejectPolicy) -> Pipeline {
    let mut spec = OutboxSpec::new(vec![TableName::new("public", "outbox")]);
    let router = Router::compile(route, &mut spec).unwrap();
    let policy = Policy { rejected, on_update: UpdatePolicy::default() };
    Pipeline::new(Outbox::new(spec), router, policy, Budget::default())
}

fn dead_letters() -> RejectPolicy {
    RejectPolicy::DeadLetter { topic: "dead".to_owned() }
}

/// A whole transaction of one row, frame by frame.
fn transaction(payload: &[u8]) -> Vec<Vec<u8>> {
    let (final_lsn, commit_time) = (Lsn::new(0x100), PgTime(0));
    let commit = Commit { commit_lsn: final_lsn, end_lsn: Lsn::new(0x130), commit_time };
    let table = Table { id: 1, schema: b"public", name: b"outbox", columns: &COLUMNS };
    let row = [b"a".as_slice(), b"order", b"1", b"placed", payload].map(Column::Text);
    let mut frames = vec![Vec::new(); 4];
    encode::begin(&mut frames[0], &Begin { final_lsn, commit_time, xid: 7 });
    encode::relation(&mut frames[1], &table);
    encode::insert(&mut frames[2], 1, &row);
    encode::commit(&mut frames[3], &commit);
    frames
}

fn wal(data: &[u8]) -> Frame<'_> {
    Frame::Wal { start: Lsn::ZERO, sent_us: 0, data }
}

/// Offers a frame and takes what it asks to send.
fn pass(pipeline: &mut Pipeline, data: &[u8]) -> Result<Option<Ticket>, PipelineError> {
    let ticket = match pipeline.frame(wal(data))? {
        Step::Send(outgoing) => outgoing.ticket,
        Step::Nothing | Step::Skipped(_) => return Ok(None),
    };
    pipeline.sent()?;
    Ok(Some(ticket))
}

#[test]
fn the_value_is_a_slice_of_the_frame() {
    let mut pipeline = pipeline(dead_letters());
    let frames = transaction(b"payload");
    pass(&mut pipeline, &frames[0]).unwrap();
    pass(&mut pipeline, &frames[1]).unwrap();
    let Ok(Step::Send(outgoing)) = pipeline.frame(wal(&frames[2])) else { panic!("a record") };
    let value = outgoing.record.value.unwrap();
    assert_eq!(value, b"payload");
    assert!(frames[2].as_ptr_range().contains(&value.as_ptr()), "copied");
}

#[test]
fn g4_a_row_that_was_not_sent_is_not_forgotten() {
    let mut pipeline = pipeline(dead_letters());
    let frames = transaction(b"payload");
    pass(&mut pipeline, &frames[0]).unwrap();
    pass(&mut pipeline, &frames[1]).unwrap();
    assert!(matches!(pipeline.frame(wal(&frames[2])), Ok(Step::Send(_))));
    let keepalive = Frame::Keepalive { end: Lsn::new(0x500), reply_now: false };
    assert_eq!(pipeline.frame(keepalive).unwrap_err(), PipelineError::NotSent);
    assert_eq!(pipeline.frame(wal(&frames[3])).unwrap_err(), PipelineError::NotSent);
    assert_eq!(pipeline.settled(), Lsn::ZERO);
}

/// The payload's column plays the time's part.
#[test]
fn g4_a_dead_letter_is_of_the_commits_time_and_tells_its_own() {
    let timestamp =
        TimestampSource::Column { name: "payload".to_owned(), unit: EpochUnit::Milliseconds };
    // A time is no topic's name.
    let route = RouteSpec { by: "payload".to_owned(), timestamp, ..RouteSpec::default() };
    for (time, own) in [("9999-12-31 00:00:00", "253402214400000"), ("1970-01-01 00:00:01", "1000")]
    {
        let mut pipeline = routed(&route, dead_letters());
        let frames = transaction(time.as_bytes());
        pass(&mut pipeline, &frames[0]).unwrap();
        pass(&mut pipeline, &frames[1]).unwrap();
        let Ok(Step::Send(outgoing)) = pipeline.frame(wal(&frames[2])) else { panic!("a record") };
        assert_eq!(outgoing.rejection, Some(RejectionCode::InvalidTopic));
        assert_eq!(outgoing.record.timestamp_ms, PgTime(0).unix_ms(), "{time}");
        assert!(outgoing.record.headers.contains(&(TIMESTAMP_HEADER, Some(own.as_bytes()))));
    }
}

#[test]
fn errors_say_whom_they_concern_and_what_to_do() {
    let rejection = Rejection { code: RejectionCode::TooLarge, reason: "too large".to_owned() };
    let row = "row 0/1.0 of public.outbox".to_owned();
    let definite = [
        PipelineError::Rejected { row, rejection: rejection.clone() },
        PipelineError::DeadLetterRefused { topic: "dead".to_owned(), rejection },
        PipelineError::Updated { table: TableName::new("public", "outbox") },
    ];
    for error in definite {
        assert!(error.is_definite() && error.hint().is_some(), "{error}");
    }
    for error in [PipelineError::NotSent, LedgerError::NotOpen.into()] {
        assert!(!error.is_definite(), "{error}");
    }
}

proptest! {
    /// G7 through the whole core: a damaged frame is an error or some other row, never a panic,
    /// and never settles what was not stored.
    #[test]
    fn g7_damaged_frames_are_errors_and_settle_nothing(
        damage in prop::collection::vec((0_usize..4, any::<prop::sample::Index>(), any::<u8>()), 1..4),
        policy in 0_usize..3,
    ) {
        let rejected = [dead_letters(), RejectPolicy::Stop, RejectPolicy::Skip][policy].clone();
        let mut pipeline = pipeline(rejected);
        let mut frames = transaction(b"payload");
        for (frame, place, byte) in damage {
            let place = place.index(frames[frame].len());
            frames[frame][place] = byte;
        }
        let tickets: Result<Vec<_>, _> =
            frames.iter().map(|data| pass(&mut pipeline, data)).collect();
        let is_waiting = tickets.is_ok_and(|tickets| tickets.iter().any(Option::is_some));
        prop_assert!(!is_waiting || pipeline.settled() == Lsn::ZERO);
    }

    #[test]
    fn g7_any_bytes_are_a_message_or_an_error(frames: Vec<Vec<u8>>) {
        let mut pipeline = pipeline(dead_letters());
        for frame in frames {
            let _ = pass(&mut pipeline, &frame);
        }
    }
}
