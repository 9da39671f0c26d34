//! Parses and prints Postgres's ISO style and RFC 3339.
//!
//! As in Postgres, leap seconds do not exist, and the Gregorian calendar applies to all dates.

use std::io::Write as _;

use crate::pgoutput::PgTime;

pub(super) const DAY_US: i64 = 86_400_000_000;

/// Parses `2026-01-01 00:00:00.123456+05:30` to Unix microseconds. The default is midnight UTC.
/// `None` for other text and infinities.
pub fn parse(text: &[u8]) -> Option<i64> {
    let (text, is_before_christ) = match text.strip_suffix(b" BC") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let mut rest = Reader(text);
    let year = rest.number(4, 6)?;
    // 1 BC is astronomical year 0.
    let year = if is_before_christ { 1 - year } else { year };
    let month = rest.after(b"-")?.number(2, 2)?;
    let day = rest.after(b"-")?.number(2, 2)?;
    if !(1..=days_in_month(year, month)?).contains(&day) {
        return None;
    }
    let days = days_from_civil(year, month, day);
    let (time_us, offset_s) = if rest.0.is_empty() {
        (0, 0)
    } else {
        let time_us = rest.after(b" T")?.time_us().filter(|us| *us < DAY_US)?;
        (time_us, rest.offset_s()?)
    };
    if !rest.0.is_empty() {
        return None;
    }
    days.checked_mul(DAY_US)?.checked_add(time_us)?.checked_sub(offset_s * 1_000_000)
}

/// Parses `12:34:56.789012` with an optional offset, up to `24:00:00`, to microseconds since
/// midnight and seconds from UTC.
pub(super) fn parse_time(text: &[u8]) -> Option<(i64, i64)> {
    let mut rest = Reader(text);
    let time_us = rest.time_us()?;
    let offset_s = rest.offset_s()?;
    rest.0.is_empty().then_some((time_us, offset_s))
}

pub(super) fn civil(unix_us: i64) -> (i64, i64, i64, i64) {
    let (year, month, day) = civil_from_days(unix_us.div_euclid(DAY_US));
    (year, month, day, unix_us.rem_euclid(DAY_US))
}

/// Unix milliseconds as RFC 3339.
pub fn rfc3339(unix_ms: i64) -> String {
    const DAY_MS: i64 = DAY_US / 1000;
    let (year, month, day) = civil_from_days(unix_ms.div_euclid(DAY_MS));
    let within = unix_ms.rem_euclid(DAY_MS);
    let (seconds, ms) = (within / 1000, within % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

fn days_and_rest(us: i128) -> (i64, i64) {
    let day_us = i128::from(DAY_US);
    let parts = (i64::try_from(us.div_euclid(day_us)), i64::try_from(us.rem_euclid(day_us)));
    let (Ok(days), Ok(within)) = parts else {
        unreachable!("{us} us: the sum of two i64, divided by a day, fits one");
    };
    (days, within)
}

/// Appends a `timestamp`, or a `timestamptz` in UTC.
pub(super) fn write(out: &mut Vec<u8>, time: PgTime, with_offset: bool) {
    match time.0 {
        i64::MAX => return out.extend(b"infinity"),
        i64::MIN => return out.extend(b"-infinity"),
        _ => {}
    }
    let unix_us = i128::from(time.0) + i128::from(PgTime(0).unix_us());
    let (days, within) = days_and_rest(unix_us);
    let (year, month, day) = civil_from_days(days);
    let (seconds, fraction) = (within / 1_000_000, within % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    // 1 BC precedes 1 AD.
    let shown = if year > 0 { year } else { 1 - year };
    let _ = write!(out, "{shown:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}");
    if fraction != 0 {
        let _ = write!(out, ".{fraction:06}");
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
    if with_offset {
        out.extend(b"+00");
    }
    if year <= 0 {
        out.extend(b" BC");
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// Skips one byte of `any`.
    fn after(&mut self, any: &[u8]) -> Option<&mut Self> {
        let (first, rest) = self.0.split_first()?;
        if !any.contains(first) {
            return None;
        }
        self.0 = rest;
        Some(self)
    }

    /// `max` is at most 9, so it cannot overflow.
    fn number(&mut self, min: usize, max: usize) -> Option<i64> {
        let digits = self.0.iter().take(max).take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at_checked(digits)?;
        if digits.len() < min {
            return None;
        }
        self.0 = rest;
        Some(digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
    }

    fn time_us(&mut self) -> Option<i64> {
        let hour = self.number(2, 2)?;
        let minute = self.after(b":")?.number(2, 2)?;
        let second = self.after(b":")?.number(2, 2)?;
        let fraction = if self.after(b".").is_some() { self.fraction_us()? } else { 0 };
        let time_us = (hour * 3600 + minute * 60 + second) * 1_000_000 + fraction;
        (minute < 60 && second <= 60 && time_us <= DAY_US).then_some(time_us)
    }

    /// In microseconds, without further digits.
    fn fraction_us(&mut self) -> Option<i64> {
        let before = self.0.len();
        let fraction = self.number(1, 6)?;
        let digits = before.saturating_sub(self.0.len());
        let beyond = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.0 = self.0.get(beyond..)?;
        (digits..6).try_fold(fraction, |scaled, _| scaled.checked_mul(10))
    }

    /// 0 if there is none.
    fn offset_s(&mut self) -> Option<i64> {
        if self.0.is_empty() || self.after(b"Z").is_some() {
            return Some(0);
        }
        let sign = if self.after(b"-").is_some() {
            -1
        } else {
            self.after(b"+")?;
            1
        };
        let hours = self.number(2, 2)?;
        let minutes = if self.after(b":").is_some() { self.number(2, 2)? } else { 0 };
        let seconds = if self.after(b":").is_some() { self.number(2, 2)? } else { 0 };
        Some(sign * (hours * 3600 + minutes * 60 + seconds))
    }
}

fn days_in_month(year: i64, month: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    Some(match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return None,
    })
}

/// Days since 1970-01-01. Eras of 400 years start on 1 March, so that the leap day comes last
/// (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Inverse of [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(time: PgTime, with_offset: bool) -> String {
        let mut out = Vec::new();
        write(&mut out, time, with_offset);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn rfc3339_has_the_right_dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999Z");
    }

    #[test]
    fn text_is_what_postgres_prints() {
        for (us, text) in [
            (0, "2000-01-01 00:00:00+00"),
            (820_540_800_123_456, "2026-01-01 00:00:00.123456+00"),
            (820_540_800_500_000, "2026-01-01 00:00:00.5+00"),
            (-1, "1999-12-31 23:59:59.999999+00"),
            (i64::MAX, "infinity"),
            (i64::MIN, "-infinity"),
            (-211_813_488_000_000_000, "4714-11-24 00:00:00+00 BC"),
            (9_223_371_331_199_999_999, "294276-12-31 23:59:59.999999+00"),
        ] {
            assert_eq!(written(PgTime(us), true), text);
        }
        assert_eq!(written(PgTime(0), false), "2000-01-01 00:00:00");
    }

    #[test]
    fn offsets_fractions_and_separators_are_understood() {
        for (text, us) in [
            ("1970-01-01 00:00:00+00", 0),
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01 05:30:00+05:30", 0),
            ("1969-12-31 19:03:58-04:56:02", 0),
            ("2420-09-07T13:03:45.338", 14_222_264_625_338_000),
            ("2019-03-24 20:52:59.1234567", 1_553_460_779_123_456),
            ("2024-02-29 00:00:00", 1_709_164_800_000_000),
            ("2024-02-29", 1_709_164_800_000_000),
            ("0044-03-15 00:00:00 BC", -63_517_824_000_000_000),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(us), "{text}");
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "infinity",
            "2023-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-01-01 24:00:00",
            "2023-01-01 00:00:00.",
            "2023-01-01 00:00:00+",
            "2023-01-01 00:00:00 AD",
            "294277-06-01 00:00:00",
            "-023-01-01 00:00:00",
            "99999999-01-01 00:00:00",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(us in -211_813_488_000_000_000..8_276_371_331_200_000_000_i64) {
            let time = PgTime(us);
            prop_assert_eq!(parse(written(time, true).as_bytes()), Some(time.unix_us()));
        }

        #[test]
        fn any_moment_is_written(us: i64, with_offset: bool) {
            prop_assert!(!written(PgTime(us), with_offset).is_empty());
        }

        #[test]
        fn any_text_is_a_moment_or_its_digits_are_no_date(
            text in "[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}|(?s:.){0,24}"
        ) {
            if let Some(us) = parse(text.as_bytes()).filter(|_| text.len() == 19 && text.is_ascii()) {
                prop_assert_eq!(parse(format!("{text}+00").as_bytes()), Some(us));
                prop_assert_eq!(parse(format!("{text}+01").as_bytes()), Some(us - 3_600_000_000));
            }
        }
    }
}
