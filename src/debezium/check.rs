//! The last look: what was made of the file must load.
//!
//! Enters: the draft. Leaves: nothing, or refusals of the options whose settings are no settings. The
//! checks are those of the configuration itself, so that there is one place for them.

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
