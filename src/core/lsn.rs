//! Defines [`Lsn`], a position in Postgres's write-ahead log.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A byte position in the write-ahead log, printed like `pg_lsn`: `16/B374D848`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// "No position"; START_REPLICATION starts from the slot.
    pub const ZERO: Self = Self(0);

    /// Wraps the server's number.
    pub const fn new(position: u64) -> Self {
        Self(position)
    }

    /// The server's number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next byte; saturates.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Bytes since `earlier`, or 0.
    pub const fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not a log position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a log position such as 16/B374D848")]
pub struct LsnSyntax(String);

impl FromStr for Lsn {
    type Err = LsnSyntax;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let half = |digits: &str| {
            let well_formed = (1..=8).contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            well_formed.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        let position = text.split_once('/').and_then(|(high, low)| {
            let (high, low) = (half(high)?, half(low)?);
            Some(Self((high << 32) | low))
        });
        position.ok_or_else(|| LsnSyntax(text.to_owned()))
    }
}

/// As text: `16/B374D848`.
impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_round_trips(position: u64) {
            let lsn = Lsn::new(position);
            prop_assert_eq!(lsn.to_string().parse::<Lsn>(), Ok(lsn));
        }

        #[test]
        fn any_text_is_a_position_that_prints_alike_or_is_refused(text in ".{0,24}|[0-9a-fA-F]{1,9}/[0-9a-fA-F]{1,9}") {
            match text.parse::<Lsn>() {
                Ok(lsn) => prop_assert_eq!(lsn.to_string().parse::<Lsn>(), Ok(lsn)),
                Err(refused) => prop_assert!(refused.to_string().contains(&text)),
            }
        }
    }

    #[test]
    fn text_is_the_servers() {
        assert_eq!(Lsn::new(0x16_B374_D848).to_string(), "16/B374D848");
        assert_eq!(Lsn::ZERO.to_string(), "0/0");
        for wrong in ["", "/", "1", "1/", "/1", "1/2/3", "g/0", "+1/0", "123456789/0"] {
            assert!(wrong.parse::<Lsn>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn distance_never_wraps() {
        assert_eq!(Lsn::new(9).bytes_since(Lsn::new(4)), 5);
        assert_eq!(Lsn::new(4).bytes_since(Lsn::new(9)), 0);
    }
}
