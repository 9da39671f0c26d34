//! Parses the rows of a batch, and keeps their places until they are marked.
//!
//! Invariant: a message of another shape is an error (G7); a place takes about twelve bytes (G3).

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::wal::WalError;

/// Columns before the data: place, partition, time.
const ABOUT: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct About {
    /// `None`: the row is held back.
    pub(super) place: Option<Place>,
    /// Time since 1970. For a held-back row, the number of rows it represents.
    pub(super) made_us: Option<i64>,
    /// Table or partition. For a held-back row, the number of the first row it represents.
    pub(super) part: u32,
}

impl About {
    pub(super) fn held_back(self) -> u32 {
        match (self.place, self.made_us) {
            (Some(_), _) => 0,
            (None, rows) => u32::try_from(rows.unwrap_or(1)).unwrap_or(u32::MAX),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) part: u32,
    block: u32,
    item: u16,
}

pub(super) const MALFORMED: WalError = WalError::Protocol("a malformed row of a batch");

/// `None` is NULL.
struct Columns<'a>(&'a [u8]);

impl<'a> Columns<'a> {
    fn of(body: &'a [u8]) -> Result<(usize, Self), WalError> {
        let (count, rest) = body.split_first_chunk::<2>().ok_or(MALFORMED)?;
        Ok((usize::from(u16::from_be_bytes(*count)), Self(rest)))
    }

    fn next(&mut self) -> Result<Option<&'a [u8]>, WalError> {
        let (length, rest) = self.0.split_first_chunk::<4>().ok_or(MALFORMED)?;
        self.0 = rest;
        let length = i32::from_be_bytes(*length);
        if length == -1 {
            return Ok(None);
        }
        let length = usize::try_from(length).map_err(|_| MALFORMED)?;
        let (value, rest) = rest.split_at_checked(length).ok_or(MALFORMED)?;
        self.0 = rest;
        Ok(Some(value))
    }
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Result<T, WalError> {
    str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(MALFORMED)
}

fn tid(part: u32, text: &[u8]) -> Result<Place, WalError> {
    let inner =
        text.strip_prefix(b"(").and_then(|text| text.strip_suffix(b")")).ok_or(MALFORMED)?;
    let comma = inner.iter().position(|byte| *byte == b',').ok_or(MALFORMED)?;
    let (block, item) = inner.split_at(comma);
    Ok(Place { part, block: number(block)?, item: number(item.get(1..).unwrap_or_default())? })
}

pub(super) fn about(body: &[u8]) -> Result<About, WalError> {
    Ok(about_of_beginning(body)?.0)
}

/// Metadata of a row, and its length.
pub(super) fn about_of_beginning(body: &[u8]) -> Result<(About, usize), WalError> {
    let (_, mut columns) = Columns::of(body)?;
    let (place, part, made) = (columns.next()?, columns.next()?, columns.next()?);
    let part = number(part.ok_or(MALFORMED)?)?;
    let place = place.map(|text| tid(part, text)).transpose()?;
    let about = About { place, made_us: made.map(number).transpose()?, part };
    Ok((about, body.len() - columns.0.len()))
}

/// Types of the data columns. Statements that take rows differ in the rest.
pub(super) fn types(said: &[u8]) -> Vec<u8> {
    /// Table, number, type, length, modifier, format.
    const ABOUT_COLUMN: usize = 18;
    let Some((count, mut rest)) = said.split_first_chunk::<2>() else { return said.to_vec() };
    let mut types = count.to_vec();
    for number in 0..usize::from(u16::from_be_bytes(*count)) {
        let name = rest.iter().position(|byte| *byte == 0);
        let column = name.and_then(|end| rest.get(end + 1..)?.split_at_checked(ABOUT_COLUMN));
        let Some((column, others)) = column else { return said.to_vec() };
        if number >= ABOUT {
            types.extend(column.iter().skip(6).take(10));
        }
        rest = others;
    }
    types
}

pub(super) fn count(body: &[u8], column: usize) -> Result<u64, WalError> {
    let (_, mut columns) = Columns::of(body)?;
    for _ in 0..column {
        columns.next()?;
    }
    number(columns.next()?.ok_or(MALFORMED)?)
}

pub(super) fn parts(body: &[u8]) -> Result<u64, WalError> {
    let (_, mut columns) = Columns::of(body)?;
    let array = columns.next()?.and_then(|array| array.strip_prefix(b"{")?.strip_suffix(b"}"));
    let mut parts = 0;
    for part in array.ok_or(MALFORMED)?.split(|byte| *byte == b',').filter(|part| !part.is_empty())
    {
        parts |= 1_u64.checked_shl(number(part)?).ok_or(MALFORMED)?;
    }
    Ok(parts)
}

/// Permanent number of a row.
pub(super) fn identity(table_oid: u32, id: Option<usize>, body: &[u8]) -> Result<u32, WalError> {
    let mut hasher = DefaultHasher::new();
    table_oid.hash(&mut hasher);
    if let Some(place) = id {
        let (_, mut columns) = Columns::of(body)?;
        for _ in 0..ABOUT + place {
            columns.next()?;
        }
        columns.next()?.hash(&mut hasher);
    }
    let [a, b, c, d, ..] = hasher.finish().to_be_bytes();
    Ok(u32::from_be_bytes([a, b, c, d]))
}

/// Number of a row whose id is not read.
pub(super) fn identity_of_place(table_oid: u32, place: Place) -> u32 {
    let mut hasher = DefaultHasher::new();
    (table_oid, place.part, place.block, place.item).hash(&mut hasher);
    let [a, b, c, d, ..] = hasher.finish().to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

pub(super) fn insert_head(table_oid: u32, columns: usize) -> Result<[u8; 8], WalError> {
    let columns = u16::try_from(columns).map_err(|_| MALFORMED)?;
    let ([a, b, c, d], [high, low]) = (table_oid.to_be_bytes(), columns.to_be_bytes());
    Ok([b'I', a, b, c, d, b'N', high, low])
}

pub(super) fn insert(
    (table_oid, columns): (u32, usize),
    body: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), WalError> {
    let (count, mut row) = Columns::of(body)?;
    if count != ABOUT + columns {
        return Err(MALFORMED);
    }
    for _ in 0..ABOUT {
        row.next()?;
    }
    out.clear();
    out.extend(insert_head(table_oid, columns)?);
    for _ in 0..columns {
        match row.next()? {
            None => out.push(b'n'),
            Some(value) => {
                let Ok(length) = u32::try_from(value.len()) else { return Err(MALFORMED) };
                out.push(b't');
                out.extend(length.to_be_bytes());
                out.extend(value);
            }
        }
    }
    Ok(())
}

pub(super) fn by_part(places: &[Place]) -> Vec<(u32, u64, String)> {
    let mut parts: Vec<(u32, u64, String)> = Vec::new();
    for Place { part, block, item } in places {
        let known = parts.iter().position(|(known, ..)| known == part);
        let at = known.unwrap_or_else(|| {
            parts.push((*part, 0, String::new()));
            parts.len() - 1
        });
        let Some((_, count, list)) = parts.get_mut(at) else {
            unreachable!("it is known, or was added")
        };
        let comma = if *count == 0 { "" } else { "," };
        let _ = write!(list, "{comma}\"({block},{item})\"");
        *count += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::pgoutput::Column;
    use postrider_core::pgoutput::encode;

    pub(in super::super) fn row(values: &[Option<&str>]) -> Vec<u8> {
        let mut body = u16::try_from(values.len()).unwrap().to_be_bytes().to_vec();
        for value in values {
            match value {
                None => body.extend((-1_i32).to_be_bytes()),
                Some(text) => {
                    body.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
                    body.extend(text.as_bytes());
                }
            }
        }
        body
    }

    #[test]
    fn a_row_says_where_it_lies_and_when_it_was_written() {
        let body = row(&[Some("(7,12)"), Some("16500"), Some("1700000000000001"), Some("x")]);
        let place = Some(Place { part: 16_500, block: 7, item: 12 });
        let made_us = Some(1_700_000_000_000_001);
        assert_eq!(about(&body).unwrap(), About { place, made_us, part: 16_500 });
        for (rows, stands_for) in [(None, 1), (Some("1"), 1), (Some("70000"), 70_000)] {
            let held_back = about(&row(&[None, Some("16500"), rows, None])).unwrap();
            assert_eq!((held_back.place, held_back.held_back()), (None, stands_for));
        }
    }

    #[test]
    fn column_types_do_not_depend_on_aliases() {
        let said = |stem: &str, type_oid: u32| {
            let mut said = vec![0, 4];
            for number in 0..4_u8 {
                said.extend(format!("{stem}{number}\0").bytes());
                said.extend([number; 6]);
                said.extend(type_oid.to_be_bytes());
                said.extend([0; 8]);
            }
            types(&said)
        };
        assert_eq!(said("a", 25), said("column", 25));
        assert!(said("a", 25) != said("a", 20));
        assert!(types(b"\0\0") != types(b"\0\x01"));
    }

    #[test]
    fn a_row_is_the_insert_that_a_stream_would_have_brought() {
        let body = row(&[Some("(0,1)"), Some("7"), None, Some("a"), None, Some("")]);
        let (mut made, mut wanted) = (Vec::new(), Vec::new());
        insert((7, 3), &body, &mut made).unwrap();
        encode::insert(&mut wanted, 7, &[Column::Text(b"a"), Column::Null, Column::Text(b"")]);
        assert_eq!(made, wanted);
    }

    #[test]
    fn rows_are_known_by_table_and_id_whatever_else_they_say() {
        let of = |table, id: &str, rest: &str| {
            let body = row(&[Some("(0,1)"), Some("7"), None, Some(rest), Some(id)]);
            identity(table, Some(1), &body).unwrap()
        };
        assert_eq!(of(7, "a", "x"), of(7, "a", "y"));
        assert!(of(7, "a", "x") != of(7, "b", "x") && of(7, "a", "x") != of(8, "a", "x"));
    }

    #[test]
    fn parts_of_the_keys_are_bits() {
        let of = |array: &str| parts(&row(&[Some(array), Some("1")]));
        let good = [("{}", 0), ("{0}", 1), ("{63,1}", 1 << 63 | 2)];
        assert!(good.into_iter().all(|(array, bits)| of(array).unwrap() == bits));
        assert!(["", "{", "{a}", "{64}", "{-1}"].into_iter().all(|array| of(array).is_err()));
    }

    #[test]
    fn places_are_listed_by_part() {
        let place = |part, item| Place { part, block: 3, item };
        let parts = by_part(&[place(1, 1), place(2, 5), place(1, 2)]);
        let list = |text: &str| text.to_owned();
        assert_eq!(parts, [(1, 2, list("\"(3,1)\",\"(3,2)\"")), (2, 1, list("\"(3,5)\""))]);
    }

    #[test]
    fn g7_messages_of_another_shape_are_errors() {
        let good = row(&[Some("(0,1)"), Some("7"), None, Some("a")]);
        for length in 0..good.len() {
            let cut = &good[..length];
            let mut out = Vec::new();
            assert!(insert((7, 1), cut, &mut out).is_err(), "{length}");
        }
        assert!(insert((7, 2), &good, &mut Vec::new()).is_err());
        for place in ["", "(", "(1)", "(1,2", "(a,b)", "(1,70000)"] {
            assert!(about(&row(&[Some(place), Some("7"), None])).is_err(), "{place}");
        }
        assert!(about(&row(&[None, None, None])).is_err());
        assert!(count(&row(&[Some("x")]), 0).is_err() && count(&row(&[Some("1")]), 1).is_err());
    }
}
