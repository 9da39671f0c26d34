//! Types of the policy for missing topics.

use std::time::Duration;

use crate::outbox::glob;
use crate::route::{Rejection, RejectionCode};

/// Why records cannot be sent to a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopicFault {
    /// The topic does not exist.
    Missing,
    /// The list of topics lacks it: it is missing or hidden.
    Unlisted,
    /// The relay may not describe the topic.
    Forbidden,
    /// The relay may describe it, but not write to it.
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
    /// All rows wait; after the time limit they are rejected.
    Wait(Option<Duration>),
    /// The relay creates the topic, or else rejects rows.
    Create,
    /// Rows are rejected after this wait.
    Reject(Duration),
}

/// How to create topics; the first match applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateRule {
    /// Glob.
    pub names: String,
    /// At least 1; `None`: the brokers' default.
    pub partitions: Option<i32>,
    /// At least 1; `None`: the brokers' default.
    pub replication: Option<i32>,
    /// For example `cleanup.policy`.
    pub settings: Vec<(String, String)>,
}

/// The operator's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPolicy {
    /// Treatment of rows.
    pub then: MissingTopic,
    /// Rules; other names are not created.
    pub create: Vec<CreateRule>,
    /// Most topics to create.
    pub create_max: u64,
}

impl MissingPolicy {
    pub(super) fn rule(&self, topic: &str) -> Option<&CreateRule> {
        let fits = |rule: &&CreateRule| glob::matches(rule.names.as_bytes(), topic.as_bytes());
        self.create.iter().find(fits)
    }
}

/// Action for a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicDecision {
    /// Query the brokers, then call [`MissingTopics::absent`](super::MissingTopics::absent),
    /// [`MissingTopics::unlisted`](super::MissingTopics::unlisted) or
    /// [`MissingTopics::present`](super::MissingTopics::present).
    Ask,
    /// Query by name: brokers that create topics create named ones.
    AskByName,
    /// The row waits.
    Wait,
    /// Create the topic, and call [`MissingTopics::not_created`](super::MissingTopics::not_created)
    /// on failure. Returned once.
    Create(CreateRule),
    /// Reject the row.
    Reject(Rejection),
}

/// An unusable topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentTopic {
    /// Name.
    pub topic: String,
    /// Reason.
    pub fault: TopicFault,
    /// First time.
    pub since: Duration,
    /// True if rows wait; false if they are rejected.
    pub waiting: bool,
}
