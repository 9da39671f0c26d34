//! The output of `postrider route` for one row: a line of JSON.
//!
//! Input: a record, a reason why the row was dropped, or a rejection. Output: a `RouteOutput`, which
//! displays as JSON and knows the record's topic. A timestamp that would be the commit time is null, since
//! a dry run has no commit.

use std::fmt;

use serde_json::{Value, json};

use postrider_core::route::{Record, Rejection};

/// One line of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RouteOutput(Value);

impl RouteOutput {
    /// The row's record. `timestamp_ms` is `None` where the commit time would be used. A null value
    /// is a tombstone; Debezium's word for it is kept to those that its option made
    /// (`null_is_tombstone`).
    pub(super) fn record(
        record: &Record<'_>,
        timestamp_ms: Option<i64>,
        null_is_tombstone: bool,
    ) -> Self {
        let mut line = super::super::run::record_json(record);
        if let Some(tombstone) = line.get_mut("tombstone").filter(|_| !null_is_tombstone) {
            *tombstone = false.into();
        }
        if let Some(timestamp) = line.get_mut("timestamp") {
            *timestamp = timestamp_ms.into();
        }
        Self(line)
    }

    /// Where its record goes, if it has one.
    pub(super) fn topic(&self) -> Option<String> {
        self.0.get("topic")?.as_str().map(str::to_owned)
    }

    /// Why it has none, if it would be rejected.
    pub(super) fn rejection(&self) -> Option<String> {
        let text = |name: &str| self.0.get(name).and_then(Value::as_str);
        let is_rejected = self.0.get("rejected").is_some();
        is_rejected.then(|| {
            format!("{} ({})", text("reason").unwrap_or_default(), text("code").unwrap_or_default())
        })
    }

    /// Nothing is sent, and that is right.
    pub(super) fn dropped(reason: &str) -> Self {
        Self(json!({ "dropped": true, "reason": reason }))
    }

    /// The row would be dead-lettered, or stop the relay, as the policy says.
    pub(super) fn rejected(code: &str, reason: &str) -> Self {
        Self(json!({ "rejected": true, "code": code, "reason": reason }))
    }
}

impl From<&Rejection> for RouteOutput {
    fn from(rejection: &Rejection) -> Self {
        Self::rejected(rejection.code.as_str(), &rejection.reason)
    }
}

impl fmt::Display for RouteOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
