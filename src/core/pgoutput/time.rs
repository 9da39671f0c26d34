//! Defines [`PgTime`], a Postgres timestamp. Conversions from and to Unix time saturate.

/// Microseconds from the Unix epoch to 2000-01-01 00:00:00 UTC (`POSTGRES_EPOCH_JDATE` in
/// `datatype/timestamp.h`).
const EPOCH_DISTANCE_US: i64 = 946_684_800_000_000;

/// Microseconds since 2000-01-01 00:00:00 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PgTime(pub i64);

impl PgTime {
    /// Converts Unix microseconds.
    pub const fn from_unix_us(unix_us: i64) -> Self {
        Self(unix_us.saturating_sub(EPOCH_DISTANCE_US))
    }

    /// Unix microseconds.
    pub const fn unix_us(self) -> i64 {
        self.0.saturating_add(EPOCH_DISTANCE_US)
    }

    /// Unix milliseconds, rounded down.
    pub const fn unix_ms(self) -> i64 {
        self.unix_us().div_euclid(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_thirty_years_apart() {
        assert_eq!(PgTime(0).unix_ms(), 946_684_800_000);
        assert_eq!(PgTime(0).unix_us(), 946_684_800_000_000);
        assert_eq!(PgTime::from_unix_us(1_553_460_779_000_001).unix_ms(), 1_553_460_779_000);
        assert_eq!(PgTime::from_unix_us(-1).unix_ms(), -1);
        assert_eq!(PgTime(i64::MAX).unix_us(), i64::MAX);
    }
}
