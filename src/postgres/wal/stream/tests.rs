//! Tests of the stream against a scripted server that splits, delays and damages its messages.

use proptest::prelude::*;

use super::super::buffer::BASE_BYTES;
use super::super::script::{Script, keepalive, message, report, wal};
use super::*;
use postrider_core::pgoutput::{Column, DecodeError, VALUE_BYTES_KEPT, encode};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Wal(u64, Vec<u8>),
    Keepalive(u64, bool),
    Excerpt(u64, usize, Vec<u8>),
}

fn streaming(script: Script, frame_bytes_max: usize) -> Stream<Script> {
    Stream::over(script, frame_bytes_max)
}

fn drain(stream: &mut Stream<Script>) -> (Vec<Seen>, Option<WalError>) {
    let (mut seen, mut idle) = (Vec::new(), 0);
    loop {
        loop {
            match stream.peek() {
                Ok(Some(Frame::Wal { start, data, .. })) => {
                    seen.push(Seen::Wal(start.get(), data.to_vec()));
                }
                Ok(Some(Frame::Keepalive { end, reply_now })) => {
                    seen.push(Seen::Keepalive(end.get(), reply_now));
                }
                Ok(Some(Frame::Excerpt { start, excerpt, .. })) => {
                    let kept = excerpt.message().to_vec();
                    seen.push(Seen::Excerpt(start.get(), excerpt.whole_bytes(), kept));
                }
                Ok(None) => break,
                Ok(Some(Frame::Untranslatable { .. })) => unreachable!("a stream converts nothing"),
                Err(error) => return (seen, Some(error)),
            }
            stream.consume();
        }
        match stream.fill(Duration::from_millis(1)) {
            Ok(0) if idle > 3 => return (seen, None),
            Ok(0) => idle += 1,
            Ok(_) => idle = 0,
            Err(error) => return (seen, Some(error)),
        }
    }
}

fn sample() -> (Vec<u8>, Vec<Seen>) {
    let large = vec![7; BASE_BYTES * 2 + 11];
    let wire = [
        keepalive(0x10, false),
        report(b'N', "NOTICE", "00000", "hello"),
        wal(0x20, b"begin"),
        message(b'S', b"TimeZone\0UTC\0"),
        wal(0, b""),
        wal(0x30, &large),
        keepalive(0x40, true),
    ]
    .concat();
    let seen = vec![
        Seen::Keepalive(0x10, false),
        Seen::Wal(0x20, b"begin".to_vec()),
        Seen::Wal(0, Vec::new()),
        Seen::Wal(0x30, large),
        Seen::Keepalive(0x40, true),
    ];
    (wire, seen)
}

#[test]
fn frames_survive_being_split_anywhere() {
    let (wire, expected) = sample();
    for piece in [1, 2, 3, 7, 29, 4096, 1 << 20] {
        for script in [Script::new(wire.clone(), piece), Script::stuttering(wire.clone(), piece)] {
            let mut stream = streaming(script, 8 << 20);
            let (seen, error) = drain(&mut stream);
            assert_eq!((seen, error), (expected.clone(), None), "pieces of {piece}");
            assert_eq!(stream.received(), Lsn::new(0x40));
            assert_eq!(stream.take_notices().len(), 1);
            assert_eq!(stream.buffered(), 0);
            assert_eq!(stream.channel.buffer.capacity(), BASE_BYTES, "given back");
        }
    }
}

#[test]
fn a_frame_stays_until_it_is_consumed() {
    let mut stream = streaming(Script::new([wal(1, b"a"), wal(2, b"b")].concat(), 100), 1 << 20);
    stream.fill(Duration::ZERO).unwrap();
    for _ in 0..2 {
        let frame = stream.peek().unwrap();
        assert!(
            matches!(frame, Some(Frame::Wal { data: b"a", start, .. }) if start == Lsn::new(1))
        );
    }
    stream.consume();
    assert!(matches!(stream.peek().unwrap(), Some(Frame::Wal { data: b"b", .. })));
}

/// The three positions and the reply flag of each written status.
fn statuses(written: &[u8]) -> Vec<(u64, u64, u64, bool)> {
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    assert_eq!(written.len() % STATUS_BYTES, 0);
    written
        .chunks(STATUS_BYTES)
        .map(|status| {
            assert_eq!(&status[..6], [b'd', 0, 0, 0, 38, b'r']);
            let (write, flush) = (number(&status[6..14]), number(&status[14..22]));
            (write, flush, number(&status[22..30]), status[38] == 1)
        })
        .collect()
}

#[test]
fn g1_an_acknowledgement_is_never_beyond_what_was_received_and_never_goes_back() {
    let mut stream = streaming(Script::new(keepalive(0x50, false), 100), 1 << 20);
    assert_eq!(stream.acknowledge(Lsn::new(0x7F_FFFF_FFFF), false).unwrap(), Lsn::ZERO);
    stream.fill(Duration::ZERO).unwrap();
    stream.peek().unwrap();
    assert_eq!(stream.acknowledge(Lsn::new(0x30), true).unwrap(), Lsn::new(0x30));
    assert_eq!(stream.acknowledge(Lsn::new(0x20), false).unwrap(), Lsn::new(0x30));
    assert_eq!(stream.acknowledge(Lsn::new(0x51), false).unwrap(), Lsn::new(0x50));
    assert_eq!(
        statuses(&stream.channel.transport.written),
        [
            (0, 0, 0, false),
            (0x50, 0x30, 0x30, true),
            (0x50, 0x30, 0x30, false),
            (0x50, 0x50, 0x50, false)
        ]
    );
}

#[test]
fn g8_nothing_counts_as_received_until_something_is_settled() {
    let mut stream = streaming(Script::new(keepalive(0x50, false), 100), 1 << 20);
    stream.fill(Duration::ZERO).unwrap();
    stream.peek().unwrap();
    stream.acknowledge(Lsn::ZERO, false).unwrap();
    stream.acknowledge(Lsn::new(0x30), false).unwrap();
    let told = [(0, 0, 0, false), (0x50, 0x30, 0x30, false)];
    assert_eq!(statuses(&stream.channel.transport.written), told);
}

#[test]
fn a_full_socket_delays_one_status_and_merges_the_rest() {
    let mut script = Script::new(keepalive(0x50, false), 100);
    script.accepts = 10;
    let mut stream = streaming(script, 1 << 20);
    stream.fill(Duration::ZERO).unwrap();
    stream.peek().unwrap();
    for position in 1..=9 {
        stream.acknowledge(Lsn::new(position), position == 5).unwrap();
    }
    assert_eq!(stream.channel.transport.written.len(), 10);
    stream.channel.transport.accepts = usize::MAX;
    stream.fill(Duration::ZERO).unwrap();
    stream.fill(Duration::ZERO).unwrap();
    assert_eq!(
        statuses(&stream.channel.transport.written),
        [(0x50, 1, 1, false), (0x50, 9, 9, true)]
    );
}

fn publication_missing() -> WalError {
    WalError::PublicationMissing {
        publication: "postrider".to_owned(),
        slot: "postrider".to_owned(),
    }
}

#[test]
fn what_ends_a_stream_is_told_apart() {
    let missing = report(b'N', "WARNING", "55000", "skipped loading publication \"postrider\"");
    let translated = b"SWARNUNG\0VWARNING\0C55000\0Mxyz\0RLoadPublications\0\0";
    for (wire, expected) in [
        (Vec::new(), WalError::Closed),
        (wal(1, b"x")[..20].to_vec(), WalError::Closed),
        (message(b'c', b""), WalError::Ended),
        (message(b'C', b"COPY 0\0"), WalError::Ended),
        (missing, publication_missing()),
        (message(b'N', translated), publication_missing()),
        (
            message(b'E', b"SFEHLER\0VERROR\0C42704\0Mxyz\0Rget_publication_oid\0\0"),
            publication_missing(),
        ),
        (
            [keepalive(9, false), message(b'N', &[0; 2000])].concat(),
            WalError::MessageTooLarge { tag: b'N', bytes: 2005, limit: 1000 },
        ),
        (wal(1, &[b'?'; 2000]), WalError::Malformed(DecodeError::UnknownTag { tag: b'?' })),
        (
            message(b'd', &[b'k'; 2000]),
            WalError::Protocol("a replication message of unknown kind or length"),
        ),
        (message(b'd', b""), WalError::Protocol("a replication message of unknown kind or length")),
        (message(b'T', b"\0\0"), WalError::Protocol("an unexpected message in the stream")),
    ] {
        let mut stream = streaming(Script::closing(wire, 7), 1000);
        assert_eq!(drain(&mut stream).1, Some(expected));
    }
    let wire = report(b'E', "FATAL", "57P01", "terminating connection");
    let error = drain(&mut streaming(Script::closing(wire, 7), 1000)).1.unwrap();
    assert!(matches!(&error, WalError::Server(server) if server.code == "57P01"), "{error:?}");
    assert!(error.class().is_transient());
}

#[test]
fn finishing_discards_what_is_left_and_says_goodbye() {
    let wire = [
        wal(0x10, b"seen"),
        wal(0x20, &[1; 5000]),
        message(b'c', b""),
        message(b'C', b"COPY 0\0"),
        message(b'Z', b"I"),
    ]
    .concat();
    for (piece, limit) in
        [(1, 1 << 20), (64, 1 << 20), (1 << 16, 1 << 20), (1, 999), (64, 999), (1 << 16, 999)]
    {
        let mut stream = streaming(Script::stuttering(wire.clone(), piece), limit);
        while stream.peek().unwrap().is_none() {
            stream.fill(Duration::ZERO).unwrap();
        }
        stream.acknowledge(Lsn::new(0x10), false).unwrap();
        stream.finish(Duration::from_secs(5)).unwrap();
    }
    let stream = streaming(Script::new(Vec::new(), 64), 1 << 20);
    let error = stream.finish(Duration::from_millis(5)).unwrap_err();
    assert!(matches!(error, WalError::TimedOut { .. }));
}

#[test]
fn g8_a_server_that_stops_has_heard_everything_when_it_is_done() {
    let done = message(b'C', b"COPY 0\0");
    for (wire, settled, heard) in [(&done[..], 0x10, true), (&[], 0x10, false), (&done, 0, false)] {
        let wire = [wal(0x10, b"seen"), wire.to_vec()].concat();
        let mut stream = streaming(Script::closing(wire, 64), 1 << 20);
        while stream.peek().unwrap().is_none() {
            stream.fill(Duration::ZERO).unwrap();
        }
        stream.consume();
        stream.acknowledge(Lsn::new(settled), false).unwrap();
        assert_eq!(stream.finish(Duration::from_secs(5)).is_ok(), heard);
    }
}

/// An insert of one column with `size` bytes, and the kept part.
fn insert(size: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut whole, mut kept) = (Vec::new(), Vec::new());
    encode::insert(&mut whole, 1, &[Column::Text(&vec![b'v'; size])]);
    encode::insert(&mut kept, 1, &[Column::Text(&vec![b'v'; size.min(VALUE_BYTES_KEPT)])]);
    (whole, kept)
}

#[test]
fn g3_g4_a_row_over_the_limit_passes_whatever_is_around_it_and_is_the_same_until_consumed() {
    let (large, kept) = insert(BASE_BYTES * 3);
    let wire = [keepalive(0x10, false), wal(0x20, &large), wal(0x30, b"after")].concat();
    for piece in [29, 30, 31, 4096, 1 << 20] {
        let mut stream = streaming(Script::stuttering(wire.clone(), piece), 1 << 20);
        let (seen, error) = drain(&mut stream);
        assert_eq!(error, None, "pieces of {piece}");
        let after = Seen::Wal(0x30, b"after".to_vec());
        let excerpt = Seen::Excerpt(0x20, large.len(), kept.clone());
        assert_eq!(seen, [Seen::Keepalive(0x10, false), excerpt, after], "pieces of {piece}");
        assert_eq!(stream.channel.buffer.capacity(), BASE_BYTES);
    }
    let mut stream = streaming(Script::new(wire[23..].to_vec(), 1 << 20), 1 << 20);
    while stream.peek().unwrap().is_none() {
        // While it passes, the server gets keepalives, and the row does not count as received.
        assert_eq!(stream.acknowledge(Lsn::new(0x20), false).unwrap(), Lsn::ZERO);
        stream.fill(Duration::ZERO).unwrap();
    }
    for _ in 0..2 {
        let frame = stream.peek().unwrap();
        assert!(matches!(frame, Some(Frame::Excerpt { start, .. }) if start == Lsn::new(0x20)));
    }
    assert_eq!(stream.acknowledge(Lsn::new(0x20), false).unwrap(), Lsn::new(0x20));
    // Reads do not affect the shown frame, which is not in the buffer.
    stream.fill(Duration::ZERO).unwrap();
    assert!(matches!(stream.peek().unwrap(), Some(Frame::Excerpt { .. })));
    stream.consume();
    assert!(matches!(stream.peek().unwrap(), Some(Frame::Wal { data: b"after", .. })));
}

#[test]
fn a_session_can_end_while_a_row_over_the_limit_passes() {
    let end = [message(b'c', b""), message(b'C', b"COPY 0\0"), message(b'Z', b"I")].concat();
    let wire = [wal(0x20, &insert(BASE_BYTES).0), end].concat();
    for piece in [64, 1 << 16] {
        let mut stream = streaming(Script::stuttering(wire.clone(), piece), 1 << 20);
        for _ in 0..20 {
            stream.fill(Duration::ZERO).unwrap();
            assert!(stream.peek().unwrap().is_none());
        }
        stream.finish(Duration::from_secs(5)).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Frames up to the limit are whole, larger ones are excerpts, and the room never exceeds the
    /// limit.
    #[test]
    fn g3_g7_room_is_bounded_by_the_largest_frame_allowed(
        sizes in proptest::collection::vec(0_usize..300_000, 0..8),
        declared in 0_u32..=u32::MAX,
        arrives in 0_usize..(5 << 20),
        limit in 26_usize..(6 << 20),
        piece in 1_000_usize..300_000,
    ) {
        let mut wire: Vec<u8> = sizes.iter().flat_map(|&size| wal(1, &insert(size).0)).collect();
        wire.push(b'd');
        wire.extend(declared.to_be_bytes());
        wire.resize(wire.len() + arrives, b'w');
        let mut stream = streaming(Script::closing(wire, piece), limit);
        let (seen, error) = drain(&mut stream);
        let expected = sizes.iter().map(|&size| {
            let (whole, kept) = insert(size);
            // Header, kind, two positions and a time precede the data.
            let fits = whole.len() + 30 <= limit;
            if fits { Seen::Wal(1, whole) } else { Seen::Excerpt(1, whole.len(), kept) }
        });
        let expected: Vec<_> = expected.collect();
        prop_assert!(seen.starts_with(&expected));
        prop_assert!(error.is_some());
        prop_assert!(stream.channel.buffer.capacity() <= limit.max(BASE_BYTES));
    }
}

proptest! {
    #[test]
    fn g7_any_bytes_give_frames_or_an_error(
        wire in proptest::collection::vec(any::<u8>(), 0..200),
        piece in 1_usize..64,
    ) {
        let mut stream = streaming(Script::closing(wire, piece), 1 << 20);
        let (_, error) = drain(&mut stream);
        prop_assert!(error.is_some());
        prop_assert!(stream.channel.buffer.capacity() <= BASE_BYTES);
    }

    #[test]
    fn g7_damaged_frames_give_frames_or_an_error(at in 0_usize..120, bits: u8, piece in 1_usize..64) {
        let mut wire = [
            keepalive(1, true),
            report(b'N', "NOTICE", "00000", "x"),
            wal(2, b"abc"),
        ].concat();
        let at = at % wire.len();
        wire[at] ^= bits;
        let mut stream = streaming(Script::closing(wire, piece), 1 << 20);
        prop_assert!(drain(&mut stream).1.is_some());
    }
}
