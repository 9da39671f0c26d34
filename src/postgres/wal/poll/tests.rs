//! Tests of polled rows as frames, against a scripted server that splits its messages.

use super::super::buffer::BASE_BYTES;
use super::super::script::{Script, message, report};
use super::super::table::RowColumn;
use super::*;
use postrider_core::outbox::{TableName, Wanted};
use postrider_core::pgoutput::{Message as Decoded, decode};

fn table(name: &str) -> PollTable {
    let column = |name: &str| RowColumn {
        name: name.to_owned(),
        type_oid: 25,
        modifier: -1,
        is_nullable: true,
    };
    let request = PollRequest {
        table: TableName::new("public", name),
        table_oid: 7,
        is_partitioned: false,
        wanted: vec![Wanted::optional("id")],
        key: Some(Wanted::optional("id")),
        id: Wanted::optional("id"),
        created_at: None,
        order_by: vec!["id".to_owned()],
        mark: PollMark::Delete,
        retry_count: None,
    };
    request.with_columns(&[column("id")]).unwrap()
}

fn data_row(values: &[Option<&str>]) -> Vec<u8> {
    let mut body = u16::try_from(values.len()).unwrap().to_be_bytes().to_vec();
    for value in values {
        let length = value.map_or(-1, |text| i32::try_from(text.len()).unwrap());
        body.extend(length.to_be_bytes());
        body.extend(value.unwrap_or_default().as_bytes());
    }
    message(b'D', &body)
}

/// Answer to a poll: `parts` locked parts, and rows with these numbers, free or held back.
fn batch(parts: u32, rows: &[(u32, bool)]) -> Vec<u8> {
    let mut wire = [message(b'C', b"BEGIN\0"), message(b'T', b"\0\0")].concat();
    let parts: Vec<String> = (0..parts).map(|part| part.to_string()).collect();
    wire.extend(data_row(&[Some(&format!("{{{}}}", parts.join(","))), Some("4711")]));
    wire.extend([message(b'C', b"SELECT 1\0"), message(b'T', b"\0\0")].concat());
    for (number, is_free) in rows {
        let (place, id) = (format!("(0,{number})"), number.to_string());
        let (place, made) = if *is_free { (Some(place.as_str()), "1000000") } else { (None, "1") };
        wire.extend(data_row(&[place, Some("7"), Some(made), Some(&id)]));
    }
    wire.extend([message(b'C', b"SELECT 1\0"), message(b'Z', b"T")].concat());
    wire
}

/// Answer to a mark: the numbers of marked rows, and of those that still wait.
fn marked(count: u32, still: u32) -> Vec<u8> {
    let row = data_row(&[Some(&count.to_string()), Some(&still.to_string())]);
    let begin = [message(b'T', b"\0\0"), row, message(b'C', b"SELECT 1\0")].concat();
    [begin, message(b'C', b"COMMIT\0"), message(b'Z', b"I")].concat()
}

fn committed() -> Vec<u8> {
    [message(b'C', b"COMMIT\0"), message(b'Z', b"I")].concat()
}

fn stream(answers: Vec<Vec<u8>>, piece: usize, once: bool) -> PollStream<Script> {
    let connection = Connection::over(Script::answering(answers, piece), BASE_BYTES);
    let interval = Duration::from_hours(1);
    let options =
        PollOptions { worker: (0, 1), batch: 10, interval, notify: None, once, is_first: false };
    let at = PollPositions { first: Lsn::new(5), owed: Lsn::new(9), end: Lsn::new(1 << 40) };
    PollStream::begin(connection, vec![table("a")], options, at)
}

fn drain(stream: &mut PollStream<Script>) -> Result<Vec<String>, WalError> {
    let (mut seen, mut idle) = (Vec::new(), 0);
    while idle < 20 {
        while let Some(frame) = stream.peek()? {
            seen.push(shown(frame));
            stream.consume();
        }
        idle = if stream.fill(Duration::ZERO)? == 0 { idle + 1 } else { 0 };
    }
    Ok(seen)
}

fn shown(frame: Frame<'_>) -> String {
    let Frame::Wal { data, .. } = frame else {
        let Frame::Keepalive { end, .. } = frame else { unreachable!("rows have no such frame") };
        return format!("K {end}");
    };
    match decode(data).unwrap() {
        Decoded::Begin(begin) => format!("B {} {}", begin.final_lsn, begin.commit_time.unix_us()),
        Decoded::Commit(commit) => format!("C {}", commit.end_lsn),
        Decoded::Relation(_) => "R".to_owned(),
        Decoded::Insert(insert) => format!("{:?}", insert.tuple.columns().count()),
        other => format!("{other:?}"),
    }
}

fn written(stream: &PollStream<Script>) -> String {
    let mut stream = stream.connection.channel_written();
    stream.retain(|byte| *byte != 0);
    String::from_utf8_lossy(&stream).into_owned()
}

#[test]
fn each_row_is_a_transaction_and_the_batch_is_marked_when_all_are_settled() {
    for piece in [1, 7, 4096] {
        let wire = vec![batch(64, &[(1, true), (2, false), (3, true)]), marked(2, 0)];
        let mut stream = stream(wire, piece, false);
        let first = ["K 0/5", "B 0/5 1000000", "R", "1", "C 0/7", "B 0/7 1000000", "1", "C 0/9"];
        assert_eq!(drain(&mut stream).unwrap(), first, "{piece}");
        stream.settle(Lsn::new(7)).unwrap();
        assert_eq!(stream.committed(), Lsn::new(5), "one row is not all of them");
        stream.settle(Lsn::new(9)).unwrap();
        assert_eq!(stream.committed(), Lsn::new(9));
        let sent = written(&stream);
        assert!(
            sent.contains("'{\"(0,1)\",\"(0,3)\"}'::tid[]") && sent.contains("COMMIT"),
            "{sent}"
        );
        assert_eq!(stream.schedule.next().2.window, 11, "so many more as are held back");
    }
}

#[test]
fn g1_a_session_that_ends_marks_what_is_settled_alone() {
    let wire = vec![batch(64, &[(1, true), (2, true), (3, true)]), marked(2, 0)];
    let mut stream = stream(wire, 4096, false);
    drain(&mut stream).unwrap();
    stream.settle(Lsn::new(9)).unwrap();
    stream.conclude().unwrap();
    let sent = written(&stream);
    assert!(sent.contains("\"(0,2)\"}") && !sent.contains("(0,3)"), "{sent}");
    assert_eq!(stream.committed(), Lsn::new(9));
}

#[test]
fn what_is_owed_is_settled_when_no_row_waits() {
    let wire = vec![batch(64, &[]), committed()];
    assert_eq!(drain(&mut stream(wire.clone(), 4096, false)).unwrap(), ["K 0/5", "K 0/9"]);
    let end = drain(&mut stream(wire, 4096, true)).unwrap();
    assert_eq!(end, ["K 0/5", "K 100/0"], "and who is to end has come to it");
    let held = vec![batch(64, &[(1, false)]), committed()];
    let held = drain(&mut stream(held, 4096, true)).unwrap();
    assert_eq!(held, ["K 0/5", "K 0/9"], "a row waits");
}

#[test]
fn a_session_that_waits_for_kafka_is_heard_of_whatever_was_read_of_its_batch() {
    let select =
        [message(b'T', b"\0\0"), message(b'C', b"SELECT 1\0"), message(b'Z', b"T")].concat();
    let long_ago = Instant::now().checked_sub(ALIVE_EVERY);
    let wire = vec![batch(64, &[(1, true)]), select.clone(), select.clone(), marked(1, 0)];
    let mut stream = stream(wire, 4096, false);
    for wanted in ["K 0/5", "B 0/5 1000000"] {
        while stream.peek().unwrap().is_none() {
            stream.fill(Duration::ZERO).unwrap();
        }
        assert_eq!(stream.peek().unwrap().map(shown).as_deref(), Some(wanted));
        stream.consume();
    }
    for queries in [1, 2] {
        stream.spoke = long_ago.unwrap();
        stream.settle(Lsn::new(5)).unwrap();
        stream.settle(Lsn::new(5)).unwrap();
        let sent = stream.connection.channel_written();
        let alive = sent.windows(12).filter(|bytes| *bytes == b"Q\0\0\0\x0bSELECT\0");
        assert_eq!(alive.count(), queries, "not more often");
    }
    assert_eq!(drain(&mut stream).unwrap(), ["R", "1", "C 0/7"]);
    stream.settle(Lsn::new(7)).unwrap();
    assert_eq!(stream.committed(), Lsn::new(7));
}

#[test]
fn a_mark_that_does_not_hold_is_an_error() {
    for (count, still) in [(0, 0), (1, 1)] {
        let wire = vec![batch(64, &[(1, true)]), marked(count, still)];
        let mut stream = stream(wire, 4096, false);
        drain(&mut stream).unwrap();
        let error = stream.settle(Lsn::new(7)).unwrap_err();
        assert!(matches!(error, WalError::Poll(PollError::NotMarked { .. })), "{error:?}");
    }
    let refused = report(b'E', "ERROR", "23514", "violates check constraint \"c\"");
    let mut stream = stream(vec![batch(64, &[(1, true)]), refused], 4096, false);
    drain(&mut stream).unwrap();
    let error = stream.settle(Lsn::new(7)).unwrap_err();
    assert!(error.to_string().contains("cannot mark") && !error.class().is_transient(), "{error}");
}

#[test]
fn a_notification_is_a_reason_to_poll() {
    let notified = message(b'A', b"\0\0\0\x01channel\0\0");
    let wire = vec![batch(64, &[]), [committed(), notified].concat(), batch(64, &[(1, true)])];
    let mut stream = stream(wire, 4096, false);
    assert_eq!(drain(&mut stream).unwrap().len(), 6);
}

#[test]
fn a_table_that_is_altered_ends_the_session_for_the_next_one_to_describe_it() {
    let mut altered = batch(64, &[(1, true)]);
    let second = altered.windows(7).rposition(|bytes| bytes == b"T\0\0\0\x06\0\0").unwrap();
    altered[second + 6] = 1;
    let wire = vec![batch(64, &[(1, true)]), marked(1, 0), altered];
    let mut stream = stream(wire, 4096, false);
    drain(&mut stream).unwrap();
    stream.settle(Lsn::new(7)).unwrap();
    let error = drain(&mut stream).unwrap_err();
    assert!(error.class().is_transient() && error.to_string().contains("altered"), "{error}");
}

#[test]
fn another_server_process_in_a_session_reveals_a_pooler() {
    let moved: Vec<u8> = batch(64, &[]);
    let at = moved.windows(4).position(|bytes| bytes == b"4711").unwrap();
    let moved = [&moved[..at], b"4712", &moved[at + 4..]].concat();
    let wire = vec![batch(64, &[(1, true)]), marked(1, 0), moved];
    let mut stream = stream(wire, 4096, false);
    drain(&mut stream).unwrap();
    stream.settle(Lsn::new(7)).unwrap();
    let error = drain(&mut stream).unwrap_err();
    assert!(!error.class().is_transient() && error.to_string().contains("pooler"), "{error}");
    assert!(error.hint().unwrap().contains("pool_mode = session"));
}

#[test]
fn g7_what_is_no_answer_to_a_poll_is_an_error() {
    let short = [message(b'C', b"BEGIN\0"), message(b'Z', b"T")].concat();
    let other = message(b'H', &[0, 0, 0]);
    for wire in [short, other, message(b'E', b"x")] {
        assert!(drain(&mut stream(vec![wire], 4096, false)).is_err());
    }
}

#[test]
fn g4_a_row_that_is_too_large_passes_as_an_excerpt_between_the_others() {
    let large = "x".repeat(BASE_BYTES + 10);
    let mut wire = [message(b'C', b"BEGIN\0"), message(b'T', b"\0\0")].concat();
    wire.extend(data_row(&[Some("{0}"), Some("4711")]));
    wire.extend([message(b'C', b"SELECT 1\0"), message(b'T', b"\0\0")].concat());
    for (number, (place, id)) in
        [("(0,1)", "1"), ("(0,2)", &large), ("", &large), ("(0,4)", "4")].iter().enumerate()
    {
        let place = Some(*place).filter(|place| !place.is_empty());
        let made = if place.is_some() { number.to_string() } else { "1".to_owned() };
        wire.extend(data_row(&[place, Some("7"), Some(&made), Some(id)]));
    }
    wire.extend([message(b'C', b"SELECT 1\0"), message(b'Z', b"T")].concat());
    for piece in [1_000, 1 << 20] {
        let mut stream = stream(vec![wire.clone(), marked(3, 0)], piece, false);
        let mut seen = Vec::new();
        for _ in 0..10_000 {
            while let Some(frame) = stream.peek().unwrap() {
                seen.push(match frame {
                    Frame::Excerpt { excerpt, .. } => format!("X {:?}", excerpt.cuts().len()),
                    frame => shown(frame),
                });
                stream.consume();
            }
            stream.fill(Duration::ZERO).unwrap();
        }
        let wanted = [
            "K 0/5", "B 0/5 0", "R", "1", "C 0/7", "B 0/7 1", "X 1", "C 0/9", "B 0/9 3", "1",
            "C 0/B",
        ];
        assert_eq!(seen, wanted, "{piece}");
        assert_eq!(stream.polled.held_back, 1);
        stream.settle(Lsn::new(11)).unwrap();
        assert_eq!(stream.committed(), Lsn::new(11));
    }
}
