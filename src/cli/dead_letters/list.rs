//! `dead-letters list`: prints one line per dead letter, and a summary by code on stderr. Values
//! are never printed.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use serde_json::json;

use super::{FilterArgs, Source, SourceArgs};
use crate::context::{Context, json_line};
use crate::display_bytes::{DisplayBytes, shown};
use crate::exit::ExitCode;
use crate::failure::CommandFailure;
use crate::marks::columns;
use postrider_core::route::rfc3339;
use postrider_patterns::dead_letter::{DeadLetter, PartitionOffset};

/// Maximum width of a column: a UUID fits.
const COLUMN_CHARS_MAX: usize = 40;

const COLUMNS: usize = 9;

const NAMES: [&str; COLUMNS] =
    ["PLACE", "TIME", "CODE", "TABLE", "TOPIC", "ID", "KEY", "SIZE", "REASON"];

/// Columns on the first line of a narrow terminal.
const LEADING: usize = 5;

/// Minimum width of a reason that can be understood.
const REASON_CHARS_MIN: usize = 40;

const CHUNK: usize = 1_000;

/// `dead-letters list [filters]`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns: partition:offset, time, code, table, intended topic, id, key, size of the value,
reason. On a narrow terminal, each letter takes two lines.

Examples:
  postrider dead-letters list
  postrider dead-letters list --code invalid_topic --since 24h
  postrider dead-letters list --output json | jq -r .topic | sort | uniq -c")]
pub struct ListArgs {
    /// Which dead letters.
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Where from.
    #[command(flatten)]
    pub source: SourceArgs,
}

pub(super) fn run(args: &ListArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let source = Source::of(&args.source, context)?;
    let survey = source.survey(&args.filter.filter(Vec::new()), context)?;
    let (mut letters, mut hidden) = (survey.letters, 0);
    if !args.filter.all {
        let found = letters.len();
        letters.retain(|letter| !letter.is_retried);
        hidden = found - letters.len();
    }
    let matching = letters.len();
    letters.truncate(args.filter.most());
    if context.json() {
        for chunk in letters.chunks(CHUNK) {
            context.print(&json_lines(chunk)?)?;
        }
    } else {
        let width = columns(io::stdout());
        for chunk in letters.chunks(CHUNK) {
            context.print(&text_lines(chunk, width))?;
        }
    }
    let totals = Totals { by_code: by_code(&letters), matching, hidden, foreign: survey.foreign };
    let summary = if context.json() { totals.to_json() } else { totals.to_text() };
    let _ = io::stderr().write_all((summary + "\n").as_bytes());
    Ok(ExitCode::Ok)
}

fn json_lines(letters: &[DeadLetter]) -> Result<String, CommandFailure> {
    let mut lines = String::new();
    for letter in letters {
        let PartitionOffset { partition, offset } = letter.at;
        let source = letter.source().cloned().unwrap_or_default();
        let line = json!({
            "partition": partition,
            "offset": offset,
            "timestamp": letter.timestamp_ms,
            "code": letter.code,
            "reason": letter.reason,
            "table": letter.table(),
            "lsn": letter.lsn(),
            "system": source.system,
            "database": source.database,
            "slot": source.slot,
            "stream": source.stream,
            "topic": letter.topic,
            "id": DisplayBytes(letter.id()),
            "key": DisplayBytes(letter.key.as_deref()),
            "size": letter.value_bytes,
            "retried": letter.is_retried,
        });
        lines.push_str(&json_line(&line)?);
    }
    Ok(lines)
}

/// If `width` is too narrow, id and reason are on a second line.
fn text_lines(letters: &[DeadLetter], width: Option<usize>) -> String {
    let mut rows = vec![NAMES.map(str::to_owned)];
    rows.extend(letters.iter().map(cells));
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let width = width.unwrap_or(usize::MAX);
    let [.., reason] = widths;
    let needed = widths.iter().sum::<usize>() + 2 * (COLUMNS - 1);
    // A long reason alone is cut; `show` prints it whole.
    let is_narrow = needed - reason + REASON_CHARS_MIN.min(reason) > width;
    let mut lines = String::new();
    for row in rows {
        let padded = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let mut cells = padded.collect::<Vec<_>>();
        let below = is_narrow.then(|| cells.split_off(LEADING));
        push(&mut lines, &cells, width);
        if let Some(below) = below {
            push(&mut lines, &[vec![String::new()], below].concat(), width);
        }
    }
    lines
}

fn push(lines: &mut String, cells: &[String], width: usize) {
    lines.push_str(&cut(cells.join("  ").trim_end(), width));
    lines.push('\n');
}

fn cells(letter: &DeadLetter) -> [String; COLUMNS] {
    let text = |text: &str| cut(&shown(Some(text.as_bytes()), ""), COLUMN_CHARS_MAX);
    let bytes = |bytes: Option<&[u8]>| cut(&shown(bytes, "-"), COLUMN_CHARS_MAX);
    let mark = if letter.is_retried { "(retried) " } else { "" };
    [
        letter.at.to_string(),
        letter.timestamp_ms.map_or_else(|| "-".to_owned(), rfc3339),
        text(&letter.code),
        letter.table().map_or_else(|| "-".to_owned(), text),
        letter.topic.as_deref().map_or_else(|| "-".to_owned(), text),
        bytes(letter.id()),
        bytes(letter.key.as_deref()),
        letter.value_bytes.map_or_else(|| "null".to_owned(), |size| format!("{size} B")),
        format!("{mark}{}", shown(Some(letter.reason.as_bytes()), "")),
    ]
}

/// At most `most` characters; a cut text ends with an ellipsis.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

fn by_code(letters: &[DeadLetter]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for letter in letters {
        *counts.entry(letter.code.as_str()).or_default() += 1;
    }
    counts
}

struct Totals<'a> {
    by_code: BTreeMap<&'a str, usize>,
    /// Letters that match, before the limit.
    matching: usize,
    /// Letters that are not listed because they were retried.
    hidden: usize,
    foreign: usize,
}

impl Totals<'_> {
    fn listed(&self) -> usize {
        self.by_code.values().sum()
    }

    fn to_text(&self) -> String {
        let listed = self.listed();
        let counts = self.by_code.iter().map(|(code, count)| format!("{code} {count}"));
        let mut text = match (listed, self.matching) {
            (0, _) => "no dead letters".to_owned(),
            (1, 1) => "1 dead letter".to_owned(),
            (listed, matching) if listed < matching => {
                format!("the first {listed} of {matching} dead letters")
            }
            (listed, _) => format!("{listed} dead letters"),
        };
        if listed > 0 {
            text = format!("{text}: {}", counts.collect::<Vec<_>>().join(", "));
        }
        if self.hidden > 0 {
            text = format!("{text}; {} retried already (--all lists them)", self.hidden);
        }
        if self.foreign > 0 {
            text = format!("{text}; {} other records in the topic", self.foreign);
        }
        text
    }

    fn to_json(&self) -> String {
        json!({
            "listed": self.listed(),
            "by_code": self.by_code,
            "matching": self.matching,
            "retried_already": self.hidden,
            "other_records": self.foreign,
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(code: &str, reason: &str) -> DeadLetter {
        DeadLetter {
            topic: Some("bad\x1b[2Jtopic".into()),
            timestamp_ms: Some(1_700_000_000_123),
            ..DeadLetter::rejected(17, code, reason)
        }
    }

    #[test]
    fn a_line_tells_all_but_the_value_and_drives_no_terminal() {
        assert_eq!(
            text_lines(&[letter("no_route", "why")], None),
            "PLACE  TIME                      CODE      TABLE          TOPIC              ID  KEY  SIZE  REASON\n\
             0:17   2023-11-14T22:13:20.123Z  no_route  public.outbox  bad\\u{1b}[2Jtopic  7   -    3 B   why\n"
        );
        let json = json_lines(&[letter("no_route", "why")]).unwrap();
        let line: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(line["topic"], "bad\x1b[2Jtopic");
        assert_eq!((&line["id"], &line["key"]), (&json!("7"), &json!(null)));
        assert_eq!((&line["size"], &line["retried"]), (&json!(3), &json!(false)));
        assert_eq!(json.matches('\n').count(), 1);
    }

    #[test]
    fn lines_are_aligned_and_cut_to_the_terminal() {
        let retried = DeadLetter { is_retried: true, ..letter("too_large", &"x".repeat(99)) };
        let lines = text_lines(&[letter("no_route", "why"), retried], Some(150));
        let columns: Vec<_> = lines.lines().map(|line| line.find("public.outbox")).collect();
        assert_eq!(columns[1], columns[2]);
        let last = lines.lines().last().unwrap();
        assert_eq!(last.chars().count(), 150);
        assert!(last.contains("(retried) xxx") && last.ends_with('…'), "{last}");
    }

    #[test]
    fn a_narrow_terminal_shows_id_and_reason_below() {
        let id = "0198c1a2-7e4b-7000-8000-000000000001";
        let headers = vec![("id".into(), Some(id.into()))];
        let one = DeadLetter { headers, ..letter("invalid_topic", "the name has a space") };
        let lines = text_lines(&[one], Some(80));
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[2].starts_with("0:17") && lines[2].contains("invalid_topic"), "{lines:?}");
        assert!(lines[3].contains(id) && lines[3].contains("the name has"), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
    }

    #[test]
    fn the_summary_counts_by_code() {
        let letters = [letter("no_route", ""), letter("too_large", ""), letter("no_route", "")];
        let totals = Totals { by_code: by_code(&letters), matching: 3, hidden: 2, foreign: 1 };
        assert_eq!(
            totals.to_text(),
            "3 dead letters: no_route 2, too_large 1; 2 retried already (--all lists them); 1 other \
             records in the topic"
        );
        let first = Totals { matching: 9, hidden: 0, foreign: 0, ..totals };
        assert!(first.to_text().starts_with("the first 3 of 9 dead letters: "));
        let none = Totals { by_code: BTreeMap::new(), matching: 0, hidden: 0, foreign: 0 };
        assert_eq!(none.to_text(), "no dead letters");
    }
}
