//! The order of each aggregate's numbers, enforced: across topics, gaps, retries, members and kills.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider::dead_letter::{Filter, RedriveOptions, now_ms};
use postrider::inbox::{Consumer, ConsumerSpec, GapPolicy, SequenceSpec, SequenceStart};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use uuid::Uuid;

use crate::inbox::scene::{
    Draft, HANDLED, IGNORED, Outcome, PARTITIONS, Running, Scene, TestEffects,
};
use support::chance::Chance;
use support::wait::let_pass;
use support::{topic, unique, wait_for};

/// Long enough for everything that is not a gap, on a machine that does much else.
const LONG: Duration = Duration::from_mins(10);

/// A scene with a second topic. Rows of effects are numbered as they are written.
pub(super) struct Split {
    pub(super) scene: Scene,
    pub(super) other: Scene,
}

/// The message with this number of an aggregate; the effect's number says both.
pub(super) fn numbered(aggregate: usize, number: usize) -> Draft {
    let mut draft = Draft::of(Uuid::now_v7(), HANDLED, aggregate * 1_000 + number);
    draft.key = format!("account-{aggregate}");
    draft.headers.push(("aggregate_type", "account".into()));
    draft.headers.push(("sequence", number.to_string()));
    draft
}

impl Split {
    pub(super) fn new(stem: &str) -> Option<Self> {
        Scene::new(stem).map(|scene| Self::with(scene, stem))
    }

    pub(super) fn with(scene: Scene, stem: &str) -> Self {
        scene.database.sql().run("ALTER TABLE deeds ADD COLUMN written bigserial");
        let other_topic = unique(stem);
        topic::create(&scene.bootstrap, &other_topic, PARTITIONS, &[]);
        let (bootstrap, database) = (scene.bootstrap.clone(), scene.database.clone());
        let other = Scene { bootstrap, topic: other_topic, name: scene.name.clone(), database };
        Self { scene, other }
    }

    pub(super) fn spec(&self, gap_wait: Duration, on_gap: GapPolicy) -> ConsumerSpec {
        let mut spec = self.scene.spec();
        spec.topics.push(self.other.topic.clone());
        spec.sequence = Some(sequence(gap_wait, on_gap));
        spec
    }

    /// Even numbers go to one topic, odd ones to the other, in an order of the test's.
    fn send_shuffled(&self, aggregates: usize, numbers: usize) {
        let mut chance = Chance::new(7);
        let mut places: Vec<(usize, usize)> =
            (0..aggregates).flat_map(|a| (1..=numbers).map(move |number| (a, number))).collect();
        for at in (1..places.len()).rev() {
            places.swap(at, chance.below(at + 1));
        }
        let (even, odd): (Vec<_>, Vec<_>) = places.iter().partition(|(_, number)| number % 2 == 0);
        let drafts = |places: Vec<(usize, usize)>| -> Vec<Draft> {
            places.into_iter().map(|(aggregate, number)| numbered(aggregate, number)).collect()
        };
        self.scene.send(&drafts(even));
        self.other.send(&drafts(odd));
    }

    /// The numbers of an aggregate as their effects were had.
    fn handled(&self, aggregate: usize) -> String {
        let sql = format!(
            "SELECT coalesce(string_agg((number % 1000)::text, ',' ORDER BY written), '') \
             FROM deeds WHERE number / 1000 = {aggregate}"
        );
        self.scene.database.sql().value(&sql)
    }

    pub(super) fn await_handled(&self, aggregate: usize, numbers: &str) {
        wait_for(numbers, || (self.handled(aggregate) == numbers).then_some(()));
    }

    fn assert_in_order(&self, aggregates: usize, numbers: usize) {
        let expected: Vec<String> = (1..=numbers).map(|number| number.to_string()).collect();
        for aggregate in 0..aggregates {
            assert_eq!(self.handled(aggregate), expected.join(","), "of aggregate {aggregate}");
        }
    }

    fn redrive(&self) {
        let how =
            RedriveOptions { horizon: Duration::from_hours(1), force: false, now_ms: now_ms() };
        self.scene.dead_letters().redrive(&Filter::default(), &how).unwrap();
    }
}

fn sequence(gap_wait: Duration, on_gap: GapPolicy) -> SequenceSpec {
    let mut sequence = SequenceSpec::default();
    sequence.gap_wait = gap_wait;
    sequence.on_gap = on_gap;
    sequence.start = SequenceStart::One;
    sequence
}

#[test]
fn events_of_an_aggregate_in_two_topics_are_handled_in_the_order_of_their_numbers() {
    let Some(split) = Split::new("shuffled") else { return };
    split.send_shuffled(20, 30);
    let mut spec = split.spec(LONG, GapPolicy::DeadLetter);
    spec.batch_max = 20;
    let running = Running::start(spec, TestEffects::plain());
    split.scene.await_effects(600);
    let end = running.stop();
    assert_eq!((end.processed, end.dead_letters, end.sequence_gaps), (600, 0, 0));
    assert!(end.sequence_waits > 0, "{end:?}");
    split.assert_in_order(20, 30);
    let sum = split.scene.committed().iter().chain(&split.other.committed()).sum::<i64>();
    assert_eq!(sum, 600);
}

/// One topic is read whole before the other, and its messages are more than may wait.
#[test]
fn a_backlog_of_two_topics_is_handled_in_order_with_default_limits() {
    let Some(split) = Split::new("backlogs") else { return };
    let (aggregates, numbers) = (40, 100);
    let of = |parity| -> Vec<Draft> {
        let all = (1..=numbers).flat_map(|number| (0..aggregates).map(move |it| (it, number)));
        let own = all.filter(|(_, number)| number % 2 == parity);
        own.map(|(aggregate, number)| numbered(aggregate, number)).collect()
    };
    split.scene.send(&of(0));
    let spec = split.spec(SequenceSpec::default().gap_wait, GapPolicy::DeadLetter);
    let running = Running::start(spec, TestEffects::with(|_, _| Outcome::Succeed));
    running.await_status("as many messages as may wait", |it| it.waiting_messages >= 1_000);
    split.other.send(&of(1));
    split.scene.await_effects(aggregates * numbers);
    let expected = (1..=numbers).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    for aggregate in 0..aggregates {
        assert_eq!(split.handled(aggregate), expected, "aggregate {aggregate}");
    }
    let counted = running.stop();
    assert_eq!((counted.dead_letters, counted.sequence_gaps), (0, 0));
}

/// Nobody reads the partitions of a member that was killed until its session times out, after 45 s.
#[test]
fn a_full_buffer_waits_for_a_partition_of_another_member() {
    let Some(mut split) = Split::new("foreign") else { return };
    for scene in [&mut split.scene, &mut split.other] {
        scene.topic = unique("foreign");
        topic::create(&scene.bootstrap, &scene.topic, 1, &[]);
    }
    let gap_wait = Duration::from_secs(30);
    let mut spec = split.spec(gap_wait, GapPolicy::DeadLetter);
    spec.sequence.as_mut().unwrap().buffer_max = 10;
    let running = Running::start(spec, TestEffects::plain());
    running.await_status("both partitions", |it| it.partitions == 2);
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &split.scene.bootstrap).set("group.id", &split.scene.name);
    config.set("partition.assignment.strategy", "cooperative-sticky");
    config.set("enable.auto.commit", "false");
    let member: BaseConsumer = config.create().unwrap();
    member.subscribe(&[&split.scene.topic, &split.other.topic]).unwrap();
    let held = wait_for("a partition of another member", || {
        drop(member.poll(Duration::from_millis(100)));
        let held = member.assignment().unwrap().elements().first()?.topic().to_owned();
        (running.status().partitions == 1).then_some(held)
    });
    let (theirs, ours) = if held == split.scene.topic {
        (&split.scene, &split.other)
    } else {
        (&split.other, &split.scene)
    };
    let of = |first: usize| (first..=40).step_by(2).map(|it| numbered(0, it)).collect::<Vec<_>>();
    ours.send(&of(2));
    running.await_status("a full buffer", |it| it.paused_partitions == 1);
    let_pass(gap_wait / 5, "alone, the consumer would give the aggregate up");
    theirs.send(&of(1));
    drop(member);
    split.scene.await_effects(40);
    split.assert_in_order(1, 40);
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn what_comes_after_a_gap_is_a_dead_letter_and_comes_in_order_when_it_is_redriven() {
    let Some(split) = Split::new("gap") else { return };
    split.scene.send(&[(0, 1), (0, 3), (0, 4), (1, 1), (1, 2)].map(|(a, n)| numbered(a, n)));
    let spec = split.spec(Duration::from_secs(2), GapPolicy::DeadLetter);
    let running = Running::start(spec, TestEffects::plain());
    // Another aggregate passes.
    split.await_handled(1, "1,2");
    running.await_counters("the dead letters", |now| now.dead_letters == 2);
    assert_eq!(split.handled(0), "1");
    for (letter, number) in split.scene.letters().iter().zip([3, 4]) {
        let reason = format!("it has number {number}, and number 1 was handled last");
        assert_eq!((letter.code.as_str(), letter.reason.as_str()), ("sequence_gap", &*reason));
    }
    let end = running.stop();
    assert_eq!((end.sequence_gaps, end.dead_letters), (2, 2));
    // The missing one comes from elsewhere, and after the others; however slow the machine is, in time.
    split.redrive();
    let running = Running::start(split.spec(LONG, GapPolicy::DeadLetter), TestEffects::plain());
    running.await_status("the others again", |status| status.waiting_messages == 2);
    split.other.send(&[numbered(0, 2)]);
    split.await_handled(0, "1,2,3,4");
    let end = running.stop();
    assert_eq!((end.sequence_gaps, end.dead_letters), (0, 0));
}

#[test]
fn a_gap_is_passed_where_that_is_said_and_what_comes_late_is_a_dead_letter() {
    let Some(split) = Split::new("passed") else { return };
    split.scene.send(&[numbered(0, 1), numbered(0, 3), numbered(0, 5), numbered(0, 4)]);
    let spec = split.spec(Duration::from_millis(300), GapPolicy::Pass);
    let running = Running::start(spec, TestEffects::plain());
    split.await_handled(0, "1,3,4,5");
    split.other.send(&[numbered(0, 2)]);
    running.await_counters("the late one", |now| now.dead_letters == 1);
    let end = running.stop();
    assert_eq!((end.processed, end.sequence_gaps), (4, 3));
    let letters = split.scene.letters();
    assert_eq!(letters[0].code, "out_of_sequence");
    assert_eq!(letters[0].reason, "it has number 2, and number 5 was handled last");
}

#[test]
fn what_passes_a_gap_and_fails_is_overtaken_by_nothing() {
    let Some(split) = Split::new("passes") else { return };
    split.scene.send(&[1, 3, 8].map(|number| numbered(0, number)));
    split.other.send(&[4, 5, 7].map(|number| numbered(0, number)));
    let is_back = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_back);
    let effects = TestEffects::with(move |number, attempt| match number {
        1 if !switch.load(Ordering::Relaxed) => Outcome::Unavailable,
        3 | 7 if attempt < 3 => Outcome::Fail,
        _ => Outcome::Succeed,
    });
    let spec = split.spec(Duration::from_millis(300), GapPolicy::Pass);
    let running = Running::start(spec, effects);
    // Until then nothing is missing, however long the other topic takes.
    running.await_status("all to be there", |status| status.waiting_messages == 6);
    is_back.store(true, Ordering::Relaxed);
    running.await_counters("all", |now| now.processed + now.dead_letters == 6);
    let end = running.stop();
    assert_eq!((split.handled(0).as_str(), end.dead_letters), ("1,3,4,5,7,8", 0));
}

#[test]
fn a_message_that_waits_holds_its_offset_back_and_follows_what_another_member_handles() {
    let Some(split) = Split::new("member") else { return };
    split.scene.send(&[numbered(0, 3)]);
    let spec = || split.spec(LONG, GapPolicy::DeadLetter);
    let first = Running::start(spec(), TestEffects::plain());
    first.await_status("the early one", |status| status.waiting_messages == 1);
    first.stop();
    assert!(split.scene.committed().iter().all(|&offset| offset <= 0));
    assert_eq!((split.scene.markers(), split.scene.effect_rows()), (0, (0, 0)));
    let second = Running::start(spec(), TestEffects::plain());
    second.await_status("it again", |status| status.waiting_messages == 1);
    split.scene.database.sql().run(&format!(
        "INSERT INTO consumer_sequences VALUES ('{}', 'account', 'account-0', 2)",
        split.scene.name
    ));
    split.await_handled(0, "3");
    assert_eq!(second.stop().dead_letters, 0);
}

#[test]
fn a_message_that_is_retried_is_not_missing_and_one_of_an_ignored_type_counts() {
    let Some(split) = Split::new("retried") else { return };
    let mut ignored = numbered(0, 1);
    ignored.headers[1].1 = IGNORED.into();
    let mut unnumbered = numbered(1, 1);
    unnumbered.headers.retain(|(name, _)| *name != "sequence");
    split.scene.send(&[ignored, numbered(0, 2), unnumbered]);
    let is_back = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_back);
    let effects = TestEffects::with(move |number, _| {
        let is_away = number == 2 && !switch.load(Ordering::Relaxed);
        if is_away { Outcome::Unavailable } else { Outcome::Succeed }
    });
    let spec = split.spec(Duration::from_millis(50), GapPolicy::DeadLetter);
    let running = Running::start(spec, effects);
    running.await_status("the first", |status| status.waiting_messages == 1);
    split.other.send(&[numbered(0, 3)]);
    running.await_status("both", |status| status.waiting_messages == 2);
    // Long beyond the limit: each attempt is at least 10 ms after the one before.
    running.await_counters("retries", |now| now.retries > 60);
    assert_eq!((split.handled(0), running.now().sequence_gaps), (String::new(), 0));
    is_back.store(true, Ordering::Relaxed);
    split.await_handled(0, "2,3");
    let end = running.stop();
    assert_eq!((end.processed, end.passed_over, end.dead_letters), (2, 1, 1));
    let letters = split.scene.letters();
    assert_eq!(letters[0].code, "missing_header");
    assert_eq!(letters[0].reason, "the header `sequence` is missing");
}

/// No writer gives such numbers.
#[test]
fn a_number_that_can_never_be_next_is_a_dead_letter_and_stops_no_other() {
    let Some(split) = Split::new("never") else { return };
    let with = |number: i64| {
        let mut draft = numbered(0, 0);
        draft.headers[3].1 = number.to_string();
        draft
    };
    split.scene.database.sql().run(&format!(
        "INSERT INTO consumer_sequences VALUES ('{}', 'account', 'account-2', {})",
        split.scene.name,
        i64::MAX
    ));
    let mut last = with(i64::MAX);
    last.key = "account-2".into();
    split.scene.send(&[with(0), with(i64::MIN), last, numbered(1, 1)]);
    let running = Running::start(split.spec(LONG, GapPolicy::DeadLetter), TestEffects::plain());
    split.await_handled(1, "1");
    running.await_counters("the dead letters", |now| now.dead_letters == 3);
    split.scene.send(&[numbered(0, 1)]);
    split.await_handled(0, "1");
    running.stop();
    assert!(split.scene.letters().iter().all(|letter| letter.code == "out_of_sequence"));
}

#[test]
fn an_aggregate_begins_with_what_is_seen_first_unless_it_is_to_begin_with_one() {
    let Some(split) = Split::new("begins") else { return };
    split.scene.send(&[numbered(0, 57), numbered(0, 58)]);
    let mut spec = split.spec(LONG, GapPolicy::DeadLetter);
    spec.sequence = Some(SequenceSpec::default());
    let running = Running::start(spec, TestEffects::plain());
    split.await_handled(0, "57,58");
    assert_eq!(running.stop().sequence_waits, 0);
}

#[test]
fn what_waits_for_a_message_that_fails_lets_that_be_tried_again() {
    let Some(split) = Split::new("tried") else { return };
    let is_back = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_back);
    let effects = TestEffects::with(move |number, _| {
        let is_away = number == 1 && !switch.load(Ordering::Relaxed);
        if is_away { Outcome::Unavailable } else { Outcome::Succeed }
    });
    split.scene.send(&[numbered(0, 1), numbered(0, 3), numbered(0, 5)]);
    let running = Running::start(split.spec(LONG, GapPolicy::DeadLetter), effects);
    running.await_status("all", |status| status.waiting_messages == 3);
    split.other.send(&[numbered(0, 2)]);
    running.await_counters("the one between", |now| now.sequence_waits >= 3);
    let before = running.now().retries;
    running.await_counters("more retries", |now| now.retries > before + 3);
    is_back.store(true, Ordering::Relaxed);
    split.other.send(&[numbered(0, 4)]);
    split.await_handled(0, "1,2,3,4,5");
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn an_outage_of_a_dependency_gives_up_nothing_that_waits_behind_it() {
    let Some(split) = Split::new("behind") else { return };
    let is_back = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_back);
    let effects = TestEffects::with(move |number, _| {
        let is_away = number == 1 && !switch.load(Ordering::Relaxed);
        if is_away { Outcome::Unavailable } else { Outcome::Succeed }
    });
    let mut spec = split.spec(LONG, GapPolicy::DeadLetter);
    spec.sequence.as_mut().unwrap().buffer_max = 3;
    spec.batch_max = 2;
    split.scene.send(&[numbered(0, 1)]);
    let running = Running::start(spec, effects);
    running.await_status("the first", |status| status.waiting_messages == 1);
    let later: Vec<Draft> = (2..=9).map(|number| numbered(0, number)).collect();
    split.other.send(&later);
    running.await_counters("more than may wait", |now| now.sequence_waits >= 4);
    let before = running.now().retries;
    running.await_counters("more retries", |now| now.retries > before + 10);
    assert_eq!(running.now().sequence_gaps, 0);
    is_back.store(true, Ordering::Relaxed);
    split.await_handled(0, "1,2,3,4,5,6,7,8,9");
    assert_eq!(running.stop().dead_letters, 0);
}

/// Number 3 ends with this statement, alone in its batch or not.
fn takes_no_number(sql: &'static str, batch_max: usize) {
    let Some(split) = Split::new("taken") else { return };
    let effects = TestEffects::with(
        move |number, _| {
            if number == 3 { Outcome::Run(sql) } else { Outcome::Succeed }
        },
    );
    let drafts: Vec<Draft> = (1..=6).map(|number| numbered(0, number)).collect();
    split.scene.send(&drafts);
    let mut spec = split.spec(Duration::from_secs(2), GapPolicy::DeadLetter);
    spec.batch_max = batch_max;
    let running = Running::start(spec, effects);
    split.await_handled(0, "1,2,3,4,5,6");
    let end = running.stop();
    assert_eq!((end.dead_letters, end.sequence_gaps), (0, 0));
}

#[test]
fn an_effect_that_leaves_another_search_path_takes_no_number_from_its_aggregate() {
    takes_no_number("SET LOCAL search_path TO pg_catalog", 1);
}

#[test]
fn an_effect_that_commits_takes_no_number_from_its_aggregate() {
    takes_no_number("COMMIT", 1);
    takes_no_number("COMMIT", 200);
}

/// What the member that is killed needs to know; it runs this same test in a process of its own.
const MEMBER: [&str; 5] = ["BOOTSTRAP", "TOPIC", "OTHER_TOPIC", "CONSUMER", "DATABASE"];

#[test]
fn a_consumer_that_is_killed_again_and_again_loses_nothing_and_keeps_the_order() {
    const NAME: &str = "inbox::sequences::a_consumer_that_is_killed_again_and_again_loses_nothing_and_keeps_the_order";
    if let Some(values) = MEMBER.map(member_variable).into_iter().collect::<Option<Vec<_>>>() {
        return run_member(&values);
    }
    let Some(split) = Split::new("killed") else { return };
    split.send_shuffled(20, 30);
    let values = [
        split.scene.bootstrap.clone(),
        split.scene.topic.clone(),
        split.other.topic.clone(),
        split.scene.name.clone(),
        split.scene.database.address().unix_url(),
    ];
    let start = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        for (name, value) in MEMBER.into_iter().zip(&values) {
            command.env(format!("SEQUENCE_{name}"), value);
        }
        command.args(["--exact", NAME]).stdin(Stdio::piped()).stdout(Stdio::null());
        Killed(command.spawn().unwrap())
    };
    for kill in 0..10 {
        let member = start();
        wait_for("some effects", || (split.scene.effect_rows().0 > kill * 40).then_some(()));
        drop(member);
    }
    assert!(split.scene.effect_rows().0 < 600, "it was never killed in the middle");
    let _last = start();
    split.scene.await_effects(600);
    split.assert_in_order(20, 30);
    assert_eq!(split.scene.letters().len(), 0);
}

/// A process that is ended by SIGKILL.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn member_variable(name: &str) -> Option<String> {
    std::env::var(format!("SEQUENCE_{name}")).ok()
}

/// Consumes until its standard input ends, so that it does not outlive the test.
fn run_member(values: &[String]) {
    let [bootstrap, topic, other, name, database] = values else { panic!("{MEMBER:?}") };
    let database = database.parse().unwrap();
    let mut spec = ConsumerSpec::new(name, [topic, other], bootstrap, database);
    spec.batch_max = 10;
    spec.sequence = Some(sequence(LONG, GapPolicy::DeadLetter));
    // The next process is the same member, so that it need not wait until this one is given up.
    spec.kafka.push(("group.instance.id".into(), "the-only-one".into()));
    // After the last kill is due, 5 s of effects are still to come.
    let slow = TestEffects::with(|_, _| Outcome::Sleep(Duration::from_millis(20)));
    let consumer = Consumer::new(spec, slow).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stop = async {
        let input = || std::io::stdin().read_to_end(&mut Vec::new());
        drop(tokio::task::spawn_blocking(input).await);
    };
    runtime.block_on(consumer.run(stop)).unwrap();
}
