//! The producer and the reader against the embedded broker, with faults injected.
//!
//! The checks are those of the sink's contract: every accepted ticket is answered once, records of
//! a partition are stored in the order of `send`, a full queue says so, an outage only stalls.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops where it fails")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use postrider::kafka::embedded::{Broker, Fault};
use postrider::kafka::{
    Confirmation, KafkaSpec, Outcome, Producer, Reader, ReaderError, ReaderEvent, ReaderSpec,
    SendError, SinkError, StoredRecord,
};
use postrider::ledger::Ticket;
use postrider::route::{Headers, Record, RejectionCode};
use support::wait::{let_pass, wait_for, wait_until};

const TOPIC: &str = "orders";
const LIMIT: Duration = Duration::from_mins(1);

fn record(value: &[u8]) -> Record<'_> {
    Record {
        topic: TOPIC,
        partition: None,
        key: Some(b"key"),
        value: Some(value),
        headers: Headers::new(),
        timestamp_ms: 1_700_000_000_123,
    }
}

fn ticket(number: u32) -> Ticket {
    Ticket::new(number, 1)
}

/// The mock takes any sequence, where Kafka would refuse a batch that overtook one: tests in which
/// a batch in the middle fails let only one per partition be under way.
fn one_batch_at_a_time(spec: &mut KafkaSpec) {
    spec.linger_ms = 100;
}

/// A cluster of three with one topic, and a producer for it.
fn bench(partitions: i32, change: impl FnOnce(&mut KafkaSpec)) -> (Broker, KafkaSpec, Producer) {
    let broker = Broker::start(3, &[(TOPIC, partitions)]).unwrap();
    let mut spec = KafkaSpec::of_brokers(&broker.bootstrap());
    change(&mut spec);
    let producer = Producer::open(&spec).unwrap();
    (broker, spec, producer)
}

/// Sends a record, waiting while the sink is full.
fn offer(
    producer: &mut Producer,
    record: &Record<'_>,
    ticket: Ticket,
    got: &mut Vec<Confirmation>,
) -> Result<(), SinkError> {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < LIMIT, "the queue stays full");
        match producer.send(record, ticket) {
            Ok(()) => return Ok(()),
            Err(SendError::Full) => producer.poll(got)?,
            Err(SendError::Broken(error)) => return Err(error),
            Err(SendError::Refused(rejection)) => panic!("{rejection:?}"),
        }
    }
}

/// Sends numbered records with seven keys.
fn try_to_send(
    producer: &mut Producer,
    numbers: std::ops::Range<u32>,
    got: &mut Vec<Confirmation>,
) -> Result<(), SinkError> {
    for number in numbers {
        let value = number.to_string();
        let key = (number % 7).to_string();
        let record = Record { key: Some(key.as_bytes()), ..record(value.as_bytes()) };
        offer(producer, &record, ticket(number), got)?;
    }
    Ok(())
}

fn send_all(producer: &mut Producer, numbers: std::ops::Range<u32>, got: &mut Vec<Confirmation>) {
    try_to_send(producer, numbers, got).unwrap();
}

/// Sends records 0 and 1, after which a topic of one partition knows the producer.
fn introduce(producer: &mut Producer, got: &mut Vec<Confirmation>) {
    send_all(producer, 0..2, got);
    await_answers(producer, 2, got);
}

/// Polls until this many answers are there.
fn await_answers(producer: &mut Producer, count: usize, got: &mut Vec<Confirmation>) {
    let wanted = format!("{count} answers");
    wait_until(&wanted, || {
        producer.poll(got).unwrap();
        got.len() >= count
    });
}

/// Sends and polls until the sink gives up.
fn await_failure(
    producer: &mut Producer,
    numbers: std::ops::Range<u32>,
    got: &mut Vec<Confirmation>,
) -> SinkError {
    match try_to_send(producer, numbers, got) {
        Err(error) => error,
        Ok(()) => wait_for("a failure", || producer.poll(got).err()),
    }
}

fn stored(spec: &KafkaSpec) -> Vec<StoredRecord> {
    let mut reader = Reader::open(spec, ReaderSpec::whole(&[TOPIC]), LIMIT).unwrap();
    reader.collect(usize::MAX, LIMIT).unwrap()
}

fn number(record: &StoredRecord) -> u32 {
    std::str::from_utf8(record.value.as_deref().unwrap()).unwrap().parse().unwrap()
}

fn assert_answered_once(got: &[Confirmation], count: u32) {
    let mut tickets: Vec<u64> = got.iter().map(|answer| answer.ticket.to_opaque()).collect();
    tickets.sort_unstable();
    let wanted: Vec<u64> = (0..count).map(|number| ticket(number).to_opaque()).collect();
    assert_eq!(tickets, wanted);
}

/// Every record is there once, and per key in the order of sending.
fn assert_stored_in_order(spec: &KafkaSpec, count: u32) {
    let stored = stored(spec);
    assert_eq!(stored.len(), count as usize);
    let mut last: HashMap<Option<Vec<u8>>, u32> = HashMap::new();
    for record in &stored {
        let number = number(record);
        if let Some(before) = last.insert(record.key.clone(), number) {
            assert!(before < number, "{number} after {before}");
        }
    }
}

/// 3,000 records with faults in between: all arrive, once and in order.
fn survives(faults: &[Fault]) {
    let (broker, spec, mut producer) = bench(4, one_batch_at_a_time);
    let mut got = Vec::new();
    send_all(&mut producer, 0..1000, &mut got);
    await_answers(&mut producer, 1000, &mut got);
    broker.fail_produce(faults).unwrap();
    send_all(&mut producer, 1000..2000, &mut got);
    await_answers(&mut producer, 2000, &mut got);
    send_all(&mut producer, 2000..3000, &mut got);
    await_answers(&mut producer, 3000, &mut got);
    assert_answered_once(&got, 3000);
    assert!(got.iter().all(|answer| answer.outcome == Outcome::Stored));
    assert_stored_in_order(&spec, 3000);
}

#[test]
fn g1_g2_records_are_confirmed_once_and_stored_in_order() {
    survives(&[]);
}

#[test]
fn g2_a_moved_leader_costs_nothing() {
    survives(&[Fault::NotLeader, Fault::NotLeader, Fault::NotLeader]);
}

#[test]
fn g2_too_few_replicas_cost_nothing() {
    survives(&[Fault::NotEnoughReplicas, Fault::NotEnoughReplicas, Fault::RequestTimedOut]);
}

#[test]
fn a_cut_connection_costs_nothing() {
    // The mock does not detect repeats, so only the confirmations are compared.
    let (broker, spec, mut producer) = bench(4, |_| {});
    let mut got = Vec::new();
    broker.fail_produce(&[Fault::Disconnect, Fault::Disconnect]).unwrap();
    send_all(&mut producer, 0..1000, &mut got);
    await_answers(&mut producer, 1000, &mut got);
    assert_answered_once(&got, 1000);
    assert!(stored(&spec).len() >= 1000);
}

#[test]
fn g1_an_outage_stalls_and_is_noticed() {
    let (broker, _spec, mut producer) = bench(2, |_| {});
    let mut got = Vec::new();
    send_all(&mut producer, 0..100, &mut got);
    await_answers(&mut producer, 100, &mut got);
    assert!(producer.is_connected());
    broker.down().unwrap();
    send_all(&mut producer, 100..200, &mut got);
    wait_until("the outage to be noticed", || {
        producer.poll(&mut got).unwrap();
        !producer.is_connected()
    });
    assert_eq!(got.len(), 100, "nothing is confirmed by brokers that are down");
    broker.up().unwrap();
    await_answers(&mut producer, 200, &mut got);
    assert!(producer.is_connected());
    assert_answered_once(&got, 200);
}

#[test]
fn an_idle_producer_notices_an_outage_and_its_end() {
    let (broker, _spec, mut producer) = bench(1, |_| {});
    let mut got = Vec::new();
    for wanted in [true, false, true] {
        if wanted {
            broker.up().unwrap();
        } else {
            broker.down().unwrap();
        }
        wait_until("the outage, or its end, to be noticed", || {
            producer.poll(&mut got).unwrap();
            producer.is_connected() == wanted
        });
    }
}

#[test]
fn g3_a_full_queue_says_so_and_takes_more_later() {
    let (broker, _spec, mut producer) = bench(1, |spec| spec.budget.records = 50);
    let mut got = Vec::new();
    introduce(&mut producer, &mut got);
    broker.down().unwrap();
    let mut sent = 2;
    while producer.send(&record(b"0"), ticket(sent)).is_ok() {
        sent += 1;
        assert!(sent <= 52, "more than the budget");
    }
    assert_eq!(sent, 52);
    assert!(matches!(producer.send(&record(b"0"), ticket(99)), Err(SendError::Full)));
    broker.up().unwrap();
    await_answers(&mut producer, 52, &mut got);
    producer.send(&record(b"0"), ticket(52)).unwrap();
    await_answers(&mut producer, 53, &mut got);
    assert_answered_once(&got, 53);
}

#[test]
fn g3_the_byte_budget_holds() {
    let (broker, _spec, mut producer) = bench(1, |spec| {
        spec.budget.bytes = 100_000;
        spec.message_max_bytes = 20_000;
    });
    introduce(&mut producer, &mut Vec::new());
    broker.down().unwrap();
    let value = vec![b'x'; 10_000];
    let sent = (0..100).take_while(|n| producer.send(&record(&value), ticket(*n)).is_ok()).count();
    assert!((8..=10).contains(&sent), "{sent}");
}

#[test]
fn g2_a_refused_batch_ends_the_session_before_anything_later_is_stored() {
    for fault in [Fault::MessageTooLarge, Fault::InvalidRecord, Fault::InvalidTimestamp] {
        let (broker, spec, mut producer) = bench(1, one_batch_at_a_time);
        let mut got = Vec::new();
        introduce(&mut producer, &mut got);
        broker.fail_produce(&[fault]).unwrap();
        let error = await_failure(&mut producer, 2..500, &mut got);
        assert!(
            matches!(&error, SinkError::BatchRefused { topic, .. } if topic == TOPIC),
            "{error}"
        );
        assert!(error.wants_caution() && !error.is_definite());
        assert!(matches!(
            producer.send(&record(b"0"), ticket(0)),
            Err(SendError::Broken(SinkError::BatchRefused { .. }) | SendError::Full)
        ));
        drop(producer);
        // The mock refuses only the first request; a later one of the same producer would be
        // stored by it, so an empty topic shows that none was sent.
        let numbers: Vec<u32> = stored(&spec).iter().map(number).collect();
        let confirmed = got.iter().filter(|answer| answer.outcome == Outcome::Stored).count();
        assert_eq!(numbers.len(), confirmed, "{fault:?}: {numbers:?}");
    }
}

#[test]
fn g4_a_cautious_session_names_the_culprit() {
    let (broker, spec, mut producer) = bench(1, |spec| spec.cautious = true);
    broker.fail_produce(&[Fault::MessageTooLarge]).unwrap();
    let mut culprit = record(b"0");
    culprit.headers.push(("id", Some(b"i-0")));
    culprit.headers.push(("none", None));
    let mut got = Vec::new();
    offer(&mut producer, &culprit, ticket(0), &mut got).unwrap();
    await_answers(&mut producer, 1, &mut got);
    send_all(&mut producer, 1..100, &mut got);
    await_answers(&mut producer, 100, &mut got);
    assert_answered_once(&got, 100);
    let Outcome::Refused(refused) = &got[0].outcome else { panic!("{:?}", got[0]) };
    assert_eq!(refused.record, culprit.to_owned());
    assert_eq!(refused.rejection.code, RejectionCode::TooLarge);
    let numbers: Vec<u32> = stored(&spec).iter().map(number).collect();
    assert_eq!(numbers.len(), 99);
    assert!(!numbers.contains(&0));
}

#[test]
fn g2_a_cautious_session_has_one_record_per_key_under_way() {
    let (_broker, _spec, mut producer) = bench(1, |spec| spec.cautious = true);
    let mut got = Vec::new();
    introduce(&mut producer, &mut got);
    producer.send(&record(b"2"), ticket(2)).unwrap();
    assert!(matches!(producer.send(&record(b"3"), ticket(3)), Err(SendError::Full)));
    let other = Record { key: Some(b"other"), ..record(b"3") };
    producer.send(&other, ticket(3)).unwrap();
    await_answers(&mut producer, 4, &mut got);
    producer.send(&record(b"4"), ticket(4)).unwrap();
    await_answers(&mut producer, 5, &mut got);
}

/// The mock takes any sequence, as Kafka does from a producer that a partition knows nothing of.
#[test]
fn g2_a_refused_first_batch_is_followed_by_nothing_before_it_is_stored() {
    let (broker, spec, mut producer) = bench(1, |_| {});
    let mut got = Vec::new();
    broker.fail_produce(&[Fault::NotLeader]).unwrap();
    broker.round_trip(Duration::from_millis(5)).unwrap();
    for number in 0..100 {
        send_all(&mut producer, number..number + 1, &mut got);
        let_pass(Duration::from_micros(200), "each is a batch of its own, or nearly");
    }
    await_answers(&mut producer, 100, &mut got);
    assert_answered_once(&got, 100);
    let numbers: Vec<u32> = stored(&spec).iter().map(number).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_broken_sequence_ends_the_session_and_narrows_the_next() {
    let (broker, _spec, mut producer) = bench(1, |_| {});
    broker.fail_produce(&[Fault::OutOfOrderSequence]).unwrap();
    let mut got = Vec::new();
    let error = await_failure(&mut producer, 0..100, &mut got);
    // It is the brokers' answer to a record, and no other error of the client came before it.
    assert!(matches!(error, SinkError::BatchRefused { .. }), "{error:?}");
    assert!(!error.is_definite() && error.wants_caution());
}

#[test]
fn a_topic_that_forbids_writing_is_an_outage() {
    let (broker, _spec, mut producer) = bench(1, |_| {});
    broker.fail_produce(&[Fault::Unauthorised]).unwrap();
    let mut got = Vec::new();
    let error = await_failure(&mut producer, 0..10, &mut got);
    assert_eq!(error, SinkError::Unauthorised { topic: TOPIC.into() });
}

#[test]
fn a_missing_topic_is_an_outage() {
    let (broker, _spec, mut producer) = bench(1, |spec| {
        spec.properties.insert("topic.metadata.propagation.max.ms".into(), "500".into());
    });
    broker.hide_topic(TOPIC).unwrap();
    let mut got = Vec::new();
    let error = await_failure(&mut producer, 0..10, &mut got);
    assert_eq!(error, SinkError::UnknownTopic { topic: TOPIC.into() });
    assert!(error.hint().unwrap().contains("--create"));
}

/// Why a record is refused: one for a partition that the topic lacks once the brokers have counted again.
fn refusal(producer: &mut Producer, record: &Record<'_>) -> RejectionCode {
    wait_for("a refusal", || match producer.send(record, ticket(1)) {
        Err(SendError::Refused(rejection)) => Some(rejection.code),
        Err(SendError::Full) => {
            producer.poll(&mut Vec::new()).unwrap();
            None
        }
        other => panic!("{:?} {:?}: {other:?}", record.topic, record.partition),
    })
}

#[test]
fn g4_what_cannot_be_sent_is_refused() {
    let (_broker, _spec, mut producer) = bench(2, |spec| spec.message_max_bytes = 2000);
    let mut got = Vec::new();
    send_all(&mut producer, 0..1, &mut got);
    await_answers(&mut producer, 1, &mut got);
    let large = vec![b'x'; 3000];
    assert_eq!(refusal(&mut producer, &record(&large)), RejectionCode::TooLarge);
    let nowhere = Record { partition: Some(7), ..record(b"0") };
    assert_eq!(refusal(&mut producer, &nowhere), RejectionCode::Refused);
    let long = "x".repeat(250);
    for topic in ["", "a\0b", &long] {
        let nameless = Record { topic, ..record(b"0") };
        assert_eq!(refusal(&mut producer, &nameless), RejectionCode::InvalidTopic, "{topic:?}");
    }
}

/// The partition may have been added, and brokers that are away have counted nothing.
#[test]
fn g4_an_outage_refuses_no_partition() {
    let (broker, _spec, mut producer) = bench(2, |_| {});
    let mut got = Vec::new();
    send_all(&mut producer, 0..1, &mut got);
    await_answers(&mut producer, 1, &mut got);
    broker.down().unwrap();
    let nowhere = Record { partition: Some(7), ..record(b"0") };
    // Longer than three questions wait for their answers.
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        let sent = producer.send(&nowhere, ticket(1));
        assert!(matches!(sent, Err(SendError::Full)), "{sent:?}");
        producer.poll(&mut got).unwrap();
        let_pass(Duration::from_millis(10), "the brokers are away");
    }
    broker.up().unwrap();
    assert_eq!(refusal(&mut producer, &nowhere), RejectionCode::Refused);
}

#[test]
fn an_outage_holds_up_neither_the_end_of_a_producer_nor_a_reader() {
    let (broker, spec, mut producer) = bench(1, |_| {});
    let mut got = Vec::new();
    send_all(&mut producer, 0..10, &mut got);
    await_answers(&mut producer, 10, &mut got);
    let mut reader = Reader::open(&spec, ReaderSpec::following(&[TOPIC]), LIMIT).unwrap();
    assert_eq!(reader.collect(10, LIMIT).unwrap().len(), 10);
    broker.down().unwrap();
    send_all(&mut producer, 10..20, &mut got);
    for _ in 0..10 {
        let begun = Instant::now();
        assert!(matches!(reader.next(Duration::from_millis(100)).unwrap(), ReaderEvent::Idle));
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
    let begun = Instant::now();
    let late = reader.collect(1, Duration::from_millis(300)).unwrap_err();
    assert!(matches!(late, ReaderError::Late { read: 0, .. }), "{late}");
    let lost = Reader::open(&spec, ReaderSpec::whole(&[TOPIC]), Duration::from_millis(500)).err();
    assert!(matches!(lost, Some(ReaderError::Unreachable { .. })), "{lost:?}");
    drop(reader);
    drop(producer);
    assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
}

#[test]
fn every_kind_of_content_arrives_as_it_was_sent() {
    let (_broker, spec, mut producer) = bench(1, |_| {});
    let mut rich = record(b"{}");
    rich.headers.push(("id", Some(b"1")));
    rich.headers.push(("id", Some(b"")));
    rich.headers.push(("", None));
    let tombstone = Record { value: None, ..record(b"") };
    let empty = Record { key: Some(b""), ..record(b"") };
    let keyless = Record { key: None, ..record(b"\0\xff") };
    let sent = [rich, tombstone, empty, keyless];
    let mut got = Vec::new();
    for (number, record) in (0..).zip(&sent) {
        offer(&mut producer, record, ticket(number), &mut got).unwrap();
    }
    await_answers(&mut producer, sent.len(), &mut got);
    let stored = stored(&spec);
    assert_eq!(stored.len(), sent.len());
    for (stored, sent) in stored.iter().zip(&sent) {
        let sent = sent.to_owned();
        assert_eq!(
            (&stored.key, &stored.value, &stored.headers, stored.timestamp_ms),
            (&sent.key, &sent.value, &sent.headers, Some(sent.timestamp_ms))
        );
    }
}

#[test]
fn keys_land_where_javas_client_puts_them() {
    // Of Java's murmur2 (org.apache.kafka.common.utils.Utils): toPositive(murmur2(key)) % 6.
    let (_broker, spec, mut producer) = bench(6, |_| {});
    let keys = ["21", "foobar", "a-little-bit-long-string"];
    let mut got = Vec::new();
    for (number, key) in (0..).zip(keys) {
        let record = Record { key: Some(key.as_bytes()), ..record(b"0") };
        offer(&mut producer, &record, ticket(number), &mut got).unwrap();
    }
    await_answers(&mut producer, keys.len(), &mut got);
    // UtilsTest.testMurmur2 of Apache Kafka: key, hash.
    let hashes: HashMap<&[u8], i32> = HashMap::from([
        (&b"21"[..], -973_932_308),
        (&b"foobar"[..], -790_332_482),
        (&b"a-little-bit-long-string"[..], -985_981_536),
    ]);
    for record in stored(&spec) {
        let hash = hashes[record.key.as_deref().unwrap()];
        assert_eq!(record.partition, (hash & 0x7fff_ffff) % 6);
    }
}
