//! The producer and the reader against real Kafka: refused batches, refused records, brokers that
//! die or fall silent, transactions.
//!
//! The relay's way with a refused batch is played here without the relay: a session sends from the
//! settled position; when it ends early the next one is cautious until it is past the spot.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use postrider::kafka::{
    Isolation, KafkaSpec, Outcome, Producer, Reader, ReaderError, ReaderSpec, SendError, SinkError,
    StartOffset, StoredRecord,
};
use postrider::ledger::Ticket;
use postrider::route::{Headers, Record, RejectionCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use support::retention::now_ms;
use support::wait::{let_pass, wait_until};
use support::{kafka, topic, unique, wait_for};

const LIMIT: Duration = Duration::from_mins(3);

/// One row of the imaginary outbox.
#[derive(Debug, Clone)]
struct Row {
    key: Option<String>,
    value: Vec<u8>,
    timestamp_ms: i64,
}

impl Row {
    fn new(number: usize, keys: usize, size: usize) -> Self {
        Self {
            key: Some(format!("key-{}", number % keys)),
            value: [vec![b'0'; size - 9], format!("{number:09}").into_bytes()].concat(),
            timestamp_ms: now_ms(),
        }
    }

    fn as_record<'a>(&'a self, topic: &'a str) -> Record<'a> {
        Record {
            topic,
            partition: None,
            key: self.key.as_deref().map(str::as_bytes),
            value: Some(&self.value),
            headers: Headers::new(),
            timestamp_ms: self.timestamp_ms,
        }
    }
}

/// What delivering all rows took.
#[derive(Debug, Default)]
struct Delivery {
    refused: HashMap<usize, RejectionCode>,
    sessions: usize,
    cautious_sessions: usize,
}

/// Delivers all rows as the relay would, over as many sessions as it takes.
fn deliver(spec: &KafkaSpec, topic: &str, rows: &[Row]) -> Delivery {
    let mut delivery = Delivery::default();
    let (mut settled, mut caution_until) = (0, 0);
    let begun = Instant::now();
    while settled < rows.len() {
        assert!(begun.elapsed() < LIMIT, "{settled} of {} rows, {delivery:?}", rows.len());
        let cautious = settled < caution_until;
        let end = if cautious { caution_until } else { rows.len() };
        delivery.sessions += 1;
        delivery.cautious_sessions += usize::from(cautious);
        let spec = KafkaSpec { cautious, ..spec.clone() };
        let mut session = Session { topic, rows, sent: settled, answered: BTreeSet::new() };
        let outcome = session.run(&spec, end, &mut delivery.refused);
        while session.answered.remove(&settled) {
            settled += 1;
        }
        if let Err(error) = outcome {
            assert!(error.wants_caution(), "{error}");
            assert!(!cautious, "a cautious session cannot be refused a batch");
            caution_until = session.sent;
        }
    }
    delivery
}

struct Session<'a> {
    topic: &'a str,
    rows: &'a [Row],
    sent: usize,
    answered: BTreeSet<usize>,
}

impl Session<'_> {
    fn run(
        &mut self,
        spec: &KafkaSpec,
        end: usize,
        refused: &mut HashMap<usize, RejectionCode>,
    ) -> Result<(), SinkError> {
        let mut producer = Producer::open(spec)?;
        let (begun, first) = (Instant::now(), self.sent);
        let mut confirmations = Vec::new();
        loop {
            assert!(begun.elapsed() < LIMIT, "{} of {end}", self.sent);
            let mut full = false;
            while self.sent < end && !full {
                let record = self.rows[self.sent].as_record(self.topic);
                let ticket = Ticket::new(u32::try_from(self.sent).unwrap(), 1);
                match producer.send(&record, ticket) {
                    Ok(()) => self.sent += 1,
                    Err(SendError::Full) => full = true,
                    Err(SendError::Broken(error)) => return Err(error),
                    Err(SendError::Refused(rejection)) => {
                        refused.insert(self.sent, rejection.code);
                        self.answered.insert(self.sent);
                        self.sent += 1;
                    }
                }
                // A relay polls while it sends.
                full |= self.sent.is_multiple_of(64);
            }
            let outcome = producer.poll(&mut confirmations);
            for answer in confirmations.drain(..) {
                let row = usize::try_from(answer.ticket.to_opaque() & 0xffff_ffff).unwrap();
                assert!(self.answered.insert(row), "row {row} is answered twice");
                if let Outcome::Refused(answer) = answer.outcome {
                    assert_eq!(answer.record.value.as_deref(), Some(&self.rows[row].value[..]));
                    refused.insert(row, answer.rejection.code);
                }
            }
            outcome?;
            if self.answered.len() == end - first {
                return Ok(());
            }
            let_pass(Duration::from_micros(200), "as a relay does between two rounds");
        }
    }
}

fn stored(spec: &KafkaSpec, topic: &str) -> Vec<StoredRecord> {
    let mut reader = Reader::open(spec, ReaderSpec::whole(&[topic]), LIMIT).unwrap();
    reader.collect(usize::MAX, LIMIT).unwrap()
}

/// Every row that was not refused lies in the topic; first occurrences are in order per key.
/// Returns how many lie there more than once.
fn judge(spec: &KafkaSpec, topic: &str, rows: &[Row], delivery: &Delivery) -> usize {
    let numbers: HashMap<&[u8], usize> =
        rows.iter().enumerate().map(|(number, row)| (&row.value[..], number)).collect();
    let mut seen = BTreeSet::new();
    let mut last: HashMap<Option<Vec<u8>>, usize> = HashMap::new();
    let mut repeats = 0;
    for record in stored(spec, topic) {
        let number = numbers[record.value.as_deref().unwrap()];
        if !seen.insert(number) {
            repeats += 1;
        } else if let Some(before) = last.insert(record.key, number) {
            assert!(before < number, "{number} first appears after {before}");
        }
    }
    let refused: BTreeSet<usize> = delivery.refused.keys().copied().collect();
    let all: BTreeSet<usize> = (0..rows.len()).collect();
    assert_eq!(seen, &all - &refused);
    repeats
}

fn spec(kafka: &kafka::Kafka) -> KafkaSpec {
    KafkaSpec::of_brokers(&kafka.bootstrap())
}

#[test]
fn g1_g2_rows_arrive_once_and_in_order() {
    let Some(kafka) = kafka::shared() else { return };
    let name = unique("plain");
    topic::create(&kafka.bootstrap(), &name, 4, &[]);
    let rows: Vec<Row> = (0..20_000).map(|number| Row::new(number, 50, 100)).collect();
    let delivery = deliver(&spec(kafka), &name, &rows);
    assert_eq!((delivery.sessions, delivery.refused.len()), (1, 0));
    assert_eq!(judge(&spec(kafka), &name, &rows, &delivery), 0);
}

#[test]
fn g2_g4_rows_too_large_for_the_topic_are_refused_alone() {
    let Some(kafka) = kafka::shared() else { return };
    // Compressed, the culprits would fit.
    let spec = KafkaSpec { compression: "none".into(), ..spec(kafka) };
    for partitions in [1, 3] {
        let name = unique("small");
        topic::create(&kafka.bootstrap(), &name, partitions, &[("max.message.bytes", "100000")]);
        let mut rows: Vec<Row> = (0..6000).map(|number| Row::new(number, 20, 100)).collect();
        let culprits = [700, 701, 3000, 5999];
        for culprit in culprits {
            rows[culprit] = Row::new(culprit, 20, 150_000);
        }
        let delivery = deliver(&spec, &name, &rows);
        assert_eq!(delivery.refused.len(), culprits.len());
        assert!(culprits.iter().all(|row| delivery.refused[row] == RejectionCode::TooLarge));
        assert!(delivery.cautious_sessions > 0);
        judge(&spec, &name, &rows, &delivery);
    }
}

#[test]
fn g2_nothing_later_is_stored_after_a_refused_batch() {
    let Some(kafka) = kafka::shared() else { return };
    let mut spec = KafkaSpec { compression: "none".into(), ..spec(kafka) };
    spec.properties.insert("batch.size".into(), "1500".into());
    let name = unique("refusing");
    topic::create(&kafka.bootstrap(), &name, 1, &[("max.message.bytes", "2000")]);
    let mut rows: Vec<Row> = (0..3000).map(|number| Row::new(number, 20, 100)).collect();
    rows[500] = Row::new(500, 20, 3000);
    let mut producer = Producer::open(&spec).unwrap();
    let mut answers = Vec::new();
    for (number, row) in (0..).zip(&rows) {
        // Full only while the producer introduces itself, long before the refusal.
        while let Err(error) = producer.send(&row.as_record(&name), Ticket::new(number, 1)) {
            assert!(matches!(error, SendError::Full), "{error}");
            producer.poll(&mut answers).unwrap();
        }
    }
    // A relay that is slow to listen: the client library has all the time to go on.
    let_pass(Duration::from_secs(2), "nobody listens");
    let error = wait_for("the refusal", || producer.poll(&mut answers).err());
    assert!(matches!(error, SinkError::BatchRefused { .. }), "{error}");
    drop(producer);
    let values: Vec<_> = stored(&spec, &name).into_iter().map(|record| record.value).collect();
    let before: Vec<_> = rows[..500].iter().map(|row| Some(row.value.clone())).collect();
    assert!(values == before, "{} records are stored", values.len());
    assert_eq!(answers.len(), before.len());
}

#[test]
fn g2_a_batch_too_large_of_small_rows_gets_through() {
    let Some(kafka) = kafka::shared() else { return };
    // The rows fit one by one, but the producer's batches of up to 1 MB do not.
    let spec = KafkaSpec { compression: "none".into(), linger_ms: 50, ..spec(kafka) };
    let name = unique("tight");
    topic::create(&kafka.bootstrap(), &name, 1, &[("max.message.bytes", "20000")]);
    let rows: Vec<Row> = (0..400).map(|number| Row::new(number, 20, 1000)).collect();
    let delivery = deliver(&spec, &name, &rows);
    assert_eq!(delivery.refused.len(), 0);
    assert!(delivery.cautious_sessions > 0);
    judge(&spec, &name, &rows, &delivery);

    // What the error's hint says: batches then fit as well.
    let spec = KafkaSpec { message_max_bytes: 20_000, ..spec };
    let name = unique("fitting");
    topic::create(&kafka.bootstrap(), &name, 1, &[("max.message.bytes", "20000")]);
    let delivery = deliver(&spec, &name, &rows);
    assert_eq!(delivery.sessions, 1);
    judge(&spec, &name, &rows, &delivery);
}

#[test]
fn g4_rows_the_topic_forbids_are_refused_alone() {
    let Some(kafka) = kafka::shared() else { return };
    if !kafka.is_since(kafka::TIMES_AHEAD, "records dated far ahead") {
        return;
    }
    let name = unique("picky");
    let settings = [("cleanup.policy", "compact"), ("message.timestamp.after.max.ms", "60000")];
    topic::create(&kafka.bootstrap(), &name, 1, &settings);
    let mut rows: Vec<Row> = (0..2000).map(|number| Row::new(number, 20, 50)).collect();
    rows[500].key = None;
    // 2100-01-01
    rows[1500].timestamp_ms = 4_102_444_800_000;
    let delivery = deliver(&spec(kafka), &name, &rows);
    let refused: BTreeSet<usize> = delivery.refused.keys().copied().collect();
    assert_eq!(refused, BTreeSet::from([500, 1500]));
    assert!(delivery.refused.values().all(|code| *code == RejectionCode::Refused));
    judge(&spec(kafka), &name, &rows, &delivery);
}

/// Longer than the timeouts of the next test.
const SILENCE: Duration = Duration::from_secs(4);

#[test]
fn g1_g2_a_broker_killed_and_one_fallen_silent_only_delay() {
    let options = kafka::Options { auto_create: false, ..kafka::Options::default() };
    let Some(mut kafka) = kafka::start(&options) else { return };
    let name = unique("shaken");
    topic::create(&kafka.bootstrap(), &name, 3, &[]);
    let mut spec = spec(&kafka);
    // The default of 60 s would make the silent broker a long test.
    spec.properties.insert("socket.timeout.ms".into(), "2000".into());
    spec.properties.insert("request.timeout.ms".into(), "1000".into());
    let rows: Vec<Row> = (0..30_000).map(|number| Row::new(number, 50, 100)).collect();
    let parts = Arc::new(AtomicUsize::new(0));
    let sender = {
        let (spec, name, rows) = (spec.clone(), name.clone(), rows.clone());
        let parts = Arc::clone(&parts);
        std::thread::spawn(move || {
            let mut delivery = Delivery::default();
            for part in rows.chunks(3000) {
                delivery.sessions += deliver(&spec, &name, part).sessions;
                parts.fetch_add(1, Ordering::SeqCst);
                let_pass(Duration::from_millis(300), "rows come over some seconds");
            }
            delivery
        })
    };
    let delivered = |wanted| {
        wait_until("rows to be delivered", || parts.load(Ordering::SeqCst) >= wanted);
    };
    delivered(2);
    kafka.freeze_broker(0);
    let_pass(SILENCE, "the broker stands still");
    kafka.resume_broker(0);
    delivered(4);
    kafka.kill_broker(0);
    kafka.start_broker(0);
    let delivery = sender.join().unwrap();
    assert_eq!(delivery.sessions, 10, "an outage ends no session");
    assert_eq!(judge(&spec, &name, &rows, &delivery), 0, "retries are not stored twice");
}

#[test]
fn a_topic_nobody_created_is_an_outage() {
    let options = kafka::Options { auto_create: false, ..kafka::Options::default() };
    let Some(kafka) = kafka::start(&options) else { return };
    let mut spec = spec(&kafka);
    spec.properties.insert("topic.metadata.propagation.max.ms".into(), "1000".into());
    let mut session =
        Session { topic: "absent", rows: &[Row::new(0, 1, 9)], sent: 0, answered: BTreeSet::new() };
    let error = session.run(&spec, 1, &mut HashMap::new()).unwrap_err();
    assert_eq!(error, SinkError::UnknownTopic { topic: "absent".into() });
    let error = Reader::open(&spec, ReaderSpec::whole(&["absent"]), LIMIT).err();
    assert_eq!(error, Some(ReaderError::UnknownTopic("absent".into())));
}

#[test]
fn the_reader_hides_aborted_records_and_finds_the_end_behind_markers() {
    let Some(kafka) = kafka::shared() else { return };
    let names = [unique("transactions"), unique("transactions")];
    for name in &names {
        topic::create(&kafka.bootstrap(), name, 2, &[]);
    }
    let producer: BaseProducer = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", kafka.bootstrap())
        .set("transactional.id", unique("writer"))
        .create()
        .unwrap();
    producer.init_transactions(LIMIT).unwrap();
    for commit in [true, false] {
        producer.begin_transaction().unwrap();
        for number in 0..20 {
            let value = format!("{commit}");
            let name = &names[number % 2];
            let partition = i32::try_from(number / 2 % 2).unwrap();
            let record = BaseRecord::<(), str>::to(name).payload(&value).partition(partition);
            producer.send(record).unwrap();
        }
        if commit {
            producer.commit_transaction(LIMIT).unwrap();
        } else {
            producer.flush(LIMIT).unwrap();
            producer.abort_transaction(LIMIT).unwrap();
        }
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (isolation, count) in [(Isolation::Committed, 20), (Isolation::Uncommitted, 40)] {
        let whole = ReaderSpec { isolation, ..ReaderSpec::whole(&names) };
        let records = Reader::open(&spec(kafka), whole, LIMIT).unwrap().collect(99, LIMIT).unwrap();
        assert_eq!(records.len(), count, "{isolation:?}");
    }
}

#[test]
fn the_reader_begins_where_it_is_told() {
    let Some(kafka) = kafka::shared() else { return };
    let name = unique("positions");
    // Times of 2023, so that they can be named.
    topic::create(&kafka.bootstrap(), &name, 1, &[("retention.ms", "-1")]);
    let now = 1_700_000_000_000;
    let mut rows: Vec<Row> = (0..100).map(|number| Row::new(number, 1, 10)).collect();
    for (row, timestamp_ms) in rows.iter_mut().zip(now..) {
        row.timestamp_ms = timestamp_ms;
    }
    deliver(&spec(kafka), &name, &rows);
    for (start, count) in [
        (StartOffset::Beginning, 100),
        (StartOffset::Last(7), 7),
        (StartOffset::Last(1000), 100),
        (StartOffset::Offset(90), 10),
        (StartOffset::End, 0),
        (StartOffset::Time(now + 60), 40),
        (StartOffset::Time(now + 1000), 0),
    ] {
        let spec_of = ReaderSpec { start, ..ReaderSpec::whole(&[&name]) };
        let mut reader = Reader::open(&spec(kafka), spec_of, LIMIT).unwrap();
        assert_eq!(reader.collect(999, LIMIT).unwrap().len(), count, "{start}");
    }
    let beyond = ReaderSpec { start: StartOffset::Offset(101), ..ReaderSpec::whole(&[&name]) };
    let mut reader = Reader::open(&spec(kafka), beyond, LIMIT).unwrap();
    let error = reader.collect(999, LIMIT).unwrap_err();
    assert!(matches!(error, ReaderError::OffsetGone(_)), "{error}");
    let nowhere = ReaderSpec { partition: Some(1), ..ReaderSpec::whole(&[&name]) };
    let error = Reader::open(&spec(kafka), nowhere, LIMIT).err().unwrap();
    assert!(matches!(error, ReaderError::UnknownPartition { partition: 1, .. }), "{error}");
}
