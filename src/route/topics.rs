//! Topic names: Kafka's rule.

/// Kafka's limit on a topic's name, in bytes (`org.apache.kafka.common.internals.Topic`).
const TOPIC_BYTES_MAX: usize = 249;

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
}
