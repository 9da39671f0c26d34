//! Defines the types of the policy for missing topics.
//!
//! [`MissingPolicy`] holds the operator's settings (wait, create or reject; [`CreateRule`]s for
//! topics that the relay creates), [`TopicFault`] the brokers' answer about a topic,
//! [`TopicDecision`] the action for a row, and [`AbsentTopic`] the state for metrics and probes.

use std::time::Duration;

use crate::outbox::glob;
use crate::route::{Rejection, RejectionCode};

/// Why records cannot be sent to a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopicFault {
    /// The brokers know no such topic.
    Missing,
    /// The brokers' list of topics does not contain it: it is missing, or hidden from the relay.
    Unlisted,
    /// The relay may not describe the topic.
    Forbidden,
    /// The relay may describe the topic, but not write to it.
    Denied,
}

impl TopicFault {
    /// Name for metrics and probes.
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
    /// Rows wait, with all rows behind them. After the time limit, if any, they are rejected.
    Wait(Option<Duration>),
    /// The relay creates the topic. If that fails, rows are rejected.
    Create,
    /// Rows are rejected after this wait.
    Reject(Duration),
}

/// How to create topics; the first rule that matches the name applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateRule {
    /// A glob.
    pub names: String,
    /// At least 1; `None` is the brokers' default.
    pub partitions: Option<i32>,
    /// At least 1; `None` is the brokers' default.
    pub replication: Option<i32>,
    /// Topic settings, for example `cleanup.policy`.
    pub settings: Vec<(String, String)>,
}

/// The operator's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPolicy {
    /// Treatment of rows.
    pub then: MissingTopic,
    /// Rules; a name without a matching rule is not created.
    pub create: Vec<CreateRule>,
    /// Maximum number of created topics.
    pub create_max: u64,
}

impl MissingPolicy {
    /// The rule for this name; `None`: the topic is not created.
    pub(super) fn rule(&self, topic: &str) -> Option<&CreateRule> {
        let fits = |rule: &&CreateRule| glob::matches(rule.names.as_bytes(), topic.as_bytes());
        self.create.iter().find(fits)
    }
}

/// The action for a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicDecision {
    /// Query the brokers for the topic or for all topics, then call
    /// [`MissingTopics::absent`](super::MissingTopics::absent),
    /// [`MissingTopics::unlisted`](super::MissingTopics::unlisted) or
    /// [`MissingTopics::present`](super::MissingTopics::present).
    Ask,
    /// Query the topic by name: brokers that create topics create named ones.
    AskByName,
    /// Nothing now: the row waits.
    Wait,
    /// Create the topic with this rule, and call
    /// [`MissingTopics::not_created`](super::MissingTopics::not_created) on failure. Returned once;
    /// the row then waits.
    Create(CreateRule),
    /// Reject the row.
    Reject(Rejection),
}

/// An unusable topic, for observers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentTopic {
    /// Its name.
    pub topic: String,
    /// The reason.
    pub fault: TopicFault,
    /// When the fault was first found.
    pub since: Duration,
    /// True if rows wait for it; false if they are rejected.
    pub waiting: bool,
}
