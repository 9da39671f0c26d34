//! Tests of the policy about missing topics.

use super::*;
use crate::route::RejectionCode;

const NOW: Duration = Duration::from_secs(100);
const TICK: Duration = Duration::from_millis(100);

fn topics(then: MissingTopic) -> MissingTopics {
    let rule = |names: &str, partitions| CreateRule {
        names: names.to_owned(),
        partitions,
        replication: None,
        settings: Vec::new(),
    };
    let create = vec![rule("orders.*", Some(12)), rule("pay*", None)];
    MissingTopics::new(MissingPolicy { then, create, create_max: 2 })
}

fn absent(topics: &mut MissingTopics, name: &str, now: Duration) -> TopicDecision {
    topics.absent(name, TopicFault::Missing, now).0
}

fn is_rejected(decision: &TopicDecision) -> bool {
    matches!(decision, TopicDecision::Reject(Rejection { code: RejectionCode::MissingTopic, .. }))
}

fn waits(topics: &mut MissingTopics, name: &str) -> Duration {
    let mut now = NOW;
    while !is_rejected(&absent(topics, name, now)) {
        now += TICK;
        assert!(now < NOW * 2, "it waits for ever");
    }
    now.saturating_sub(NOW)
}

#[test]
fn g4_brokers_that_create_nothing_are_believed_once_all_must_know() {
    let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
    topics.brokers_create(Some(false));
    assert_eq!(topics.decide("a", NOW, true), TopicDecision::Ask, "before the first answer");
    assert_eq!(absent(&mut topics, "a", NOW), TopicDecision::Wait, "another broker may know it");
    let late = NOW + SPREADING;
    assert!(is_rejected(&absent(&mut topics, "a", late)));
    assert!(is_rejected(&topics.decide("a", late + TICK, true)), "without asking again");
    assert_eq!(topics.untold("a"), None, "the answer before was news");
    assert_eq!(topics.decide("a", late + ASK_AGAIN, true), TopicDecision::Ask);
    assert_eq!(topics.present("a", late + ASK_AGAIN), Some(SPREADING + ASK_AGAIN));
    assert_eq!(topics.decide("a", late + ASK_AGAIN, true), TopicDecision::Ask);
}

#[test]
fn g4_a_topic_that_is_given_up_without_another_answer_is_news_once() {
    let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
    topics.brokers_create(Some(false));
    assert_eq!(absent(&mut topics, "a", NOW), TopicDecision::Wait);
    let later = NOW + ASK_AGAIN.checked_sub(TICK).unwrap();
    topics.absent.get_mut("a").unwrap().asked = later;
    assert!(is_rejected(&topics.decide("a", later, true)));
    assert_eq!(topics.untold("a"), Some(TopicFault::Missing));
    assert_eq!((topics.untold("a"), topics.untold("b")), (None, None));
}

#[test]
fn g4_many_new_topics_at_once_are_waited_for_as_long_as_one() {
    for creates in [None, Some(true), Some(false)] {
        let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
        topics.brokers_create(creates);
        let (mut now, mut waited) = (NOW, Duration::ZERO);
        for name in ["a", "b", "c", "d"] {
            while !is_rejected(&absent(&mut topics, name, now)) {
                (now, waited) = (now + TICK, waited + TICK);
            }
        }
        let most = topics.may_take();
        assert!(waited >= most && waited < most * 3 / 2, "{creates:?}: {waited:?}");
    }
}

const CREATIONS_MOST: Duration = CREATION;

/// Waiting time in a minute with a new topic every 10 ms, of which every `nth` is created after 50
/// ms.
fn flood(topics: &mut MissingTopics, nth: u32) -> Duration {
    let (mut now, mut waited) = (NOW, Duration::ZERO);
    for number in 0_u32.. {
        if now >= NOW + Duration::from_mins(1) {
            break;
        }
        let (name, begun) = (number.to_string(), now);
        let appears = nth > 0 && number % nth == 0;
        while !is_rejected(&absent(topics, &name, now)) {
            now += Duration::from_millis(10);
            if appears && now >= begun + Duration::from_millis(50) {
                assert!(topics.present(&name, now).is_some());
                break;
            }
        }
        waited += now.saturating_sub(begun);
        now += Duration::from_millis(10);
    }
    waited
}

#[test]
fn g4_topics_of_every_row_its_own_are_waited_for_in_a_bounded_share_of_the_time() {
    for creates in [None, Some(true), Some(false)] {
        for nth in [0, 1, 2, 7] {
            let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
            topics.brokers_create(creates);
            let waited = flood(&mut topics, nth);
            // A tenth of the time, and a little more because queries happen in ticks.
            let limit = CREATIONS_MOST + Duration::from_mins(1) / 8;
            assert!(waited <= limit, "{creates:?}, every {nth}: {waited:?}");
        }
    }
}

#[test]
fn topics_that_brokers_create_when_asked_are_waited_for() {
    for creates in [None, Some(true)] {
        let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
        topics.brokers_create(creates);
        let mut now = NOW;
        for number in 0..20 {
            let name = number.to_string();
            assert_eq!(absent(&mut topics, &name, now), TopicDecision::Wait, "{number}");
            now += Duration::from_millis(50);
            assert!(topics.present(&name, now).is_some());
        }
        assert!(flood(&mut topics, 0) > CREATIONS_MOST / 4);
        let later = NOW * 100;
        assert_eq!(absent(&mut topics, "new", later), TopicDecision::Wait);
    }
}

#[test]
fn g4_a_name_that_kafka_takes_for_that_of_another_topic_is_not_waited_for() {
    let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
    topics.brokers_create(Some(true));
    for number in 0..1_000 {
        topics.present(&format!("x.{number}"), NOW);
        assert!(is_rejected(&absent(&mut topics, &format!("x_{number}"), NOW)));
    }
    assert!(is_rejected(&topics.unlisted("y_1", true, NOW).0), "one that is listed");
    assert_eq!(topics.unlisted("y_2", false, NOW).0, TopicDecision::AskByName);
}

#[test]
fn g4_a_list_of_all_topics_answers_for_those_that_nobody_creates() {
    let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
    topics.brokers_create(Some(false));
    assert_eq!(
        topics.unlisted("a", false, NOW).0,
        TopicDecision::AskByName,
        "it may be a moment old"
    );
    flood(&mut topics, 0);
    let (TopicDecision::Reject(rejection), true) = topics.unlisted("a", false, NOW) else {
        panic!()
    };
    assert_eq!(rejection.code, RejectionCode::MissingTopic);
    assert!(rejection.reason.ends_with("not among those that the brokers show us"));
    topics.absent("secret", TopicFault::Forbidden, NOW);
    let (TopicDecision::Reject(rejection), _) = topics.unlisted("secret", false, NOW + ASK_AGAIN)
    else {
        panic!()
    };
    assert_eq!(rejection.code, RejectionCode::ForbiddenTopic);
    let mut patient = self::topics(MissingTopic::Wait(None));
    assert_eq!(patient.unlisted("a", false, NOW).0, TopicDecision::AskByName);
    assert_eq!(absent(&mut patient, "a", NOW), TopicDecision::Wait);
    assert_eq!(patient.decide("a", NOW + TICK, true), TopicDecision::AskByName);
}

#[test]
fn g4_known_topics_that_went_are_not_waited_for_one_by_one() {
    let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
    topics.brokers_create(Some(false));
    for number in 0..100 {
        topics.present(&number.to_string(), NOW);
    }
    let mut now = NOW;
    for number in 0..100 {
        while !is_rejected(&absent(&mut topics, &number.to_string(), now)) {
            now += TICK;
        }
    }
    assert!(now.saturating_sub(NOW) < KNOWN * 2, "{:?}", now.saturating_sub(NOW));
}

#[test]
fn a_deadline_is_kept_and_none_waits_for_ever() {
    let deadline = Duration::from_secs(9);
    let mut short = topics(MissingTopic::Wait(Some(deadline)));
    assert_eq!(waits(&mut short, "a"), deadline);
    let mut long = topics(MissingTopic::Wait(None));
    absent(&mut long, "a", NOW);
    assert_eq!(absent(&mut long, "a", NOW * 100), TopicDecision::Wait);
    assert!(long.list(9)[0].waiting);
    let mut given = topics(MissingTopic::Reject(deadline));
    given.brokers_create(Some(false));
    assert_eq!(waits(&mut given, "a"), deadline);
}

#[test]
fn a_topic_that_was_there_is_given_time_to_come_back() {
    let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
    topics.brokers_create(Some(false));
    assert_eq!(topics.present("a", NOW), None);
    assert_eq!(waits(&mut topics, "a"), KNOWN);
}

#[test]
fn a_forbidden_topic_is_not_waited_for() {
    let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
    let (decision, news) = topics.absent("a", TopicFault::Forbidden, NOW);
    let TopicDecision::Reject(rejection) = decision else { panic!("{decision:?}") };
    assert_eq!(rejection.code, RejectionCode::ForbiddenTopic);
    assert!(news && !topics.absent("a", TopicFault::Forbidden, NOW).1);
    assert_eq!(topics.count(TopicFault::Forbidden), 1);
}

#[test]
fn whether_writing_is_still_denied_is_tried_less_and_less_often() {
    let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
    topics.absent("a", TopicFault::Denied, NOW);
    let (mut now, mut trials) = (NOW, 0);
    while now < NOW + Duration::from_hours(2) {
        now += Duration::from_secs(1);
        assert_ne!(topics.decide("a", now, false), TopicDecision::Ask, "records are in flight");
        if topics.decide("a", now, true) == TopicDecision::Ask {
            trials += 1;
            assert_eq!(topics.seen("a", now), None);
            topics.absent("a", TopicFault::Denied, now);
        }
    }
    assert!((6..=9).contains(&trials), "{trials}");
    assert!(topics.present("a", now).is_some());
}

#[test]
fn g4_whether_writing_is_still_denied_is_tried_under_steady_load_too() {
    let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
    topics.absent("a", TopicFault::Denied, NOW);
    let mut seconds = (1..3_600).map(Duration::from_secs);
    let tried = seconds.find(|after| topics.decide("a", NOW + *after, false) == TopicDecision::Ask);
    assert!(tried.is_some_and(|after| after > TRIAL_FIRST && after < TRIAL_FIRST * 4), "{tried:?}");
}

#[test]
fn topics_are_created_by_the_first_rule_that_fits_up_to_the_cap() {
    let mut topics = topics(MissingTopic::Create);
    topics.brokers_create(Some(false));
    let TopicDecision::Create(rule) = absent(&mut topics, "orders.eu", NOW) else { panic!() };
    assert_eq!(rule.partitions, Some(12));
    assert_eq!(absent(&mut topics, "orders.eu", NOW + TICK), TopicDecision::Wait);
    assert!(topics.present("orders.eu", NOW + TICK).is_some());
    assert_eq!(absent(&mut topics, "typo", NOW), TopicDecision::Wait, "another broker may know it");
    assert!(is_rejected(&absent(&mut topics, "typo", NOW + SPREADING)), "no rule fits");
    assert!(matches!(absent(&mut topics, "pay", NOW), TopicDecision::Create(_)));
    topics.not_created("pay", "not authorised", NOW);
    let TopicDecision::Reject(rejection) = absent(&mut topics, "pay", NOW) else { panic!() };
    assert!(rejection.reason.ends_with("not authorised"), "{}", rejection.reason);
    assert!(matches!(absent(&mut topics, "payments", NOW), TopicDecision::Create(_)));
    assert!(is_rejected(&absent(&mut topics, "payouts", NOW)), "the cap");
}

#[test]
fn g4_topics_that_cannot_be_created_are_tried_in_a_bounded_share_of_the_time() {
    const MINUTE: Duration = Duration::from_mins(1);
    for takes in [TICK / 5, TICK * 5, MINUTE] {
        let mut topics = topics(MissingTopic::Create);
        topics.brokers_create(Some(false));
        let (mut now, mut waited, mut tried) = (NOW, Duration::ZERO, 0);
        for number in 0_u32.. {
            if now >= NOW + MINUTE {
                break;
            }
            let (name, begun) = (format!("orders.{number}"), now);
            tried += u32::from(matches!(absent(&mut topics, &name, now), TopicDecision::Create(_)));
            while !is_rejected(&absent(&mut topics, &name, now)) {
                now += TICK / 10;
                if now >= begun + takes {
                    topics.not_created(&name, "too few brokers", now);
                }
            }
            waited += now.saturating_sub(begun);
            now += TICK / 10;
        }
        assert!(tried > 1, "one in {takes:?}");
        assert!(waited <= OWN_CREATION + MINUTE / 8, "{takes:?} each: {waited:?}");
        // Unanswered attempts count against the limit.
        let decision = absent(&mut topics, "orders.eu", NOW * 100);
        assert!(matches!(decision, TopicDecision::Create(_)) || takes == MINUTE, "{decision:?}");
    }
}

#[test]
fn g3_memory_is_bounded() {
    let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
    for n in 0..TOPICS_MAX + 5 {
        absent(&mut topics, &n.to_string(), NOW + TICK * n.try_into().unwrap());
    }
    let known = topics.count(TopicFault::Missing);
    assert!((TOPICS_MAX - FORGOTTEN..=TOPICS_MAX).contains(&known), "{known}");
    assert_eq!(topics.list(20).len(), 20);
}
