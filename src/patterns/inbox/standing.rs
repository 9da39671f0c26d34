//! How a consumer stands now: what it holds, what is left, and what it waits for.
//!
//! Enters: what the group and the transactions tell. Leaves: a [`Standing`] at any time, from any
//! thread, through [`Counters`](super::Counters).

use serde::Serialize;

/// A consumer at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Partitions that it holds.
    pub partitions: u64,
    /// Whether the group has ever told it what it holds; a member more than there are partitions holds
    /// none, and stands by.
    pub has_joined: bool,
    /// Messages in the partitions it holds that are not settled; asked for every 5 s, and `None` while
    /// the brokers do not answer. The end of a Kafka transaction counts as a message.
    pub lag_messages: Option<u64>,
    /// When a message was settled last, in milliseconds since the Unix epoch; `None`: not yet.
    pub progress_ms: Option<i64>,
    /// The last transaction met no database, or one in which a table, column, function or right is
    /// missing. Only a consumer with messages at hand notices.
    pub is_database_away: bool,
    /// The last question to the brokers had no answer. They are asked every 5 s.
    pub are_brokers_away: bool,
}

impl Standing {
    /// Why it cannot do its work, if it cannot.
    pub fn obstacle(&self) -> Option<&'static str> {
        if self.is_database_away {
            Some("the consumer waits for its database")
        } else if !self.has_joined {
            Some("the consumer has not joined its group yet")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_without_its_database_or_its_group_cannot_work() {
        let fresh = Standing::default();
        assert!(fresh.obstacle().unwrap().contains("group"));
        // Others may have taken them all over again.
        let idle = Standing { has_joined: true, ..fresh };
        assert_eq!(idle.obstacle(), None);
        let away = Standing { is_database_away: true, ..idle };
        assert!(away.obstacle().unwrap().contains("database"));
    }
}
