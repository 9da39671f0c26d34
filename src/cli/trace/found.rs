//! The state of one id in a word, as text and as JSON. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::records::{Found, Letter, Place, Record, Records};
use crate::display_bytes::shown;
use postrider_core::route::rfc3339;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// Id as Postgres prints it.
    pub(super) id: String,
    pub(super) table: String,
    pub(super) written_ms: Option<i64>,
    /// Whether the slot has passed the row's transaction.
    pub(super) is_passed: bool,
    /// Topic by today's routing.
    pub(super) topic: Option<String>,
    pub(super) rejection: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Delivered,
    DeadLetter,
    SentAgain,
    Pending,
    Lost,
    Dropped,
    Missing,
    Unknown,
}

impl State {
    pub(super) const fn is_lost(self) -> bool {
        matches!(self, Self::Lost | Self::Missing | Self::Unknown)
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::DeadLetter => "dead_letter",
            Self::SentAgain => "sent_again",
            Self::Pending => "pending",
            Self::Lost => "lost",
            Self::Dropped => "dropped",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trace {
    id: String,
    /// Several rows, if tables share ids.
    rows: Vec<Row>,
    records: Records,
    slot: Slot,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Slot {
    /// Rows are polled.
    None,
    Alive(String),
    /// Name and fate of a slot that delivers nothing.
    Gone(String, &'static str),
}

impl Trace {
    /// Traces in the order of the request, without repeats.
    pub(super) fn all(
        ids: &[String],
        rows: &BTreeMap<String, Vec<Row>>,
        records: &Found,
        slot: &Slot,
    ) -> Vec<Self> {
        let trace = |id: &String| Self {
            id: id.clone(),
            rows: rows.get(id).cloned().unwrap_or_default(),
            records: records.get(id).cloned().unwrap_or_default(),
            slot: slot.clone(),
        };
        ids.iter().map(trace).collect()
    }

    pub(super) fn state(&self) -> State {
        if !self.records.delivered.is_empty() {
            return State::Delivered;
        }
        if let Some(letter) = self.records.letters.last() {
            return if letter.is_retried { State::SentAgain } else { State::DeadLetter };
        }
        if self.rows.is_empty() {
            return State::Unknown;
        }
        if self.rows.iter().any(|row| !row.is_passed) {
            let is_gone = matches!(self.slot, Slot::Gone(..));
            return if is_gone { State::Lost } else { State::Pending };
        }
        let is_dropped = |row: &Row| row.topic.is_none() && row.rejection.is_none();
        if self.rows.iter().all(is_dropped) { State::Dropped } else { State::Missing }
    }

    pub(super) fn to_json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "table": row.table,
                "written": row.written_ms.map(rfc3339),
                "passed": row.is_passed,
                "topic": row.topic,
                "rejection": row.rejection,
            })
        };
        let record = |record: &Record| {
            let Place { topic, partition, offset, timestamp_ms } = &record.place;
            json!({
                "topic": topic, "partition": partition, "offset": offset,
                "timestamp": timestamp_ms, "position": record.position, "origin": record.origin,
            })
        };
        let letter = |letter: &Letter| {
            let Place { topic, partition, offset, timestamp_ms } = &letter.place;
            json!({
                "topic": topic, "partition": partition, "offset": offset,
                "timestamp": timestamp_ms, "code": letter.code, "reason": letter.reason,
                "retried": letter.is_retried,
            })
        };
        json!({
            "what": "trace",
            "id": self.id,
            "state": self.state().word(),
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "records": self.records.delivered.iter().map(record).collect::<Vec<_>>(),
            "dead_letters": self.records.letters.iter().map(letter).collect::<Vec<_>>(),
        })
    }

    pub(super) fn to_text(&self) -> String {
        let mut out = format!("{}  {}\n", text(&self.id), self.state().word());
        for row in &self.rows {
            let written = row.written_ms.map(|ms| format!(", written {}", rfc3339(ms)));
            let _ =
                writeln!(out, "  row          {}{}", text(&row.table), written.unwrap_or_default());
            let _ = match &self.slot {
                Slot::None => Ok(()),
                Slot::Alive(slot) if row.is_passed => {
                    writeln!(out, "  slot         `{slot}` has passed it")
                }
                Slot::Alive(slot) => {
                    writeln!(out, "  slot         `{slot}` is not known to have passed it yet")
                }
                Slot::Gone(slot, how) => {
                    writeln!(out, "  slot         `{slot}` {how}: postrider repair")
                }
            };
            if let Some(rejection) = &row.rejection {
                let _ = writeln!(out, "  route        rejected today: {}", text(rejection));
            } else if let Some(topic) = &row.topic {
                let _ = writeln!(out, "  route        topic `{}` today", text(topic));
            } else {
                let _ = writeln!(out, "  route        a rule leaves it out today");
            }
        }
        for record in &self.records.delivered {
            let _ = write!(out, "  record       {}", told(&record.place));
            if let Some(position) = &record.position {
                let _ = write!(out, ", postrider-lsn {}", text(position));
            }
            if let Some(origin) = &record.origin {
                let _ = write!(out, ", sent by {}", text(origin));
            }
            out.push('\n');
        }
        for letter in &self.records.letters {
            let Letter { place, code, reason, meant_for, is_retried } = letter;
            let _ = write!(out, "  dead letter  {}: {}, {}", told(place), text(code), text(reason));
            if *is_retried {
                out.push_str("; sent again");
            }
            if let Some(topic) = meant_for {
                let _ = write!(out, " (topic `{}`)", text(topic));
            }
            out.push('\n');
        }
        out
    }
}

/// Text without control characters for the terminal.
fn text(written: &str) -> String {
    shown(Some(written.as_bytes()), "")
}

fn told(place: &Place) -> String {
    let Place { topic, partition, offset, timestamp_ms } = place;
    let time = timestamp_ms.map(|ms| format!(" of {}", rfc3339(ms))).unwrap_or_default();
    format!("{topic}[{partition}]@{offset}{time}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(is_passed: bool, topic: Option<&str>) -> Row {
        Row {
            id: "7".to_owned(),
            table: "public.outbox".to_owned(),
            written_ms: Some(1_000),
            is_passed,
            topic: topic.map(str::to_owned),
            rejection: None,
        }
    }

    fn place(topic: &str) -> Place {
        Place { topic: topic.to_owned(), partition: 1, offset: 5, timestamp_ms: Some(2_000) }
    }

    fn trace(rows: Vec<Row>, records: Records) -> Trace {
        Trace { id: "7".to_owned(), rows, records, slot: Slot::Alive("s".to_owned()) }
    }

    fn record() -> Record {
        Record { place: place("a"), position: Some("0A.1".to_owned()), origin: None }
    }

    fn letter() -> Letter {
        Letter {
            place: place("dead"),
            code: "no_route".to_owned(),
            reason: "why".to_owned(),
            meant_for: Some("a".to_owned()),
            is_retried: false,
        }
    }

    #[test]
    fn each_state_has_its_word() {
        let none = Records::default;
        let letters = || Records { letters: vec![letter()], ..none() };
        let both = Records { delivered: vec![record()], ..letters() };
        let again = Letter { is_retried: true, ..letter() };
        let sent_again = Records { letters: vec![letter(), again], ..none() };
        let slot = Slot::Gone("s".to_owned(), "is lost");
        let lost = Trace { slot, ..trace(vec![row(false, Some("a"))], none()) };
        let states = [
            (lost, State::Lost),
            (trace(vec![row(true, Some("a"))], sent_again), State::SentAgain),
            (trace(vec![row(true, Some("a"))], both), State::Delivered),
            (trace(vec![row(true, Some("a"))], letters()), State::DeadLetter),
            (trace(vec![row(false, Some("a"))], none()), State::Pending),
            (trace(vec![row(true, None)], none()), State::Dropped),
            (trace(vec![row(true, Some("a"))], none()), State::Missing),
            (trace(vec![], none()), State::Unknown),
        ];
        for (trace, state) in states {
            assert_eq!(trace.state(), state);
            assert_eq!(trace.to_json()["state"], state.word());
        }
    }

    #[test]
    fn an_id_that_is_asked_for_twice_is_found_twice() {
        let ids = ["7".to_owned(), "7".to_owned()];
        let found =
            Found::from([("7".to_owned(), Records { delivered: vec![record()], letters: vec![] })]);
        let traces = Trace::all(&ids, &BTreeMap::new(), &found, &Slot::None);
        assert!(traces.iter().all(|trace| trace.state() == State::Delivered), "{traces:?}");
    }

    #[test]
    fn what_a_row_says_does_not_reach_the_terminal_as_it_is() {
        const TITLE: &str = "\u{1b}]0;x\u{7}\nforged";
        let meant_for = Some(TITLE.to_owned());
        let letter =
            Letter { code: TITLE.to_owned(), reason: TITLE.to_owned(), meant_for, ..letter() };
        let some = || Some(TITLE.to_owned());
        let record = Record { position: some(), origin: some(), ..record() };
        let mut row = row(true, Some(TITLE));
        let records = Records { delivered: vec![record], letters: vec![letter] };
        let routed = trace(vec![row.clone()], records.clone()).to_text();
        row.rejection = some();
        row.table = TITLE.to_owned();
        let rejected = trace(vec![row], records).to_text();
        for text in [routed, rejected] {
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
            assert!(text.lines().all(|line| !line.starts_with("forged")), "{text}");
        }
    }

    #[test]
    fn people_read_where_it_is() {
        let records = Records { delivered: vec![record()], letters: vec![letter()] };
        let text = trace(vec![row(true, Some("a"))], records).to_text();
        assert_eq!(
            text,
            "7  delivered\n  row          public.outbox, written 1970-01-01T00:00:01.000Z\n  \
             slot         `s` has passed it\n  route        topic `a` today\n  \
             record       a[1]@5 of 1970-01-01T00:00:02.000Z, postrider-lsn 0A.1\n  \
             dead letter  dead[1]@5 of 1970-01-01T00:00:02.000Z: no_route, why (topic `a`)\n"
        );
    }
}
