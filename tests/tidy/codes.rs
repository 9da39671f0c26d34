//! Every error code: one situation, one line in the document.
//!
//! Enters: the sources and docs/codes.md. Leaves: a [`Finding`] for each code that stands for several
//! situations, is compared with and never given, has no line, or has one and does not exist. A code is
//! given where it is written as a string in code that ships; a match arm of several patterns gives
//! it once for each.

use std::collections::BTreeMap;

use super::source::{Finding, Source, Token};
use super::tree::Text;

/// Where the codes are listed.
pub const DOCUMENT: &str = "docs/codes.md";

/// Codes that are given in several places for one situation: several rooms meet it.
const ONE_SITUATION: [(&str, &[&str]); 13] = [
    ("PR-C001", &["ConfigError::Unreadable", "read"]),
    ("PR-K001", &["ReaderError::Settings", "SinkError::Settings", "TopicsError::Settings", "from"]),
    ("PR-K005", &["ReaderError::UnknownTopic", "SinkError::UnknownTopic", "TailError::Reader"]),
    // Such a sink's error, and the session's with the records in question.
    ("PR-K007", &["RelayError::Refused", "SinkError::BatchRefused"]),
    // Before the login is done, the address is told too.
    ("PR-P002", &["WalError::LoginTimedOut", "WalError::TimedOut"]),
    (
        "PR-P009",
        &["Class::Held", "ControlError::SlotHeld", "RelayError::SlotHeld", "WalError::SlotHeld"],
    ),
    ("PR-P010", &["ControlError::PublicationMissing", "WalError::PublicationMissing"]),
    ("PR-P048", &["ControlError::PublicationReplaced", "GateError::PublicationReplaced"]),
    ("PR-P049", &["ControlError::TableReplaced", "GateError::TableReplaced"]),
    // The server is a copy: its log ends too early, or has something else at the place.
    ("PR-P061", &["GateError::OtherLog", "GateError::Restored", "PipelineError::OtherLog"]),
    ("PR-P067", &["ControlError::MemberReplaced", "GateError::MemberReplaced"]),
    ("PR-R001", &["PipelineError::Decode", "WalError::Malformed"]),
    ("PR-X001", &["TailError::Output", "broken"]),
];

/// A place of the code where a code is written.
#[derive(Debug)]
struct Place {
    code: String,
    /// The pattern of the match arm, or else the function.
    name: String,
    path: String,
    line: usize,
    /// It is compared with, and given elsewhere.
    is_question: bool,
}

impl Place {
    fn finding(&self, what: String) -> Finding {
        Finding { path: self.path.clone(), line: self.line, what }
    }
}

pub fn one_situation_each(sources: &[Source]) -> Vec<Finding> {
    judge(&given(sources), &ONE_SITUATION)
}

fn judge(places: &[Place], one_situation: &[(&str, &[&str])]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let by_code = by_code(places);
    for (code, places) in &by_code {
        let mut names: Vec<&str> = places.iter().map(|place| place.name.as_str()).collect();
        names.sort_unstable();
        let shared = one_situation.iter().find(|(shared, _)| shared == code);
        if shared.map_or(names.len() > 1, |(_, expected)| names != *expected) {
            let what = format!(
                "{code} is given for {names:?}: a code of its own for each situation; where all are \
                 one, ONE_SITUATION says so"
            );
            findings.extend(places.iter().map(|place| place.finding(what.clone())));
        }
    }
    let questions = places.iter().filter(|place| place.is_question);
    let in_vain = questions.filter(|place| !by_code.contains_key(place.code.as_str()));
    findings.extend(in_vain.map(|it| it.finding(format!("{} is given nowhere", it.code))));
    let known = |code: &&str| by_code.contains_key(code);
    let stale = one_situation.iter().map(|(code, _)| *code).filter(|code| !known(code));
    findings.extend(stale.map(|code| Finding {
        path: "tests/tidy/codes.rs".to_owned(),
        line: 0,
        what: format!("ONE_SITUATION has {code}, which is given nowhere"),
    }));
    findings
}

/// One line for each code, and no code in any document that does not exist. The changelog may name
/// what is gone.
pub fn documented(sources: &[Source], documents: &[Text]) -> Vec<Finding> {
    let places = given(sources);
    let by_code = by_code(&places);
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    let mut findings = Vec::new();
    for document in documents.iter().filter(|document| document.path != "CHANGELOG.md") {
        for (index, line) in document.text.lines().enumerate() {
            let unknown = codes_in(line).filter(|code| !by_code.contains_key(code));
            findings.extend(
                unknown.map(|code| document.finding(index + 1, format!("there is no {code}"))),
            );
            let head = line.strip_prefix("| ").and_then(|line| codes_in(line).next());
            if let Some(code) = head.filter(|code| line[2..].starts_with(code))
                && document.path == DOCUMENT
            {
                *lines.entry(code).or_default() += 1;
            }
        }
    }
    for (code, places) in &by_code {
        let count = lines.get(code).copied().unwrap_or(0);
        if count != 1 {
            let what = format!("{code} has {count} lines in {DOCUMENT}");
            findings.extend(places.first().map(|place| place.finding(what)));
        }
    }
    findings
}

fn by_code(places: &[Place]) -> BTreeMap<&str, Vec<&Place>> {
    let mut by_code: BTreeMap<&str, Vec<&Place>> = BTreeMap::new();
    for place in places.iter().filter(|place| !place.is_question) {
        by_code.entry(&place.code).or_default().push(place);
    }
    by_code
}

/// `PR-`, a letter, three digits.
fn codes_in(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("PR-").filter_map(|(at, _)| text.get(at..at + 7)).filter(|it| is_code(it))
}

fn is_code(text: &str) -> bool {
    let rest = text.strip_prefix("PR-").unwrap_or_default().as_bytes();
    rest.len() == 4 && rest[0].is_ascii_uppercase() && rest[1..].iter().all(u8::is_ascii_digit)
}

fn given(sources: &[Source]) -> Vec<Place> {
    let ours = sources
        .iter()
        .filter(|source| source.path.starts_with("src/") && source.text.contains("\"PR-"));
    ours.flat_map(places).collect()
}

fn places(source: &Source) -> Vec<Place> {
    let readable = with_words(&source.text);
    let shadow = Source::new(&source.path, &readable);
    let codes = shadow.tokens.iter().enumerate().filter_map(|(at, token)| {
        let code = token.text.strip_prefix("PR_").map(|number| format!("PR-{number}"))?;
        (is_code(&code) && !source.is_test(token.line)).then_some((at, code))
    });
    let mut places = Vec::new();
    for (at, code) in codes {
        let line = shadow.tokens[at].line;
        let is_question = at > 1 && shadow.tokens[at - 2].text == "is";
        let within = |f: &&super::source::Function| (f.first_line..=f.last_line).contains(&line);
        let function = shadow.functions.iter().rfind(within);
        let first_line = function.map_or(0, |function| function.first_line);
        let name = || function.map_or("", |function| function.name.as_str()).to_owned();
        let names = patterns(&shadow.tokens, at, first_line).unwrap_or_else(|| Vec::from([name()]));
        places.extend(names.into_iter().map(|name| Place {
            code: code.clone(),
            name,
            path: source.path.clone(),
            line,
            is_question,
        }));
    }
    places
}

/// Codes in quotation marks as words, so that they are still seen where strings are blanked out.
fn with_words(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\"PR-") {
        let quoted = rest.get(at + 1..at + 8).filter(|code| is_code(code));
        let Some(code) = quoted.filter(|_| rest[at + 8..].starts_with('"')) else {
            out.push_str(&rest[..=at]);
            rest = &rest[at + 1..];
            continue;
        };
        out.push_str(&rest[..at]);
        out.push_str(&code.replace('-', "_"));
        rest = &rest[at + 9..];
    }
    out + rest
}

/// The patterns of the match arm that the token is in, if it is in one of this function's.
fn patterns(tokens: &[Token], at: usize, first_line: usize) -> Option<Vec<String>> {
    let mut arrow = at;
    let mut lowest = tokens[at].depth;
    loop {
        arrow = arrow.checked_sub(1).filter(|&index| tokens[index].line >= first_line)?;
        if tokens[arrow].text == "=>" && tokens[arrow].depth <= lowest {
            break;
        }
        lowest = lowest.min(tokens[arrow].depth);
    }
    let begin = beginning(tokens, arrow);
    let mut patterns: Vec<String> = Vec::from([String::new()]);
    let mut nested = 0_usize;
    for token in &tokens[begin..arrow] {
        match token.text.as_str() {
            "(" | "{" | "[" => nested += 1,
            ")" | "}" | "]" => nested = nested.saturating_sub(1),
            "|" if nested == 0 => patterns.push(String::new()),
            "if" if nested == 0 => break,
            "@" if nested == 0 => patterns.last_mut()?.clear(),
            text if nested == 0 => patterns.last_mut()?.push_str(text),
            _ => {}
        }
    }
    Some(patterns)
}

/// Where the pattern before an arrow begins.
fn beginning(tokens: &[Token], arrow: usize) -> usize {
    let mut nested = 0_usize;
    let mut at = arrow;
    while at > 0 {
        let token = &tokens[at - 1];
        match token.text.as_str() {
            // The block of the arm before, unless it belongs to the pattern.
            "}" if nested == 0 && !["=>", "|", "if"].contains(&tokens[at].text.as_str()) => break,
            ")" | "}" | "]" => nested += 1,
            "(" | "{" | "[" | "," | ";" if nested == 0 => break,
            "(" | "{" | "[" => nested -= 1,
            _ => {}
        }
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str, one_situation: &[(&str, &[&str])]) -> Vec<String> {
        let places = given(&[Source::new("src/cli/codes.rs", code)]);
        judge(&places, one_situation).into_iter().map(|finding| finding.what).collect()
    }

    const GOOD: &str = r#"
        // "PR-P009" in a comment is nothing.
        fn wal(error: &E) -> &'static str {
            match error {
                E::Held { .. } => "PR-P001",
                E::Other(_) => { return "PR-P002"; }
                E::Server(_) => match error.class() {
                    Class::A => "PR-P003",
                },
            }
        }
        fn make() -> F { if old.is("PR-P001") {} F::new(Exit::Usage, "PR-X001", "PR-X002 ") }
    "#;

    #[test]
    fn a_code_of_two_situations_is_reported() {
        assert_eq!(found(GOOD, &[]), Vec::<String>::new());
        let planted = [
            ("E::Held { .. }", "E::Held { .. } | E::Gone"),
            ("PR-P002", "PR-P001"),
            ("PR-P003", "PR-P001"),
            ("PR-X001", "PR-P001"),
        ];
        for (right, wrong) in planted {
            let found = found(&GOOD.replacen(right, wrong, 1), &[]);
            assert!(!found.is_empty() && found[0].starts_with("PR-P001"), "{wrong}: {found:?}");
        }
    }

    #[test]
    fn what_is_one_situation_is_named_place_by_place() {
        let code = GOOD.replace("PR-P003", "PR-P001");
        let places = ["Class::A", "E::Held"];
        assert_eq!(found(&code, &[("PR-P001", &places)]), Vec::<String>::new());
        assert!(!found(&code, &[("PR-P001", &places[..1])]).is_empty());
        assert!(!found(GOOD, &[("PR-P001", &places)]).is_empty(), "one of them is gone");
        assert!(!found(GOOD, &[("PR-P055", &["E::Held"])]).is_empty(), "it is given nowhere");
    }

    #[test]
    fn a_question_for_a_code_that_is_not_given_is_reported() {
        assert_eq!(found(&GOOD.replace("is(\"PR-P001", "is(\"PR-P007"), &[]).len(), 1);
    }

    #[test]
    fn codes_without_a_line_and_lines_without_a_code_are_reported() {
        let sources = [Source::new("src/cli/codes.rs", GOOD)];
        let found = |path: &str, text: &str| {
            let document = Text { path: path.to_owned(), text: text.to_owned() };
            documented(&sources, &[document]).len()
        };
        let all = ["PR-P001", "PR-P002", "PR-P003", "PR-X001"]
            .map(|code| format!("| {code} | what it is |\n"))
            .concat();
        assert_eq!(found(DOCUMENT, &all), 0);
        assert_eq!(found(DOCUMENT, &all.replace("| PR-P003", "| see PR-P003")), 1);
        assert_eq!(found(DOCUMENT, &format!("{all}| PR-P001 | again |")), 1);
        assert_eq!(found(DOCUMENT, &format!("{all}as PR-P004 was")), 1);
        assert_eq!(found("docs/else.md", "as PR-P004 was"), 1 + 4);
        assert_eq!(found("CHANGELOG.md", "PR-P004 is gone"), 4);
    }
}
