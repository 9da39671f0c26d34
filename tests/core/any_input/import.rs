//! Any text is a Debezium configuration whose TOML loads, or is refused with a reason.

use postrider::config::{FileChoice, Inputs, load};
use postrider::debezium::{ImportOutcome, import};

/// Tries one input.
pub(crate) fn run(data: &[u8]) {
    let Ok(data) = std::str::from_utf8(data) else { return };
    match import(data) {
        Ok(imported) => {
            assert!(
                imported.report.iter().all(|finding| finding.outcome != ImportOutcome::Refused)
            );
            let file = FileChoice::Text { name: "imported.toml".into(), text: imported.toml };
            let variables = vec![("PGUSER".to_owned(), "fuzzer".to_owned())];
            let inputs = Inputs { file, variables, ..Inputs::default() };
            assert!(load(&inputs, &|_| Vec::new()).is_ok());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
