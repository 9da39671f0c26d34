//! Any pattern and topic compile or are refused, and any value is then expanded (G7).
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
            let _ = check_topic(name);
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let _ = error.hint();
        }
    }
}
