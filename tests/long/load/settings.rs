//! Settings of more than one run: the guarantee that is asked for, the seed, and how a setting is read.
//!
//! Input: environment variables, of which an empty one counts as not given. Output: their values.

use std::str::FromStr;

/// Another seed draws other transactions and other moments: `CRASH_SEED`, `FAILOVER_SEED`.
pub(crate) const SEED: u64 = 20_240_229;

/// A guarantee of `kafka.delivery`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    AtLeastOnce,
    ExactlyOnce,
}

impl Mode {
    /// What runs where no mode is named.
    pub(crate) const OFFERED: [Self; 2] = [Self::AtLeastOnce, Self::ExactlyOnce];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AtLeastOnce => "at_least_once",
            Self::ExactlyOnce => "exactly_once",
        }
    }
}

/// What an environment variable says, if it is given.
///
/// # Panics
/// When it cannot be read.
pub(crate) fn read<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not understood")))
}
