//! Which module of the core uses which, as docs/modules.md lists it.
//!
//! Input: the document and the sources. Output: a [`Finding`] for each module of the core whose
//! row in the table is missing, or names other modules than its code does. Tests may use any module;
//! `mutants` is left out, for it is empty in what is shipped.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Finding, Source};
use super::tree::Text;

/// The table begins below this line.
const HEADING: &str = "The modules of the core, ";

type Uses<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

pub fn of_core(document: &Text, sources: &[Source]) -> Vec<Finding> {
    let (listed, mut used) = (listed(&document.text), Uses::new());
    for source in sources {
        let Some(module) = module_of(&source.path) else { continue };
        let named = source.shipped_lines().flat_map(|(_, line)| modules_named(line));
        used.entry(module).or_default().extend(named.filter(|named| *named != module));
    }
    let names = |set: Option<&BTreeSet<&str>>| {
        set.map_or("no row".to_owned(), |set| set.iter().copied().collect::<Vec<_>>().join(", "))
    };
    let modules: BTreeSet<&str> = listed.keys().chain(used.keys()).copied().collect();
    let differing = modules.into_iter().filter(|module| listed.get(module) != used.get(module));
    let finding = |module: &str| {
        let (listed, used) = (names(listed.get(module)), names(used.get(module)));
        document.finding(0, format!("core's `{module}` uses: {used}; its row says: {listed}"))
    };
    differing.map(finding).collect()
}

/// `ledger` for `src/core/ledger/mod.rs`.
fn module_of(path: &str) -> Option<&str> {
    let module = path.strip_prefix("src/core/")?.split(['/', '.']).next()?;
    (!["lib", "mutants"].contains(&module)).then_some(module)
}

/// What follows `crate::`; a group in braces has no name, and no row lists that.
fn modules_named(line: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let paths = line.split("crate::").skip(1);
    let names = paths.map(move |path| path.split(|c| !is_word(c)).next().unwrap_or_default());
    names.filter(|name| *name != "mutants")
}

/// The first cell of each row, and the backquoted words of its last.
fn listed(text: &str) -> Uses<'_> {
    let rows = text.lines().skip_while(|line| !line.starts_with(HEADING)).skip(4);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let last = cells.last().copied().unwrap_or_default();
        let module = cells.first().copied().unwrap_or_default();
        (module.trim().trim_matches('`'), last.split('`').skip(1).step_by(2).collect())
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_uses_what_its_row_does_not_name_is_reported() {
        let document = |row: &str| {
            let text = format!("{HEADING}listed:\n\n| module | uses |\n|---|---|\n{row}\n");
            Text { path: "docs/modules.md".to_owned(), text }
        };
        let code = "//! [`crate::gate`]\nuse crate::lsn::Lsn;\nuse crate::ledger::Ticket;\n\
                    #[cfg(test)]\nmod tests { use crate::route::Router; }";
        let sources = [
            Source::new("src/core/ledger/mod.rs", code),
            Source::new("src/relay/hot.rs", "use crate::stop::Stop;"),
        ];
        let found = |row: &str| of_core(&document(row), &sources).len();
        assert_eq!(found("| `ledger` | begins | `lsn` |"), 0);
        assert_eq!(found("| `ledger` | begins | nothing |"), 1);
        assert_eq!(found("| `ledger` | begins | `lsn`, `route` |"), 1);
        assert_eq!(found("| `gate` | facts | nothing |"), 2);
        let grouped = [Source::new("src/core/ledger/mod.rs", "use crate::{lsn, route};")];
        assert_eq!(of_core(&document("| `ledger` | `lsn`, `route` |"), &grouped).len(), 1);
    }
}
