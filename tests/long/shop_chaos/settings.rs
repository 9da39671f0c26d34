//! What a run is asked to do, by environment variables: `make shop` passes its own on.
//!
//! Input: `SHOP_ORDERS`, `SHOP_CHAOS`, `SHOP_KILLS`, `SHOP_SEED`; an empty one counts as not given.
//! `SHOP_LOG` is what the services log, as in `RUST_LOG`. Output: a [`Plan`].

use std::str::FromStr;
use std::time::Duration;

/// Orders and kills by default: what every `cargo test` does.
const UNASKED: (usize, u32) = (200, 14);

/// Orders and kills of `make shop` without numbers.
const ASKED: (usize, u32) = (2_000, 60);

/// From one kill to the next, on average. Long enough that a group of consumers is whole again now
/// and then, short enough that it often is not.
const KILL_PAUSE: Duration = Duration::from_millis(4_500);
/// The same where nobody asks: the suites have to come to an end.
const KILL_PAUSE_UNASKED: Duration = Duration::from_millis(2_500);

/// Orders per second where nobody is killed; two cores that also run the servers carry this much.
const CALM_ORDERS_PER_S: u32 = 40;

/// Put another seed into `SHOP_SEED` to draw other orders, other victims and other moments.
const SEED: u64 = 20_240_229;

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Keys, each of which makes an order.
    pub(crate) orders: usize,
    /// Kills of processes; 0 where nobody is killed.
    pub(crate) kills: u32,
    /// From one to the next, on average.
    pub(crate) kill_pause: Duration,
    /// Whether there is time for a freeze of an owner beyond its lease.
    pub(crate) is_long: bool,
    /// Draws everything that is drawn.
    pub(crate) seed: u64,
}

impl Plan {
    /// What is asked for.
    ///
    /// # Panics
    /// For a setting that cannot be read.
    pub(crate) fn read() -> Self {
        let orders = read::<usize>("SHOP_ORDERS");
        let chaos = read::<u8>("SHOP_CHAOS");
        let is_asked = orders.is_some() || chaos.is_some();
        let usual = if is_asked { ASKED } else { UNASKED };
        let is_chaos = chaos.map_or(!is_asked, |chaos| chaos > 0);
        let kills = read("SHOP_KILLS").unwrap_or(usual.1);
        let plan = Self {
            orders: orders.unwrap_or(usual.0),
            kills: if is_chaos { kills } else { 0 },
            kill_pause: if is_asked { KILL_PAUSE } else { KILL_PAUSE_UNASKED },
            is_long: is_asked,
            seed: read("SHOP_SEED").unwrap_or(SEED),
        };
        assert!(plan.orders > 0, "ORDERS is at least 1");
        plan
    }

    /// Whether it has all the kills of a long run.
    pub(crate) fn is_asked_in_full(&self) -> bool {
        self.is_long && self.kills >= ASKED.1
    }

    /// How long orders are placed: as long as it takes to kill, and to do all that is no kill.
    pub(crate) fn placing_time(&self) -> Duration {
        if self.kills == 0 {
            let orders = u32::try_from(self.orders).unwrap();
            return Duration::from_secs(1) * orders / CALM_ORDERS_PER_S;
        }
        // Kafka's and Redis's restarts are waited for, which takes half as long as the pauses.
        self.kill_pause * self.kills * 7 / 4
    }
}

/// What the services log; the last lines of it are shown where a run does not come to rest.
pub(crate) fn log() -> String {
    read("SHOP_LOG").unwrap_or_else(|| "info".to_owned())
}

fn read<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not understood")))
}
