//! Tests of the pipeline with malformed frames. fixtures/scenarios and tests/core/session test the
//! rest.

use super::*;
use crate::ledger::LedgerError;
use crate::lsn::Lsn;
use crate::outbox::{OutboxSpec, TableName};
use crate::pgoutput::encode::{self, Old, Table};
use crate::pgoutput::{Begin, Column, Commit, Excerpt, LogicalMessage, Message, PgTime, decode};
use crate::route::{
    EpochUnit, OwnedRecord, Rejection, RejectionCode, RouteSpec, TIMESTAMP_HEADER, TimestampSource,
    content_of,
};
use proptest::prelude::*;

const COLUMNS: [(&[u8], u32); 5] = [
    (b"id", 25),
    (b"aggregate_type", 25),
    (b"aggregate_id", 25),
    (b"event_type", 25),
    (b"payload", 25),
];

pub(crate) fn pipeline(rejected: RejectPolicy) -> Pipeline {
    routed(&RouteSpec::default(), rejected)
}

fn routed(route: &RouteSpec, rejected: RejectPolicy) -> Pipeline {
    let mut spec = OutboxSpec::new(vec![TableName::new("public", "outbox")]);
    let router = Router::compile(route, &mut spec).unwrap();
    let policy = Policy { rejected, on_update: UpdatePolicy::Warn };
    Pipeline::new(Outbox::new(spec), router, policy, Budget::default())
}

pub(crate) fn dead_letters() -> RejectPolicy {
    RejectPolicy::DeadLetter { topic: "dead".to_owned() }
}

pub(crate) fn transaction(payload: &[u8]) -> Vec<Vec<u8>> {
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

pub(crate) fn wal(data: &[u8]) -> Frame<'_> {
    Frame::Wal { start: Lsn::ZERO, sent_us: 0, data }
}

pub(super) type Sent = (Ticket, Option<RejectionCode>, OwnedRecord);

pub(super) fn hand_in(
    pipeline: &mut Pipeline,
    frame: Frame<'_>,
    has_room: bool,
) -> Result<(Handled, Option<Sent>), PipelineError> {
    let mut sent = None;
    let handled = pipeline.frame::<PipelineError>(frame, |outgoing| {
        sent = Some((outgoing.ticket, outgoing.rejection, outgoing.record.to_owned()));
        if has_room { Ok(()) } else { Err(SendError::Full) }
    })?;
    Ok((handled, sent))
}

pub(super) fn pass(pipeline: &mut Pipeline, data: &[u8]) -> Result<Option<Ticket>, PipelineError> {
    let (_, sent) = hand_in(pipeline, wal(data), true)?;
    Ok(sent.map(|(ticket, ..)| ticket))
}

#[test]
fn the_value_is_a_slice_of_the_frame() {
    let mut pipeline = pipeline(dead_letters());
    let frames = transaction(b"payload");
    pass(&mut pipeline, &frames[0]).unwrap();
    pass(&mut pipeline, &frames[1]).unwrap();
    let mut records = 0;
    let send = |outgoing: &Outgoing<'_>| {
        let value = outgoing.record.value.unwrap();
        assert_eq!(value, b"payload");
        assert!(frames[2].as_ptr_range().contains(&value.as_ptr()), "copied");
        records += 1;
        Ok(())
    };
    assert_eq!(pipeline.frame::<PipelineError>(wal(&frames[2]), send), Ok(Handled::Done));
    assert_eq!(records, 1);
}

#[test]
fn g4_a_row_that_was_not_sent_is_not_forgotten() {
    let mut pipeline = pipeline(dead_letters());
    let frames = transaction(b"payload");
    pass(&mut pipeline, &frames[0]).unwrap();
    pass(&mut pipeline, &frames[1]).unwrap();
    let (handled, sent) = hand_in(&mut pipeline, wal(&frames[2]), false).unwrap();
    assert_eq!(handled, Handled::Full);
    let keepalive = Frame::Keepalive { end: Lsn::new(0x500), reply_now: false };
    assert_eq!(hand_in(&mut pipeline, keepalive, true), Err(PipelineError::NotSent));
    assert_eq!(pass(&mut pipeline, &frames[3]), Err(PipelineError::NotSent));
    assert_eq!(pipeline.settled(), Lsn::ZERO);
    assert_eq!(hand_in(&mut pipeline, wal(&frames[2]), true), Ok((Handled::Done, sent)));
    assert_eq!(pass(&mut pipeline, &frames[3]), Ok(None));
}

#[test]
fn g3_a_topic_that_refuses_is_not_counted() {
    let mut pipeline = pipeline(dead_letters());
    let frames = transaction(b"payload");
    pass(&mut pipeline, &frames[0]).unwrap();
    pass(&mut pipeline, &frames[1]).unwrap();
    let send = |outgoing: &Outgoing<'_>| match outgoing.rejection {
        Some(_) => Ok(()),
        None => Err(SendError::Refused(Rejection {
            code: RejectionCode::MissingTopic,
            reason: "is not there".to_owned(),
        })),
    };
    let handled = pipeline.frame::<PipelineError>(wal(&frames[2]), send);
    assert!(matches!(handled, Ok(Handled::DeadLetter(_))), "{handled:?}");
    let topics: Vec<_> = pipeline.counters().topics().iter().map(|one| &*one.topic).collect();
    assert_eq!(topics, ["dead"]);
}

/// The payload column serves as the timestamp.
#[test]
fn g4_a_dead_letter_is_of_the_commits_time_and_tells_its_own() {
    let timestamp =
        TimestampSource::Column { name: "payload".to_owned(), unit: EpochUnit::Milliseconds };
    let route = RouteSpec { by: "payload".to_owned(), timestamp, ..RouteSpec::default() };
    for (time, own) in [("9999-12-31 00:00:00", "253402214400000"), ("1970-01-01 00:00:01", "1000")]
    {
        let mut pipeline = routed(&route, dead_letters());
        let frames = transaction(time.as_bytes());
        pass(&mut pipeline, &frames[0]).unwrap();
        pass(&mut pipeline, &frames[1]).unwrap();
        let (_, sent) = hand_in(&mut pipeline, wal(&frames[2]), true).unwrap();
        let (_, code, record) = sent.unwrap();
        assert_eq!(code, Some(RejectionCode::InvalidTopic));
        assert_eq!(record.timestamp_ms, PgTime(0).unix_ms(), "{time}");
        let header = (TIMESTAMP_HEADER.to_owned(), Some(own.as_bytes().to_vec()));
        assert!(record.headers.contains(&header));
    }
}

/// Returns the row's dead letter, and the findings if the topic refuses it with others.
fn refused_letter(
    suspects: Suspects,
    cause: RefusalCause,
) -> Result<(OwnedRecord, Result<RefusalAnalysis, PipelineError>), PipelineError> {
    let route = RouteSpec { by: "payload".to_owned(), ..RouteSpec::default() };
    let mut pipeline = routed(&route, dead_letters());
    pipeline.set_suspects(suspects);
    let frames = transaction(b"not a topic");
    pass(&mut pipeline, &frames[0])?;
    pass(&mut pipeline, &frames[1])?;
    let (_, sent) = hand_in(&mut pipeline, wal(&frames[2]), true)?;
    let (ticket, code, letter) = sent.unwrap();
    assert_eq!((code, letter.topic.as_str()), (Some(RejectionCode::InvalidTopic), "dead"));
    let content = content_of(&letter.topic, letter.key.as_deref(), letter.value.as_deref());
    let rejection = Rejection { code: RejectionCode::Refused, reason: "why".to_owned() };
    let (topic, reason) = (letter.topic.clone(), rejection.reason.clone());
    let (alone, at_ms, rejection) = (false, 0, Some(rejection));
    let blame = Blame { ticket, topic, content, alone, cause, at_ms, reason, rejection };
    Ok((letter, pipeline.analyse_refusals(&[blame], None)))
}

/// If a batch has several faults, the library does not name the cause.
#[test]
fn g1_g4_a_letter_refused_with_others_goes_without_its_time_before_it_stops_the_relay() {
    let is_stop = |error: &PipelineError| matches!(error, PipelineError::DeadLetterRefused { .. });
    let several = RefusalCause::OfSeveral;
    for second in [several, RefusalCause::Time, RefusalCause::Unknown, RefusalCause::Key] {
        let (timed, analysis) = refused_letter(Suspects::default(), several).unwrap();
        let analysis = analysis.unwrap();
        assert_eq!(timed.timestamp_ms, PgTime(0).unix_ms());
        assert!(analysis.is_news && analysis.refused == 1);

        let (letter, analysis) = refused_letter(analysis.suspects, second).unwrap();
        assert_eq!(letter.timestamp_ms, NO_TIMESTAMP);
        assert_eq!((&letter.key, &letter.value), (&timed.key, &timed.value));
        let end = match analysis {
            Ok(analysis) => refused_letter(analysis.suspects, second).map(|_| ()),
            Err(error) => Err(error),
        };
        assert!(end.as_ref().is_err_and(is_stop), "{second:?}: {end:?}");
    }
}

#[test]
fn g1_g4_a_letter_refused_for_what_no_other_form_changes_stops_the_relay_at_once() {
    for cause in [RefusalCause::Unknown, RefusalCause::Key] {
        let (_, analysis) = refused_letter(Suspects::default(), cause).unwrap();
        let error = analysis.unwrap_err();
        assert!(
            matches!(&error, PipelineError::DeadLetterRefused { topic, .. } if topic == "dead")
        );
    }
}

fn excerpt(data: &[u8]) -> Excerpt {
    let mut excerpt = Excerpt::begin(data.len());
    excerpt.take(data).unwrap();
    excerpt
}

const fn kept(excerpt: &Excerpt) -> Frame<'_> {
    Frame::Excerpt { start: Lsn::ZERO, sent_us: 0, excerpt }
}

#[test]
fn g1_g4_a_row_too_large_to_be_held_settles_with_its_dead_letter() {
    let mut pipeline = pipeline(dead_letters());
    let frames = transaction(&[b'x'; 5_000]);
    pass(&mut pipeline, &frames[0]).unwrap();
    pass(&mut pipeline, &frames[1]).unwrap();
    let row = excerpt(&frames[2]);
    let (_, first) = hand_in(&mut pipeline, kept(&row), false).unwrap();
    let (_, again) = hand_in(&mut pipeline, kept(&row), true).unwrap();
    assert_eq!(again, first, "the same as long as it is not taken");
    let (ticket, code, record) = first.unwrap();
    assert_eq!((code, record.topic.as_str()), (Some(RejectionCode::TooLarge), "dead"));
    pass(&mut pipeline, &frames[3]).unwrap();
    assert_eq!(pipeline.settled(), Lsn::ZERO);
    pipeline.confirm(Confirmation { ticket, outcome: Outcome::Stored }).unwrap();
    assert_eq!(pipeline.settled(), Lsn::new(0x130));
}

#[test]
fn g4_a_row_too_large_to_be_held_is_left_out_or_stops_the_relay_where_the_policy_says_so() {
    let frames = transaction(b"payload");
    let row = excerpt(&frames[2]);
    let mut stopping = pipeline(RejectPolicy::Stop);
    let mut skipping = pipeline(RejectPolicy::Skip);
    for pipeline in [&mut stopping, &mut skipping] {
        pass(pipeline, &frames[0]).unwrap();
        pass(pipeline, &frames[1]).unwrap();
    }
    let error = hand_in(&mut stopping, kept(&row), true).unwrap_err();
    assert!(matches!(&error, PipelineError::Rejected { .. }) && error.is_definite(), "{error:?}");
    let handled = hand_in(&mut skipping, kept(&row), true);
    let Ok((Handled::Skipped(skipped), None)) = handled else { panic!("skipped") };
    assert_eq!(skipped.rejection.code, RejectionCode::TooLarge);
    pass(&mut skipping, &frames[3]).unwrap();
    assert_eq!(skipping.settled(), Lsn::new(0x130));
}

#[test]
fn g6_a_row_too_large_to_be_held_is_sent_once() {
    let frames = transaction(b"payload");
    let mut pipeline = pipeline(dead_letters());
    let part = Some(PartialTransaction { commit_lsn: Lsn::new(0x100), rows: 1 });
    pipeline.resume_at(Mark { part, ..Mark::at(Lsn::ZERO) }, None);
    pass(&mut pipeline, &frames[0]).unwrap();
    pass(&mut pipeline, &frames[1]).unwrap();
    let row = excerpt(&frames[2]);
    assert_eq!(hand_in(&mut pipeline, kept(&row), true), Ok((Handled::Done, None)));
    assert_eq!(pipeline.counters().repeats, 1);
}

#[test]
fn what_is_no_row_is_counted_like_its_small_sibling() {
    let mut pipeline = pipeline(dead_letters());
    let frames = transaction(b"payload");
    pass(&mut pipeline, &frames[0]).unwrap();
    pass(&mut pipeline, &frames[1]).unwrap();
    let (row, foreign) = ([Column::Text(&[b'x'; 5_000]); 5], [Column::Null; 2]);
    let mut messages = vec![Vec::new(); 4];
    encode::update(&mut messages[0], 1, Some(Old::Whole(&row)), &row);
    encode::delete(&mut messages[1], 1, Old::Whole(&row));
    let content = vec![b'x'; 100_000];
    let (lsn, prefix) = (Lsn::new(9), &b"p"[..]);
    let logical = LogicalMessage { transactional: true, lsn, prefix, content: &content };
    encode::logical(&mut messages[2], &logical);
    encode::relation(&mut messages[3], &Table { id: 2, schema: b"s", name: b"t", columns: &[] });
    let mut insert = Vec::new();
    encode::insert(&mut insert, 2, &foreign);
    messages.push(insert);
    for message in &messages {
        let message = excerpt(message);
        assert_eq!(hand_in(&mut pipeline, kept(&message), true), Ok((Handled::Done, None)));
    }
    let counted = pipeline.counters();
    assert_eq!((counted.updates, counted.deletes, counted.logical_messages), (1, 1, 1));
    assert_eq!((counted.relations, counted.foreign_rows, counted.rows), (2, 1, 0));
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

fn history(sizes: &[usize]) -> Vec<Vec<u8>> {
    let table = Table { id: 1, schema: b"public", name: b"outbox", columns: &COLUMNS };
    let (mut frames, mut row, mut lsn) = (vec![Vec::new()], 0, 0x100);
    encode::relation(&mut frames[0], &table);
    for &size in sizes {
        let (final_lsn, end_lsn) = (Lsn::new(lsn), Lsn::new(lsn + 0x30));
        let commit_time = PgTime(0);
        let mut transaction = vec![Vec::new(); size + 2];
        encode::begin(&mut transaction[0], &Begin { final_lsn, commit_time, xid: 7 });
        for frame in &mut transaction[1..=size] {
            let id = row.to_string();
            let columns = [id.as_bytes(), b"order", b"1", b"placed", b"{}"].map(Column::Text);
            encode::insert(frame, 1, &columns);
            row += 1;
        }
        let commit = Commit { commit_lsn: final_lsn, end_lsn, commit_time };
        encode::commit(&mut transaction[size + 1], &commit);
        frames.append(&mut transaction);
        lsn = end_lsn.get() + (size as u64 % 2) * 0x40;
    }
    frames
}

/// Starts of transactions, up to the first that is not completely before the mark.
fn begins_before(frames: &[Vec<u8>], mark: Mark) -> Vec<usize> {
    let begin = |frame: &[u8]| match decode(frame) {
        Ok(Message::Begin(begin)) => Some(begin.final_lsn),
        _ => None,
    };
    let all: Vec<_> = (0..frames.len()).filter_map(|at| Some((at, begin(&frames[at])?))).collect();
    let done = all.iter().take_while(|(_, commit_lsn)| *commit_lsn < mark.end).count();
    all.into_iter().map(|(at, _)| at).take(done + 1).collect()
}

fn ids(pipeline: &mut Pipeline, frames: &[Vec<u8>]) -> Vec<String> {
    let mut sent = Vec::new();
    for frame in frames {
        let take = |outgoing: &Outgoing<'_>| {
            let (_, id) = outgoing.record.headers[0];
            sent.push(String::from_utf8(id.unwrap().to_vec()).unwrap());
            Ok(())
        };
        let handled = pipeline.frame::<PipelineError>(wal(frame), take);
        assert_ne!(handled, Ok(Handled::Full));
    }
    sent
}

#[test]
fn g1_g6_while_the_last_commit_is_not_found_nothing_is_sent_or_settled() {
    let last = |xid| CommitId { lsn: Lsn::new(0x100), xid, time_us: 0 };
    let mark = |xid| Mark { last: Some(last(xid)), ..Mark::at(Lsn::new(0x130)) };
    let frames = transaction(b"payload");
    let resumed = |xid| {
        let mut pipeline = pipeline(dead_letters());
        pipeline.resume_at(mark(xid), ResumeCheck::new(mark(xid), Lsn::new(0x80), true));
        pipeline
    };
    let mut same = resumed(7);
    for frame in &frames {
        assert_eq!(pass(&mut same, frame).unwrap(), None);
    }
    assert_eq!(same.settled(), Lsn::ZERO);
    let keepalive = Frame::Keepalive { end: Lsn::new(0x130), reply_now: false };
    assert_eq!(hand_in(&mut same, keepalive, true), Ok((Handled::Done, None)));
    assert_eq!((same.settled(), same.reached()), (Lsn::new(0x130), mark(7)));
    let mut copy = resumed(8);
    let error = pass(&mut copy, &frames[0]).unwrap_err();
    assert_eq!(error, PipelineError::OtherLog { delivered: last(8) });
    assert!(!error.is_definite() && copy.settled() == Lsn::ZERO);
}

proptest! {
    #[test]
    fn g6_a_session_resumed_anywhere_sends_the_rest_once(
        sizes in prop::collection::vec(0_usize..5, 1..6),
        cuts: [prop::sample::Index; 2],
        from: [prop::sample::Index; 3],
    ) {
        let frames = history(&sizes);
        let rows: usize = sizes.iter().sum();
        let expected: Vec<String> = (0..rows).map(|row| row.to_string()).collect();
        let (mut mark, mut sent) = (Mark::default(), Vec::new());
        let ends = [cuts[0].index(frames.len()), cuts[1].index(frames.len()), frames.len()];
        for (end, from) in ends.into_iter().zip(from) {
            let mut pipeline = pipeline(dead_letters());
            // Each session announces the table and may start at any unacknowledged transaction, or
            // earlier.
            let start = from.index(begins_before(&frames, mark).len());
            let start = begins_before(&frames, mark)[start];
            let confirmed = match frames.get(start).map(|frame| decode(frame).unwrap()) {
                Some(Message::Begin(begin)) => begin.final_lsn,
                _ => mark.end,
            };
            pipeline.resume_at(mark, ResumeCheck::new(mark, confirmed, true));
            sent.extend(ids(&mut pipeline, &frames[..1]));
            sent.extend(ids(&mut pipeline, frames.get(start..end).unwrap_or_default()));
            prop_assert!(pipeline.reached() >= mark);
            mark = pipeline.reached();
        }
        prop_assert_eq!(sent, expected);
    }

    /// G7 for the whole core.
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
    fn g1_g7_any_bytes_settle_nothing(frames: Vec<Vec<u8>>) {
        let mut pipeline = pipeline(dead_letters());
        for frame in frames {
            prop_assert!(!matches!(pass(&mut pipeline, &frame), Ok(Some(_))));
            prop_assert_eq!(pipeline.settled(), Lsn::ZERO);
        }
    }
}
