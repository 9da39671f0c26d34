//! What becomes of rows whose topic is not to be had, answer by answer, in time that the tests tell.

use super::*;

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

fn absent(topics: &mut MissingTopics, name: &str, now: Duration) -> Decision {
    topics.absent(name, TopicFault::Missing, now).0
}

fn is_rejected(decision: &Decision) -> bool {
    matches!(decision, Decision::Reject(Rejection { code: RejectionCode::MissingTopic, .. }))
}

/// Time until a row of this topic is rejected.
fn waits(topics: &mut MissingTopics, name: &str) -> Duration {
    let mut now = NOW;
    while !is_rejected(&absent(topics, name, now)) {
        now += TICK;
        assert!(now < NOW * 2, "it waits for ever");
    }
    now.saturating_sub(NOW)
}

#[test]
fn g4_brokers_that_create_nothing_are_believed_at_once() {
    let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
    topics.brokers_create(Some(false));
    assert_eq!(topics.decide("a", NOW, true), Decision::Ask, "before the first answer");
    assert!(is_rejected(&absent(&mut topics, "a", NOW)));
    assert!(is_rejected(&topics.decide("a", NOW + TICK, true)), "without asking again");
    assert_eq!(topics.decide("a", NOW + ASK_AGAIN, true), Decision::Ask);
    assert_eq!(topics.present("a", NOW + ASK_AGAIN), Some(ASK_AGAIN));
    assert_eq!(topics.decide("a", NOW + ASK_AGAIN, true), Decision::Ask);
}

#[test]
fn g4_a_thousand_topics_that_nobody_creates_are_not_waited_for_one_by_one() {
    for creates in [None, Some(true)] {
        let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
        topics.brokers_create(creates);
        let total: Duration = (0..1_000).map(|n| waits(&mut topics, &n.to_string())).sum();
        let limit = if creates.is_none() { CREATION_MAYBE } else { CREATION };
        assert_eq!(total, limit * VAIN_MAX, "{creates:?}");
        // One that appears is proof that waiting is worth while.
        topics.present("7", NOW);
        assert_eq!(waits(&mut topics, "new"), limit);
    }
}

#[test]
fn a_deadline_is_kept_and_none_waits_for_ever() {
    let deadline = Duration::from_secs(9);
    let mut short = topics(MissingTopic::Wait(Some(deadline)));
    assert_eq!(waits(&mut short, "a"), deadline);
    let mut long = topics(MissingTopic::Wait(None));
    absent(&mut long, "a", NOW);
    assert_eq!(absent(&mut long, "a", NOW * 100), Decision::Wait);
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
    let Decision::Reject(rejection) = decision else { panic!("{decision:?}") };
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
        assert_ne!(topics.decide("a", now, false), Decision::Ask, "records are in flight");
        if topics.decide("a", now, true) == Decision::Ask {
            trials += 1;
            assert_eq!(topics.seen("a", now), None);
            topics.absent("a", TopicFault::Denied, now);
        }
    }
    assert!((6..=9).contains(&trials), "{trials}");
    assert!(topics.present("a", now).is_some());
}

#[test]
fn topics_are_created_by_the_first_rule_that_fits_up_to_the_cap() {
    let mut topics = topics(MissingTopic::Create);
    topics.brokers_create(Some(false));
    let Decision::Create(rule) = absent(&mut topics, "orders.eu", NOW) else { panic!() };
    assert_eq!(rule.partitions, Some(12));
    assert_eq!(absent(&mut topics, "orders.eu", NOW + TICK), Decision::Wait);
    assert!(topics.present("orders.eu", NOW + TICK).is_some());
    assert!(is_rejected(&absent(&mut topics, "typo", NOW)), "no rule fits");
    assert!(matches!(absent(&mut topics, "pay", NOW), Decision::Create(_)));
    topics.not_created("pay", "not authorised", NOW);
    let Decision::Reject(rejection) = absent(&mut topics, "pay", NOW) else { panic!() };
    assert!(rejection.reason.ends_with("not authorised"), "{}", rejection.reason);
    assert!(matches!(absent(&mut topics, "payments", NOW), Decision::Create(_)));
    assert!(is_rejected(&absent(&mut topics, "payouts", NOW)), "the cap");
}

#[test]
fn g3_memory_is_bounded() {
    let mut topics = topics(MissingTopic::Reject(Duration::ZERO));
    for n in 0..TOPICS_MAX + 5 {
        absent(&mut topics, &n.to_string(), NOW + TICK * n.try_into().unwrap());
    }
    assert_eq!(topics.count(TopicFault::Missing), TOPICS_MAX);
    assert_eq!(topics.list(20).len(), 20);
}
