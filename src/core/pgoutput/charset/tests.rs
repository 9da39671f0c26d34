//! Tests of the conversion to UTF-8.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::encode::{self, Table};
use super::super::{Digest, Excerpt};
use super::*;
use crate::lsn::Lsn;
use std::sync::Arc;

/// 0x80 to 0x9F of PostgreSQL's WIN1252; the rest equals Latin 1.
const WIN1252: &str = "€?‚ƒ„…†‡ˆ‰Š‹Œ?Ž??‘’“”•–—˜™š›œ?žŸ";

fn reference(byte: u8) -> Option<char> {
    match byte {
        0x80..=0x9F => WIN1252.chars().nth(usize::from(byte) - 0x80).filter(|it| *it != '?'),
        _ => Some(char::from(byte)),
    }
}

fn win1252() -> Charset {
    let characters = std::array::from_fn(|place| reference(u8::try_from(place + 128).unwrap()));
    Charset::new("WIN1252".to_owned(), characters)
}

fn converted(data: &[u8]) -> Result<(Vec<u8>, Vec<usize>), DecodeError> {
    let mut out = Converted { message: vec![7; 9], untranslatable: vec![3] };
    Ok(match win1252().convert(data, usize::MAX, &mut out)? {
        Conversion::Same => (data.to_vec(), Vec::new()),
        Conversion::Converted => (out.message, out.untranslatable),
        Conversion::TooLong => unreachable!("there is no limit"),
    })
}

fn insert(row: &[Column<'_>]) -> Vec<u8> {
    let mut data = Vec::new();
    encode::insert(&mut data, 16_512, row);
    data
}

#[test]
fn the_euro_is_itself_and_what_has_no_equivalent_stays_and_is_named() {
    let row = [
        Column::Text(b"caf\xE9 \x80"),
        Column::Null,
        Column::Text(b"a\x81\xC3\xA9"),
        Column::Binary(b"\xE9"),
        Column::Unchanged,
    ];
    let (message, untranslatable) = converted(&insert(&row)).unwrap();
    let wanted =
        [Column::Text("café €".as_bytes()), row[1], Column::Text(b"a\x81\xC3\xA9"), row[3], row[4]];
    assert_eq!((message, untranslatable), (insert(&wanted), vec![2]));
}

#[test]
fn what_is_the_same_in_utf8_is_not_written() {
    let mut out = Converted::default();
    let long = [b'a'; 200];
    let same = insert(&[Column::Text(&long), Column::Binary(b"\xE9"), Column::Null]);
    assert!(!same.is_ascii(), "lengths and OIDs are no text");
    assert_eq!(win1252().convert(&same, 0, &mut out), Ok(Conversion::Same));
    let mut update = Vec::new();
    encode::update(&mut update, 7, None, &[Column::Text(b"\xE9")]);
    assert_eq!(win1252().convert(&update, 0, &mut out), Ok(Conversion::Same));
    assert_eq!(out, Converted::default());
}

#[test]
fn a_message_that_would_be_too_long_is_not_written() {
    let data = insert(&[Column::Text(&[0x80; 100])]);
    let mut out = Converted::default();
    let at = |limit, out: &mut Converted| win1252().convert(&data, limit, out).unwrap();
    assert_eq!(at(data.len() + 199, &mut out), Conversion::TooLong);
    assert_eq!(out, Converted::default());
    assert_eq!(at(data.len() + 200, &mut out), Conversion::Converted);
    assert_eq!(out.message.len(), data.len() + 200);
}

#[test]
fn names_are_converted_too() {
    let table = |schema: &[u8], name: &[u8], column: &[u8]| {
        let mut data = Vec::new();
        let columns = [(column, 25), (&b"id"[..], 20)];
        encode::relation_with(&mut data, &Table { id: 9, schema, name, columns: &columns }, &[7]);
        data
    };
    let (message, _) = converted(&table(b"\xE9", b"outbox", b"pr\xE9\x81")).unwrap();
    assert_eq!(message, table("é".as_bytes(), b"outbox", "pré\u{FFFD}".as_bytes()));
    let logical = |prefix: &[u8]| {
        let (lsn, content) = (Lsn::new(5), &b"{\"a\": \"\xE9\"}"[..]);
        let mut data = Vec::new();
        encode::logical(&mut data, &LogicalMessage { transactional: true, lsn, prefix, content });
        data
    };
    assert_eq!(converted(&logical(b"p\x80")).unwrap().0, logical("p€".as_bytes()));
    assert_eq!(converted(&logical(b"p")).unwrap().0, logical(b"p"), "content is what it is");
}

#[test]
fn a_name_goes_back_as_it_came() {
    let win1252 = win1252();
    assert_eq!(win1252.encode("a'é€\"").as_deref(), Some(&b"a'\xE9\x80\""[..]));
    assert_eq!(win1252.encode("ж"), None);
    assert_eq!(win1252.text(b"a\xE9\x81"), "aé\u{FFFD}");
}

proptest! {
    #[test]
    fn text_is_what_the_table_says_or_as_it_came(row in vec(vec(any::<u8>(), 0..40), 1..5)) {
        let columns: Vec<_> = row.iter().map(|text| Column::Text(text)).collect();
        let (message, untranslatable) = converted(&insert(&columns)).unwrap();
        let texts: Vec<Option<String>> = row
            .iter()
            .map(|text| text.iter().map(|byte| reference(*byte)).collect())
            .collect();
        let lacking = texts.iter().enumerate().filter(|(_, text)| text.is_none());
        prop_assert_eq!(untranslatable, lacking.map(|(place, _)| place).collect::<Vec<_>>());
        let wanted: Vec<_> = texts
            .iter()
            .zip(&row)
            .map(|(text, raw)| Column::Text(text.as_ref().map_or(raw, |text| text.as_bytes())))
            .collect();
        prop_assert_eq!(message, insert(&wanted));
    }

    #[test]
    fn g7_any_bytes_are_converted_or_refused(data: Vec<u8>, tag in 0_usize..4, limit in 0_usize..99) {
        let data = [&[b"IRMU"[tag]], data.as_slice()].concat();
        let mut out = Converted::default();
        match win1252().convert(&data, limit, &mut out) {
            Ok(Conversion::Converted) => prop_assert!(decode(&out.message).is_ok()),
            Ok(Conversion::Same) => prop_assert!(data.is_ascii() || decode(&data).is_ok()),
            Ok(Conversion::TooLong) => {}
            Err(error) => prop_assert_eq!(decode(&data).unwrap_err(), error),
        }
    }

    #[test]
    fn an_excerpt_hashes_what_would_have_been_delivered(
        text in vec(any::<u8>().prop_filter("has an equivalent", |it| reference(*it).is_some()), 2_049..9_000),
        piece in 1_usize..5_000,
    ) {
        let data = insert(&[Column::Text(b"\xE9"), Column::Text(&text), Column::Text(b"\x81")]);
        let mut excerpt = Excerpt::begin(data.len()).in_charset(Some(Arc::new(win1252())));
        for piece in data.chunks(piece) {
            excerpt.take(piece).unwrap();
        }
        let whole: String = text.iter().filter_map(|byte| reference(*byte)).collect();
        let [cut] = excerpt.cuts() else { panic!("{:?}", excerpt.cuts()) };
        prop_assert_eq!((cut.column, cut.sent), (1, Digest::of(whole.as_bytes())));
        let added = whole.len() - text.len() + 1;
        prop_assert_eq!(excerpt.whole_bytes(), data.len() + added);
        prop_assert_eq!(excerpt.untranslatable(), &[2]);
        let kept: String = text.iter().take(2048).filter_map(|byte| reference(*byte)).collect();
        let wanted = [Column::Text("é".as_bytes()), Column::Text(kept.as_bytes()), Column::Text(b"\x81")];
        prop_assert_eq!(excerpt.message(), insert(&wanted));
    }
}
