//! The tree as a whole: what lies at its top, what its documents say, no traces of a machine.
//!
//! Input: names and texts of files. Output: a [`Finding`] for each that does not belong.

use std::collections::BTreeSet;

use regex::Regex;

use super::source::{Finding, Source};

/// What the package's root may hold.
const TOP_LEVEL: [&str; 25] = [
    ".cargo",
    ".ci",
    ".dockerignore",
    ".gitattributes",
    ".github",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "Makefile",
    "README.md",
    "benches",
    "clippy.toml",
    "deny.toml",
    "docker",
    "docs",
    "examples",
    "fixtures",
    "fuzz",
    "migrations",
    "rustfmt.toml",
    "src",
];

/// Paths that exist on one machine only. Split, lest this file report itself.
const MACHINE: [&str; 2] = [concat!("/ho", "me/"), concat!("/ro", "ot/")];

/// The guarantees of docs/guarantees.md.
pub const GUARANTEES: [&str; 8] = ["G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8"];

/// A file that is not Rust, or Rust seen as text.
pub struct Text {
    pub path: String,
    pub text: String,
}

impl Text {
    pub fn has_extension(&self, wanted: &str) -> bool {
        std::path::Path::new(&self.path).extension().is_some_and(|extension| extension == wanted)
    }

    pub fn finding(&self, line: usize, what: String) -> Finding {
        Finding { path: self.path.clone(), line, what }
    }
}

pub fn top_level(entries: &[String]) -> Vec<Finding> {
    let stray = |entry: &&String| !TOP_LEVEL.contains(&entry.as_str()) && *entry != "tests";
    let what = "does not belong at the top; put it where it is used";
    let finding = |entry: &String| Finding { path: entry.clone(), line: 0, what: what.to_owned() };
    entries.iter().filter(stray).map(finding).collect()
}

pub fn machine_paths(file: &Text) -> Vec<Finding> {
    let lines = file.text.lines().enumerate();
    let machine = lines.filter(|(_, line)| MACHINE.iter().any(|path| line.contains(path)));
    machine.map(|(index, _)| file.finding(index + 1, "a path of one machine".to_owned())).collect()
}

/// Links from a Markdown file to files of the tree that are not there.
pub fn dead_links(file: &Text, exists: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if !exists(&resolved(folder, target)) {
                findings.push(file.finding(index + 1, format!("`{target}` does not exist")));
            }
        }
    }
    findings
}

/// Links from a Markdown file to headings that are not there.
pub fn dead_fragments(file: &Text, pages: &[&Text]) -> Vec<Finding> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let Some((path, fragment)) = target.split_once('#') else { continue };
            let path = if path.is_empty() { file.path.clone() } else { resolved(folder, path) };
            // Links to elsewhere are in no page of ours.
            let page = pages.iter().find(|page| page.path == path);
            if page.is_some_and(|page| !anchors(&page.text).any(|anchor| anchor == fragment)) {
                let what = format!("`{path}` has no heading `#{fragment}`");
                findings.push(file.finding(index + 1, what));
            }
        }
    }
    findings
}

/// What a heading is linked by: its words in lower case, with hyphens between them. A name is given by hand otherwise.
pub fn anchors(page: &str) -> impl Iterator<Item = String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let slug = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
        kept.map(|it| if it == ' ' { '-' } else { it }).collect()
    };
    let named = page.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    headings.map(slug).chain(named.map(str::to_owned))
}

fn resolved(folder: &str, target: &str) -> String {
    let mut segments: Vec<&str> = folder.split('/').filter(|segment| !segment.is_empty()).collect();
    for segment in target.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    segments.join("/")
}

/// What is wrong with the subject of a commit.
pub fn subject(line: &str) -> Option<Finding> {
    let is_area = |area: &str| !area.is_empty() && !area.chars().any(char::is_uppercase);
    let is_verb = |rest: &str| rest.starts_with(|first: char| first.is_lowercase());
    let is_right = line.split_once(": ").is_some_and(|(area, rest)| is_area(area) && is_verb(rest));
    let what = if line.chars().count() > 70 {
        "is longer than 70 characters"
    } else if is_right {
        return None;
    } else {
        "is not `area: verb object`"
    };
    Some(Finding { path: "the commit".to_owned(), line: 0, what: format!("`{line}` {what}") })
}

/// Every `g1_..` test that docs/guarantees.md or docs/evidence.md names exists, and every guarantee has its heading in
/// each page.
pub fn guarantees(document: &Text, sources: &[Source]) -> Vec<Finding> {
    let tests: Vec<&str> =
        sources.iter().flat_map(|source| &source.functions).map(|f| f.name.as_str()).collect();
    let mut findings = Vec::new();
    for (index, line) in document.text.lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2).filter(|name| is_guarantee_test(name)) {
            if !tests.contains(&name) {
                findings.push(document.finding(index + 1, format!("no test is named `{name}`")));
            }
        }
    }
    for id in GUARANTEES {
        if !document.text.lines().any(|line| line.starts_with(&format!("## {id} "))) {
            findings.push(document.finding(0, format!("guarantee {id} has no section")));
        }
    }
    findings
}

/// A code that a document or a test names has its line. The changelog may name what is gone.
pub fn unknown_codes(document: &Text, others: &[Text]) -> Vec<Finding> {
    let pattern = Regex::new(r"\bPR-[A-Z]\d{3}\b").expect("a pattern");
    let lines = document.text.lines().filter_map(|line| line.strip_prefix("| ")?.get(..7));
    let known: BTreeSet<&str> = lines.collect();
    let is_read =
        |text: &&Text| text.path != "CHANGELOG.md" && !text.path.starts_with("tests/tidy");
    let texts = others.iter().filter(is_read).chain([document]);
    texts
        .flat_map(|text| {
            text.text.lines().enumerate().map(move |(index, line)| (text, index, line))
        })
        .flat_map(|(text, index, line)| pattern.find_iter(line).map(move |it| (text, index, it)))
        .filter(|(_, _, code)| !known.contains(code.as_str()))
        .map(|(text, index, code)| {
            text.finding(index + 1, format!("there is no {}", code.as_str()))
        })
        .collect()
}

/// Every thread that the program names has its line in the table of threads, and every line its thread.
pub fn threads(document: &Text, sources: &[Source]) -> Vec<Finding> {
    const NAMED: &str = ".name(\"";
    let shipped = sources.iter().filter(|source| source.path.starts_with("src/"));
    let names: BTreeSet<&str> = shipped
        .flat_map(|source| source.text.split(NAMED).skip(1))
        .filter_map(|rest| rest.split('"').next())
        .filter(|name| name.starts_with("postrider-"))
        .collect();
    let section = document.text.split("## Threads").nth(1).unwrap_or_default();
    let lines = section.lines().take_while(|line| !line.starts_with("## "));
    let rows = lines.filter(|line| line.starts_with("| `postrider-"));
    let cells = rows.filter_map(|line| line.split('|').nth(1));
    let told: BTreeSet<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let differing = names.symmetric_difference(&told);
    let what = |name| format!("thread `{name}` is not in the table, or in the table alone");
    differing.map(|name| document.finding(0, what(name))).collect()
}

/// Every guarantee has a test whose name begins with its id, and no test has the id of none.
pub fn guarantees_without_tests(sources: &[Source]) -> Vec<Finding> {
    let elsewhere = sources.iter().filter(|source| !source.path.starts_with("tests/tidy"));
    let tests = elsewhere.flat_map(|source| source.functions.iter().map(move |f| (source, f)));
    let tests: Vec<_> = tests.filter(|(_, test)| is_guarantee_test(&test.name)).collect();
    let ids = GUARANTEES.map(|id| format!("{}_", id.to_lowercase()));
    let missing = ids.iter().filter(|id| !tests.iter().any(|(_, f)| f.name.starts_with(*id)));
    let missing = missing.map(|id| Finding {
        path: "tests".to_owned(),
        line: 0,
        what: format!("no test is named `{id}..`"),
    });
    let strays = tests.iter().filter(|(_, f)| !ids.iter().any(|id| f.name.starts_with(id)));
    let strays = strays.map(|(source, f)| {
        source.finding(f.first_line, format!("`{}`: no such guarantee", f.name))
    });
    missing.chain(strays).collect()
}

/// `g`, a digit, `_`, and a name.
pub fn is_guarantee_test(name: &str) -> bool {
    let mut chars = name.chars();
    let starts = chars.next() == Some('g')
        && chars.next().is_some_and(|char| char.is_ascii_digit())
        && chars.next() == Some('_');
    starts && name.chars().all(|char| char.is_alphanumeric() || char == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> Text {
        Text { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn threads_and_their_table_agree() {
        let sources = [Source::new("src/x.rs", "fn f() { b.name(\"postrider-a\".to_owned()) }")];
        let table = |name: &str| {
            file("docs/architecture.md", &format!("## Threads\n| `postrider-{name}` | does |"))
        };
        assert_eq!(threads(&table("a"), &sources), []);
        assert_eq!(threads(&table("b"), &sources).len(), 2);
    }

    #[test]
    fn headings_that_do_not_exist_are_reported() {
        let page = file(
            "docs/a.md",
            "## When `it` ends: a list\n[a](#when-it-ends-a-list) [b](../b.md#end) [c](#none)",
        );
        let other = file("b.md", "# End\n");
        let found = dead_fragments(&page, &[&page, &other]);
        assert_eq!(found, [page.finding(2, "`docs/a.md` has no heading `#none`".to_owned())]);
    }

    #[test]
    fn subjects_of_commits_without_an_area_or_too_long_are_reported() {
        assert_eq!(subject("tests, ci: drop a database"), None);
        for wrong in [
            "Drop a database",
            "ci: Drop a database",
            "ci:drop",
            &format!("ci: drop {}", "a".repeat(70)),
        ] {
            assert!(subject(wrong).is_some(), "{wrong}");
        }
    }

    #[test]
    fn codes_that_do_not_exist_are_reported() {
        let document = file("docs/codes.md", "| PR-P001 | no server |\nas PR-P002 was\n");
        let others =
            ["docs/x.md", "tests/x.rs", "CHANGELOG.md"].map(|path| file(path, "PR-P003 PR-P001"));
        assert_eq!(unknown_codes(&document, &others).len(), 3);
    }

    #[test]
    fn strays_at_the_top_are_reported() {
        let entries = ["src", "tests", "notes.txt"].map(str::to_owned);
        let found = top_level(&entries);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "notes.txt");
    }

    #[test]
    fn paths_of_one_machine_are_reported() {
        for path in MACHINE {
            assert_eq!(machine_paths(&file("docs/x.md", &format!("see {path}x"))).len(), 1);
        }
        assert_eq!(machine_paths(&file("docs/x.md", "see /var/lib")), []);
    }

    #[test]
    fn dead_links_are_reported() {
        let exists = |path: &str| path == "docs/operations.md";
        let text =
            "[a](operations.md#top) [b](../docs/operations.md) [c](https://x.y/z) [d](#here)";
        assert_eq!(dead_links(&file("docs/x.md", text), &exists), []);
        assert_eq!(dead_links(&file("docs/x.md", "[a](gone.md)"), &exists).len(), 1);
    }

    #[test]
    fn guarantees_without_tests_are_reported() {
        let found = |text: &str| guarantees_without_tests(&[Source::new("tests/x.rs", text)]);
        let all = [1, 2, 3, 4, 5, 6, 7, 8].map(|id| format!("fn g{id}_holds() {{}}\n")).concat();
        assert_eq!(found(&all), []);
        for id in 1..=8 {
            assert_eq!(found(&all.replace(&format!("g{id}_"), "h_")).len(), 1, "g{id}");
        }
        assert_eq!(found(&format!("{all}fn g9_holds() {{}}")).len(), 1);
        assert_eq!(guarantees_without_tests(&[Source::new("tests/tidy/x.rs", &all)]).len(), 8);
    }

    #[test]
    fn named_tests_that_are_missing_are_reported() {
        let headings = GUARANTEES.map(|id| format!("## {id} text\n")).concat();
        let sources = [Source::new("tests/x.rs", "fn g1_holds() {}")];
        let good = format!("{headings}`g1_holds`, `g1`, `cargo test g1_`\n");
        assert_eq!(guarantees(&file("docs/guarantees.md", &good), &sources), []);
        let bad = format!("{headings}`g2_gone`\n");
        assert_eq!(guarantees(&file("docs/guarantees.md", &bad), &sources).len(), 1);
        assert_eq!(guarantees(&file("docs/guarantees.md", ""), &sources).len(), 8);
    }
}
