//! What a run is asked to do, by environment variables: `make crash` passes its own on.
//!
//! Input: `CRASH_MODE`, `CRASH_KILL`, `CRASH_CYCLES`, `CRASH_ROWS_PER_S`, `CRASH_SEED`; an empty
//! one counts as not given. Output: one [`Plan`] for each run.

use crate::crash::disasters::Disasters;
use crate::crash::polling::Scale;
use crate::load::settings::{Mode, SEED, read};

/// Cycles of each mode where nobody asks for anything: what every `cargo test` does. One round of all
/// disasters there are.
const CYCLES_UNASKED: u32 = 20;
const _: () = assert!(CYCLES_UNASKED as usize == Disasters::ROUND);

/// Cycles where a mode or a victim is named.
const CYCLES_ASKED: u32 = 100;

/// EndTxns that suffer where they are named.
const INJECTIONS_ASKED: u32 = 1_000;

/// Rows that the writers write per second, those that are rolled back included. Two cores that also
/// run the servers carry this much without falling behind.
const ROWS_PER_S: u32 = 2_500;

/// Whom disasters hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    /// All of the following.
    Any,
    /// The two relays.
    Relay,
    /// The postmaster.
    Postgres,
    /// One of the brokers.
    Broker,
    /// Nobody: the end of Kafka transactions suffers on its way.
    EndTxn,
}

impl Victim {
    /// Rows per second where nobody says how many. EndTxns come often whatever flows, and a thousand of
    /// them take half an hour.
    const fn rows_per_s(self) -> u32 {
        match self {
            Self::EndTxn => ROWS_PER_S / 5,
            Self::Any | Self::Relay | Self::Postgres | Self::Broker => ROWS_PER_S,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Relay => "relay",
            Self::Postgres => "postgres",
            Self::Broker => "broker",
            Self::EndTxn => "endtxn",
        }
    }
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    pub(crate) victim: Victim,
    pub(crate) cycles: u32,
    pub(crate) rows_per_s: u32,
    pub(crate) seed: u64,
}

impl Plan {
    /// How many brokers there are: one where a minute has to do, for three take that to start. Killed while it
    /// ends a transaction, a lone broker forgets markers (KAFKA-20734, open in 4.3): seen in 4 of 100 runs.
    pub(crate) fn brokers(self) -> usize {
        let is_long = self.cycles > CYCLES_UNASKED || self.mode == Mode::ExactlyOnce;
        match self.victim {
            Victim::Broker => 3,
            Victim::Any if is_long => 3,
            Victim::Any | Victim::Relay | Victim::Postgres | Victim::EndTxn => 1,
        }
    }

    /// The run of rows that are polled, if that is asked for: `CRASH_MODE=poll`. In the suite it is a part of
    /// `lifecycle`.
    pub(crate) fn polled() -> Option<Scale> {
        read::<String>("CRASH_MODE").filter(|mode| mode == "poll")?;
        let kills = read("CRASH_CYCLES").unwrap_or(2 * CYCLES_ASKED);
        Some(Scale { kills, seed: read("CRASH_SEED").unwrap_or(SEED) })
    }

    /// The runs that are asked for.
    ///
    /// # Panics
    /// For a setting that cannot be read.
    pub(crate) fn all() -> Vec<Self> {
        let (mode, victim) = (read::<String>("CRASH_MODE"), read::<String>("CRASH_KILL"));
        let is_asked = mode.is_some() || victim.is_some();
        let modes = match mode.as_deref() {
            None => Mode::OFFERED.to_vec(),
            Some("at_least_once") => vec![Mode::AtLeastOnce],
            Some("exactly_once") => vec![Mode::ExactlyOnce],
            Some(other) => panic!("MODE={other}: exactly_once, at_least_once or poll"),
        };
        let victim = match victim.as_deref() {
            None | Some("any") => Victim::Any,
            Some("relay") => Victim::Relay,
            Some("postgres") => Victim::Postgres,
            Some("broker") => Victim::Broker,
            Some("endtxn") => Victim::EndTxn,
            Some(other) => panic!("KILL={other}: any, relay, postgres, broker or endtxn"),
        };
        let usual = match (is_asked, victim) {
            (false, _) => CYCLES_UNASKED,
            (true, Victim::EndTxn) => INJECTIONS_ASKED,
            (true, _) => CYCLES_ASKED,
        };
        let cycles = read("CRASH_CYCLES").unwrap_or(usual);
        let rate = read("CRASH_ROWS_PER_S");
        assert!(cycles > 0 && rate != Some(0), "CYCLES and ROWS_PER_S are at least 1");
        let seed = read("CRASH_SEED").unwrap_or(SEED);
        let plan = |mode, victim: Victim| {
            let rows_per_s = rate.unwrap_or(victim.rows_per_s());
            Self { mode, victim, cycles, rows_per_s, seed }
        };
        let mut plans: Vec<Self> = modes.iter().map(|&mode| plan(mode, victim)).collect();
        if !is_asked {
            plans.push(plan(Mode::ExactlyOnce, Victim::EndTxn));
        }
        plans
    }
}
