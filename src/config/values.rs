//! The vocabulary of the validated configuration: small types whose existence proves a check.
//!
//! Enters: text an operator typed. Leaves: the choices, and parsers for durations and sizes. What always holds: a value of these types needs
//! no second look, and nothing secret is in a `Debug` or `Display`.

use std::fmt;
use std::time::Duration;

use crate::route::words;

/// Why a text is not a value of its kind: a fragment that goes after "`key`: ", and a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: String,
    pub(super) help: Option<String>,
}

impl Refusal {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), help: None }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// A connection string that may hold a password: `Debug` and `Display` mask it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ConnectionString(String);

impl ConnectionString {
    /// Wraps the text as typed.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as typed, password included. Never to be logged.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&postrider_secrets::mask::mask_connection_string(&self.0))
    }
}

impl fmt::Debug for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// A librdkafka property. Its value is masked in `Debug` where it may be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Property {
    /// librdkafka's name, such as `security.protocol`.
    pub name: String,
    /// The value as librdkafka takes it. Never to be logged.
    pub value: String,
}

impl fmt::Debug for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = postrider_secrets::mask::shown(&self.name, &self.value);
        write!(f, "{}={shown:?}", self.name)
    }
}

words!(
    /// Whether missing publication and slot are created at start.
    Create {
        /// Created when missing.
        Auto = "auto",
        /// A missing one is an error.
        Never = "never",
    }
);
words!(
    /// What an UPDATE of an outbox row does; the update itself is never delivered.
    OnUpdate {
        /// Counted.
        Ignore = "ignore",
        /// Counted and logged as a warning.
        Warn = "warn",
        /// Counted and logged as an error.
        Error = "error",
        /// Stops the relay.
        Stop = "stop",
    }
);
words!(
    /// What happens to a row that cannot be delivered as it is (G4).
    Rejected {
        /// Sent to the dead-letter topic.
        DeadLetter = "dead_letter",
        /// Stops the relay, the slot keeps the row.
        Stop = "stop",
        /// Left out, with an audit line in the log.
        Skip = "skip",
    }
);
words!(
    /// What happens to rows whose topic the brokers do not have, or deny us.
    MissingTopicWord {
        /// They wait, and all behind them.
        Wait = "wait",
        /// The topic is created.
        Create = "create",
        /// They are sent to the dead-letter topic.
        DeadLetter = "dead_letter",
    }
);
words!(
    /// The delivery guarantee.
    Delivery {
        /// Every committed row at least once, first occurrences in order.
        AtLeastOnce = "at_least_once",
        /// Every committed row once, for who reads committed records only.
        ExactlyOnce = "exactly_once",
    }
);
words!(
    /// How a key chooses its partition; librdkafka's names.
    Partitioner {
        /// Java's default: murmur2, random for null keys.
        Murmur2Random = "murmur2_random",
        /// Murmur2, null keys to one partition.
        Murmur2 = "murmur2",
        /// CRC32, random for empty and null keys.
        ConsistentRandom = "consistent_random",
        /// CRC32, empty and null keys to one partition.
        Consistent = "consistent",
        /// FNV-1a, random for null keys.
        Fnv1aRandom = "fnv1a_random",
        /// FNV-1a, null keys to one partition.
        Fnv1a = "fnv1a",
        /// Any partition: gives up order per key.
        Random = "random",
    }
);
words!(
    /// Batch compression; librdkafka's names.
    Compression {
        /// LZ4.
        Lz4 = "lz4",
        /// Zstandard, where built in.
        Zstd = "zstd",
        /// Snappy.
        Snappy = "snappy",
        /// Gzip.
        Gzip = "gzip",
        /// None.
        None = "none",
    }
);
words!(
    /// The form of log lines.
    LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
);
words!(
    /// The least severe line that is logged.
    LogLevel {
        /// Only what an operator must act on.
        Error = "error",
        /// And what was unexpected but passed by itself.
        Warn = "warn",
        /// And state changes.
        Info = "info",
        /// And decisions.
        Debug = "debug",
        /// And rows.
        Trace = "trace",
    }
);

/// Parses `250ms`, `1s`, `1m30s`, `2h`, `7d`: whole numbers with a unit, added up.
///
/// # Errors
/// What is wrong with the text and how to write it, in one line.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    read_duration(text).map_err(|Refusal { reason, help }| match help {
        Some(help) => format!("{reason}: {help}"),
        None => reason,
    })
}

/// As [`parse_duration`].
pub(super) fn read_duration(text: &str) -> Result<Duration, Refusal> {
    let refused = || {
        let refusal = Refusal::new(format!("`{text}` is not a duration"));
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

/// Parses `32MiB`, `64kB`, `512B` into bytes. Powers of two with an `i`, powers of ten without.
pub(super) fn parse_size(text: &str) -> Result<u64, Refusal> {
    let refused = || {
        let refusal = Refusal::new(format!("`{text}` is not a size"));
        match text.trim().parse::<u64>() {
            Ok(number) => refusal.help(format!("say the unit: \"{number}B\" or \"{number}MiB\"")),
            Err(_) => refusal.help("write a whole number and a unit: \"512KiB\", \"32MiB\""),
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

/// The shortest exact text of a duration in one unit: `1s`, `1500ms`, `5m`.
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

/// The shortest exact text of a size: `32MiB`, `1MB`, `1000B`.
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

    #[test]
    fn passwords_are_not_printed() {
        let url = ConnectionString::new("postgres://u:hunter2@h/db");
        assert!(!format!("{url} {url:?}").contains("hunter2"));
        let property = Property { name: "sasl.password".into(), value: "hunter2".into() };
        assert!(!format!("{property:?}").contains("hunter2"));
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
        fn any_text_is_parsed_or_refused(text in ".{0,20}") {
            let _ = (read_duration(&text), parse_size(&text));
        }
    }
}
