//! Tests against the decoding of the whole message.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::encode::{self, Old};
use super::super::{Column, LogicalMessage, Message};
use super::*;
use crate::lsn::Lsn;

/// Pieces have these sizes, in rotation.
fn excerpt(message: &[u8], pieces: &[usize]) -> Result<Excerpt, DecodeError> {
    let mut excerpt = Excerpt::begin(message.len());
    let (mut rest, mut turn) = (message, pieces.iter().cycle());
    while !rest.is_empty() {
        let size = turn.next().map_or(rest.len(), |size| *size).clamp(1, rest.len());
        let (piece, after) = rest.split_at(size);
        excerpt.take(piece)?;
        rest = after;
    }
    if message.is_empty() {
        excerpt.take(&[])?;
    }
    assert!(excerpt.is_whole(), "neither whole nor refused");
    Ok(excerpt)
}

fn is_kept(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(VALUE_BYTES_KEPT)]
}

fn kept<'a>(row: &[Column<'a>]) -> Vec<Column<'a>> {
    let keep = |column: &Column<'a>| match column {
        Column::Text(bytes) => Column::Text(&bytes[..bytes.len().min(VALUE_BYTES_KEPT)]),
        Column::Binary(bytes) => Column::Binary(&bytes[..bytes.len().min(VALUE_BYTES_KEPT)]),
        column => *column,
    };
    row.iter().map(keep).collect()
}

fn cuts(row: &[Column<'_>]) -> Vec<(usize, Digest)> {
    let long = row.iter().enumerate().filter_map(|(column, value)| match value {
        Column::Text(bytes) | Column::Binary(bytes) if bytes.len() > VALUE_BYTES_KEPT => {
            Some((column, Digest::of(bytes)))
        }
        _ => None,
    });
    long.collect()
}

fn told(excerpt: &Excerpt) -> Vec<(usize, Digest)> {
    excerpt.cuts().iter().map(|cut| (cut.column, cut.sent)).collect()
}

fn column(drawn: &(u8, usize, u8)) -> (u8, Vec<u8>) {
    let (kind, size, seed) = drawn;
    let bytes = (0..*size).map(|at| seed.wrapping_add(u8::try_from(at % 251).unwrap())).collect();
    (*kind, bytes)
}

fn lent((kind, bytes): &(u8, Vec<u8>)) -> Column<'_> {
    match kind {
        0 => Column::Null,
        1 => Column::Unchanged,
        2 => Column::Text(bytes),
        _ => Column::Binary(bytes),
    }
}

fn rows() -> impl Strategy<Value = Vec<(u8, usize, u8)>> {
    let size = prop_oneof![0_usize..40, 0_usize..3 * VALUE_BYTES_KEPT];
    vec((0_u8..4, size, any::<u8>()), 0..6)
}

fn pieces() -> impl Strategy<Value = Vec<usize>> {
    vec(prop_oneof![1_usize..12, 1_usize..5_000], 1..6)
}

#[test]
fn an_inserted_row_keeps_what_is_small_and_tells_what_is_not() {
    let large = vec![b'k'; 100_000];
    let row = [Column::Text(b"id"), Column::Text(&large), Column::Null, Column::Text(b"A")];
    let mut message = Vec::new();
    encode::insert(&mut message, 7, &row);
    for piece in [1, 4096, message.len()] {
        let excerpt = excerpt(&message, &[piece]).unwrap();
        assert_eq!(excerpt.whole_bytes(), message.len());
        assert!(excerpt.message().len() < VALUE_BYTES_KEPT + 100);
        let Ok(Message::Insert(insert)) = decode(excerpt.message()) else { panic!("an insert") };
        let columns: Vec<_> = insert.tuple.columns().collect();
        assert_eq!((insert.relation, columns), (7, kept(&row)));
        let [cut] = excerpt.cuts() else { panic!("{:?}", excerpt.cuts()) };
        assert_eq!(*cut, Cut { column: 1, sent: Digest::of(&large), bytea: None });
    }
}

#[test]
fn a_bytea_is_hashed_as_the_bytes_that_it_is() {
    let raw: Vec<u8> = (0..50_000_u32).map(|n| n.to_be_bytes()[3]).collect();
    let digits = hash::hexadecimal(&raw);
    let hexadecimal = format!("\\x{digits}");
    let bytea_of = |text: &str, piece: usize| {
        let mut message = Vec::new();
        encode::insert(&mut message, 7, &[Column::Text(text.as_bytes())]);
        let [cut] = *excerpt(&message, &[piece]).unwrap().cuts() else { panic!("one cut") };
        assert_eq!(cut.sent, Digest::of(text.as_bytes()));
        cut.bytea
    };
    for piece in [1, 2, 3, 4095, 4097, 200_000] {
        assert_eq!(bytea_of(&hexadecimal, piece), Some(Digest::of(&raw)), "pieces of {piece}");
    }
    let odd = format!("{hexadecimal}a");
    let no_digit = hexadecimal.replacen('5', "g", 1);
    for other in [&odd, &no_digit, &digits, &"\\".repeat(5_000)] {
        assert_eq!(bytea_of(other, 4096), None);
    }
}

#[test]
fn a_logical_message_keeps_more_of_its_content_and_less_of_its_prefix() {
    let (prefix, content) = (vec![b'p'; 3 * VALUE_BYTES_KEPT], vec![b'c'; 2 * CONTENT_BYTES_KEPT]);
    let logical = |prefix: &[u8], content: &[u8]| {
        let lsn = Lsn::new(9);
        let mut message = Vec::new();
        let logical = LogicalMessage { transactional: true, lsn, prefix, content };
        encode::logical(&mut message, &logical);
        excerpt(&message, &[1_000]).unwrap()
    };
    let long = logical(b"outbox", &content);
    let Ok(Message::Logical(found)) = decode(long.message()) else { panic!("a logical message") };
    assert_eq!((found.prefix, found.content.len()), (&b"outbox"[..], CONTENT_BYTES_KEPT));
    assert_eq!((told(&long), long.prefix_is_cut()), (vec![(0, Digest::of(&content))], false));
    let named = logical(&prefix, b"{}");
    let Ok(Message::Logical(found)) = decode(named.message()) else { panic!("a logical message") };
    assert_eq!((found.prefix, found.content), (is_kept(&prefix), &b"{}"[..]));
    assert_eq!((told(&named), named.prefix_is_cut()), (vec![], true));
}

#[test]
fn g3_what_is_kept_is_bounded_and_leaves_room_for_every_column_that_postgres_allows() {
    let value = vec![b'v'; VALUE_BYTES_KEPT + 1];
    let mut message = Vec::new();
    encode::insert(&mut message, 7, &vec![Column::Text(&value); 1600]);
    let whole = excerpt(&message, &[1 << 20]).unwrap();
    assert!(whole.message().len() > 1600 * VALUE_BYTES_KEPT);
    message.clear();
    encode::insert(&mut message, 7, &vec![Column::Text(&value); 65_535]);
    let bounded = excerpt(&message, &[1 << 20]).unwrap();
    assert!(bounded.message().len() <= KEPT_BYTES_MAX + 65_535 * 5 + 10);
    assert_eq!((bounded.cuts().len(), decode(bounded.message()).is_ok()), (65_535, true));
}

#[test]
fn g7_what_cannot_be_that_large_is_refused_at_its_first_byte() {
    for tag in *b"BCORYT" {
        let refused = Excerpt::begin(1 << 30).take(&[tag]);
        assert_eq!(refused, Err(DecodeError::TooLong { tag, bytes: 1 << 30 }));
    }
    assert_eq!(Excerpt::begin(1 << 30).take(b"S"), Err(DecodeError::UnknownTag { tag: b'S' }));
    // A value that exceeds its message is detected before it arrives.
    let mut garbled = Excerpt::begin(1000);
    let refused = garbled.take(b"I\0\0\0\x01N\0\x01t\0\0\x04\0");
    assert_eq!(refused, Err(DecodeError::Truncated { field: "column value", offset: 13 }));
}

proptest! {
    #[test]
    fn g7_any_division_gives_what_the_whole_message_has(
        before in rows(), after in rows(), pieces in pieces(), relation: u32,
    ) {
        let (before, after): (Vec<_>, Vec<_>) =
            (before.iter().map(column).collect(), after.iter().map(column).collect());
        let before: Vec<_> = before.iter().map(lent).collect();
        let after: Vec<_> = after.iter().map(lent).collect();
        let write = |before: &[Column<'_>], after: &[Column<'_>]| {
            let mut messages = vec![Vec::new(); 6];
            encode::insert(&mut messages[0], relation, after);
            encode::update(&mut messages[1], relation, None, after);
            encode::update(&mut messages[2], relation, Some(Old::Key(before)), after);
            encode::update(&mut messages[3], relation, Some(Old::Whole(before)), after);
            encode::delete(&mut messages[4], relation, Old::Key(before));
            encode::delete(&mut messages[5], relation, Old::Whole(before));
            messages
        };
        let wanted = write(&kept(&before), &kept(&after));
        for (index, (whole, wanted)) in write(&before, &after).iter().zip(&wanted).enumerate() {
            let excerpt = excerpt(whole, &pieces).expect("well formed");
            prop_assert_eq!(excerpt.message(), wanted);
            let cuts = if index == 0 { cuts(&after) } else { Vec::new() };
            prop_assert_eq!(told(&excerpt), cuts);
        }
    }

    #[test]
    fn g7_what_decoding_refuses_is_refused_alike(
        row in rows(), pieces in pieces(), tag in prop::sample::select(b"BCORYIUDTM?".to_vec()),
        damage: Vec<(prop::sample::Index, u8)>, cut: prop::sample::Index, padding in 0_usize..9,
    ) {
        let row: Vec<_> = row.iter().map(column).collect();
        let row: Vec<_> = row.iter().map(lent).collect();
        let mut message = Vec::new();
        match tag {
            b'U' => encode::update(&mut message, 1, Some(Old::Whole(&row)), &row),
            b'D' => encode::delete(&mut message, 1, Old::Key(&row)),
            b'M' => {
                let (lsn, content) = (Lsn::new(1), vec![0; 70_000]);
                let logical =
                    LogicalMessage { transactional: true, lsn, prefix: b"p", content: &content };
                encode::logical(&mut message, &logical);
            }
            _ => encode::insert(&mut message, 1, &row),
        }
        message[0] = tag;
        // Damage near the beginning hits lengths and markers.
        for (at, byte) in damage {
            let place = at.index(message.len().min(64));
            message[place] = byte;
        }
        message.truncate(cut.index(message.len() + 1));
        message.resize(message.len() + padding, 0);
        match (decode(&message), excerpt(&message, &pieces)) {
            (Ok(_), Ok(excerpt)) => prop_assert!(decode(excerpt.message()).is_ok()),
            (whole, excerpt) => prop_assert_eq!(whole.err(), excerpt.err()),
        }
    }
}
