//! The last look: what was made of the file must load.
//!
//! Enters: the draft. Leaves: nothing, or refusals of the options whose settings are no settings. The
//! checks are those of the configuration itself, so that there is one place for them.

use std::path::Path;

use super::connection::nowhere;
use super::document;
use super::draft::Draft;
use crate::config::mistake::{Mistake, MistakeKind};
use crate::config::{assemble, defaults, file};

/// Loads the text as the file layer alone would be loaded.
pub(super) fn loads(draft: &mut Draft) {
    let layer = file::read(Path::new(""), &document::render(draft));
    let mut mistakes = layer.mistakes;
    let mut settings = defaults().clone();
    settings.extend(layer.settings);
    if let Err(more) = assemble::assemble(&settings, &nowhere) {
        mistakes.extend(more);
    }
    for Mistake { kind, help, .. } in mistakes {
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
