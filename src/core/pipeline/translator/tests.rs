//! Tests of rows in a database that is not in UTF-8.

use proptest::prelude::*;

use super::*;
use crate::lsn::Lsn;
use crate::pgoutput::Column;
use crate::pgoutput::encode::{self, Table};
use crate::pipeline::Pipeline;
use crate::pipeline::tests::{dead_letters, hand_in, pass, pipeline, transaction, wal};
use crate::route::{OwnedRecord, RejectionCode};

/// Latin 1, except for 0x81 and 0xC3.
fn reference(byte: u8) -> Option<char> {
    (!matches!(byte, 0x81 | 0xC3)).then(|| char::from(byte))
}

fn translator(bytes_max: usize) -> Translator {
    let characters = std::array::from_fn(|place| reference(u8::try_from(place + 128).unwrap()));
    Translator::new(Arc::new(Charset::new("OURS".to_owned(), characters)), bytes_max)
}

/// The code of the row's dead letter, if any.
fn delivered(payload: &[u8], bytes_max: usize) -> (Option<RejectionCode>, OwnedRecord) {
    let mut pipeline = pipeline(dead_letters());
    let frames = transaction(payload);
    pass(&mut pipeline, &frames[0]).unwrap();
    pass(&mut pipeline, &frames[1]).unwrap();
    let mut translator = translator(bytes_max);
    let mut hand_in = |pipeline: &mut Pipeline, has_room| {
        let frame = translator.frame(wal(&frames[2])).unwrap();
        let (_, sent) = hand_in(pipeline, frame, has_room).unwrap();
        let (_, code, record) = sent.unwrap();
        (code, record)
    };
    let first = hand_in(&mut pipeline, false);
    assert_eq!(hand_in(&mut pipeline, true), first, "the same as long as it is not taken");
    pass(&mut pipeline, &frames[3]).unwrap();
    assert_eq!(pipeline.settled(), Lsn::ZERO, "it waits for its confirmation");
    first
}

#[test]
fn ascii_alone_stays_a_slice_of_the_frame() {
    let frames = transaction(&[b'a'; 300]);
    let mut translator = translator(usize::MAX);
    let Ok(Frame::Wal { data, .. }) = translator.frame(wal(&frames[2])) else { panic!("a row") };
    assert_eq!(data.as_ptr_range(), frames[2].as_ptr_range(), "copied");
}

#[test]
fn a_frame_is_converted_once_however_often_it_is_offered() {
    let frames = transaction(b"\xE9");
    let mut translator = translator(usize::MAX);
    let data_of = |translator: &mut Translator| match translator.frame(wal(&frames[2])) {
        Ok(Frame::Wal { data, .. }) => data.to_vec(),
        other => panic!("{other:?}"),
    };
    let row = data_of(&mut translator);
    translator.converted.message.push(0);
    assert_eq!(data_of(&mut translator).len(), row.len() + 1, "it was converted again");
    translator.consume();
    assert_eq!(data_of(&mut translator), row);
}

#[test]
fn g4_bytes_that_pass_for_utf8_by_chance_are_a_dead_letter() {
    // In UTF-8 these bytes would be an accented e.
    let (code, letter) = delivered(b"\xC3\xA9", usize::MAX);
    assert_eq!(code, Some(RejectionCode::UntranslatableCharacter));
    assert_eq!((letter.topic.as_str(), letter.value.as_deref()), ("dead", Some(&b"\xC3\xA9"[..])));
    let reason = letter.headers.iter().find(|(name, _)| name == crate::route::ERROR_HEADER);
    let reason = String::from_utf8(reason.unwrap().1.clone().unwrap()).unwrap();
    assert!(reason.starts_with("column `payload` has a character"), "{reason}");
}

/// Whichever fault is found first, the reason must forbid sending the letter again.
#[test]
fn g4_the_reason_that_is_told_is_the_one_that_forbids_to_send_it_again() {
    let columns: [(&[u8], u32); 4] =
        [(b"id", 25), (b"aggregate_type", 25), (b"aggregate_id", 25), (b"event_type", 25)];
    let table = Table { id: 1, schema: b"public", name: b"outbox", columns: &columns };
    let row = [Column::Text(b"a"), Column::Text(b"t"), Column::Text(b"\xC3\x81"), Column::Null];
    let mut frames = transaction(b"");
    frames[1].clear();
    frames[2].clear();
    encode::relation(&mut frames[1], &table);
    encode::insert(&mut frames[2], 1, &row);
    let (mut pipeline, mut translator) = (pipeline(dead_letters()), translator(usize::MAX));
    pass(&mut pipeline, &frames[0]).unwrap();
    pass(&mut pipeline, &frames[1]).unwrap();
    let frame = translator.frame(wal(&frames[2])).unwrap();
    let (_, sent) = hand_in(&mut pipeline, frame, true).unwrap();
    let (_, code, letter) = sent.unwrap();
    assert_eq!(code, Some(RejectionCode::UntranslatableCharacter));
    assert_eq!(letter.key.as_deref(), Some(&b"\xC3\x81"[..]));
    let all: serde_json::Value = serde_json::from_slice(&letter.value.unwrap()).unwrap();
    assert_eq!(all["aggregate_id"], "\\xc381", "{all}");
    assert_eq!(all["aggregate_type"], "t", "{all}");
}

#[test]
fn g3_a_row_that_would_be_too_large_in_utf8_is_treated_as_one_that_is() {
    let payload = [0xE9; 5_000];
    assert_eq!(delivered(&payload, 11_000).0, None);
    let (code, letter) = delivered(&payload, 8_000);
    assert_eq!(code, Some(RejectionCode::TooLarge));
    let note: serde_json::Value = serde_json::from_slice(&letter.value.unwrap()).unwrap();
    assert_eq!(note["size"], 10_000, "{note}");
    let sha256 = crate::pgoutput::Digest::of("é".repeat(5_000).as_bytes()).hexadecimal();
    assert_eq!(note["sha256"], sha256);
}

proptest! {
    #[test]
    fn g4_a_row_is_delivered_as_its_text_or_is_a_dead_letter(payload: Vec<u8>) {
        let text: Option<String> = payload.iter().map(|byte| reference(*byte)).collect();
        let (code, record) = delivered(&payload, usize::MAX);
        if let Some(text) = text {
            prop_assert_eq!((code, record.topic.as_str()), (None, "placed"));
            prop_assert_eq!(record.value, Some(text.into_bytes()));
        } else {
            prop_assert_eq!(code, Some(RejectionCode::UntranslatableCharacter));
            prop_assert_eq!((record.topic.as_str(), record.value), ("dead", Some(payload)));
        }
    }
}
