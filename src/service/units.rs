//! Parses and prints durations (`1m30s`) and sizes (`32MiB`) of settings and flags.
//!
//! Invariant: the text of whole milliseconds or bytes parses to the original value.

use std::time::Duration;

/// A fragment that follows "`key`: ", and a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidValue {
    pub reason: String,
    pub help: Option<String>,
}

impl InvalidValue {
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), help: None }
    }

    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// A sum of whole numbers with units, such as `250ms`, `1m30s`, `2h`, `7d`.
///
/// # Errors
/// Defect of the text and the correct syntax, in one line.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    read_duration(text).map_err(|InvalidValue { reason, help }| match help {
        Some(help) => format!("{reason}: {help}"),
        None => reason,
    })
}

/// Like [`parse_duration`], with reason and hint separately.
pub fn read_duration(text: &str) -> Result<Duration, InvalidValue> {
    let refused = || {
        let refusal = InvalidValue::new(format!("`{text}` is not a duration"));
        match text.trim().parse::<u64>() {
            Ok(number) => refusal.help(format!("say the unit: \"{number}s\" or \"{number}ms\"")),
            Err(_) => refusal.help("write a whole number and a unit: \"250ms\", \"1s\", \"5m\""),
        }
    };
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(refused());
    }
    while !rest.is_empty() {
        let (number, tail) = leading_number(rest).ok_or_else(refused)?;
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let milliseconds = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(refused()),
        };
        let part = number.checked_mul(milliseconds).ok_or_else(refused)?;
        total = total.checked_add(Duration::from_millis(part)).ok_or_else(refused)?;
        rest = tail;
    }
    Ok(total)
}

/// Bytes of `32MiB`, `64kB`, `512B`. Units with an `i` are powers of two, the others powers of ten.
pub fn parse_size(text: &str) -> Result<u64, InvalidValue> {
    let refused = || {
        let refusal = InvalidValue::new(format!("`{text}` is not a size"));
        let trimmed = text.trim();
        let number = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
        let letter = trimmed.strip_prefix(number).unwrap_or("").trim().to_ascii_uppercase();
        match (number.parse::<u64>(), letter.as_str()) {
            (Ok(number), "") => {
                refusal.help(format!("say the unit: \"{number}B\" or \"{number}MiB\""))
            }
            (Ok(number), "K" | "M" | "G") => refusal.help(format!(
                "say the whole unit: \"{number}{letter}iB\" (1024) or \"{number}{letter}B\" (1000)"
            )),
            _ => refusal.help("write a whole number and a unit: \"512KiB\", \"32MiB\", \"1500MB\""),
        }
    };
    let (number, unit) = leading_number(text.trim()).ok_or_else(refused)?;
    let factor: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return Err(refused()),
    };
    number.checked_mul(factor).ok_or_else(refused)
}

/// Shortest exact text in one unit: `1s`, `1500ms`, `5m`.
pub fn format_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    match milliseconds {
        0 => "0s".to_owned(),
        ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{}m", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    }
}

/// Shortest exact text: `32MiB`, `1MB`, `1000B`.
pub fn format_size(bytes: u64) -> String {
    match bytes {
        0 => "0B".to_owned(),
        b if b % (1 << 30) == 0 => format!("{}GiB", b >> 30),
        b if b % (1 << 20) == 0 => format!("{}MiB", b >> 20),
        b if b % (1 << 10) == 0 => format!("{}KiB", b >> 10),
        b if b % 1_000_000 == 0 => format!("{}MB", b / 1_000_000),
        b => format!("{b}B"),
    }
}

fn leading_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    Some((number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations() {
        for (text, ms) in [
            ("1s", 1_000),
            ("250ms", 250),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(read_duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for wrong in ["", "1", "s", "1.5s", "-1s", "1 s x", "1w", "99999999999999999999s"] {
            assert!(read_duration(wrong).is_err(), "{wrong}");
        }
        assert!(read_duration("5").unwrap_err().help.unwrap().contains("\"5s\""));
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("32MiB", 32 << 20), ("1kB", 1000), ("7B", 7), ("1 GiB", 1 << 30)] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for wrong in ["", "32", "MiB", "1.5MiB", "1TiB", "99999999999GiB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn printed_durations_parse_back(ms in 0_u64..10_000_000) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(read_duration(&format_duration(duration)).unwrap(), duration);
        }

        #[test]
        fn printed_sizes_parse_back(bytes in 0_u64..1 << 40) {
            prop_assert_eq!(parse_size(&format_size(bytes)).unwrap(), bytes);
        }

        #[test]
        fn any_text_is_a_quantity_that_prints_alike_or_is_refused(text in ".{0,20}|[0-9]{1,8} ?[kKmMgG]?i?(B|ms|s|m|h)") {
            if let Ok(duration) = read_duration(&text) {
                prop_assert_eq!(read_duration(&format_duration(duration)).unwrap(), duration);
            }
            if let Ok(bytes) = parse_size(&text) {
                prop_assert_eq!(parse_size(&format_size(bytes)).unwrap(), bytes);
            }
        }
    }
}
