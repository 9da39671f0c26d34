//! Converts dates and times to Debezium's form (`time.precision.mode = adaptive`).
//!
//! Infinities become the numbers of Debezium's driver (observed with 3.7.0.Final).

use std::io::Write as _;

use super::datetime::{DAY_US, civil, parse, parse_time};

struct Infinities(i64, i64);

const DATE: Infinities = Infinities(2_146_033_979, -2_147_472_691);
const MILLISECONDS: Infinities = Infinities(9_223_372_036_825_200_000, -9_223_372_036_832_400_000);
const MICROSECONDS: Infinities = Infinities(i64::MAX, i64::MIN);

impl Infinities {
    fn or(&self, text: &[u8], finite: impl FnOnce(i64) -> i64) -> Option<i64> {
        match text {
            b"infinity" => Some(self.0),
            b"-infinity" => Some(self.1),
            text => parse(text).map(finite),
        }
    }
}

pub(super) fn days(text: &[u8]) -> Option<i64> {
    DATE.or(text, |us| us.div_euclid(DAY_US))
}

pub(super) fn timestamp(text: &[u8], digits: i32) -> Option<i64> {
    if is_in_milliseconds(digits) {
        MILLISECONDS.or(text, |us| us.div_euclid(1000))
    } else {
        MICROSECONDS.or(text, |us| us)
    }
}

pub(super) fn time(text: &[u8], digits: i32) -> Option<i64> {
    let (us, _) = parse_time(text)?;
    Some(if is_in_milliseconds(digits) { us / 1000 } else { us })
}

/// -1: not declared.
pub(super) fn is_in_milliseconds(digits: i32) -> bool {
    (0..=3).contains(&digits)
}

/// With its declared digits.
pub(super) fn write_zoned_timestamp(out: &mut Vec<u8>, text: &[u8], digits: i32) -> Option<()> {
    if matches!(text, b"infinity" | b"-infinity") {
        out.extend(text);
        return Some(());
    }
    let (year, month, day, within_us) = civil(parse(text)?);
    let width = usize::try_from(digits).unwrap_or(6).min(6);
    let sign = match year {
        ..0 => "-",
        10_000.. => "+",
        _ => "",
    };
    let year = year.unsigned_abs();
    let _ = write!(out, "{sign}{year:04}-{month:02}-{day:02}T");
    write_clock(out, within_us, width);
    out.push(b'Z');
    Some(())
}

/// With all its digits.
pub(super) fn write_zoned_time(out: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    let (local_us, offset_s) = parse_time(text)?;
    let us = local_us - offset_s * 1_000_000;
    // The last midnight of a day stays `24:00`.
    let us = if us == DAY_US { us } else { us.rem_euclid(DAY_US) };
    let fraction = format!("{:06}", us % 1_000_000);
    write_clock(out, us, fraction.trim_end_matches('0').len());
    out.push(b'Z');
    Some(())
}

fn write_clock(out: &mut Vec<u8>, us: i64, digits: usize) {
    let seconds = us / 1_000_000;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let _ = write!(out, "{hour:02}:{minute:02}:{second:02}");
    if digits > 0 {
        let fraction = format!("{:06}", us % 1_000_000);
        let _ = write!(out, ".{}", fraction.get(..digits).unwrap_or(&fraction));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_debezium() {
        assert_eq!(days(b"2024-02-29"), Some(19_782));
        assert_eq!(days(b"0044-03-15 BC"), Some(-735_160));
        assert_eq!(days(b"infinity"), Some(2_146_033_979));
        assert_eq!(timestamp(b"2024-02-29 12:34:56.789012", -1), Some(1_709_210_096_789_012));
        assert_eq!(timestamp(b"1969-12-31 23:59:59.999", 3), Some(-1));
        assert_eq!(timestamp(b"2024-02-29 12:34:56.7891", 4), Some(1_709_210_096_789_100));
        assert_eq!(timestamp(b"-infinity", 3), Some(-9_223_372_036_832_400_000));
        assert_eq!(time(b"24:00:00", -1), Some(86_400_000_000));
        assert_eq!(time(b"12:34:56.789", 3), Some(45_296_789));
    }

    #[test]
    fn texts_are_those_of_debezium() {
        let zoned = |text: &str, digits| {
            let mut out = Vec::new();
            write_zoned_timestamp(&mut out, text.as_bytes(), digits).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(zoned("2024-02-29 12:34:56.789012+02", -1), "2024-02-29T10:34:56.789012Z");
        assert_eq!(zoned("2024-02-29 12:34:56+00", 3), "2024-02-29T12:34:56.000Z");
        assert_eq!(zoned("0044-03-15 00:00:00+00 BC", -1), "-0043-03-15T00:00:00.000000Z");
        assert_eq!(zoned("12345-01-01 00:00:00+00", -1), "+12345-01-01T00:00:00.000000Z");
        let clock = |text: &str| {
            let mut out = Vec::new();
            write_zoned_time(&mut out, text.as_bytes()).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(clock("12:34:56.789012+02"), "10:34:56.789012Z");
        assert_eq!(clock("12:34:56-05:30"), "18:04:56Z");
        assert_eq!(clock("12:34:56.1+00"), "12:34:56.1Z");
        assert_eq!(clock("24:00:00+00"), "24:00:00Z");
    }
}
