//! Any pattern and topic compile or are refused, and any value is then expanded (G7).
//!
//! The pattern, the topic and the value are separated by zero bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use postrider::route::{TopicTemplate, check_topic};

fuzz_target!(|data: &str| {
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
});
