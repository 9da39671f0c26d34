//! Tests of the supervisor with scripted ends of sessions.

use super::*;
use crate::pipeline::{Mark, RefusalAnalysis};

const SECOND: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(25);
const GIVE_UP: Duration = Duration::from_mins(10);
const RUN: Requested = Requested {
    request: ControlRequest::Run,
    server_stops: false,
    told_for: Duration::ZERO,
    is_paused: false,
};
const DRAIN: Requested = Requested { request: ControlRequest::Drain, ..RUN };
const START: Instant = Instant::START;
const SECRET: SessionFailure<'static> =
    SessionFailure::Barred { by: Peer::Source, secret_can_change: true };
const BARRED: SessionFailure<'static> =
    SessionFailure::Barred { by: Peer::Source, secret_can_change: false };

fn policy() -> SupervisorPolicy {
    SupervisorPolicy {
        backoff: Backoff { first: SECOND, max: 30 * SECOND },
        give_up_after: GIVE_UP,
        login_give_up_after: 60 * SECOND,
        grace: GRACE,
        wait_for_slot: true,
        acknowledge: true,
    }
}

fn supervisor() -> Supervisor {
    Supervisor::new(policy(), 7, START)
}

fn limits() -> Limits {
    Limits {
        status_interval: SECOND,
        heartbeat: 10 * SECOND,
        silence: Duration::ZERO,
        grace: GRACE,
        until: None,
        acknowledge: true,
    }
}

fn slot(confirmed: u64, log_end: u64) -> SlotPosition {
    let confirmed = Lsn::new(confirmed);
    SlotPosition { restart: confirmed, confirmed, log_end: Lsn::new(log_end) }
}

fn at(settled: u64) -> Left {
    Left { settled: Lsn::new(settled), received: Lsn::new(settled + 50), ..Left::default() }
}

fn owing(records: u64) -> Left {
    let reached = Mark::at(Lsn::new(120));
    Left { owed: Owed::default().after(Lsn::new(100), reached, records), ..at(100) }
}

fn fails(
    supervisor: &mut Supervisor,
    now: Instant,
    failure: SessionFailure<'_>,
    left: Left,
) -> AfterSession {
    supervisor.ended(now, ControlRequest::Run, left, Err(failure)).0
}

fn refused(analysis: &RefusalAnalysis) -> SessionFailure<'_> {
    SessionFailure::Refused(RefusedBatch { analysis, records: &[], batch_bytes: None })
}

fn paused(supervisor: &mut Supervisor, now: Instant) -> Duration {
    let mut later = now;
    while let NextAction::Wait(tick) = supervisor.next(later, RUN) {
        later += tick;
    }
    later - now
}

#[test]
fn pauses_grow_until_a_session_has_done_useful_work() {
    let mut supervisor = supervisor();
    assert_eq!(supervisor.next(START, RUN), NextAction::Begin(None));
    let mut pauses = Vec::new();
    for failures in 0..9 {
        let verdict = fails(&mut supervisor, START, SessionFailure::Transient, Left::default());
        assert_eq!(verdict, AfterSession::Retry { failures });
        pauses.push(paused(&mut supervisor, START));
    }
    assert!(pauses[0] <= SECOND + PAUSE_TICK && pauses[0] >= SECOND / 2, "{pauses:?}");
    assert!(pauses[8] >= 15 * SECOND && pauses[8] <= 30 * SECOND + PAUSE_TICK, "{pauses:?}");
    let brief = Left { useful: HEALTHY_AFTER / 2, ..Left::default() };
    let verdict = fails(&mut supervisor, START, SessionFailure::Transient, brief);
    assert_eq!(verdict, AfterSession::Retry { failures: 9 });
    let useful = Left { useful: HEALTHY_AFTER, ..Left::default() };
    let verdict = fails(&mut supervisor, START, SessionFailure::Transient, useful);
    assert_eq!(verdict, AfterSession::Retry { failures: 0 });
}

/// 100 sessions of 8 s, with a refused login before each.
#[test]
fn pauses_do_not_grow_where_sessions_get_further() {
    let mut supervisor = supervisor();
    let (mut now, mut settled) = (START, 0);
    for _ in 0..100 {
        now += 8 * SECOND;
        settled += 1;
        let left = Left { useful: 8 * SECOND, ..at(settled) };
        fails(&mut supervisor, now, SessionFailure::Transient, left);
        let pause = paused(&mut supervisor, now);
        assert!(pause <= SECOND + PAUSE_TICK, "{pause:?}");
        let refused = fails(&mut supervisor, now, SECRET, at(settled));
        assert!(matches!(refused, AfterSession::Retry { .. }), "{refused:?}");
        now += paused(&mut supervisor, now);
    }
    let mut longest = Duration::ZERO;
    for _ in 0..9 {
        // Without progress.
        let left = Left { useful: 8 * SECOND, ..at(settled) };
        fails(&mut supervisor, now, SessionFailure::Transient, left);
        longest = longest.max(paused(&mut supervisor, now));
    }
    assert!(longest >= 15 * SECOND, "{longest:?}");
}

#[test]
fn patience_ends_without_progress_and_a_standby_is_progress() {
    let mut relay = supervisor();
    let almost = START + GIVE_UP / 2;
    let verdict = fails(&mut relay, almost, SessionFailure::Transient, Left::default());
    assert_eq!(verdict, AfterSession::Retry { failures: 0 });
    let verdict = fails(&mut relay, START + GIVE_UP, SessionFailure::Silent, Left::default());
    assert_eq!(verdict, AfterSession::GaveUp { quiet: GIVE_UP });

    assert_eq!(
        fails(&mut relay, almost, SessionFailure::Held, Left::default()),
        AfterSession::Standby
    );
    assert_eq!(relay.next(almost, RUN), NextAction::Standby(STANDBY_TICK));
    relay.slot_is_free(START + 2 * GIVE_UP);
    assert_eq!(relay.next(START + 2 * GIVE_UP, RUN), NextAction::Begin(None));
    let verdict =
        fails(&mut relay, START + 2 * GIVE_UP, SessionFailure::Transient, Left::default());
    assert_eq!(verdict, AfterSession::Retry { failures: 1 });

    let for_ever = SupervisorPolicy { give_up_after: Duration::ZERO, ..policy() };
    let mut patient = Supervisor::new(for_ever, 7, START);
    let verdict =
        fails(&mut patient, START + 99 * GIVE_UP, SessionFailure::Transient, Left::default());
    assert_eq!(verdict, AfterSession::Retry { failures: 0 });
}

#[test]
fn a_slot_that_is_held_is_not_waited_for_against_the_operators_will() {
    let no_wait = SupervisorPolicy { wait_for_slot: false, ..policy() };
    let mut supervisor = Supervisor::new(no_wait, 7, START);
    assert_eq!(fails(&mut supervisor, START, SessionFailure::Held, at(1)), AfterSession::SlotHeld);
    let streamed = Left { has_streamed: true, ..at(1) };
    let verdict = fails(&mut supervisor, START, SessionFailure::Transient, streamed);
    assert_eq!(verdict, AfterSession::Retry { failures: 0 });
    let verdict = fails(&mut supervisor, START, SessionFailure::Held, at(1));
    assert_eq!(verdict, AfterSession::Standby, "it may be what is left of its own stream");
}

#[test]
fn g8_a_stop_between_sessions_is_clean_once_nothing_is_owed() {
    let mut relay = supervisor();
    fails(&mut relay, START, SessionFailure::Transient, Left::default());
    assert!(matches!(relay.next(START, RUN), NextAction::Wait(_)));
    assert_eq!(relay.next(START, DRAIN), NextAction::End(Conclusion::Stopped));

    // The stop is requested after the session.
    fails(&mut relay, START, SessionFailure::Transient, owing(7));
    assert_eq!(relay.next(START, DRAIN), NextAction::Begin(Some(7)), "no pause is slept through");
    fails(&mut relay, START, SessionFailure::Transient, owing(7));
    assert!(matches!(relay.next(START, RUN), NextAction::Wait(_)));
    assert_eq!(relay.next(START, DRAIN), NextAction::Begin(None), "nor its rest");
    assert_eq!(relay.start(START, limits()).owed.records(), 7);
    assert_eq!(relay.next(START, DRAIN), NextAction::Begin(None), "said once");
    // A later failure costs its pause.
    relay.ended(START, ControlRequest::Drain, owing(7), Err(SessionFailure::Transient));
    assert!(matches!(relay.next(START, DRAIN), NextAction::Wait(_)));
    let late = Requested { told_for: GRACE, ..DRAIN };
    let expired = Conclusion::GraceExpired { records: 7 };
    assert_eq!(relay.next(START, late), NextAction::End(expired));
    let at_once = Requested { request: ControlRequest::Abort, ..DRAIN };
    let aborted = Conclusion::Aborted { records: 7 };
    assert_eq!(relay.next(START, at_once), NextAction::End(aborted));
    relay.slot_reaches(Some(slot(120, 200)));
    assert_eq!(relay.next(START, late), NextAction::End(Conclusion::Stopped), "another one did it");
}

#[test]
fn g8_a_server_that_stops_ends_a_relay_that_is_told_to() {
    let shutdown = |request, left| {
        let mut relay = supervisor();
        let verdict = relay.ended(START, request, left, Ok(End::ServerShutdown)).0;
        (verdict, relay.next(START, Requested { request, ..RUN }))
    };
    let (verdict, next) = shutdown(ControlRequest::ServerShutdown, owing(7));
    assert_eq!(verdict, AfterSession::ServerShutdown);
    assert!(matches!(next, NextAction::Wait(_)), "{next:?}");
    let (verdict, next) = shutdown(ControlRequest::Drain, owing(7));
    let expired = Conclusion::GraceExpired { records: 7 };
    assert_eq!((verdict, next), (AfterSession::GoOn, NextAction::End(expired)));
    let (_, next) = shutdown(ControlRequest::Drain, at(100));
    assert_eq!(next, NextAction::End(Conclusion::Stopped));
}

#[test]
fn logins_are_tried_again_for_a_while_and_other_ends_are_for_good() {
    let mut supervisor = supervisor();
    for failures in 0..2 {
        let now = START + 30 * SECOND * failures;
        let verdict = fails(&mut supervisor, now, SECRET, Left::default());
        assert_eq!(verdict, AfterSession::Retry { failures });
    }
    let now = START + 60 * SECOND;
    assert_eq!(fails(&mut supervisor, now, SECRET, Left::default()), AfterSession::Final);
    assert_eq!(
        fails(&mut supervisor, START, SessionFailure::Final, Left::default()),
        AfterSession::Final
    );
}

#[test]
fn a_refused_connection_ends_only_a_first_start() {
    let mut first = supervisor();
    assert_eq!(fails(&mut first, START, BARRED, Left::default()), AfterSession::Final);

    let streamed = Left { has_streamed: true, ..at(1) };
    let mut relay = supervisor();
    for failures in 0..2 {
        let now = START + 30 * SECOND * failures;
        let verdict = fails(&mut relay, now, BARRED, streamed);
        assert_eq!(verdict, AfterSession::Retry { failures });
    }
    assert_eq!(fails(&mut relay, START + 60 * SECOND, BARRED, streamed), AfterSession::Final);
    assert_eq!(fails(&mut relay, START, SessionFailure::Final, streamed), AfterSession::Final);

    let mut standby = supervisor();
    fails(&mut standby, START, SessionFailure::Held, Left::default());
    standby.slot_is_free(START);
    let verdict = fails(&mut standby, START, BARRED, Left::default());
    assert_eq!(verdict, AfterSession::Retry { failures: 0 }, "it was let in");

    let by_sink = SessionFailure::Barred { by: Peer::Sink, secret_can_change: false };
    let mut misconfigured = supervisor();
    let verdict = fails(&mut misconfigured, START, by_sink, streamed);
    assert_eq!(verdict, AfterSession::Final, "the sink never let it in");
    let taken = Left { sink_let_in: true, ..streamed };
    let verdict = fails(&mut supervisor(), START, by_sink, taken);
    assert_eq!(verdict, AfterSession::Retry { failures: 0 });

    let at_once = SupervisorPolicy { login_give_up_after: Duration::ZERO, ..policy() };
    let mut impatient = Supervisor::new(at_once, 7, START);
    assert_eq!(fails(&mut impatient, START, BARRED, streamed), AfterSession::Final);
}

#[test]
fn g4_what_is_learned_of_refused_records_changes_the_next_session_at_once() {
    let mut relay = supervisor();
    let analysis = RefusalAnalysis {
        suspects: Suspects::default(),
        is_news: true,
        refused: 0,
        is_of_the_batch: false,
        wait: Duration::ZERO,
    };
    let verdict = fails(&mut relay, START, refused(&analysis), at(100));
    assert_eq!(verdict, AfterSession::SendDifferently);
    assert_eq!(relay.next(START, RUN), NextAction::Begin(None));
    let analysis = RefusalAnalysis { is_news: false, ..analysis };
    let verdict = fails(&mut relay, START, refused(&analysis), at(100));
    assert_eq!(verdict, AfterSession::Retry { failures: 0 });
    let cautious = SessionMode { kind: ModeKind::Cautious, until: Lsn::new(150) };
    let start = relay.start(START, limits());
    assert_eq!(start.mode, Some(cautious));
    assert_eq!(start.limits.until, Some((Lsn::new(150), End::ModeOver)));
    relay.slot_reaches(Some(slot(100, 1 << 40)));
    assert_eq!(relay.start(START, limits()).mode, Some(cautious));
    assert_eq!(
        relay.ended(START, ControlRequest::Run, at(150), Ok(End::ModeOver)).0,
        AfterSession::GoOn
    );
    relay.slot_reaches(Some(slot(150, 1 << 40)));
    let mode = relay.start(START, limits()).mode.map(|mode| mode.kind);
    assert_eq!(mode, Some(ModeKind::Backlog));
}

#[test]
fn once_ends_where_the_log_ended_and_nothing_is_owed_any_more() {
    let mut relay = supervisor();
    relay.end_at(Lsn::new(110));
    fails(&mut relay, START, SessionFailure::Sink(SinkFault::Outage), owing(7));
    let until = relay.start(START, limits()).limits.until;
    assert_eq!(until, Some((Lsn::new(120), End::CaughtUp)));
    assert_eq!(
        relay.ended(START, ControlRequest::Run, at(120), Ok(End::CaughtUp)).0,
        AfterSession::GoOn
    );
    assert_eq!(relay.next(START, RUN), NextAction::End(Conclusion::CaughtUp));
}

#[test]
fn a_server_that_is_silent_over_the_same_work_is_given_more_time() {
    let mut relay = supervisor();
    let silence = |relay: &mut Supervisor| relay.start(START, limits()).limits.silence;
    let usual = silence(&mut relay);
    for left in [at(7), at(7), at(7)] {
        fails(&mut relay, START, SessionFailure::Silent, left);
    }
    assert_eq!(silence(&mut relay), 4 * usual);
}

#[test]
fn sessions_that_end_at_one_message_end_the_relay() {
    let mut supervisor = supervisor();
    let mut now = START;
    let mut meets = |place| {
        now += SECOND;
        fails(&mut supervisor, now, SessionFailure::Unreadable(Lsn::new(place)), at(place - 10))
    };
    for place in [200, 300].repeat(2 * SESSIONS_MAX as usize) {
        assert!(matches!(meets(place), AfterSession::Retry { .. }), "another message each time");
    }
    for _ in 2..SESSIONS_MAX {
        assert!(matches!(meets(300), AfterSession::Retry { .. }));
    }
    assert_eq!(meets(300), AfterSession::Unreadable { sessions: SESSIONS_MAX });
}

#[test]
fn an_outage_does_not_reset_the_count_of_unreadable_ends() {
    let mut supervisor = supervisor();
    let unreadable = SessionFailure::Unreadable(Lsn::new(200));
    for _ in 1..SESSIONS_MAX {
        fails(&mut supervisor, START, unreadable, at(190));
        fails(&mut supervisor, START, SessionFailure::Transient, at(190));
    }
    let last = fails(&mut supervisor, START, unreadable, at(190));
    assert_eq!(last, AfterSession::Unreadable { sessions: SESSIONS_MAX });
}
