//! The register of faults against the tree: every row of the matrix, tests that exist, and the table
//! on the page of evidence.
//!
//! Input: the register, the sources, the document. Output: a [`Finding`] for each row that is not as
//! it should be.

use super::source::{Finding, Source};
use support::register::{DOCUMENT, REGISTER, Row, table};

/// How many rows the matrix has.
const ROWS: usize = 186;

/// Of them so many run at least.
const RUN_MIN: usize = 60;

/// Tests that a macro makes, one for each SQL file of this folder.
const REPLAYED: (&str, &str) = ("transactions::", "fixtures/transactions");

/// Each row is there once, in order, and either runs or says why not.
pub fn complete(faults: &[Row]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let numbers: Vec<usize> = faults.iter().map(|fault| fault.number).collect();
    if numbers != (1..=ROWS).collect::<Vec<_>>() {
        findings.push(finding(format!("the rows are not 1 to {ROWS}: {numbers:?}")));
    }
    for fault in faults {
        if fault.shown_by.is_empty() == fault.not_run.is_none() {
            let what = "either tests show it, or `not_run` says why none does";
            findings.push(finding(format!("row {}: {what}", fault.number)));
        }
    }
    let run = faults.iter().filter(|fault| !fault.shown_by.is_empty()).count();
    if run < RUN_MIN {
        findings.push(finding(format!("{run} rows run; {RUN_MIN} did")));
    }
    findings
}

/// Each named test is a function of the tree, in the place that is named.
pub fn named_tests_exist(
    faults: &[Row],
    sources: &[Source],
    exists: &dyn Fn(&str) -> bool,
) -> Vec<Finding> {
    let is_there = |name: &str| {
        if let Some(fixture) = name.strip_prefix(REPLAYED.0) {
            return exists(&format!("{}/{fixture}.sql", REPLAYED.1));
        }
        let (place, function) = name.rsplit_once("::").unwrap_or(("", name));
        let place = place.replace("::", "/");
        sources.iter().any(|source| {
            let file = source.path.trim_end_matches(".rs").trim_end_matches("/mod");
            file.ends_with(&place) && source.functions.iter().any(|known| known.name == function)
        })
    };
    let named =
        faults.iter().flat_map(|fault| fault.shown_by.iter().map(move |name| (fault, name)));
    let missing = named.filter(|(_, name)| !is_there(name));
    missing
        .map(|(fault, name)| finding(format!("row {}: no test is named `{name}`", fault.number)))
        .collect()
}

/// The table in the document has the register's rows; results and dates are the runner's.
pub fn shown(faults: &[Row], document: &str) -> Vec<Finding> {
    let wanted: Vec<[String; 3]> = faults.iter().map(Row::cells).collect();
    let rows = table(document);
    let written: Vec<&[String]> = rows.iter().map(|row| row.get(..3).unwrap_or(row)).collect();
    if wanted.iter().map(<[String; 3]>::as_slice).eq(written) {
        return Vec::new();
    }
    let what = "the table of faults is not that of the register; run `make faults-table`";
    vec![Finding { path: DOCUMENT.to_owned(), line: 0, what: what.to_owned() }]
}

fn finding(what: String) -> Finding {
    Finding { path: REGISTER.to_owned(), line: 0, what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use support::register::{parse, with_table};

    fn rows(count: usize) -> Vec<Row> {
        let row = |number| {
            format!(
                "[[fault]]\nnumber = {number}\nfault = \"f\"\nexpected = \"e\"\nshown_by = [\"a::t\"]\n"
            )
        };
        parse(&(1..=count).map(row).collect::<String>()).expect("a register")
    }

    #[test]
    fn a_row_that_is_missing_or_says_nothing_is_reported() {
        assert_eq!(complete(&rows(ROWS)), []);
        assert_eq!(complete(&rows(ROWS - 1)).len(), 1);
        let mut silent = rows(ROWS);
        silent[3].shown_by.clear();
        assert_eq!(complete(&silent).len(), 1);
        silent[3].not_run = Some("why".to_owned());
        assert_eq!(complete(&silent), []);
        for fault in silent.iter_mut().skip(RUN_MIN - 1) {
            fault.shown_by.clear();
            fault.not_run = Some("why".to_owned());
        }
        assert_eq!(complete(&silent).len(), 1);
    }

    #[test]
    fn a_test_that_is_missing_or_elsewhere_is_reported() {
        let missing = |path: &str, text: &str| {
            let sources = [Source::new(path, text)];
            named_tests_exist(&rows(1), &sources, &|_| false).len()
        };
        assert_eq!(missing("tests/relay/a.rs", "fn t() {}"), 0);
        assert_eq!(missing("tests/relay/a/mod.rs", "fn t() {}"), 0);
        assert_eq!(missing("tests/relay/b.rs", "fn t() {}"), 1);
        assert_eq!(missing("tests/relay/a.rs", "fn u() {}"), 1);
        let mut replayed = rows(1);
        replayed[0].shown_by = vec!["transactions::copy".to_owned()];
        let exists = |path: &str| path == "fixtures/transactions/copy.sql";
        assert_eq!(named_tests_exist(&replayed, &[], &exists), []);
        assert_eq!(named_tests_exist(&replayed, &[], &|_| false).len(), 1);
    }

    #[test]
    fn a_table_of_other_rows_is_reported() {
        let marks = "a\n<!-- faults: begin -->\n<!-- faults: end -->\nb\n";
        let faults = rows(2);
        let lines: String = faults.iter().map(|fault| fault.row("holds", "today")).collect();
        let document = with_table(marks, &lines).expect("marks");
        assert_eq!(shown(&faults, &document), []);
        assert_eq!(with_table(&document, &lines).as_ref(), Some(&document));
        assert_eq!(shown(&rows(3), &document).len(), 1);
        assert_eq!(shown(&faults, &document.replace("| f |", "| g |")).len(), 1);
        assert_eq!(shown(&faults, marks).len(), 1);
    }
}
