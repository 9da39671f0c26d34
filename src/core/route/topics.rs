//! Validates topic names: legal in Kafka, not reserved, and allowed.
//!
//! A name that Kafka treats as equal to a reserved one is reserved too.

use crate::outbox::glob;

/// Kafka's limit in bytes (`org.apache.kafka.common.internals.Topic`).
const TOPIC_BYTES_MAX: usize = 249;

pub(super) fn is_topic_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Checks Kafka's rules. The reason never contains the name.
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

/// Default prefix of progress topics.
pub const PROGRESS_PREFIX: &str = "postrider.progress.";

/// For example `__consumer_offsets`.
const INTERNAL_PREFIX: &str = "__";

/// Restricts the topics of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicsSpec {
    /// Topics of the relay itself.
    pub own: Vec<String>,
    /// Globs of allowed topics; empty: any.
    pub allowed: Vec<String>,
}

impl Default for TopicsSpec {
    fn default() -> Self {
        let own = ["postrider.dead-letters", "postrider.progress.postrider"];
        Self { own: own.map(str::to_owned).to_vec(), allowed: Vec::new() }
    }
}

impl TopicsSpec {
    /// Checks that rows may use the topic. The reason never contains the name.
    pub fn check(&self, name: &str) -> Result<(), &'static str> {
        self.check_reserved(name)?;
        let matches = |pattern: &String| glob::matches(pattern.as_bytes(), name.as_bytes());
        if self.allowed.is_empty() || self.allowed.iter().any(matches) {
            Ok(())
        } else {
            Err("the topic matches no pattern of `route.topics_allowed`")
        }
    }

    /// Checks all rules except the allowed patterns.
    pub fn check_reserved(&self, name: &str) -> Result<(), &'static str> {
        check_topic(name)?;
        check_beginning(name)?;
        if self.own.iter().any(|own| own.len() == name.len() && begins_with(name, own)) {
            return Err("the topic is the relay's own, for its dead letters or its progress");
        }
        Ok(())
    }
}

/// Checks whether all names with this beginning are reserved.
pub fn check_beginning(text: &str) -> Result<(), &'static str> {
    if begins_with(text, INTERNAL_PREFIX) {
        return Err("the topic's name begins with `__`, as Kafka's own topics do");
    }
    if begins_with(text, PROGRESS_PREFIX) {
        return Err(
            "the topic's name begins with `postrider.progress.`, where relays keep progress",
        );
    }
    Ok(())
}

/// The form that Kafka compares (`org.apache.kafka.common.internals.Topic.hasCollision`). Only one
/// topic per form can exist.
pub fn as_compared(name: &str) -> String {
    name.replace('.', "_")
}

fn begins_with(name: &str, prefix: &str) -> bool {
    let unified = |byte: u8| if byte == b'.' { b'_' } else { byte };
    let (name, prefix) = (name.bytes().map(unified), prefix.bytes().map(unified));
    name.take(prefix.len()).eq(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn g4_reserved_names_are_no_rows_to_choose() {
        let own = ["dead.letters", "progress"].map(str::to_owned).to_vec();
        let spec = TopicsSpec { own, allowed: Vec::new() };
        for reserved in [
            "__consumer_offsets",
            "__transaction_state",
            "__",
            "_.x",
            "..x",
            "postrider.progress.other",
            "postrider_progress.",
            "dead.letters",
            "dead_letters",
            "progress",
        ] {
            assert!(spec.check(reserved).is_err(), "{reserved}");
        }
        for free in ["_x", "postrider.progress", "dead.letters2", "progres", "postrider.x"] {
            assert_eq!(spec.check(free), Ok(()), "{free}");
        }
        assert!(TopicsSpec::default().check("postrider.dead-letters").is_err());
    }

    #[test]
    fn where_topics_are_listed_others_are_no_rows_to_choose() {
        let allowed = ["orders", "shop.*"].map(str::to_owned).to_vec();
        let spec = TopicsSpec { allowed, ..TopicsSpec::default() };
        assert_eq!((spec.check("orders"), spec.check("shop.x.y")), (Ok(()), Ok(())));
        for other in ["orders2", "shop", "Orders"] {
            assert!(spec.check(other).is_err(), "{other}");
            assert_eq!(spec.check_reserved(other), Ok(()));
        }
        let all = TopicsSpec { allowed: vec!["*".to_owned()], ..spec };
        assert!(all.check("__consumer_offsets").is_err(), "a list frees nothing");
    }
}
