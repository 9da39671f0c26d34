//! Topic names: Kafka's rule, and the names already made.

use std::collections::HashMap;

use super::rejection::{Rejection, RejectionCode};
use super::template::TopicTemplate;

/// Kafka's limit on a topic's name, in bytes (`org.apache.kafka.common.internals.Topic`).
const TOPIC_BYTES_MAX: usize = 249;

/// How many routing values are remembered with their topics. Far more than a sensible set of
/// topics; bounds the memory where a routing column has a value of its own in every row (G3).
const CACHED_MAX: usize = 1024;

/// Longer routing values are not remembered; bounds a remembered value's size.
const CACHED_VALUE_BYTES_MAX: usize = 512;

/// Whether Kafka allows the byte in a topic's name.
pub(super) fn is_topic_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Checks a topic's name by Kafka's rule. The reason names the fault, never the name itself.
pub fn check_topic(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("the topic's name is empty"),
        "." | ".." => Err("the topic's name is `.` or `..`"),
        _ if name.len() > TOPIC_BYTES_MAX => Err("the topic's name exceeds 249 bytes"),
        _ if !name.bytes().all(is_topic_byte) => {
            Err("the topic's name has a character other than a-z, A-Z, 0-9, `.`, `_` and `-`")
        }
        _ => Ok(()),
    }
}

/// A topic that [`Topics::find`] found; good until the next `find`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Topic(usize);

/// Routing value → topic, remembering what it made.
#[derive(Debug, Clone)]
pub(super) struct Topics {
    template: TopicTemplate,
    by_value: HashMap<Box<[u8]>, usize>,
    /// Number 0 is the one made last without being remembered.
    names: Vec<String>,
}

impl Topics {
    pub(super) fn new(template: TopicTemplate) -> Self {
        Self { template, by_value: HashMap::new(), names: vec![String::new()] }
    }

    /// The topic for a routing value. `column` is named in a rejection.
    pub(super) fn find(&mut self, value: &[u8], column: &str) -> Result<Topic, Rejection> {
        if let Some(&number) = self.by_value.get(value) {
            return Ok(Topic(number));
        }
        let name = self.make(value, column)?;
        if value.len() > CACHED_VALUE_BYTES_MAX {
            if let Some(unremembered) = self.names.first_mut() {
                *unremembered = name;
            }
            return Ok(Topic(0));
        }
        if self.by_value.len() >= CACHED_MAX {
            // Forgetting all is rare, cheap, and lets a changed set of values in.
            self.by_value.clear();
            self.names.truncate(1);
        }
        let number = self.names.len();
        self.names.push(name);
        self.by_value.insert(value.into(), number);
        Ok(Topic(number))
    }

    pub(super) fn name(&self, topic: Topic) -> &str {
        self.names.get(topic.0).map_or("", String::as_str)
    }

    /// The name for a routing value, legal or not; `None` when the value is not text.
    pub(super) fn expand(&self, value: &[u8]) -> Option<String> {
        let mut name = String::new();
        self.template.expand(str::from_utf8(value).ok()?, &mut name);
        Some(name)
    }

    fn make(&self, value: &[u8], column: &str) -> Result<String, Rejection> {
        let reject = |code, reason: &str| Rejection { code, reason: reason.to_owned() };
        let name = self.expand(value).ok_or_else(|| {
            reject(RejectionCode::NoRoute, &format!("column `{column}` is not UTF-8 text"))
        })?;
        if name.is_empty() {
            let reason = format!("column `{column}` is empty, and so would be the topic's name");
            return Err(reject(RejectionCode::NoRoute, &reason));
        }
        check_topic(&name).map_err(|reason| {
            reject(RejectionCode::InvalidTopic, &format!("{reason}; it comes of column `{column}`"))
        })?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics(regex: &str, topic: &str) -> Topics {
        Topics::new(TopicTemplate::compile(regex, topic).expect("compiles"))
    }

    #[test]
    fn names_follow_kafkas_rule() {
        for legal in ["a", "...", "A-z_0.9", &"x".repeat(249)] {
            assert_eq!(check_topic(legal), Ok(()), "{legal}");
        }
        for wrong in ["", ".", "..", "a b", "a/b", "ä", "a\0", &"x".repeat(250)] {
            assert!(check_topic(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn remembered_topics_stay_right_and_bounded() {
        let mut topics = topics("v([0-9]*)-*", "t.$1");
        for round in 0..3 {
            for number in 0..CACHED_MAX + 10 {
                let topic = topics.find(format!("v{number}").as_bytes(), "c").expect("routed");
                assert_eq!(topics.name(topic), format!("t.{number}"), "round {round}");
            }
            let long = format!("v7{}", "-".repeat(CACHED_VALUE_BYTES_MAX));
            let topic = topics.find(long.as_bytes(), "c").expect("routed");
            assert_eq!(topics.name(topic), "t.7");
        }
        assert!(topics.by_value.len() <= CACHED_MAX);
        assert!(topics.names.len() <= CACHED_MAX + 1);
    }

    #[test]
    fn rejections_name_the_column_and_not_the_value() {
        let mut topics = topics("(.*)", "$1");
        for (value, code) in [
            (&b"secret/word"[..], RejectionCode::InvalidTopic),
            (b"", RejectionCode::NoRoute),
            (b"\xff", RejectionCode::NoRoute),
        ] {
            let rejection = topics.find(value, "kind").expect_err("rejected");
            assert_eq!(rejection.code, code);
            assert!(rejection.reason.contains("`kind`"), "{}", rejection.reason);
            assert!(!rejection.reason.contains("secret"));
        }
    }
}
