//! Tests of status updates, drains and consecutive refusals, which the simulation does not cover.

use super::limits::IDLE_ACKNOWLEDGE;
use super::*;
use crate::pipeline::tests::{dead_letters, pipeline, transaction, wal};
use crate::pipeline::{Mark, Outcome, PartialTransaction, Refused};
use crate::route::{OwnedRecord, Rejection, RejectionCode};
use crate::sink::SendError;

const HEARTBEAT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(25);
const INTERVAL: Duration = Duration::from_secs(1);
const END: Lsn = Lsn::new(0x130);

const LIMITS: Limits = Limits {
    status_interval: INTERVAL,
    heartbeat: HEARTBEAT,
    silence: SILENCE,
    grace: GRACE,
    until: None,
    acknowledge: true,
};

#[derive(Default)]
struct TestSink {
    sent: Vec<(OwnedRecord, crate::ledger::Ticket)>,
    refuses: usize,
    confirms: bool,
    /// True while a Kafka transaction ends.
    commits: bool,
    ends_within: bool,
}

impl Sink for TestSink {
    type Error = String;

    fn send(&mut self, _: Instant, outgoing: &Outgoing<'_>) -> Result<(), SendError<String>> {
        if outgoing.rejection.is_some() && self.refuses > 0 {
            self.refuses -= 1;
            return Err(SendError::Refused(refusal()));
        }
        self.sent.push((outgoing.record.to_owned(), outgoing.ticket));
        Ok(())
    }

    fn poll(&mut self, _: Instant, confirmations: &mut Vec<Confirmation>) -> Result<(), String> {
        if self.confirms {
            let stored = |(_, ticket)| Confirmation { ticket, outcome: Outcome::Stored };
            confirmations.extend(self.sent.drain(..).map(stored));
        }
        Ok(())
    }

    fn takes_records(&self) -> bool {
        !self.commits
    }

    fn may_end_within(&self) -> bool {
        self.ends_within
    }
}

fn refusal() -> Rejection {
    Rejection { code: RejectionCode::Refused, reason: "not wanted".to_owned() }
}

fn session(limits: Limits) -> Session {
    let profile = CoalescingProfile {
        delay: Duration::from_micros(100),
        batch_max: Duration::from_millis(2),
        batch_bytes: 1 << 20,
    };
    Session::new(pipeline(dead_letters()), limits, profile, Owed::default(), Instant::START)
}

fn at(time: Duration) -> Now {
    Now { at: Instant::START + time, unix_us: 0 }
}

fn hand_in(session: &mut Session, sink: &mut TestSink, frames: usize) {
    for frame in &transaction(b"payload")[..frames] {
        assert!(session.takes_frames(sink));
        assert_eq!(session.frame(Instant::START, wal(frame), sink), Ok(Handled::Done));
    }
}

const DRAIN: Requested = Requested {
    request: ControlRequest::Drain,
    server_stops: false,
    told_for: Duration::ZERO,
    is_paused: false,
};

fn request(session: &mut Session, now: Now, asked: Requested) -> Option<Draining> {
    session.request::<String>(now, asked).unwrap()
}

#[test]
fn g1_a_status_is_due_within_the_interval_of_an_advance_and_at_once_when_idle() {
    let (mut session, mut sink) = (session(LIMITS), TestSink::default());
    hand_in(&mut session, &mut sink, 4);
    session.confirm(at(INTERVAL), &mut sink).unwrap();
    session.advance(at(INTERVAL), &mut sink).unwrap();
    assert_eq!(session.status_due(at(INTERVAL), &sink), None, "nothing is confirmed");
    sink.confirms = true;
    session.confirm(at(INTERVAL), &mut sink).unwrap();
    session.advance(at(INTERVAL), &mut sink).unwrap();
    let due = StatusUpdate { settled: END, ask_reply: false };
    assert_eq!(session.status_due(at(IDLE_ACKNOWLEDGE / 2), &sink), None);
    assert_eq!(session.status_due(at(IDLE_ACKNOWLEDGE), &sink), Some(due));
    assert_eq!(session.status_due(at(INTERVAL), &sink), None, "it was told");
}

#[test]
fn g5_a_question_of_the_server_is_answered_at_once() {
    let (mut session, mut sink) = (session(LIMITS), TestSink::default());
    let question = Frame::Keepalive { end: END, reply_now: true };
    assert_eq!(session.frame(Instant::START, question, &mut sink), Ok(Handled::Done));
    let due = StatusUpdate { settled: END, ask_reply: false };
    assert_eq!(session.status_due(at(Duration::ZERO), &sink), Some(due));
}

#[test]
fn a_server_that_does_not_answer_a_heartbeat_is_given_up() {
    let (mut session, sink) = (session(LIMITS), TestSink::default());
    assert_eq!(session.status_due(at(HEARTBEAT.mul_f64(0.99)), &sink), None);
    let due = StatusUpdate { settled: Lsn::ZERO, ask_reply: true };
    assert_eq!(session.status_due(at(HEARTBEAT), &sink), Some(due));
    let almost = (HEARTBEAT + SILENCE).mul_f64(0.99);
    assert!(session.has_read::<String>(at(almost), 0, 0).is_ok());
    let silent = Err(SessionError::Silent { seconds: SILENCE.as_secs() });
    assert_eq!(session.has_read::<String>(at(HEARTBEAT + SILENCE), 0, 0), silent);
}

#[test]
fn a_dry_run_tells_nothing() {
    let limits = Limits { acknowledge: false, ..LIMITS };
    let (mut session, mut sink) =
        (session(limits), TestSink { confirms: true, ..TestSink::default() });
    hand_in(&mut session, &mut sink, 4);
    session.confirm(at(INTERVAL), &mut sink).unwrap();
    session.advance(at(INTERVAL), &mut sink).unwrap();
    assert_eq!(session.status_due(at(INTERVAL), &sink), None);
    assert_eq!((session.settled(&sink), session.final_status(&sink)), (END, None));
}

#[test]
fn g8_a_drain_reads_the_open_transaction_to_its_end_and_waits_for_what_was_sent() {
    let (mut session, mut sink) = (session(LIMITS), TestSink::default());
    hand_in(&mut session, &mut sink, 3);
    let draining = Draining { unconfirmed: 1, grace: GRACE };
    assert_eq!(request(&mut session, at(INTERVAL), DRAIN), Some(draining));
    assert_eq!(request(&mut session, at(INTERVAL), DRAIN), None, "said once");
    sink.confirms = true;
    session.confirm(at(INTERVAL), &mut sink).unwrap();
    session.advance(at(INTERVAL), &mut sink).unwrap();
    assert_eq!(session.ended(at(INTERVAL), &sink), Ok(None), "the commit was not read");
    assert!(session.takes_frames(&sink));
    let commit = &transaction(b"payload")[3];
    assert_eq!(session.frame(Instant::START, wal(commit), &mut sink), Ok(Handled::Done));
    assert!(!session.takes_frames(&sink), "no further transaction");
    assert_eq!(session.ended(at(INTERVAL), &sink), Ok(None), "it is not acknowledged");
    assert!(session.status_due(at(INTERVAL), &sink).is_some());
    assert_eq!(session.ended(at(INTERVAL), &sink), Ok(Some(End::Drained)));
}

#[test]
fn g8_a_drain_that_takes_too_long_says_what_is_unconfirmed() {
    let (mut session, mut sink) = (session(LIMITS), TestSink::default());
    hand_in(&mut session, &mut sink, 4);
    let told_for = Duration::from_secs(5);
    let asked = Requested { told_for, ..DRAIN };
    let grace = GRACE.saturating_sub(told_for);
    let draining = Draining { unconfirmed: 1, grace };
    assert_eq!(request(&mut session, at(Duration::ZERO), asked), Some(draining));
    session.confirm(at(INTERVAL), &mut sink).unwrap();
    session.advance(at(INTERVAL), &mut sink).unwrap();
    assert_eq!(session.ended(at(grace.mul_f64(0.99)), &sink), Ok(None));
    let expired = Err(SessionError::GraceExpired { records: 1 });
    assert_eq!(session.ended(at(grace), &sink), expired);
}

#[test]
fn a_server_that_stops_is_kept_waiting_for_seconds_at_most() {
    let (mut session, mut sink) = (session(LIMITS), TestSink::default());
    hand_in(&mut session, &mut sink, 4);
    let asked = Requested { request: ControlRequest::ServerShutdown, server_stops: true, ..DRAIN };
    let draining = Draining { unconfirmed: 1, grace: SERVER_SHUTDOWN_GRACE };
    assert_eq!(request(&mut session, at(Duration::ZERO), asked), Some(draining));
    session.confirm(at(SERVER_SHUTDOWN_GRACE), &mut sink).unwrap();
    assert_eq!(session.ended(at(SERVER_SHUTDOWN_GRACE), &sink), Ok(Some(End::ServerShutdown)));
}

#[test]
fn an_abort_says_what_is_unconfirmed() {
    let (mut session, mut sink) = (session(LIMITS), TestSink::default());
    hand_in(&mut session, &mut sink, 4);
    let asked = Requested { request: ControlRequest::Abort, ..DRAIN };
    let aborted = Err(SessionError::Aborted { records: 1 });
    assert_eq!(session.request::<String>(at(INTERVAL), asked), aborted);
}

/// The dead letter is sent again without a timestamp.
#[test]
fn g4_a_dead_letter_that_is_refused_at_once_is_sent_again_without_its_time() {
    let (mut session, mut sink) = (session(LIMITS), TestSink::default());
    hand_in(&mut session, &mut sink, 4);
    let (record, ticket) = sink.sent.pop().unwrap();
    let refused = Box::new(Refused { record, rejection: refusal() });
    session.confirmations.push(Confirmation { ticket, outcome: Outcome::Refused(refused) });
    sink.refuses = 1;
    session.confirm(at(INTERVAL), &mut sink).unwrap();
    session.advance(at(INTERVAL), &mut sink).unwrap();
    let [(letter, again)] = &sink.sent[..] else { panic!("one dead letter: {:?}", sink.sent) };
    assert_eq!((letter.topic.as_str(), *again), ("dead", ticket));
    assert_eq!(letter.timestamp_ms, crate::route::NO_TIMESTAMP);
    sink.confirms = true;
    session.confirm(at(INTERVAL), &mut sink).unwrap();
    session.advance(at(INTERVAL), &mut sink).unwrap();
    assert_eq!(session.settled(&sink), END);
}

#[test]
fn a_frame_that_is_there_already_waits_for_nothing() {
    let (mut session, mut sink) = (session(LIMITS), TestSink::default());
    let next = |session: &mut Session, sink: &TestSink, has_frame| {
        session.next(sink, || Ok::<_, ()>(has_frame)).unwrap()
    };
    assert_eq!(next(&mut session, &sink, true), Next::Read(Duration::ZERO));
    assert_eq!(next(&mut session, &sink, false), Next::Read(IDLE_TICK));
    hand_in(&mut session, &mut sink, 4);
    assert_eq!(next(&mut session, &sink, false), Next::Read(CONFIRM_TICK));
}

#[test]
fn g8_a_drain_that_wants_no_frame_leaves_the_stream_alone() {
    for (frames, commits, streaming, draining) in [
        (4, false, Next::Read(CONFIRM_TICK), Next::Wait(CONFIRM_TICK)),
        (4, true, Next::Refill(COMMIT_TICK), Next::Wait(COMMIT_TICK)),
        (3, false, Next::Read(CONFIRM_TICK), Next::Read(CONFIRM_TICK)),
        (3, true, Next::Refill(COMMIT_TICK), Next::Refill(COMMIT_TICK)),
    ] {
        let (mut session, mut sink) = (session(LIMITS), TestSink::default());
        hand_in(&mut session, &mut sink, frames);
        sink.commits = commits;
        let next = |session: &mut Session, is_wanted: bool| {
            let look = || if is_wanted { Ok(false) } else { Err("the end of the stream") };
            session.next(&sink, look).unwrap()
        };
        assert_eq!(next(&mut session, !commits), streaming);
        request(&mut session, at(INTERVAL), DRAIN);
        assert_eq!(next(&mut session, draining == Next::Read(CONFIRM_TICK)), draining);
    }
}

#[test]
fn g6_routes_change_between_two_transactions() {
    for ends_within in [false, true] {
        let mut sink = TestSink { ends_within, ..TestSink::default() };
        let mut session = session(LIMITS);
        hand_in(&mut session, &mut sink, 3);
        let asked = Requested { request: ControlRequest::Reconfigure, ..DRAIN };
        assert_eq!(request(&mut session, at(INTERVAL), asked), None, "it is no drain");
        sink.confirms = true;
        session.confirm(at(INTERVAL), &mut sink).unwrap();
        session.advance(at(INTERVAL), &mut sink).unwrap();
        assert_eq!(session.ended(at(INTERVAL), &sink), Ok(None), "the transaction is open");
        // Its rest would use other routes, so there is no deadline.
        let late = at(INTERVAL + GRACE);
        let ended = if ends_within { None } else { Some(End::Reconfigured) };
        assert_eq!(session.ended(late, &sink), Ok(ended));
        assert!(session.takes_frames(&sink), "the rest of the transaction is read");
        let commit = &transaction(b"payload")[3];
        assert_eq!(session.frame(Instant::START, wal(commit), &mut sink), Ok(Handled::Done));
        assert!(!session.takes_frames(&sink), "no further transaction");
        assert!(session.status_due(late, &sink).is_some());
        assert_eq!(session.ended(late, &sink), Ok(Some(End::Reconfigured)));
    }
}

#[test]
fn g6_routes_do_not_change_within_a_transaction_that_an_earlier_session_began() {
    let mut sink = TestSink { ends_within: true, confirms: true, ..TestSink::default() };
    let mut session = session(LIMITS);
    let part = Some(PartialTransaction { commit_lsn: Lsn::new(0x100), rows: 1 });
    session.pipeline_mut().resume_at(Mark { part, ..Mark::at(Lsn::new(0x90)) }, None);
    let asked = Requested { request: ControlRequest::Reconfigure, ..DRAIN };
    for time in [INTERVAL, GRACE * 2] {
        assert_eq!(request(&mut session, at(time), asked), None);
        session.advance(at(time), &mut sink).unwrap();
        let _ = session.status_due(at(time), &sink);
        assert_eq!(session.ended(at(time), &sink), Ok(None), "its rest is not delivered");
    }
    hand_in(&mut session, &mut sink, 4);
    let late = at(GRACE * 3);
    session.confirm(late, &mut sink).unwrap();
    session.advance(late, &mut sink).unwrap();
    assert!(session.status_due(late, &sink).is_some());
    assert_eq!(session.ended(late, &sink), Ok(Some(End::Reconfigured)));
    assert!(!session.takes_frames(&sink));
}

#[test]
fn g1_a_paused_session_takes_nothing_and_tells_the_server_the_same_as_before() {
    let (mut session, mut sink) = (session(LIMITS), TestSink::default());
    sink.confirms = true;
    hand_in(&mut session, &mut sink, 4);
    session.confirm(at(INTERVAL), &mut sink).unwrap();
    assert!(session.status_due(at(INTERVAL), &sink).is_some());
    let run = Requested { request: ControlRequest::Run, ..DRAIN };
    let paused = Requested { is_paused: true, ..run };
    assert_eq!(request(&mut session, at(INTERVAL), paused), None);
    assert!(!session.takes_frames(&sink) && session.is_paused());
    let look = || Err::<bool, _>("a frame");
    assert_eq!(session.next(&sink, look), Ok(Next::Wait(IDLE_TICK)), "nothing is read");
    let mut told = INTERVAL;
    for _ in 0..100 {
        told += HEARTBEAT;
        assert_eq!(session.status_due(at(told.mul_f64(0.999)), &sink), None);
        let status = session.status_due(at(told), &sink);
        assert_eq!(status.map(|status| status.settled), Some(END));
        assert_eq!(session.next(&sink, look), Ok(Next::Wait(IDLE_TICK)));
        assert_eq!(session.ended(at(told), &sink), Ok(None));
    }
    request(&mut session, at(told), run);
    assert!(session.takes_frames(&sink) && !session.is_paused());
    request(&mut session, at(told), Requested { is_paused: true, ..DRAIN });
    assert_eq!(session.ended(at(told), &sink), Ok(Some(End::Drained)), "a pause holds up no stop");
}
