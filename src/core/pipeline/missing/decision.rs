//! Defines the types of the policy about missing topics.
//!
//! [`MissingPolicy`] holds the operator's settings (wait, create or reject; [`CreateRule`]s for topics that
//! the relay creates), [`TopicFault`] the brokers' answer about a topic, [`TopicDecision`] what to do with
//! a row of it, and [`AbsentTopic`] what metrics and probes show.

use std::time::Duration;

use crate::outbox::glob;
use crate::route::{Rejection, RejectionCode};

/// Why records cannot be sent to a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopicFault {
    /// The brokers know no such topic.
    Missing,
    /// It is not among all topics that the brokers show us: it is missing, or hidden from us.
    Unlisted,
    /// We may not see it.
    Forbidden,
    /// We see it, and were denied to write to it.
    Denied,
}

impl TopicFault {
    /// As metrics and probes name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing | Self::Unlisted => "missing",
            Self::Forbidden | Self::Denied => "forbidden",
        }
    }

    pub(super) const fn is_missing(self) -> bool {
        matches!(self, Self::Missing | Self::Unlisted)
    }

    pub(super) const fn code(self) -> RejectionCode {
        match self {
            Self::Missing | Self::Unlisted => RejectionCode::MissingTopic,
            Self::Forbidden | Self::Denied => RejectionCode::ForbiddenTopic,
        }
    }
}

/// `[route] missing_topic`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingTopic {
    /// Rows wait, and all behind them; for at most so long, if anything is said, then they are
    /// rejected.
    Wait(Option<Duration>),
    /// The topic is created; where that fails, rows are rejected.
    Create,
    /// Rows are rejected, after they have waited for so long.
    Reject(Duration),
}

/// How topics are created: the first rule that fits a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateRule {
    /// A glob.
    pub names: String,
    /// At least 1; `None` is the brokers' default.
    pub partitions: Option<i32>,
    /// At least 1; `None` is the brokers' default.
    pub replication: Option<i32>,
    /// Settings of the topic, such as `cleanup.policy`.
    pub settings: Vec<(String, String)>,
}

/// The operator's decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPolicy {
    /// What becomes of rows.
    pub then: MissingTopic,
    /// A name that fits none of them is not created.
    pub create: Vec<CreateRule>,
    /// Topics that are created at most.
    pub create_max: u64,
}

impl MissingPolicy {
    /// How a topic of this name is created; `None`: it is not.
    pub(super) fn rule(&self, topic: &str) -> Option<&CreateRule> {
        let fits = |rule: &&CreateRule| glob::matches(rule.names.as_bytes(), topic.as_bytes());
        self.create.iter().find(fits)
    }
}

/// What to do with a row of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicDecision {
    /// Ask the brokers for it or for all topics, then [`MissingTopics::absent`](super::MissingTopics::absent),
    /// [`MissingTopics::unlisted`](super::MissingTopics::unlisted) or [`MissingTopics::present`](super::MissingTopics::present).
    Ask,
    /// The same, and by its name: brokers that create topics create those that are named.
    AskByName,
    /// Nothing now: the row waits.
    Wait,
    /// Have it created as this rule says, then [`MissingTopics::not_created`](super::MissingTopics::not_created) if that fails. Said
    /// once; the row waits meanwhile.
    Create(CreateRule),
    /// It cannot be delivered.
    Reject(Rejection),
}

/// A topic as an observer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentTopic {
    /// Its name.
    pub topic: String,
    /// Why.
    pub fault: TopicFault,
    /// First found so.
    pub since: Duration,
    /// Whether rows wait for it now, rather than being rejected.
    pub waiting: bool,
}
