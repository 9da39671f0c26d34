//! How the project writes: constructions that make a reader read a sentence twice, and what is too long.
//!
//! Input: pages, and the comments and texts of sources. Output: the places of each file. `prose.txt` has the number that
//! each file may have. A number may only shrink: a file with fewer places is reported as well.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use fancy_regex::Regex;
use regex::Regex as Plain;

use super::source::Finding;
use super::tree::Text;

/// Words in a sentence.
const SENTENCE: usize = 30;

/// Words in a cell of a table.
const CELL: usize = 25;

/// Words in a paragraph of a page.
const PARAGRAPH: usize = 90;

/// Words in a page that is no reference.
const PAGE: usize = 1_300;

/// Pages in which one looks things up, so that they may be longer.
const REFERENCE: [&str; 6] = [
    "docs/benchmarks.md",
    "docs/codes.md",
    "docs/configuration.md",
    "docs/decisions/README.md",
    "docs/evidence.md",
    "docs/scaling-model.md",
];

/// Constructions that a native writer rarely uses, with what to write instead.
const TELLS: [(&str, &str); 22] = [
    (
        r"\b(?:is|are|was|were) so\b(?! (?:that|far|long|large|small|many|much|few))|\blikewise\b",
        "name the property",
    ),
    (r"\b(?:is|are|was|were) of (?!use\b|no\b|course|interest|importance)", "use a verb"),
    (r"(?:^|[.;:] )Of (?!course)", "begin with the subject"),
    (r"\bof (?:before|then|now|old|a time|that time|this time)\b", "name the time"),
    (
        r"(?<!there )(?<!There )\b(?:is|are|was|were|be) no (?!longer|more\b)[a-z]+",
        "`is not`, or a verb",
    ),
    (
        r"\b(?:takes?|makes?|lets?|reads?|sends|writes|knows|says|gets|sees) (?:no|nothing|none|nobody)\b",
        "`does not` and the verb",
    ),
    (
        r"(?:^|[ (,;:.|])(?:whoever|what(?! (?:is|are|if|happens|to|the|it|a|each|this|that)\b)|who) [a-z]+",
        "a noun before the clause",
    ),
    (r"\bbe had\b", "`available`"),
    (r"\banew\b|\bonce more\b|\bas ever\b", "`again`"),
    (r"\bin (?:the )?place of\b", "`instead of`, or `replaces`"),
    (r"\b(?:goes|go|went|going|gone) on\b", "`continues`, `resumes`"),
    (
        r"\b(?:is|are|was|were) told\b|\btells? (?:of|that|with|within|late|them)\b",
        "`reports`, `logs`, `shows`",
    ),
    (r"\bmeanwhile\b", "name the time, or leave it out"),
    (
        r"\b(?:rows?|records?|times?|bytes|MiB|sessions?|relay|slot|stream|client|span) (?:a|for each|for a)\b",
        "`per`",
    ),
    (r"[a-z0-9] at (?:most|least)[.,;)]", "`at most` before the number"),
    (r"\bas (?:it|they) (?:is|are|was|were|stands?)\b", "`unchanged`"),
    (r"\ball the same\b", "`anyway`, or leave it out"),
    (r"\bsome (?:\d|seventy|fifteen|twenty|ten|hundred|twelve|sixty|fifty)", "`about`"),
    (r"(?:^|[.;:|] )The same\b", "repeat the noun"),
    (r"\b(?:that|those|the one|the ones) of\b", "repeat the noun"),
    (r"\bby (?:which|what)\b", "a new sentence"),
    (r"(?:^|[.;:] )Where [a-z]", "`If`"),
];

static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    TELLS.iter().map(|(tell, fix)| (Regex::new(tell).expect("a pattern"), *fix)).collect()
});

static CODE: LazyLock<Plain> = LazyLock::new(|| Plain::new("`[^`]*`").expect("a pattern"));

static LINK: LazyLock<Plain> = LazyLock::new(|| Plain::new(r"\]\([^)]*\)").expect("a pattern"));

/// A list's item, a heading, a quotation, or a comment of HTML begins a block of its own.
static BLOCK: LazyLock<Plain> =
    LazyLock::new(|| Plain::new(r"^\s*(?:[-*+] |\d+\. |#+ |> |<)").expect("a pattern"));

/// A literal of more than two words, on one line.
static LITERAL: LazyLock<Plain> = LazyLock::new(|| {
    Plain::new(r#""((?:[^"\\]|\\.)*[a-z] (?:[^"\\]|\\.)* (?:[^"\\]|\\.)*)""#).expect("a pattern")
});

/// Consecutive lines that are read as one: a paragraph, an item, a comment.
struct Block {
    line: usize,
    text: String,
}

/// What is wrong in a text. Decisions are records, and stay as they were written.
pub fn places(text: &Text) -> Vec<Finding> {
    let is_page = text.has_extension("md");
    let is_read = ["docs/", "docker/", "src/", "examples/", "benches/", "fixtures/", "fuzz/"];
    let is_read =
        is_page && !text.path.contains('/') || is_read.iter().any(|it| text.path.starts_with(it));
    if !is_read
        || text.path.starts_with("docs/decisions/")
        || !(is_page || text.has_extension("rs"))
    {
        return Vec::new();
    }
    let (blocks, cells) = if is_page { page(&text.text) } else { (source(&text.text), Vec::new()) };
    let mut findings = Vec::new();
    for block in blocks.iter().chain(&cells) {
        for (rule, fix) in RULES.iter() {
            // A pattern that runs out of steps on a line of prose would be a defect here.
            for found in rule.find_iter(&block.text).map(|found| found.expect("a match")) {
                let what = format!("`{}`: {fix}", found.as_str().trim());
                findings.push(text.finding(block.line, what));
            }
        }
        for sentence in sentences(&block.text).filter(|it| words(it) > SENTENCE) {
            let what = format!("a sentence of {} words: {sentence}", words(sentence));
            findings.push(text.finding(block.line, what));
        }
    }
    for (block, limit, name) in cells
        .iter()
        .map(|it| (it, CELL, "cell"))
        .chain(blocks.iter().map(|it| (it, PARAGRAPH, "paragraph")))
    {
        if is_page && words(&block.text) > limit {
            findings.push(
                text.finding(block.line, format!("a {name} of {} words", words(&block.text))),
            );
        }
    }
    let length: usize = blocks.iter().chain(&cells).map(|block| words(&block.text)).sum();
    if is_page && length > PAGE && !REFERENCE.contains(&text.path.as_str()) {
        findings.push(text.finding(0, format!("a page of {length} words: at most {PAGE}")));
    }
    findings
}

/// Paragraphs and cells of tables, without code.
fn page(text: &str) -> (Vec<Block>, Vec<Block>) {
    let (mut blocks, mut cells, mut is_code) = (Vec::new(), Vec::new(), false);
    let mut is_open = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let is_table = line.trim_start().starts_with('|');
        if is_code || is_table || line.trim().is_empty() || line.trim_start().starts_with("```") {
            is_open = false;
            if is_table && !is_code {
                cells.extend(
                    line.split('|').map(|cell| Block { line: index + 1, text: plain(cell) }),
                );
            }
            continue;
        }
        append(&mut blocks, is_open && !BLOCK.is_match(line), index + 1, line);
        is_open = !line.starts_with('#');
    }
    (blocks, cells)
}

/// Comments, and literals of several words.
fn source(text: &str) -> Vec<Block> {
    let (mut blocks, mut is_open, mut is_code) = (Vec::new(), false, false);
    let mut literals = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some((_, comment)) =
            line.trim_start().split_once("//").filter(|(code, _)| code.is_empty())
        else {
            is_open = false;
            for literal in LITERAL.captures_iter(line) {
                literals.push(Block { line: index + 1, text: plain(&literal[1]) });
            }
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        if comment.starts_with("```") {
            is_code = !is_code;
        }
        if is_code || comment.is_empty() || comment.starts_with("```") || comment.starts_with('|') {
            is_open = false;
            continue;
        }
        append(&mut blocks, is_open && !BLOCK.is_match(comment), index + 1, comment);
        is_open = true;
    }
    blocks.extend(literals);
    blocks
}

fn append(blocks: &mut Vec<Block>, is_open: bool, line: usize, text: &str) {
    match blocks.last_mut().filter(|_| is_open) {
        Some(block) => {
            block.text.push(' ');
            block.text.push_str(text.trim());
        }
        None => blocks.push(Block { line, text: text.trim().to_owned() }),
    }
    // Code spans may break at the end of a line, so they are taken out of what was joined.
    if let Some(block) = blocks.last_mut().filter(|block| block.text.matches('`').count() % 2 == 0)
    {
        block.text = plain(&block.text);
    }
}

/// Without code and targets of links.
fn plain(text: &str) -> String {
    LINK.replace_all(&CODE.replace_all(text, "X"), "]").into_owned()
}

fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.split(". ").flat_map(|it| it.split("? ")).flat_map(|it| it.split(": "))
}

fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

/// What differs from the numbers that each file may have, and all numbers as they are now.
pub fn beyond(texts: &[Text], allowed: &str) -> (Vec<Finding>, String) {
    let mut allowed: BTreeMap<&str, usize> = allowed
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(path, count)| (path, count.parse().expect("a number")))
        .collect();
    let (mut findings, mut now) = (Vec::new(), String::new());
    for text in texts {
        let places = places(text);
        let may = allowed.remove(text.path.as_str()).unwrap_or_default();
        if !places.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(now, "{}\t{}", text.path, places.len());
        }
        if places.len() > may {
            let what = format!("{} places, {may} are allowed:", places.len());
            findings.push(text.finding(0, what));
            findings.extend(places);
        } else if places.len() < may {
            let what = format!(
                "only {} places of {may} are left: UPDATE_DOCS=1 cargo test --test tidy -- prose",
                places.len()
            );
            findings.push(text.finding(0, what));
        }
    }
    let gone = |path: &&str| Finding {
        path: (*path).to_owned(),
        line: 0,
        what: "is gone: UPDATE_DOCS=1 cargo test --test tidy -- prose".to_owned(),
    };
    findings.extend(allowed.keys().map(gone));
    (findings, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let text = Text { path: path.to_owned(), text: text.to_owned() };
        places(&text).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn constructions_are_found_in_prose_and_not_in_code() {
        assert_eq!(
            found("docs/a.md", "One row.\n\nIt goes on.\n"),
            ["docs/a.md:3: `goes on`: `continues`, `resumes`"]
        );
        assert!(
            found("docs/a.md", "```sh\nit goes on\n```\nRun `goes on` [there](goes on).\n")
                .is_empty()
        );
        assert_eq!(found("src/a.rs", "/// Meant for all the\n/// same use.\nfn a() {}\n").len(), 1);
        assert_eq!(found("src/a.rs", "let a = \"the relay goes on here\";\n").len(), 1);
        assert!(found("src/a.rs", "let goes = on; a(\"goes on\");\n").is_empty());
        assert!(found("docs/decisions/0001.md", "It goes on.\n").is_empty());
        assert!(found("docs/a.md", "This is of use, and there is no limit.\n").is_empty());
    }

    #[test]
    fn what_is_too_long_is_found() {
        let long = |count: usize| "word ".repeat(count);
        assert!(found("docs/a.md", &format!("{}.\n", long(SENTENCE))).is_empty());
        assert_eq!(found("docs/a.md", &format!("{}.\n", long(SENTENCE + 1))).len(), 1);
        assert_eq!(found("src/a.rs", &format!("// {}\n// {}\n", long(20), long(20))).len(), 1);
        assert_eq!(found("docs/a.md", &format!("| a | {} |\n", long(CELL + 1))).len(), 1);
        let sentence = format!("{}. ", long(10));
        assert_eq!(found("docs/a.md", &sentence.repeat(10)).len(), 1, "a paragraph");
        let page = format!("{}\n\n", sentence.repeat(5)).repeat(27);
        assert_eq!(found("docs/a.md", &page).len(), 1, "a page");
        assert!(found("docs/codes.md", &page).is_empty(), "a reference");
    }

    #[test]
    fn a_number_may_only_shrink() {
        let text = |text: &str| Text { path: "docs/a.md".to_owned(), text: text.to_owned() };
        let beyond = |it: &str, allowed: &str| beyond(&[text(it)], allowed);
        assert!(beyond("It goes on.", "docs/a.md\t1\n").0.is_empty());
        assert_eq!(beyond("It goes on.", "").0.len(), 2);
        assert_eq!(beyond("It ends.", "docs/a.md\t1\n"), (vec![text("").finding(0, "only 0 places of 1 are left: UPDATE_DOCS=1 cargo test --test tidy -- prose".to_owned())], String::new()));
        assert_eq!(beyond("It ends.", "docs/b.md\t1\n").0.len(), 1);
        assert_eq!(beyond("It goes on.", "").1, "docs/a.md\t1\n");
    }
}
