//! A message that is read in pieces is the message that is read as a whole, or refused like it (G7).
//!
//! The first two bytes choose the sizes of the pieces.

use postrider::pgoutput::{Excerpt, Message, VALUE_BYTES_KEPT, decode};

/// One input.
pub(crate) fn run(data: &[u8]) {
    let Some((&[first, then], message)) = data.split_first_chunk::<2>() else { return };
    let whole = decode(message);
    match excerpt(message, usize::from(first), usize::from(then) + 1) {
        Ok(excerpt) => {
            let kept = decode(excerpt.message()).expect("what was kept is a message");
            let whole = whole.expect("only messages are taken");
            assert_eq!(std::mem::discriminant(&whole), std::mem::discriminant(&kept));
            assert_eq!(excerpt.whole_bytes(), message.len());
            if let Message::Insert(insert) = whole {
                let long = |bytes: &[u8]| bytes.len() > VALUE_BYTES_KEPT;
                let is_cut = insert.tuple.columns().any(|column| match column {
                    postrider::pgoutput::Column::Text(bytes)
                    | postrider::pgoutput::Column::Binary(bytes) => long(bytes),
                    _ => false,
                });
                assert_eq!(is_cut, !excerpt.cuts().is_empty());
                assert_eq!(is_cut, excerpt.message() != message);
            }
        }
        Err(error) => assert_eq!(whole.expect_err("refused alike"), error),
    }
}

fn excerpt(
    message: &[u8],
    first: usize,
    then: usize,
) -> Result<Excerpt, postrider::pgoutput::DecodeError> {
    let mut excerpt = Excerpt::begin(message.len());
    let (head, rest) = message.split_at(first.min(message.len()));
    excerpt.take(head)?;
    for piece in rest.chunks(then) {
        excerpt.take(piece)?;
    }
    assert!(excerpt.is_whole());
    Ok(excerpt)
}
