//! Parses rows of `COPY .. TO STDOUT (FORMAT binary)` that consist of a position and a pgoutput
//! message.
//!
//! Source: "Binary Format" in the documentation of COPY; the server sends each row in its own
//! message, and the file's header with the first one. Invariant: bytes of another shape are an
//! error (G7).

use crate::wal::error::WalError;
use postrider_core::lsn::Lsn;

/// Signature, flags, length of the (undefined) extension.
const HEADER: [u8; 19] = *b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// Number of columns, length and value of the position, length of the message.
const BEFORE_MESSAGE: usize = 2 + 4 + 8 + 4;

const MALFORMED: WalError = WalError::Protocol("a malformed row of a copy");

/// Bytes of the first (or a later) CopyData before a row's message.
pub(super) const fn before_message(is_first: bool) -> usize {
    if is_first { HEADER.len() + BEFORE_MESSAGE } else { BEFORE_MESSAGE }
}

fn row(body: &[u8], is_first: bool) -> Result<&[u8], WalError> {
    if is_first { body.strip_prefix(&HEADER).ok_or(MALFORMED) } else { Ok(body) }
}

/// True without a row: only the header, or the end.
pub(super) fn is_empty(body: &[u8], is_first: bool) -> Result<bool, WalError> {
    Ok(matches!(row(body, is_first)?, [] | [0xff, 0xff]))
}

pub(super) fn position(body: &[u8], is_first: bool) -> Result<Lsn, WalError> {
    let columns = row(body, is_first)?.strip_prefix(&[0, 2, 0, 0, 0, 8]).ok_or(MALFORMED)?;
    let Some(position) = columns.first_chunk() else { return Err(MALFORMED) };
    Ok(Lsn::new(u64::from_be_bytes(*position)))
}

#[inline]
pub(super) fn parse(body: &[u8], is_first: bool) -> Result<(Lsn, &[u8]), WalError> {
    let position = position(body, is_first)?;
    let (before, message) = body.split_at_checked(before_message(is_first)).ok_or(MALFORMED)?;
    let Some(length) = before.last_chunk::<4>() else { return Err(MALFORMED) };
    if usize::try_from(i32::from_be_bytes(*length)) != Ok(message.len()) {
        return Err(MALFORMED);
    }
    Ok((position, message))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn body(position: u64, message: &[u8], is_first: bool) -> Vec<u8> {
        let mut body = if is_first { HEADER.to_vec() } else { Vec::new() };
        body.extend([0, 2, 0, 0, 0, 8]);
        body.extend(position.to_be_bytes());
        body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        body.extend(message);
        body
    }

    #[test]
    fn a_row_is_a_position_and_a_message() {
        for is_first in [true, false] {
            let row = body(0x1_0000_0002, b"Insert", is_first);
            assert_eq!(parse(&row, is_first).unwrap(), (Lsn::new(0x1_0000_0002), &b"Insert"[..]));
            assert!(!is_empty(&row, is_first).unwrap());
        }
    }

    #[test]
    fn a_window_may_bring_nothing() {
        let end = [0xff, 0xff];
        assert!(is_empty(&HEADER, true).unwrap() && is_empty(&end, false).unwrap());
        assert!(is_empty(&[&HEADER[..], &end].concat(), true).unwrap());
    }

    #[test]
    fn g7_bytes_of_another_shape_are_errors() {
        let good = body(7, b"Insert", false);
        for length in 0..good.len() {
            assert!(parse(&good[..length], false).is_err(), "{length}");
        }
        assert!(parse(&[&good[..], b"x"].concat(), false).is_err());
        assert!(parse(&good, true).is_err() && is_empty(&good, true).is_err());
        let mut null = good;
        null[14..18].copy_from_slice(&(-1_i32).to_be_bytes());
        assert!(parse(&null, false).is_err());
    }
}
