//! Tests of inferred refusals.

use super::*;
use crate::route::Headers;

const SECOND: i64 = 1_000_000;
const HOUR_MS: i64 = 3_600_000;
const DAYS_LATER_MS: i64 = 100 * HOUR_MS;
const LARGE: [u8; 900] = [0; 900];

fn judge(
    inferred: &mut Inferred,
    record: &Record<'_>,
    at_us: i64,
) -> Option<(Rejection, RefusalCause)> {
    inferred.judge(record, Times { at_us, sent_us: at_us })
}

fn refused(
    inferred: &mut Inferred,
    aspect_at_ms: (RefusalCause, i64),
    record: &Record<'_>,
    at_us: i64,
) {
    inferred.refused(aspect_at_ms, record, Times { at_us, sent_us: at_us });
}

fn record(topic: &str, bytes: usize) -> Record<'_> {
    let value = LARGE.get(..bytes);
    Record {
        topic,
        partition: None,
        key: Some(b""),
        value,
        headers: Headers::new(),
        timestamp_ms: 0,
    }
}

fn too_large(inferred: &mut Inferred, topic: &str, bytes: usize, at_us: i64) {
    refused(inferred, (RefusalCause::Size, 0), &record(topic, bytes), at_us);
}

fn refused_twice() -> Inferred {
    let mut inferred = Inferred::default();
    for at in 0..2_u8 {
        assert_eq!(judge(&mut inferred, &record("t", 900), at.into()), None, "{at}");
        too_large(&mut inferred, "t", 600 + 100 * usize::from(at), i64::from(at) * SECOND);
    }
    inferred
}

#[test]
fn g4_the_third_record_as_large_is_not_sent() {
    let mut inferred = refused_twice();
    let (rejection, cause) = judge(&mut inferred, &record("t", 600), 3 * SECOND).unwrap();
    assert_eq!((rejection.code, cause), (RejectionCode::TooLarge, RefusalCause::Size));
    assert_eq!(judge(&mut inferred, &record("t", 599), 3 * SECOND), None, "a smaller one is");
    assert_eq!(judge(&mut inferred, &record("u", 900), 3 * SECOND), None, "another topic's is");
}

#[test]
fn g4_no_record_without_a_key_is_sent_where_the_settings_demand_one() {
    let mut inferred = Inferred::default();
    let keyless = Record { key: None, ..record("t", 9) };
    assert_eq!(judge(&mut inferred, &keyless, 0), None);
    refused(&mut inferred, (RefusalCause::Key, 0), &keyless, 0);
    assert_eq!(judge(&mut inferred, &keyless, SECOND).unwrap().0.code, RejectionCode::Refused);
    assert_eq!(judge(&mut inferred, &record("t", 900), SECOND), None, "one with a key is");
    assert_eq!(judge(&mut inferred, &keyless, PAUSE_US + SECOND), None, "the settings may change");
}

fn at(at_us: i64, hours: i64) -> Record<'static> {
    Record { timestamp_ms: at_us / 1_000 + hours * HOUR_MS, ..record("t", 9) }
}

#[test]
fn g4_the_fourth_record_as_far_ahead_of_its_commit_is_not_sent() {
    let mut inferred = Inferred::default();
    for now in [0, SECOND, 2 * SECOND] {
        assert_eq!(judge(&mut inferred, &at(now, 9), now), None, "{now}");
        refused(&mut inferred, (RefusalCause::Time, now / 1_000), &at(now, 5), now);
    }
    let now = 3 * SECOND;
    for later_ms in [-20, 0, 20] {
        let mut near = at(now, 5);
        near.timestamp_ms += later_ms;
        assert!(judge(&mut inferred, &near, now).is_some(), "{later_ms}");
    }
    assert_eq!(judge(&mut inferred, &at(now, 4), now), None, "one that is closer is");
    assert_eq!(judge(&mut inferred, &at(now, -9), now), None, "one on the other side is");
}

/// The commits' clock is ahead by more than topics accept, and is then corrected.
#[test]
fn g4_what_a_wrong_clock_was_refused_for_says_nothing_of_rows_of_the_right_time() {
    for ahead_s in [3_605, 3_700, 7_200] {
        for ours_s in [0, ahead_s] {
            let (mut inferred, mut sent) = (Inferred::default(), 0);
            for second in 0..30 {
                let now = (second + ahead_s) * SECOND;
                if judge(&mut inferred, &at(now, 0), now).is_none() {
                    sent += 1;
                    let ours_ms = (second + ours_s) * 1_000;
                    refused(&mut inferred, (RefusalCause::Time, ours_ms), &at(now, 0), now);
                }
            }
            assert_eq!(sent, 3, "the rest has the same cause");
            for second in 30..5_000 {
                let now = second * SECOND;
                assert_eq!(judge(&mut inferred, &at(now, 0), now), None, "{ahead_s}: {second}");
            }
        }
    }
}

#[test]
fn g4_a_row_of_an_earlier_time_than_what_was_too_new_is_sent() {
    let mut inferred = Inferred::default();
    let now = 3_620 * SECOND;
    for _ in 0..3 {
        refused(&mut inferred, (RefusalCause::Time, 20_000), &at(now, 0), now);
    }
    assert!(judge(&mut inferred, &at(now, 0), now).is_some());
    let before = now - 30 * SECOND;
    assert_eq!(judge(&mut inferred, &at(before, 0), before), None);
    let untimed = Record { timestamp_ms: NO_TIMESTAMP, ..at(now, 0) };
    assert_eq!(judge(&mut inferred, &untimed, now), None, "what has no time is sent");
}

#[test]
fn g4_a_backlog_that_is_too_old_costs_a_few_sessions() {
    let (mut inferred, mut sent) = (Inferred::default(), 0);
    for second in 0..1_800 {
        let now = second * SECOND;
        if judge(&mut inferred, &at(now, 0), now).is_none() {
            sent += 1;
            refused(&mut inferred, (RefusalCause::Time, DAYS_LATER_MS), &at(now, 0), now);
        }
    }
    assert!(sent <= 50, "{sent}");
    let now = 1_801 * SECOND;
    assert!(judge(&mut inferred, &at(now, -1), now).is_some(), "an older one");
    let later = now + 130 * SECOND;
    assert_eq!(judge(&mut inferred, &at(later, 0), later), None, "one that is younger is sent");
}

#[test]
fn nothing_is_inferred_from_what_is_not_known() {
    let mut inferred = Inferred::default();
    for at in 0..9 {
        refused(&mut inferred, (RefusalCause::Unknown, 0), &record("t", 9), at);
        refused(&mut inferred, (RefusalCause::Brokers, 0), &record("t", 9), at);
    }
    assert!(inferred.is_empty());
}

#[test]
fn g4_one_record_a_pause_finds_out_whether_the_limit_was_raised() {
    let mut inferred = refused_twice();
    let mut sent = 0;
    for at in 3..3_600 {
        if judge(&mut inferred, &record("t", 700), at * SECOND).is_none() {
            sent += 1;
            too_large(&mut inferred, "t", 700, at * SECOND);
        }
    }
    assert!((6..=12).contains(&sent), "{sent}");
    assert!(judge(&mut inferred, &record("t", 700), 3_600 * SECOND + PAUSE_MAX_US).is_none());
}

/// Each record is smaller than all refused ones, and still too large.
#[test]
fn g4_records_of_ever_smaller_size_cost_a_few_sessions() {
    for step in [1, 7, 60] {
        let (mut inferred, mut sent) = (Inferred::default(), 0);
        for bytes in (100..=900).rev().step_by(step) {
            if judge(&mut inferred, &record("t", bytes), 0).is_none() {
                sent += 1;
                too_large(&mut inferred, "t", bytes, 0);
            }
        }
        assert!(sent <= 32, "{sent} by {step}");
    }
}

#[test]
fn refusals_far_apart_are_each_tried() {
    let mut inferred = Inferred::default();
    for at in 0..10 {
        let at_us = at * 2 * RELATED_US;
        assert_eq!(judge(&mut inferred, &record("t", 700), at_us), None, "{at}");
        too_large(&mut inferred, "t", 700, at_us);
    }
}

#[test]
fn rows_told_out_of_the_order_of_their_commits_change_nothing() {
    let mut inferred = refused_twice();
    too_large(&mut inferred, "t", 700, SECOND);
    assert!(judge(&mut inferred, &record("t", 700), 61 * SECOND).is_some());
    assert!(judge(&mut inferred, &record("t", 700), 63 * SECOND).is_none());
}

#[test]
fn a_clock_that_is_put_back_makes_no_pause_longer() {
    let mut inferred = refused_twice();
    let before = -CLOCK_PUT_BACK_US - SECOND;
    assert_eq!(judge(&mut inferred, &record("t", 700), before), None);
    too_large(&mut inferred, "t", 700, before);
    assert_eq!(judge(&mut inferred, &record("t", 700), SECOND), None, "it begins anew");
}

#[test]
fn g3_topics_are_forgotten_in_the_end() {
    let mut inferred = Inferred::default();
    for n in 0..3 * TOPICS_MAX {
        too_large(&mut inferred, &format!("t{n}"), 700, i64::try_from(n).unwrap());
    }
    assert_eq!(inferred.0.len(), TOPICS_MAX);
}
