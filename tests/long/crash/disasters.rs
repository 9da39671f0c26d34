//! What happens to the relays and their servers, in an order drawn by the seed.
//!
//! Input: the victim and a seed. Output: one [`Disaster`] after the other. Invariant: each that a
//! victim can suffer comes within [`Disasters::ROUND`] cycles, however the seed falls. Pure.

use crate::crash::settings::Victim;
use support::chance::Chance;

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Disaster {
    /// kill -9 of one relay, and the same command again at once.
    KillOne,
    /// kill -9 of both at the same moment.
    KillBoth,
    /// SIGSTOP of one relay, until cycles later; it wakes up as a zombie.
    Freeze,
    /// The session that has the slot is ended by `pg_terminate_backend`.
    Terminate,
    /// SIGTERM of one relay, which must end cleanly; then the same command again.
    Term,
    /// kill -9 of the postmaster, and a start at once.
    KillPostgres,
    /// kill -9 of one broker, and a start after a while.
    KillBroker,
    /// SIGSTOP of one broker for a while.
    FreezeBroker,
}

use Disaster::{
    Freeze, FreezeBroker, KillBoth, KillBroker, KillOne, KillPostgres, Term, Terminate,
};

/// What the two relays themselves suffer.
const RELAYS: [Disaster; 17] = [
    KillOne, KillOne, KillOne, KillOne, KillOne, KillOne, KillBoth, KillBoth, Freeze, Freeze,
    Freeze, Freeze, Terminate, Terminate, Terminate, Term, Term,
];

/// What their servers suffer.
const SERVERS: [Disaster; 3] = [KillPostgres, KillBroker, FreezeBroker];

/// See the module.
pub(crate) struct Disasters {
    /// Of one round, those that are still to come first.
    round: Vec<Disaster>,
    left: usize,
}

impl Disasters {
    /// Within so many cycles everything happens at least once.
    pub(crate) const ROUND: usize = RELAYS.len() + SERVERS.len();

    pub(crate) fn of(victim: Victim) -> Self {
        let round = match victim {
            Victim::Any => [&RELAYS[..], &SERVERS].concat(),
            Victim::Relay => RELAYS.to_vec(),
            Victim::Postgres => vec![KillPostgres],
            Victim::Broker => vec![KillBroker, FreezeBroker],
            Victim::EndTxn => Vec::new(),
        };
        Self { round, left: 0 }
    }

    /// The next one, from a round that is shuffled as it goes (Fisher, Yates).
    pub(crate) fn draw(&mut self, chance: &mut Chance) -> Disaster {
        if self.left == 0 {
            self.left = self.round.len();
        }
        let drawn = chance.below(self.left);
        self.left -= 1;
        self.round.swap(drawn, self.left);
        self.round[self.left]
    }
}
