//! The output of `postrider route` for one row: a line of JSON.
//!
//! A timestamp that would be the commit time is null, because a dry run has no commit.

use std::fmt;
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::display_bytes::shown;
use crate::marks::Mark;
use crate::tail::pretty;
use postrider_core::route::{Record, Rejection};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouteOutput(Value);

impl RouteOutput {
    /// `timestamp_ms` is `None` if the commit time would be used. A null value is called a
    /// tombstone only if `null_is_tombstone`, as Debezium's option does.
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

    pub(super) fn topic(&self) -> Option<String> {
        self.0.get("topic")?.as_str().map(str::to_owned)
    }

    pub(super) fn rejection(&self) -> Option<String> {
        let text = |name: &str| self.0.get(name).and_then(Value::as_str);
        let is_rejected = self.0.get("rejected").is_some();
        is_rejected.then(|| {
            format!("{} ({})", text("reason").unwrap_or_default(), text("code").unwrap_or_default())
        })
    }

    pub(crate) fn write_pretty(&self, out: &mut impl Write, color: bool) -> io::Result<()> {
        let text = |name: &str| self.0.get(name).and_then(Value::as_str).unwrap_or_default();
        let topic = text("topic");
        if topic.is_empty() {
            let reason = shown(Some(text("reason").as_bytes()), "");
            return match self.rejection() {
                Some(_) => {
                    let sign = Mark::Bad.paint(&format!("{} rejected", Mark::Bad.sign()), color);
                    writeln!(out, "{sign}  {}\n    {reason}", text("code"))
                }
                None => writeln!(out, "{} dropped  {reason}", Mark::Unknown.sign()),
            };
        }
        let partition = self.0.get("partition").and_then(Value::as_i64);
        let partition = partition.map(|number| format!("[{number}]")).unwrap_or_default();
        let headers = self.0.get("headers").and_then(Value::as_array);
        let header = |pair: &Value| {
            format!("{}={}", text_of(pair.get(0), ""), text_of(pair.get(1), pretty::NULL))
        };
        let lines = pretty::RecordLines {
            timestamp_ms: self.0.get("timestamp").and_then(Value::as_i64),
            place: format!("{topic}{partition}"),
            key: text_of(self.0.get("key"), pretty::NO_KEY),
            headers: headers.into_iter().flatten().map(header).collect(),
            value: text_of(self.0.get("value"), pretty::NULL),
        };
        lines.write(out, color)
    }

    /// Answer for a row that is correctly not sent.
    pub(super) fn dropped(reason: &str) -> Self {
        Self(json!({ "dropped": true, "reason": reason }))
    }

    /// Answer for a row that would be dead-lettered, or stop the relay.
    pub(super) fn rejected(code: &str, reason: &str) -> Self {
        Self(json!({ "rejected": true, "code": code, "reason": reason }))
    }
}

fn text_of(bytes: Option<&Value>, null: &str) -> String {
    match bytes {
        Some(Value::String(text)) => shown(Some(text.as_bytes()), null),
        Some(Value::Object(hex)) => {
            let digits = hex.get("$hex").and_then(Value::as_str).unwrap_or_default();
            let bytes = digits
                .as_bytes()
                .chunks(2)
                .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
            shown(Some(&bytes.collect::<Vec<_>>()), null)
        }
        _ => null.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_people_says_what_becomes_of_the_row() {
        let shown = |line: Value| {
            let mut out = Vec::new();
            RouteOutput(line).write_pretty(&mut out, false).unwrap();
            String::from_utf8(out).unwrap()
        };
        let record = json!({"topic": "orders", "key": "k\u{1b}", "value": {"$hex": "ff00"},
            "headers": [["id", "1"], ["none", null]], "partition": 2, "timestamp": 1_700_000_000_000_i64});
        assert_eq!(
            shown(record),
            "2023-11-14T22:13:20.000Z  orders[2]  k\\u{1b}\n    id=1  none=(null)\n    0xff00\n"
        );
        let bare =
            json!({"topic": "a", "key": null, "value": null, "headers": [], "partition": null});
        assert_eq!(shown(bare), "-  a  (no key)\n    (null)\n");
        let rejected = json!({"rejected": true, "code": "no_route", "reason": "no\nroute"});
        assert_eq!(shown(rejected), "✗ rejected  no_route\n    no\\nroute\n");
        let dropped = json!({"dropped": true, "reason": "a rule"});
        assert_eq!(shown(dropped), "· dropped  a rule\n");
    }
}
