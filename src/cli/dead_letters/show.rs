//! `dead-letters show`: prints whole dead letters for people, as JSON, or the raw value of one.
//!
//! A `PARTITION:OFFSET` is read directly; for a row's id the whole topic is read. `--raw` is
//! refused for an id of several letters.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::error::DeadLettersError;
use super::layout::pretty;
use super::{Source, SourceArgs};
use crate::context::Context;
use crate::display_bytes::{DisplayBytes, hex, shown};
use crate::exit::ExitCode;
use crate::failure::CommandFailure;
use postrider_core::route::rfc3339;
use postrider_patterns::dead_letter::{DeadLetterError, Filter, StoredRecord, Target};

/// `dead-letters show PARTITION:OFFSET|ID [--raw]`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With PARTITION:OFFSET, reads one record. With an id, reads the whole topic and shows every dead
letter with this id.

Examples:
  postrider dead-letters show 0:17
  postrider dead-letters show 8f14e45f-ceea-467f-a8f1-2b9a5b9d1c11 --output json
  postrider dead-letters show 0:17 --raw > body")]
pub struct ShowArgs {
    /// Dead letter, by position or by id of its row
    #[arg(value_name = "PARTITION:OFFSET|ID")]
    pub target: String,

    /// Print only the bytes of the value
    #[arg(long)]
    pub raw: bool,

    #[command(flatten)]
    pub source: SourceArgs,
}

pub(super) fn run(args: &ShowArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let source = Source::of(&args.source, context)?;
    let records = match Target::parse(&args.target) {
        Target::At(at) => vec![source.topic.record(at)?],
        id @ Target::Id(_) => with_id(&source, id, context)?,
    };
    if args.raw {
        let value = match records.as_slice() {
            [record] => record.value.as_deref().unwrap_or_default(),
            several => {
                let places = several.iter().map(StoredRecord::at).collect();
                return Err(DeadLettersError::Several { id: args.target.clone(), places }.into());
            }
        };
        context.print_bytes(value)?;
        return Ok(ExitCode::Ok);
    }
    for (index, record) in records.iter().enumerate() {
        if context.json() {
            context.print_json(&to_json(record))?;
        } else {
            let gap = if index > 0 { "\n" } else { "" };
            context.print(&format!("{gap}{}", to_text(record)))?;
        }
    }
    Ok(ExitCode::Ok)
}

fn with_id(
    source: &Source,
    id: Target,
    context: &Context,
) -> Result<Vec<StoredRecord>, DeadLetterError> {
    let survey = source.survey(&Filter { targets: vec![id], ..Filter::default() }, context)?;
    survey.letters.iter().map(|letter| source.topic.record(letter.at)).collect()
}

fn to_json(record: &StoredRecord) -> Value {
    let header = |(name, value): &(String, _)| json!([name, DisplayBytes(Option::as_deref(value))]);
    json!({
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": DisplayBytes(record.key.as_deref()),
        "value": DisplayBytes(record.value.as_deref()),
        "headers": record.headers.iter().map(header).collect::<Vec<_>>(),
    })
}

fn to_text(record: &StoredRecord) -> String {
    let time = record.timestamp_ms.map_or_else(|| "-".to_owned(), rfc3339);
    let mut text = format!("{}[{}]@{}\n", record.topic, record.partition, record.offset);
    let _ = writeln!(text, "time     {time}");
    let _ = writeln!(text, "key      {}", shown(record.key.as_deref(), "(null)"));
    text.push_str("headers\n");
    for (name, value) in &record.headers {
        let name = shown(Some(name.as_bytes()), "");
        let _ = writeln!(text, "  {name}: {}", shown(value.as_deref(), "(null)"));
    }
    let Some(value) = &record.value else { return text + "value    (null)\n" };
    let body = match std::str::from_utf8(value) {
        Ok(body) => pretty(body),
        Err(_) => hex(value),
    };
    let _ = writeln!(text, "value    {} bytes\n{body}", value.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(value: Option<&[u8]>) -> StoredRecord {
        StoredRecord {
            topic: "dead".into(),
            partition: 0,
            offset: 17,
            timestamp_ms: Some(0),
            key: Some(b"k\x1b[2J".to_vec()),
            value: value.map(<[u8]>::to_vec),
            headers: vec![("id".into(), Some(b"7".to_vec())), ("none".into(), None)],
        }
    }

    const HEAD: &str = "dead[0]@17\ntime     1970-01-01T00:00:00.000Z\nkey      k\\u{1b}[2J\n\
                        headers\n  id: 7\n  none: (null)\n";

    #[test]
    fn all_of_it_is_shown() {
        let text = |value| to_text(&record(value));
        assert_eq!(text(None), format!("{HEAD}value    (null)\n"));
        assert_eq!(
            text(Some(b"{\"a\":1.50}")),
            format!("{HEAD}value    10 bytes\n{{\n  \"a\": 1.50\n}}\n")
        );
        assert_eq!(text(Some(b"\xff\x00")), format!("{HEAD}value    2 bytes\nff00\n"));
    }

    #[test]
    fn scripts_get_every_byte() {
        let json = to_json(&record(Some(b"\xff\x00")));
        assert_eq!(json["value"], json!({ "$hex": "ff00" }));
        assert_eq!(json["headers"], json!([["id", "7"], ["none", null]]));
        assert_eq!((&json["partition"], &json["offset"]), (&0.into(), &17.into()));
    }
}
