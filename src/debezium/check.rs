//! Checks that the imported configuration is valid, with the configuration's own checks.
//!
//! Input: the draft. Output: refusals of options whose settings are invalid.

use super::connection::nowhere;
use super::document;
use super::draft::Draft;
use postrider_config::{Mistake, MistakeKind, mistakes_of};

/// Loads the text as the file layer alone would be loaded.
pub(super) fn loads(draft: &mut Draft) {
    for Mistake { kind, help, .. } in mistakes_of(&document::render(draft), &nowhere) {
        let (key, note) = explain(kind);
        draft.refuse_setting(&key, &note, help.as_deref());
    }
}

fn explain(kind: MistakeKind) -> (String, String) {
    match kind {
        MistakeKind::Invalid { key, reason } | MistakeKind::Unsupported { key, reason } => {
            (key, reason)
        }
        MistakeKind::RefusedProperty { key, reason } => (format!("kafka.properties.{key}"), reason),
        MistakeKind::UnknownKey { ref key } | MistakeKind::WrongType { ref key, .. } => {
            (key.clone(), kind.to_string())
        }
        MistakeKind::Syntax(_) | MistakeKind::UnreadableFile { .. } => {
            ("the file".to_owned(), kind.to_string())
        }
    }
}
