//! The fault matrix as data, and the table of it in a document.
//!
//! Input: `fixtures/faults/matrix.toml`, and a document with two marks. Output: [`Row`]s, and the
//! lines between the marks.

use serde::Deserialize;

/// Where the register lies, relative to the package.
pub const REGISTER: &str = "fixtures/faults/matrix.toml";

/// Which document shows the table, relative to the package.
pub const DOCUMENT: &str = "docs/evidence.md";

/// The table lies between these lines.
const MARKS: [&str; 2] = ["<!-- faults: begin -->", "<!-- faults: end -->"];

const HEAD: &str = "| # | fault | expected | result | date |\n|---|---|---|---|---|\n";

/// One row of the matrix.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub number: usize,
    pub fault: String,
    pub expected: String,
    /// Functions, with as much of their path as tells them from others.
    #[serde(default)]
    pub shown_by: Vec<String>,
    /// Why no test shows it.
    pub not_run: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Register {
    fault: Vec<Row>,
}

/// The rows of a register.
pub fn parse(text: &str) -> Result<Vec<Row>, toml::de::Error> {
    toml::from_str::<Register>(text).map(|register| register.fault)
}

impl Row {
    /// The cells that only the register decides.
    pub fn cells(&self) -> [String; 3] {
        [self.number.to_string(), self.fault.clone(), self.expected.clone()]
    }

    /// Its row of the table.
    pub fn row(&self, result: &str, date: &str) -> String {
        let [number, fault, expected] = self.cells();
        format!("| {number} | {fault} | {expected} | {result} | {date} |\n")
    }
}

/// The document with other rows in its table; nothing where it has no marks.
pub fn with_table(document: &str, rows: &str) -> Option<String> {
    let (before, rest) = document.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some(format!("{before}{}\n\n{HEAD}{rows}\n{}{after}", MARKS[0], MARKS[1]))
}

/// The cells of each row of the table in a document.
pub fn table(document: &str) -> Vec<Vec<String>> {
    let after = document.split_once(MARKS[0]).map_or("", |(_, rest)| rest);
    let between = after.split_once(MARKS[1]).map_or("", |(table, _)| table);
    let rows = between.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect()
}
