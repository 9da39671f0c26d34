//! Tests of refused records across sessions.

use std::convert::Infallible;

use super::*;
use crate::ledger::{Budget, Ticket};
use crate::pgoutput::PgTime;
use crate::route::Headers;

const COMMIT: Lsn = Lsn::new(100);

fn row() -> Position {
    Position { commit_lsn: COMMIT, index: 3, commit_time: PgTime(7) }
}

fn record(value: &[u8]) -> Record<'_> {
    let (key, headers) = (Some(b"k".as_slice()), Headers::new());
    Record { topic: "t", partition: None, key, value: Some(value), headers, timestamp_ms: 1 }
}

fn blame(ticket: Ticket, value: &[u8], alone: bool, rejection: Option<Rejection>) -> Blame {
    let (topic, content) = ("t".into(), content_of("t", Some(b"k"), Some(value)));
    let (cause, reason) = (RefusalCause::Size, "why".into());
    Blame { ticket, topic, content, alone, cause, at_ms: 0, reason, rejection }
}

fn sent(ledger: &mut Ledger, weight: usize) -> Ticket {
    let Ok(ticket) = ledger.send(weight, Ok::<_, Infallible>).unwrap();
    ticket
}

/// Returns whether the refusals were news.
fn session(suspects: &mut Suspects, blamed: &[(&[u8], bool, Option<Rejection>)]) -> bool {
    let mut ledger = Ledger::new(Budget::default());
    ledger.begin(row().commit_lsn, row().commit_time.unix_us()).unwrap();
    let blamed: Vec<Blame> = blamed
        .iter()
        .map(|(value, alone, rejection)| {
            let ticket = sent(&mut ledger, record(value).weight());
            blame(ticket, value, *alone, rejection.clone())
        })
        .collect();
    let found = suspects.learn(&blamed, None, &ledger, None).unwrap();
    *suspects = found.suspects;
    found.is_news
}

fn learn(suspects: &mut Suspects, value: &[u8], alone: bool, rejection: Option<Rejection>) -> bool {
    session(suspects, &[(value, alone, rejection)])
}

fn rejection() -> Rejection {
    Rejection { code: RejectionCode::TooLarge, reason: "too large".into() }
}

#[test]
fn g4_a_record_of_a_refused_batch_goes_alone_and_its_like_of_another_commit_does_not() {
    let mut suspects = Suspects::default();
    assert!(learn(&mut suspects, b"large", false, None));
    assert_eq!(suspects.judge((row(), 0), &record(b"large")), Ok(true));
    assert_eq!(suspects.judge((row(), 0), &record(b"other")), Ok(false));
    let later = Position { commit_lsn: Lsn::new(101), ..row() };
    // Its send time differs each time.
    let again = Position { commit_time: PgTime(8), ..row() };
    assert_eq!(suspects.judge((again, 0), &record(b"large")), Ok(true));
    assert_eq!(suspects.judge((later, 0), &record(b"large")), Ok(false));
    assert!(!learn(&mut suspects, b"large", false, None), "it is known");
}

#[test]
fn g4_what_the_brokers_name_is_not_sent_again() {
    let mut suspects = Suspects::default();
    assert!(learn(&mut suspects, b"large", false, None));
    assert!(learn(&mut suspects, b"large", true, Some(rejection())));
    assert_eq!(suspects.judge((row(), 0), &record(b"large")), Err(rejection()));
    assert_eq!(suspects.refused(), 1);
    assert!(!learn(&mut suspects, b"large", true, Some(rejection())));
}

#[test]
fn g4_what_may_be_no_fault_of_the_record_gets_two_attempts_alone() {
    let mut suspects = Suspects::default();
    assert!(learn(&mut suspects, b"odd", false, None));
    assert!(learn(&mut suspects, b"odd", true, None));
    assert_eq!(suspects.judge((row(), 0), &record(b"odd")), Ok(true));
    assert!(learn(&mut suspects, b"odd", true, None));
    let judged = suspects.judge((row(), 0), &record(b"odd"));
    assert_eq!(judged.unwrap_err().reason, "topic `t` does not take the record: why");
}

#[test]
fn g4_a_topic_that_keeps_refusing_large_records_costs_no_session_for_each() {
    let mut suspects = Suspects::default().inferring(true);
    for value in [b"large1", b"large2"] {
        let judged = suspects.judge((row(), 0), &record(b"larger"));
        assert_eq!(judged, Ok(false));
        assert!(learn(&mut suspects, value, true, Some(rejection())));
        for _ in 0..9 {
            let judged = suspects.judge((row(), 0), &record(value));
            assert_eq!(judged, Err(rejection()));
        }
    }
    suspects.passed(Lsn::new(101));
    let judged = suspects.judge((row(), 0), &record(b"larger"));
    assert_eq!(judged.unwrap_err().code, RejectionCode::Refused, "its bytes are kept");
    let LetterTreatment::Refused(refusal, RefusalCause::Size) =
        suspects.judge_letter((row(), 0), &record(b"larger"))
    else {
        panic!("it is as large")
    };
    assert_eq!(refusal.code, RejectionCode::TooLarge);
    assert_eq!(suspects.judge((row(), 0), &record(b"small")), Ok(false));
}

#[test]
fn g4_without_inference_each_record_is_tried() {
    let mut suspects = Suspects::default().inferring(false);
    for value in [b"large1", b"large2", b"large3", b"large4"] {
        assert!(learn(&mut suspects, value, true, Some(rejection())));
        let judged = suspects.judge((row(), 0), &record(value));
        assert_eq!(judged, Err(rejection()));
    }
    let judged = suspects.judge((row(), 0), &record(b"larger"));
    assert_eq!(judged, Ok(false));
}

#[test]
fn g4_once_one_is_named_the_others_of_its_batch_still_go_alone() {
    let mut suspects = Suspects::default();
    assert!(session(
        &mut suspects,
        &[(b"1", false, None), (b"2", false, None), (b"3", false, None)]
    ));
    assert!(learn(&mut suspects, b"2", true, Some(rejection())));
    assert_eq!(suspects.judge((row(), 0), &record(b"2")), Err(rejection()));
    assert_eq!(suspects.judge((row(), 0), &record(b"3")), Ok(true));
}

#[test]
fn batches_are_made_smaller_only_once_a_record_has_gone_alone() {
    let mut suspects = Suspects::default();
    let unnamed = |suspects: &mut Suspects| {
        let ledger = Ledger::new(Budget::default());
        let found = suspects.learn(&[], None, &ledger, Some("t")).unwrap();
        *suspects = found.suspects;
        found.is_of_the_batch
    };
    assert!(!unnamed(&mut suspects));
    assert!(unnamed(&mut suspects), "the record was stored");
    assert!(learn(&mut suspects, b"2", true, Some(rejection())));
    assert!(!unnamed(&mut suspects), "the record was at fault");
}

/// A session that sends beyond a record may end before settling it.
#[test]
fn g4_what_is_settled_is_forgotten_and_nothing_else() {
    let mut suspects = Suspects::default();
    learn(&mut suspects, b"odd", false, None);
    let mut ledger = Ledger::new(Budget::default());
    let later = Position { commit_lsn: Lsn::new(200), ..row() };
    ledger.begin(later.commit_lsn, 7).unwrap();
    let ticket = sent(&mut ledger, record(b"later").weight());
    let found = suspects.learn(&[blame(ticket, b"later", false, None)], None, &ledger, None);
    suspects = found.unwrap().suspects;
    suspects.passed(COMMIT);
    assert!(
        suspects.find(row(), &record(b"odd")).is_some()
            && suspects.find(later, &record(b"later")).is_some()
    );
    suspects.passed(Lsn::new(101));
    assert!(
        suspects.find(row(), &record(b"odd")).is_none()
            && suspects.find(later, &record(b"later")).is_some()
    );
    suspects.passed(Lsn::new(201));
    assert!(suspects.is_empty());
}

#[test]
fn g4_what_may_be_the_brokers_own_fault_gets_more_attempts_and_time_between_them() {
    let mut suspects = Suspects::default();
    let mut waited = Duration::ZERO;
    for attempt in 0..8 {
        let judged = suspects.judge((row(), 0), &record(b"odd"));
        assert!(judged.is_ok(), "{attempt}");
        let mut ledger = Ledger::new(Budget::default());
        ledger.begin(row().commit_lsn, 7).unwrap();
        let ticket = sent(&mut ledger, record(b"odd").weight());
        let blamed = Blame { cause: RefusalCause::Brokers, ..blame(ticket, b"odd", true, None) };
        let lesson = suspects.learn(&[blamed], None, &ledger, None).unwrap();
        assert!(lesson.is_news && lesson.wait.is_zero() == (attempt == 7));
        waited += lesson.wait;
        suspects = lesson.suspects;
    }
    assert!(waited > Duration::from_secs(30), "{waited:?}");
    assert!(suspects.judge((row(), 0), &record(b"odd")).is_err());
}

/// Its time, which is part of its value, differs in each session.
#[test]
fn g4_a_message_of_its_own_is_known_whatever_its_value_is() {
    let mut suspects = Suspects::default();
    for (attempt, value) in [b"at 1".as_slice(), b"at 2", b"at 33"].into_iter().enumerate() {
        assert_eq!(suspects.judge((row(), 0), &record(value)), Ok(attempt > 0), "{attempt}");
        let mut ledger = Ledger::new(Budget::default());
        ledger.begin(COMMIT, 7).unwrap();
        let ticket = sent(&mut ledger, record(value).weight());
        ledger.commit(Lsn::new(COMMIT.get() + 1)).unwrap();
        if attempt != 1 {
            // Transactions of other tables, read before the brokers answered.
            ledger.keepalive(Lsn::new(COMMIT.get() + 400));
        }
        let blamed = blame(ticket, value, attempt > 0, None);
        suspects = suspects.learn(&[blamed], Some("dead"), &ledger, None).unwrap().suspects;
    }
    assert!(suspects.judge((row(), 0), &record(b"at 4")).is_err());
    let letter = Record { topic: "dead", ..record(b"at 4") };
    assert_eq!(suspects.judge_letter((row(), 0), &letter), LetterTreatment::Usual);
}

#[test]
fn g4_a_fault_of_the_brokers_is_no_answer_to_the_record() {
    let mut suspects = Suspects::default();
    for (cause, is_refused) in [
        (RefusalCause::Brokers, false),
        (RefusalCause::Unknown, false),
        (RefusalCause::Brokers, false),
        (RefusalCause::Unknown, true),
    ] {
        let mut ledger = Ledger::new(Budget::default());
        ledger.begin(row().commit_lsn, 7).unwrap();
        let ticket = sent(&mut ledger, record(b"odd").weight());
        let blamed = Blame { cause, ..blame(ticket, b"odd", true, None) };
        suspects = suspects.learn(&[blamed], None, &ledger, None).unwrap().suspects;
        let judged = suspects.judge((row(), 0), &record(b"odd"));
        assert_eq!(judged.is_err(), is_refused, "{cause:?}");
    }
}

fn polled(suspects: Suspects, first: u64, rows: &[(u32, &[u8], bool)]) -> Suspects {
    let mut suspects = suspects.by_row();
    let mut ledger = Ledger::new(Budget::default());
    let mut blamed = Vec::new();
    for (index, (xid, value, alone)) in (0..).zip(rows) {
        let lsn = Lsn::new(first + 2 * index);
        let known_by = suspects.begins(lsn, *xid);
        ledger.begin(known_by, 7).unwrap();
        let ticket = sent(&mut ledger, record(value).weight());
        ledger.commit(Lsn::new(lsn.get() + 2)).unwrap();
        blamed.push(blame(ticket, value, *alone, alone.then(rejection)));
    }
    suspects.learn(&blamed, None, &ledger, None).unwrap().suspects
}

#[test]
fn g4_a_row_that_is_polled_is_known_wherever_it_stands_and_its_twin_is_not_suspected() {
    let learned = polled(Suspects::default(), 1, &[(7, b"bad", false), (8, b"bad", false)]);
    let learned = polled(learned, 501, &[(7, b"bad", true)]);
    let mut suspects = learned.by_row();
    let mut judged = |xid, lsn| {
        suspects.begins(Lsn::new(lsn), xid);
        let position = Position { commit_lsn: Lsn::new(lsn), ..row() };
        suspects.judge((position, 0), &record(b"bad")).map_err(|rejection| rejection.code)
    };
    assert_eq!(judged(8, 1), Ok(true), "it goes alone");
    assert_eq!(judged(7, 99), Err(RejectionCode::TooLarge));
    assert_eq!(judged(9, 501), Ok(false), "the same content of another row");
    suspects.marked();
    assert!(suspects.all.is_empty(), "what is marked does not come again");
}

#[test]
fn g3_rows_that_do_not_come_again_are_not_remembered_for_ever() {
    let mut suspects = Suspects::default().by_row();
    let blamed = blame(Ticket::new(0, 1), b"x", false, None);
    for xid in 0..u32::try_from(ROWS_MAX + 10).unwrap() {
        let commit_lsn = suspects.begins(Lsn::new(1), xid);
        suspects.add(RecordIdentity { commit_lsn, weight: 1, content: 2 }, &blamed);
    }
    assert!(suspects.all.len() <= ROWS_MAX);
}
