//! Converts a row of COPY's text format to a pgoutput Insert.
//!
//! Source: documentation of COPY, "Text Format". Invariant: another number of columns, or a row
//! that ends in an escape, is an error (G7).

use std::ops::Range;

use crate::wal::WalError;

/// Tag, OID, marker, number of columns.
const HEAD_BYTES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) columns: usize,
    /// Columns of the Insert; the others serve only for the order.
    pub(super) sent: usize,
}

#[derive(Debug)]
pub(super) struct RowWriter {
    head: [u8; HEAD_BYTES],
    shape: Shape,
    /// Columns in the requested order.
    kept: Vec<usize>,
}

/// `None` is NULL.
#[derive(Debug, Default)]
pub(super) struct RowBuffer {
    pub(super) message: Vec<u8>,
    /// Start of columns outside the Insert.
    hidden: Option<usize>,
    places: Vec<Option<Range<usize>>>,
}

impl RowBuffer {
    pub(super) fn shown(&self) -> &[u8] {
        let shown = self.message.get(..self.hidden.unwrap_or(self.message.len()));
        shown.unwrap_or_else(|| unreachable!("what is hidden lies within the message"))
    }

    pub(super) fn clear(&mut self) {
        self.message.clear();
        self.hidden = None;
        self.places.clear();
    }

    pub(super) fn kept(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.places.iter().map(|place| {
            let place = place.clone()?;
            let value = self.message.get(place);
            assert!(value.is_some(), "a place lies within the message that it was noted in");
            value
        })
    }
}

impl RowWriter {
    /// `kept`: columns whose places are noted.
    ///
    /// # Panics
    ///
    /// Above 65,535 columns; Postgres allows 1,600.
    pub(super) fn new(table_oid: u32, shape: Shape, kept: Vec<usize>) -> Self {
        let Shape { columns, sent } = shape;
        assert!(kept.iter().all(|column| *column < columns), "a kept column is one of the table's");
        assert!(sent <= columns, "what is sent is read");
        let Ok(count) = u16::try_from(sent) else { unreachable!("{sent} columns") };
        let mut head = [0; HEAD_BYTES];
        let parts = [b"I".as_slice(), &table_oid.to_be_bytes(), b"N", &count.to_be_bytes()];
        head.copy_from_slice(&parts.concat());
        Self { head, shape, kept }
    }

    pub(super) fn write(&self, row: &[u8], out: &mut RowBuffer) -> Result<(), WalError> {
        let row = row.strip_suffix(b"\n").unwrap_or(row);
        out.clear();
        out.message.extend(self.head);
        out.places.resize(self.kept.len(), None);
        let mut columns = 0;
        // A tab within a value is escaped. A table without columns has an empty row.
        let values = row.split(|byte| *byte == b'\t');
        for value in values.take(if self.shape.columns == 0 {
            usize::from(!row.is_empty())
        } else {
            usize::MAX
        }) {
            if columns == self.shape.columns {
                return Err(WalError::Protocol("a row of COPY with more columns than its table"));
            }
            if columns == self.shape.sent {
                out.hidden = Some(out.message.len());
            }
            let place = write_value(value, &mut out.message)?;
            for (kept, noted) in self.kept.iter().zip(&mut out.places) {
                if *kept == columns {
                    noted.clone_from(&place);
                }
            }
            columns += 1;
        }
        if columns == self.shape.columns {
            Ok(())
        } else {
            Err(WalError::Protocol("a row of COPY with fewer columns than its table"))
        }
    }
}

/// Returns the place of the value.
fn write_value(value: &[u8], out: &mut Vec<u8>) -> Result<Option<Range<usize>>, WalError> {
    if value == b"\\N" {
        out.push(b'n');
        return Ok(None);
    }
    out.push(b't');
    let length_at = out.len();
    out.extend([0; 4]);
    let start = out.len();
    let mut rest = value;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        let (plain, escape) = rest.split_at(at);
        let [_, letter, after @ ..] = escape else {
            return Err(WalError::Protocol("a row of COPY that ends within an escape"));
        };
        out.extend(plain);
        out.push(unescaped(*letter));
        rest = after;
    }
    out.extend(rest);
    let end = out.len();
    let length =
        u32::try_from(end - start).map_err(|_| WalError::Protocol("a value of COPY of 4 GiB"))?;
    let Some(place) = out.get_mut(length_at..start) else { unreachable!("room was made for it") };
    place.copy_from_slice(&length.to_be_bytes());
    Ok(Some(start..end))
}

/// `CopyAttributeOutText` in copyto.c.
const fn unescaped(letter: u8) -> u8 {
    match letter {
        b'b' => 0x08,
        b'f' => 0x0C,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0B,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::pgoutput::encode;
    use postrider_core::pgoutput::{Column, Message, decode};

    fn written(row: &[u8], columns: usize, kept: Vec<usize>) -> Result<RowBuffer, WalError> {
        let mut out = RowBuffer::default();
        let shape = Shape { columns, sent: columns };
        RowWriter::new(7, shape, kept).write(row, &mut out).map(|()| out)
    }

    #[test]
    fn a_row_is_the_insert_that_the_stream_would_have_brought() {
        let row = written(b"a\t\\N\t\t\\\\x6162\tone\\ntwo\\ttabs \\\\ \\b\\f\\r\\v\n", 5, vec![]);
        let mut wanted = Vec::new();
        let last = b"one\ntwo\ttabs \\ \x08\x0C\r\x0B";
        let values = [
            Column::Text(b"a"),
            Column::Null,
            Column::Text(b""),
            Column::Text(b"\\x6162"),
            Column::Text(last),
        ];
        encode::insert(&mut wanted, 7, &values);
        assert_eq!(row.unwrap().message, wanted);
    }

    #[test]
    fn kept_columns_are_found_in_the_order_that_was_asked_for() {
        let row = written(b"1\t\\N\t\\\\3\n", 3, vec![2, 0, 1]).unwrap();
        let kept: Vec<_> = row.kept().collect();
        assert_eq!(kept, [Some(b"\\3".as_slice()), Some(b"1"), None]);
    }

    #[test]
    fn columns_behind_those_that_are_sent_are_kept_and_not_shown() {
        let mut out = RowBuffer::default();
        let shape = Shape { columns: 3, sent: 1 };
        RowWriter::new(7, shape, vec![2]).write(b"a\tsecret\t5\n", &mut out).unwrap();
        let mut wanted = Vec::new();
        encode::insert(&mut wanted, 7, &[Column::Text(b"a")]);
        assert_eq!(out.shown(), wanted);
        assert_eq!(out.kept().collect::<Vec<_>>(), [Some(b"5".as_slice())]);
        RowWriter::new(7, Shape { columns: 1, sent: 1 }, vec![]).write(b"a\n", &mut out).unwrap();
        assert_eq!(out.shown(), wanted, "the next one has nothing to hide");
    }

    #[test]
    fn columns_of_one_are_empty_or_null_and_of_none_nothing() {
        let decoded = |row: &[u8], columns| {
            let row = written(row, columns, vec![]).unwrap();
            match decode(&row.message).unwrap() {
                Message::Insert(insert) => {
                    insert.tuple.columns().map(|c| format!("{c:?}")).collect()
                }
                other => vec![format!("{other:?}")],
            }
        };
        assert_eq!(decoded(b"\n", 1), [format!("{:?}", Column::Text(b""))]);
        assert_eq!(decoded(b"\\N\n", 1), [format!("{:?}", Column::Null)]);
        assert_eq!(decoded(b"\n", 0), Vec::<String>::new());
    }

    #[test]
    fn g7_a_row_of_another_shape_is_an_error() {
        for (row, columns) in
            [(b"a\tb\n".as_slice(), 1), (b"a\tb\n", 3), (b"a\\\n", 1), (b"a\n", 0), (b"\n", 2)]
        {
            assert!(written(row, columns, vec![]).is_err(), "{row:?} {columns}");
        }
    }
}
