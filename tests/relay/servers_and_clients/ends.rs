//! What can be done to the end of a Kafka transaction, shown with a plain producer and real Kafka.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use support::fault::cluster::{self, Cluster};
use support::fault::endtxn::{End, Injection};
use support::fault::link::Kind;
use support::kafka::Options;
use support::wait::stays;
use support::{topic, unique, wait_for};

/// How long the client waits for an answer; it looks once a second. A busy machine does more within it than look at a
/// topic.
pub(crate) const SOCKET_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The broker that these tests share.
pub(crate) fn shared() -> Option<&'static Cluster> {
    static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();
    SHARED.get_or_init(|| cluster::start(&Options::default())).as_ref()
}

/// A producer of its own, and a topic.
struct Case {
    cluster: &'static Cluster,
    /// Also its transactional id.
    topic: String,
    producer: BaseProducer,
}

impl Case {
    fn new(cluster: &'static Cluster, stem: &str) -> Self {
        let topic = unique(stem);
        topic::create(&cluster.kafka.bootstrap(), &topic, 1, &[]);
        let producer = producer(cluster, &topic);
        Self { cluster, topic, producer }
    }

    /// Begins a transaction and stores a record in it.
    fn begin(&self, value: &str) {
        self.producer.begin_transaction().unwrap();
        self.producer.send(BaseRecord::<(), _>::to(&self.topic).payload(value)).unwrap();
        self.producer.flush(LIMIT).unwrap();
    }

    /// Commits, with this done to it, and tells how long it took.
    fn commit(&self, injection: Injection) -> Duration {
        self.cluster.end_txns.once(&self.topic, injection);
        let begun = Instant::now();
        self.producer.commit_transaction(LIMIT).unwrap();
        begun.elapsed()
    }

    /// What a reader of committed records sees.
    fn visible(&self) -> Vec<String> {
        let bootstrap = self.cluster.kafka.bootstrap();
        let records = topic::read_now(&bootstrap, std::slice::from_ref(&self.topic));
        let text = |value: Option<Vec<u8>>| String::from_utf8(value.unwrap()).unwrap();
        records.into_iter().map(|record| text(record.value)).collect()
    }

    /// A commit is answered before its markers are written, so this may take a moment.
    fn assert_visible(&self, values: &[&str]) {
        wait_for("what is committed", || (self.visible() == values).then_some(()));
    }

    /// Its EndTxns.
    fn ends(&self) -> Vec<End> {
        let ends = self.cluster.end_txns.journal().ends.into_iter();
        ends.filter(|end| end.producer.transactional_id == self.topic).collect()
    }

    /// How often it went on without an answer.
    fn went_on(&self) -> usize {
        let all = self.cluster.end_txns.went_on();
        all.iter().filter(|one| one.transactional_id == self.topic).count()
    }

    /// One end of a transaction, sent more than once: the client's own doing. A broker that is
    /// still busy with the first one makes it ask again.
    fn assert_sent_again(&self, injection: Injection) {
        let ends = self.ends();
        let [first, again @ ..] = ends.as_slice() else { panic!("no EndTxn") };
        assert!(first.injection == Some(injection) && first.answered_after.is_none(), "{first:?}");
        assert!(!again.is_empty(), "it was not sent again");
        for end in again {
            assert_eq!((&end.producer, end.injection), (&first.producer, None));
            assert!(end.answered_after.is_some(), "{end:?}");
        }
    }
}

fn producer(cluster: &Cluster, transactional_id: &str) -> BaseProducer {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap())
        .set("transactional.id", transactional_id)
        .set("transaction.timeout.ms", "60000")
        .set("socket.timeout.ms", SOCKET_TIMEOUT.as_millis().to_string())
        .set("linger.ms", "0")
        .create()
        .unwrap();
    producer.init_transactions(LIMIT).unwrap();
    producer
}

#[test]
fn a_short_delay_is_waited_for() {
    const DELAY: Duration = Duration::from_millis(300);
    let Some(cluster) = shared() else { return };
    let case = Case::new(cluster, "delay");
    case.begin("a");
    let took = case.commit(Injection::Delay(DELAY));
    assert!(took >= DELAY, "{took:?}");
    let ends = case.ends();
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert!(ends[0].committed && ends[0].answered_after >= Some(DELAY), "{ends:?}");
    case.assert_visible(&["a"]);
}

/// Why a producer must not go on in the epoch in which it has lost sight of an EndTxn.
#[test]
fn a_long_delay_ends_the_next_transaction() {
    let Some(cluster) = shared() else { return };
    let case = Case::new(cluster, "late");
    case.begin("a");
    let took = case.commit(Injection::Delay(SOCKET_TIMEOUT * 5));
    assert!(took >= SOCKET_TIMEOUT && took < SOCKET_TIMEOUT * 5, "{took:?}");
    case.assert_visible(&["a"]);
    // The commit was sent again and answered, so all seems well. The first one is still on its way.
    case.begin("b");
    assert_eq!(case.ends().len(), 2);
    assert!(case.went_on() > 0, "nobody noticed");
    case.assert_visible(&["a"]);
    wait_for("what nobody committed", || (case.visible() == ["a", "b"]).then_some(()));
}

#[test]
fn a_producer_that_is_created_again_is_safe_from_a_late_commit() {
    let Some(cluster) = shared() else { return };
    let mut case = Case::new(cluster, "fenced");
    case.begin("a");
    case.commit(Injection::Delay(SOCKET_TIMEOUT * 4));
    case.producer = producer(cluster, &case.topic);
    case.begin("b");
    wait_for("the late commit", || case.ends()[0].answered_after);
    let while_uncommitted = Duration::from_millis(200);
    stays("only what was committed is seen", while_uncommitted, || case.visible() == ["a"]);
    assert_eq!(case.went_on(), 0);
    case.producer.abort_transaction(LIMIT).unwrap();
}

#[test]
fn a_dropped_commit_never_reaches_the_broker() {
    let Some(cluster) = shared() else { return };
    let case = Case::new(cluster, "dropped");
    case.begin("a");
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            wait_for("the EndTxn", || (case.ends().len() == 1).then_some(()));
            (case.visible(), case.ends().len())
        });
        let took = case.commit(Injection::DropRequest);
        assert!(took >= SOCKET_TIMEOUT, "{took:?}");
        assert_eq!(watch.join().unwrap(), (Vec::new(), 1));
    });
    case.assert_sent_again(Injection::DropRequest);
    case.assert_visible(&["a"]);
}

#[test]
fn a_commit_whose_answer_is_dropped_is_done() {
    let Some(cluster) = shared() else { return };
    let case = Case::new(cluster, "unanswered");
    case.begin("a");
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            wait_for("the commit", || (case.visible() == ["a"]).then(|| case.ends().len()))
        });
        let took = case.commit(Injection::DropResponse);
        assert!(took >= SOCKET_TIMEOUT, "{took:?}");
        assert_eq!(watch.join().unwrap(), 1, "it was visible before it was sent again");
    });
    case.assert_sent_again(Injection::DropResponse);
    case.assert_visible(&["a"]);
}

#[test]
fn a_commit_can_be_cut_off_before_it_arrives_and_after() {
    let Some(cluster) = shared() else { return };
    for injection in [Injection::CutBefore, Injection::CutAfter] {
        let case = Case::new(cluster, "cut_off");
        case.begin("a");
        case.commit(injection);
        case.assert_sent_again(injection);
        case.assert_visible(&["a"]);
    }
}

#[test]
fn a_commit_that_arrives_twice_at_once_is_one() {
    let Some(cluster) = shared() else { return };
    let case = Case::new(cluster, "twice");
    for value in ["a", "b"] {
        case.begin(value);
        case.commit(Injection::Duplicate);
    }
    // Neither was sent again, as one without an answer is.
    let ends = case.ends();
    assert_eq!(ends.len(), 2);
    assert!(ends.iter().all(|end| end.answered_after.is_some()), "{ends:?}");
    case.assert_visible(&["a", "b"]);
    assert_eq!(case.went_on(), 0);
}

#[test]
fn an_abort_is_told_from_a_commit() {
    let Some(cluster) = shared() else { return };
    let case = Case::new(cluster, "aborted");
    case.begin("a");
    cluster.end_txns.once(&case.topic, Injection::CutBefore);
    case.producer.abort_transaction(LIMIT).unwrap();
    let ends = case.ends();
    assert!(ends.len() >= 2 && ends.iter().all(|end| !end.committed), "{ends:?}");
    assert_eq!(case.visible(), [""; 0]);
}

#[test]
fn every_one_of_three_brokers_is_reached_through_the_proxy() {
    let options = Options { brokers: 3, ..Options::default() };
    let Some(cluster) = cluster::start(&options) else { return };
    let topic = unique("three");
    topic::create(&cluster.kafka.bootstrap(), &topic, 6, &[]);
    let producer = producer(&cluster, &topic);
    producer.begin_transaction().unwrap();
    for partition in 0..6 {
        let record = BaseRecord::<(), _>::to(&topic).payload("a").partition(partition);
        producer.send(record).unwrap();
    }
    producer.flush(LIMIT).unwrap();
    let mut left = 3;
    cluster.end_txns.plan(move |_, committed| {
        left -= i32::from(left > 0);
        (committed && left > 0).then_some(Injection::CutAfter)
    });
    producer.commit_transaction(LIMIT).unwrap();
    let mut brokers = [0; 3];
    cluster.proxy.each(|link| {
        if let Kind::Broker(broker) = link.kind {
            brokers[broker] += 1;
        }
    });
    assert!(brokers.iter().all(|links| *links > 0), "{brokers:?}");
    let journal = cluster.end_txns.journal();
    assert_eq!(journal.injected(|injection| injection == Injection::CutAfter), 2);
    assert!(journal.seen(true) >= 3 && journal.seen(false) == 0, "{journal:?}");
    assert_eq!(topic::read(&cluster.kafka.bootstrap(), &[topic]).len(), 6);
}
