//! Any file, environment and `--set` are a configuration that can be shown, or mistakes that can.
//!
//! The file ends at the first zero byte; each further piece is `name=value` of the environment, with
//! the name's prefix left out, or of `--set` if it begins with a dash. Pieces that name files of this
//! machine are left out: what they hold would not be the fuzzer's.

use std::collections::BTreeSet;

use postrider::config::{ConfigError, FileChoice, Inputs, Loaded, load};

/// Tries one input.
pub(crate) fn run(data: &[u8]) {
    let Ok(data) = std::str::from_utf8(data) else { return };
    if data.contains("/dev/") || data.contains("/proc/") {
        return;
    }
    let mut pieces = data.split('\0');
    let text = pieces.next().unwrap_or_default().to_owned();
    let file = FileChoice::Text { name: "fuzzed.toml".into(), text };
    let mut inputs = Inputs { file, ..Inputs::default() };
    inputs.variables.push(("PGUSER".to_owned(), "fuzzer".to_owned()));
    for piece in pieces {
        if let Some(assignment) = piece.strip_prefix('-') {
            inputs.set.push(assignment.to_owned());
        } else if let Some((name, value)) = piece.split_once('=')
            && !name.ends_with("FILE")
        {
            inputs.variables.push((format!("POSTRIDER_{name}"), value.to_owned()));
        }
    }
    match load(&inputs, &|_| Vec::new()) {
        Ok(loaded) => {
            assert!(!loaded.effective.is_empty());
            let shown = |loaded: &Loaded| {
                let lines = loaded.effective.iter();
                let lines =
                    lines.map(|line| format!("{} = {} # {}", line.key, line.value, line.origin));
                (lines.collect::<Vec<_>>(), format!("{:?}", loaded.config))
            };
            // One line for each option, and the same inputs are the same configuration.
            let keys: BTreeSet<&str> =
                loaded.effective.iter().map(|line| line.key.as_str()).collect();
            assert_eq!(keys.len(), loaded.effective.len());
            let again = load(&inputs, &|_| Vec::new()).expect("loaded before");
            assert_eq!(shown(&loaded), shown(&again));
        }
        Err(ConfigError::Mistakes(mistakes)) => {
            assert!(!mistakes.is_empty());
            for mistake in mistakes {
                assert!(!mistake.to_string().is_empty());
            }
        }
        Err(error) => panic!("{error}"),
    }
}
