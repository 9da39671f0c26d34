//! Checks the imported settings with the configuration's own checks. Options with invalid settings
//! are refused.

use std::path::PathBuf;

use super::document;
use super::draft::Draft;
use postrider_config::{ConfigError, FileChoice, Inputs, Mistake, MistakeKind, env_name, load};

/// Makes the check independent of this machine.
const NOWHERE: [(&str, &str); 4] = [
    ("PGUSER", "nobody"),
    ("PGPASSWORD", "nobody"),
    ("HOME", "/dev/null"),
    ("PGSYSCONFDIR", "/dev/null"),
];

pub(super) fn loads(draft: &mut Draft) {
    let mut variables = NOWHERE.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let elsewhere = draft.elsewhere().iter();
    variables.extend(elsewhere.map(|(key, any)| (env_name(key), (*any).to_owned())));
    let file = FileChoice::Text { name: PathBuf::new(), text: document::render(draft) };
    let inputs = Inputs { file, variables, ..Inputs::default() };
    let Err(ConfigError::Mistakes(mistakes)) = load(&inputs, &|_| Vec::new()) else { return };
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
