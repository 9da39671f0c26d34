//! Any pattern and topic compile or are refused, and any value is then a name that begins as the topic does, or
//! the value itself (G7).
//!
//! The pattern, the topic and the value are separated by zero bytes.

use postrider::route::{TopicTemplate, check_topic};

/// Tries one input.
pub(crate) fn run(data: &[u8]) {
    let Ok(data) = std::str::from_utf8(data) else { return };
    let mut parts = data.splitn(3, '\0');
    let (Some(regex), Some(topic), Some(value)) = (parts.next(), parts.next(), parts.next()) else {
        return;
    };
    match TopicTemplate::compile(regex, topic) {
        Ok(template) => {
            let mut name = String::from("before");
            if template.expand(value, &mut name).is_err() {
                return;
            }
            let name = name.strip_prefix("before").expect("appended");
            // What the pattern does not match as a whole is its own name.
            assert!(name == value || name.starts_with(template.beginning()), "{name}");
            assert_eq!(check_topic(name).is_ok(), is_legal(name), "{name}");
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(error.hint().is_none_or(|hint| !hint.is_empty()));
        }
    }
}

/// As Kafka has it (`Topic.validate`).
fn is_legal(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=249).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(is_known)
}
