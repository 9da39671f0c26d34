//! Tests of the windows against scripted servers that split and delay what they send.

use super::tuple::tests::body;
use super::*;
use crate::wal::script::{Script, message, report, wal};

const MIB: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Wal(u64, Vec<u8>),
    End(u64),
    Excerpt(u64, usize),
}

fn backlog(from: u64, until: u64, before: u64) -> Backlog {
    Backlog {
        slot: "s".to_owned(),
        publication: "p'".to_owned(),
        messages: true,
        from: Lsn::new(from),
        until: Lsn::new(until),
        before,
        safe: None,
        stream_pid: 12,
        server_started_us: 7,
    }
}

fn catch_up(rows: Script, limit: usize, backlog: Backlog) -> CatchUp<Script> {
    let (connection, name) = (Connection::over(rows, limit), "copy".to_owned());
    let copy = SlotCopy { connection, pid: 11, name, backlog, guard: None };
    copy.over(Stream::over(Script::new(Vec::new(), 4096), limit))
}

fn window(messages: &[(u64, &[u8])], before: impl std::fmt::Display) -> Vec<u8> {
    let mut wire = message(b'H', &[1, 0, 2, 0, 1, 0, 1]);
    if messages.is_empty() {
        wire.extend(message(b'd', b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\xff\xff"));
    } else {
        for (place, (position, data)) in messages.iter().enumerate() {
            wire.extend(message(b'd', &body(*position, data, place == 0)));
        }
        wire.extend(message(b'd', &[0xff, 0xff]));
    }
    wire.extend([message(b'c', b""), message(b'C', b"COPY 1\0"), message(b'T', &[0, 0])].concat());
    let text = before.to_string();
    let mut row = vec![0, 1];
    row.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
    row.extend(text.as_bytes());
    wire.extend([message(b'D', &row), message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat());
    wire
}

fn drain(source: &mut CatchUp<Script>) -> (Vec<Seen>, Option<WalError>) {
    let (mut seen, mut idle) = (Vec::new(), 0);
    loop {
        loop {
            match source.peek() {
                Ok(Some(Frame::Wal { start, data, .. })) => {
                    seen.push(Seen::Wal(start.get(), data.to_vec()));
                }
                Ok(Some(Frame::Keepalive { end, .. })) => seen.push(Seen::End(end.get())),
                Ok(Some(Frame::Excerpt { start, excerpt, .. })) => {
                    seen.push(Seen::Excerpt(start.get(), excerpt.whole_bytes()));
                }
                Ok(Some(Frame::Untranslatable { .. })) => unreachable!("nothing is converted"),
                Ok(None) => break,
                Err(error) => return (seen, Some(error)),
            }
            source.consume();
        }
        match source.fill(Duration::ZERO) {
            Ok(0) if idle > 3 => return (seen, None),
            Ok(0) => idle += 1,
            Ok(_) => idle = 0,
            Err(error) => return (seen, Some(error)),
        }
    }
}

fn asked(source: &CatchUp<Script>) -> String {
    String::from_utf8_lossy(&source.rows.transport.written).into_owned()
}

#[test]
fn windows_are_shown_as_a_stream_however_they_are_split() {
    let wire = [
        window(&[(17 * MIB, b"Begin"), (18 * MIB, b"Commit")], 0),
        report(b'N', "NOTICE", "00000", "hello"),
        window(&[], 0),
        window(&[(49 * MIB, b"Message")], 0),
    ]
    .concat();
    let expected = vec![
        Seen::Wal(17 * MIB, b"Begin".to_vec()),
        Seen::Wal(18 * MIB, b"Commit".to_vec()),
        Seen::End(18 * MIB),
        Seen::End(34 * MIB),
        Seen::Wal(49 * MIB, b"Message".to_vec()),
        Seen::End(50 * MIB),
    ];
    for piece in [1, 2, 7, 64, 4096] {
        for script in [Script::new(wire.clone(), piece), Script::stuttering(wire.clone(), piece)] {
            let mut source = catch_up(script, 1 << 20, backlog(16 * MIB, 50 * MIB, 0));
            assert_eq!(drain(&mut source), (expected.clone(), None), "{piece}");
            assert_eq!(source.received(), Lsn::new(50 * MIB));
            while !source.rows.push_out().unwrap() {}
            assert_eq!(asked(&source).matches("COPY (SELECT lsn, data").count(), 3);
        }
    }
}

#[test]
fn the_server_has_a_window_to_decode_while_another_is_read() {
    let mut source = catch_up(Script::new(Vec::new(), 4096), 1 << 20, backlog(0, 1 << 40, 0));
    source.fill(Duration::ZERO).unwrap();
    let text = asked(&source);
    assert!(text.contains("'0/200000'") && text.contains("'0/1200000'"), "{text}");
    assert!(!text.contains("'0/2200000'"), "no more than two: {text}");
    assert!(text.contains("'messages', 'true'") && text.contains("'\"p''\"'"), "{text}");
}

/// Otherwise a server without anything left to send seems silent while the brokers are away.
#[test]
fn a_server_that_has_sent_all_windows_answers_when_asked() {
    let answer = [message(b'I', b""), message(b'Z', b"I")].concat();
    let brought = window(&[(17 * MIB, b"Begin")], 0);
    let script = Script::answering(vec![brought, answer.clone(), answer], 4096);
    let mut source = catch_up(script, 1 << 20, backlog(16 * MIB, 18 * MIB, 0));
    let pings = |source: &CatchUp<Script>| asked(source).matches("Q\0\0\0\u{5}\0").count();
    let (seen, error) = drain(&mut source);
    assert_eq!((seen.len(), error), (2, None));
    for asked_before in 0..2 {
        assert_eq!(pings(&source), asked_before);
        source.acknowledge(Lsn::ZERO, false).unwrap();
        source.acknowledge(Lsn::ZERO, true).unwrap();
        source.acknowledge(Lsn::ZERO, true).unwrap();
        let before = source.received_bytes();
        assert_eq!(drain(&mut source), (Vec::new(), None));
        assert_eq!(source.received_bytes() - before, 11);
    }
    assert_eq!(pings(&source), 2);
}

/// Upholds G1: the slot is acknowledged up to the received position, over the stream that holds it.
#[test]
fn g1_what_was_not_received_is_not_acknowledged() {
    let wire = window(&[(17 * MIB, b"Begin")], 0);
    let mut source = catch_up(Script::new(wire, 4096), 1 << 20, backlog(16 * MIB, 1 << 40, 0));
    assert_eq!(source.acknowledge(Lsn::new(17 * MIB), false).unwrap(), Lsn::ZERO);
    assert_eq!(drain(&mut source).0.len(), 2);
    assert_eq!(source.acknowledge(Lsn::new(99 * MIB), false).unwrap(), Lsn::new(18 * MIB));
    assert_eq!(source.acknowledged(), Lsn::new(18 * MIB));
}

#[test]
fn g3_of_a_row_over_the_limit_an_excerpt_is_shown() {
    let large = vec![b'x'; 9_000];
    for is_first in [true, false] {
        let small: &[(u64, &[u8])] = &[(17 * MIB, b"Begin")];
        let row: &[(u64, &[u8])] = &[(18 * MIB, &large)];
        let messages = if is_first { row.to_vec() } else { [small, row].concat() };
        let wire = window(&messages, 0);
        for piece in [1, 100, 4096] {
            let script = Script::new(wire.clone(), piece);
            let mut source = catch_up(script, 1024, backlog(16 * MIB, 32 * MIB, 0));
            let (seen, error) = drain(&mut source);
            // The pipeline decides whether it is an outbox row.
            assert!(matches!(error, None | Some(WalError::Malformed(_))), "{error:?}");
            if error.is_none() {
                assert!(seen.contains(&Seen::Excerpt(18 * MIB, large.len())), "{seen:?}");
                assert_eq!(seen.last(), Some(&Seen::End(32 * MIB)));
            }
        }
    }
}

#[test]
fn what_the_server_refuses_is_said_each_time() {
    let refusal = report(b'E', "ERROR", "53400", "temporary file size exceeds temp_file_limit");
    let wire = [window(&[(17 * MIB, b"Begin")], 0), refusal, message(b'Z', b"I")].concat();
    let mut source = catch_up(Script::new(wire, 4096), 1 << 20, backlog(16 * MIB, 1 << 40, 0));
    let (seen, error) = drain(&mut source);
    assert_eq!(seen.len(), 2);
    for said in [error, source.peek().err()] {
        let Some(WalError::CatchUp(CatchUpError::Refused(server))) = said else {
            panic!("{said:?}")
        };
        assert_eq!(server.code, "53400");
        let hint = CatchUpError::Refused(server).hint().unwrap();
        assert!(!hint.contains("max_replication_slots"), "{hint}");
    }
}

#[test]
fn a_restart_position_that_stays_behind_ends_the_windows_that_were_asked_for() {
    let far = DECODED_BEFORE_BYTES_MAX + 1;
    let wire =
        [window(&[(17 * MIB, b"Begin")], far), window(&[(33 * MIB, b"Commit")], far)].concat();
    let mut source = catch_up(Script::new(wire, 4096), 1 << 20, backlog(16 * MIB, 1 << 40, 0));
    let (seen, error) = drain(&mut source);
    assert_eq!(error, Some(CatchUpError::Far.into()));
    assert_eq!(seen.len(), 4, "what was asked for is shown: {seen:?}");
}

#[test]
fn g7_a_malformed_row_is_an_error() {
    for damaged in [
        message(b'd', b"PGCOPX\n\xff\r\n\0\0\0\0\0\0\0\0\0"),
        message(b'd', b""),
        message(b'd', &[0; 40]),
        message(b'Z', b"I"),
        message(b'D', &[0, 1, 0, 0, 0, 1, b'x']),
        message(b'w', b""),
    ] {
        let wire = [message(b'H', b""), damaged.clone()].concat();
        let mut source = catch_up(Script::new(wire, 4096), 1 << 20, backlog(0, 0, 0));
        let (_, error) = drain(&mut source);
        assert!(matches!(error, Some(WalError::Protocol(_))), "{damaged:?}: {error:?}");
    }
}

/// PostgreSQL 18 only warns about rows written while the publication did not exist.
#[test]
fn g4_a_publication_that_was_missing_ends_the_windows() {
    let missing = report(b'N', "WARNING", "55000", "skipped loading publication \"p\"");
    let wire = [missing, window(&[(17 * MIB, b"Begin")], 0)].concat();
    let mut source = catch_up(Script::new(wire, 4096), 1 << 20, backlog(16 * MIB, 1 << 40, 0));
    let (seen, error) = drain(&mut source);
    assert!(seen.is_empty(), "{seen:?}");
    assert!(matches!(error, Some(WalError::CatchUp(CatchUpError::Refused(_)))), "{error:?}");
}

/// Upholds G1: a configuration reload may require it during a session.
#[test]
fn g1_windows_end_if_standbys_must_have_a_row_first() {
    let wire = window(&[(17 * MIB, b"Begin")], -1);
    let mut source = catch_up(Script::new(wire, 4096), 1 << 20, backlog(16 * MIB, 1 << 40, 0));
    let (seen, error) = drain(&mut source);
    assert_eq!(error, Some(CatchUpError::StandbysAwaited.into()));
    assert!(!seen.iter().any(|seen| matches!(seen, Seen::End(_))), "{seen:?}");
}

/// A stopping server ends this connection before the stream, and windows are tried again.
#[test]
fn a_server_that_ends_the_connection_refuses_nothing() {
    let ended = report(b'E', "FATAL", "57P01", "terminating connection");
    let mut source = catch_up(Script::new(ended, 4096), 1 << 20, backlog(16 * MIB, 1 << 40, 0));
    let (_, error) = drain(&mut source);
    assert!(matches!(error, Some(WalError::CatchUp(CatchUpError::Ended(_)))), "{error:?}");
}

#[test]
fn g1_what_the_held_stream_brings_is_thrown_away() {
    let frames = [wal(90 * MIB, b"Begin"), wal(91 * MIB, b"Commit")].concat();
    let copy = SlotCopy {
        connection: Connection::over(Script::new(Vec::new(), 4096), 1 << 20),
        pid: 11,
        name: "copy".to_owned(),
        backlog: backlog(16 * MIB, 1 << 40, 0),
        guard: None,
    };
    let mut source = copy.over(Stream::over(Script::new(frames, 4096), 1 << 20));
    source.discarded = Instant::now().checked_sub(DISCARD_EVERY * 2).unwrap();
    source.tend().unwrap();
    assert_eq!((source.stream.buffered(), source.stream.received()), (0, Lsn::ZERO));
    assert_eq!(source.acknowledge(Lsn::new(95 * MIB), false), Ok(Lsn::ZERO));
}

#[test]
fn what_is_settled_is_acknowledged_however_long_a_window_is_open() {
    let wire = window(&[(17 * MIB, b"Begin")], 0);
    let mut source = catch_up(Script::new(wire, 4096), 1 << 20, backlog(16 * MIB, 1 << 40, 0));
    drain(&mut source);
    source.read_since = Instant::now().checked_sub(WINDOW_OPEN_MAX * 2).unwrap();
    let slow = CatchUpError::Slow { seconds: WINDOW_OPEN_MAX.as_secs() };
    assert_eq!(source.acknowledge(Lsn::new(17 * MIB), false), Err(slow.into()));
    assert_eq!(source.acknowledged(), Lsn::new(17 * MIB));
    assert_eq!(source.acknowledge(Lsn::new(18 * MIB), false), Ok(Lsn::new(18 * MIB)), "said once");
}

/// The server's TCP ends a connection without reads for that long.
#[test]
fn a_window_may_wait_for_the_brokers() {
    let (_, limit) = SETTINGS.iter().find(|(name, _)| *name == "tcp_user_timeout").unwrap();
    let limit: u64 = limit.trim_end_matches('s').parse().unwrap();
    assert!(Duration::from_secs(limit) > WINDOW_OPEN_MAX + Duration::from_secs(30));
}

/// Upholds G1: the server shows only what is on disk, and may invalidate the slot meanwhile.
#[test]
fn g1_windows_end_where_the_log_on_disk_does() {
    let until = |safe, flushed| {
        let backlog = Backlog { safe, ..backlog(16 * MIB, 1 << 40, 0) };
        backlog.up_to(Lsn::new(flushed)).map(|backlog| backlog.until.get())
    };
    assert_eq!(until(None, 100 * MIB), Ok(100 * MIB));
    assert_eq!(until(None, 1 << 41), Ok(16 * MIB + SESSION_BYTES_MAX));
    assert_eq!(until(Some(256 * MIB), 1 << 41), Ok(80 * MIB), "others write meanwhile");
    assert_eq!(until(Some(0), 1 << 41), Err(CatchUpError::Short));
    assert_eq!(until(None, 0), Err(CatchUpError::Short));
}

fn answers(started_us: &str, copied: &str) -> Vec<u8> {
    let rows: [&[&str]; 5] = [&["4711", started_us], &[""], &[""], &["1/0"], &[copied]];
    let answer = |texts: &[&str]| {
        let mut row = u16::try_from(texts.len()).unwrap().to_be_bytes().to_vec();
        for text in texts {
            row.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
            row.extend(text.as_bytes());
        }
        [message(b'D', &row), message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat()
    };
    rows.map(answer).concat()
}

#[test]
fn g1_windows_of_another_slot_are_not_read() {
    let make = |started_us: &str, copied: &str| {
        let script = Script::new(answers(started_us, copied), 4096);
        SlotCopy::make(Connection::over(script, 1 << 20), backlog(16 * MIB, 64 * MIB, 0))
    };
    let copy = make("7", "0/1000000").unwrap();
    assert_eq!(
        (copy.name.as_str(), copy.backlog.until),
        ("postrider_catch_up_4711_12", Lsn::new(64 * MIB))
    );
    assert_eq!(make("8", "0/1000000").unwrap_err(), CatchUpError::OtherServer.into());
    for elsewhere in ["0/2000000", "0/FFFFFF", ""] {
        assert_eq!(make("7", elsewhere).unwrap_err(), CatchUpError::OtherServer.into());
    }
}
