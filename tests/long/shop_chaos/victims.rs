//! Who is killed, and how often.
//!
//! Input: a number of kills. Output: the victims in the order in which they are drawn. Invariant: each kind has its
//! share, so that a run does what it was asked for whatever the seed is. Pure.

use support::chance::Chance;

/// What a kill is a kill of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Service,
    Relay,
    /// The server with the databases of all services.
    Postgres,
    /// The only broker.
    Kafka,
    /// The master; its replica takes its place.
    Redis,
}

impl Kind {
    /// Of so many kills. Of 60 they are 12 of Postgres, 6 of Kafka, 4 of Redis and 9 of a relay; of few, at least
    /// one of each.
    pub(crate) fn share(self, kills: u32) -> u32 {
        let percent = |percent: u32| (kills * percent / 100).max(1).min(kills);
        match self {
            Self::Postgres => percent(20),
            Self::Kafka => percent(10),
            Self::Redis => percent(7),
            Self::Relay => percent(15),
            Self::Service => {
                let others = [Self::Postgres, Self::Kafka, Self::Redis, Self::Relay];
                kills.saturating_sub(others.iter().map(|kind| kind.share(kills)).sum())
            }
        }
    }
}

/// In an order drawn by chance.
pub(crate) fn draw(kills: u32, chance: &mut Chance) -> Vec<Kind> {
    let kinds = [Kind::Service, Kind::Relay, Kind::Postgres, Kind::Kafka, Kind::Redis];
    let mut victims: Vec<Kind> = kinds
        .into_iter()
        .flat_map(|kind| std::iter::repeat_n(kind, kind.share(kills).try_into().unwrap()))
        .collect();
    for last in (1..victims.len()).rev() {
        victims.swap(last, chance.below(last + 1));
    }
    victims
}
