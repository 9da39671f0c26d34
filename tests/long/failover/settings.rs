//! What a run is asked to do, by environment variables: `make failover` passes its own on.
//!
//! Input: `FAILOVER_PROMOTIONS`, `FAILOVER_DELIVERY`, `FAILOVER_STANDBY`, `FAILOVER_ROWS_PER_S`, `FAILOVER_SEED`; an empty one
//! counts as not given. Output: one [`Plan`] for each run.

use crate::load::settings::{Mode, SEED, read};

/// Promotions of each run where nobody asks for a number: there and back.
const PROMOTIONS: u32 = 2;
/// Two cores that also run the servers carry this much while a standby is rebuilt.
const ROWS_PER_S: u32 = 600;

/// Whether a commit waits for the standby, and the relay too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standby {
    /// Both wait.
    Synchronous,
    /// Neither does.
    Asynchronous,
}

impl Standby {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Synchronous => "synchronous",
            Self::Asynchronous => "asynchronous",
        }
    }
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) promotions: u32,
    pub(crate) delivery: Mode,
    pub(crate) standby: Standby,
    pub(crate) rows_per_s: u32,
    pub(crate) seed: u64,
}

impl Plan {
    /// The runs that are asked for: those of the other delivery and the other standby too, unless one is named.
    ///
    /// # Panics
    /// For a setting that cannot be read.
    pub(crate) fn all() -> Vec<Self> {
        let promotions = read("FAILOVER_PROMOTIONS").unwrap_or(PROMOTIONS);
        let rows_per_s = read("FAILOVER_ROWS_PER_S").unwrap_or(ROWS_PER_S);
        assert!(promotions > 0 && rows_per_s > 0, "PROMOTIONS and ROWS_PER_S are at least 1");
        let seed = read("FAILOVER_SEED").unwrap_or(SEED);
        let standbys = [Standby::Synchronous, Standby::Asynchronous];
        let delivery = read::<String>("FAILOVER_DELIVERY");
        let standby = read::<String>("FAILOVER_STANDBY");
        let is_asked =
            |asked: &Option<String>, name: &str| asked.as_deref().is_none_or(|asked| asked == name);
        let mut plans = Vec::new();
        for mode in Mode::OFFERED.into_iter().filter(|mode| is_asked(&delivery, mode.name())) {
            for other in standbys.into_iter().filter(|other| is_asked(&standby, other.name())) {
                plans.push(Self { promotions, delivery: mode, standby: other, rows_per_s, seed });
            }
        }
        assert!(
            !plans.is_empty(),
            "DELIVERY is at_least_once or exactly_once, STANDBY synchronous or asynchronous"
        );
        plans
    }
}
