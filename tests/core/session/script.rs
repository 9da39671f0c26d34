//! The commands of a scenario.
//!
//! | command | does |
//! |---|---|
//! | `pipeline [rejected=..] [on_update=..] [records=N] [bytes=N] [transactions=N]` | a new session |
//! | `relation [columns=a,b] [table=..] [oid=N]` | describes a table; an outbox unless told otherwise |
//! | `begin X/X` · `commit X/X X/X` · `keepalive X/X` | commit_lsn; commit_lsn and end_lsn; sent position |
//! | `insert [oid=N] a=.. b=..` | a row; absent columns are NULL |
//! | `update` · `delete` · `truncate` · `message` · `frame HEX` | what an outbox should not send |
//! | `sink [full or REASON]..` | the sink has no room for the next record, or refuses it; else it takes it |
//! | `again` | the last frame is handed in again, as after `full` |
//! | `stored N` · `refused N REASON` | the brokers' answer to the N-th record sent |
//! | `books` · `counters` | what the pipeline says of itself |

use std::collections::VecDeque;
use std::fmt::Write as _;

use postrider::ledger::{Budget, Ticket};
use postrider::lsn::Lsn;
use postrider::outbox::{Outbox, OutboxSpec, TableName};
use postrider::pgoutput::encode::{self, Old, Table};
use postrider::pgoutput::{Begin, Column, Commit, LogicalMessage, PgTime};
use postrider::pipeline::{
    Answer, Confirmation, Counters, Handled, Outcome, Pipeline, PipelineError, Policy, Refused,
    RejectPolicy, UpdatePolicy,
};
use postrider::route::{OwnedRecord, Rejection, RejectionCode, RouteSpec, Router};
use postrider::sink::SendError;

use crate::session::server::Sent;

const COLUMNS: &str = "id,aggregate_type,aggregate_id,event_type,payload";
const TEXT: u32 = 25;
const OUTBOX: u32 = 1;

/// A session under test. Commit times are the commit LSN in microseconds, so that they are seen.
pub(crate) struct Script {
    pipeline: Pipeline,
    columns: Vec<String>,
    frame: Sent,
    /// What the sink answers to the next records.
    answers: VecDeque<String>,
    /// The record for which there was no room.
    unsent: Option<Ticket>,
    /// Records the sink took, numbered from 1.
    sent: Vec<(Ticket, OwnedRecord)>,
}

/// A command's arguments, `name=value` or bare.
struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    fn named(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    fn number(&self, name: &str, otherwise: u64) -> u64 {
        self.named(name).map_or(otherwise, |text| text.parse().unwrap())
    }

    fn lsn(&self, index: usize) -> Lsn {
        self.0[index].parse().unwrap()
    }
}

impl Default for Script {
    fn default() -> Self {
        Self {
            pipeline: pipeline(&Words(Vec::new())),
            columns: COLUMNS.split(',').map(str::to_owned).collect(),
            frame: Sent::Keepalive(0),
            answers: VecDeque::new(),
            unsent: None,
            sent: Vec::new(),
        }
    }
}

fn pipeline(words: &Words<'_>) -> Pipeline {
    let rejected = match words.named("rejected") {
        Some("stop") => RejectPolicy::Stop,
        Some("skip") => RejectPolicy::Skip,
        _ => RejectPolicy::DeadLetter { topic: "dead".to_owned() },
    };
    let on_update = match words.named("on_update") {
        Some("stop") => UpdatePolicy::Stop,
        Some("warn") => UpdatePolicy::Warn,
        _ => UpdatePolicy::Ignore,
    };
    let budget = Budget {
        records: words.number("records", 100),
        bytes: words.number("bytes", 10_000),
        transactions: usize::try_from(words.number("transactions", 100)).unwrap(),
    };
    let mut spec = OutboxSpec::new(vec![TableName::new("public", "outbox")]);
    let route = RouteSpec { by: "aggregate_type".to_owned(), ..RouteSpec::default() };
    let router = Router::compile(&route, &mut spec).unwrap();
    Pipeline::new(Outbox::new(spec), router, Policy { rejected, on_update }, budget)
}

impl Script {
    /// Runs one line and tells what came of it, if anything did.
    pub(crate) fn run(&mut self, line: &str) -> Option<String> {
        Some(self.answer(line)).filter(|answer| !answer.is_empty())
    }

    fn answer(&mut self, line: &str) -> String {
        let mut words = line.split(' ');
        let command = words.next().unwrap_or_default();
        let words = Words(words.collect());
        match command {
            "pipeline" => {
                *self = Self { pipeline: pipeline(&words), ..Self::default() };
                String::new()
            }
            "keepalive" => self.hand_in(Sent::Keepalive(words.lsn(0).get())),
            "again" => self.hand_in(self.frame.clone()),
            "sink" => {
                self.answers = words.0.iter().map(|word| (*word).to_owned()).collect();
                String::new()
            }
            "stored" => self.confirm(&words, |_| Outcome::Stored),
            "refused" => self.confirm(&words, |record| {
                let rejection = refusal(words.0[1]);
                Outcome::Refused(Box::new(Refused { record, rejection }))
            }),
            "books" => self.books(),
            "counters" => counted(self.pipeline.counters()),
            _ => {
                let mut data = Vec::new();
                self.write(&mut data, command, &words);
                self.hand_in(Sent::Wal(data))
            }
        }
    }

    fn write(&mut self, out: &mut Vec<u8>, command: &str, words: &Words<'_>) {
        let row = [Column::Text(b"x")];
        let time = |lsn: Lsn| PgTime(i64::try_from(lsn.get()).unwrap());
        match command {
            "begin" => {
                let (final_lsn, commit_time) = (words.lsn(0), time(words.lsn(0)));
                encode::begin(out, &Begin { final_lsn, commit_time, xid: 7 });
            }
            "commit" => {
                let (commit_lsn, end_lsn) = (words.lsn(0), words.lsn(1));
                let commit_time = time(commit_lsn);
                encode::commit(out, &Commit { commit_lsn, end_lsn, commit_time });
            }
            "relation" => self.describe(out, words),
            "insert" => {
                let value = |name: &String| words.named(name).map(str::as_bytes);
                let column = |name| value(name).map_or(Column::Null, Column::Text);
                let columns: Vec<_> = self.columns.iter().map(column).collect();
                encode::insert(out, oid(words), &columns);
            }
            "update" => encode::update(out, oid(words), None, &row),
            "delete" => encode::delete(out, oid(words), Old::Key(&row)),
            "truncate" => encode::truncate(out, 0, &[oid(words)]),
            "message" => encode::logical(
                out,
                &LogicalMessage { transactional: true, lsn: Lsn::ZERO, prefix: b"p", content: b"" },
            ),
            "frame" => {
                let hex = words.0.concat();
                let digits = hex.as_bytes().chunks(2).map(|two| str::from_utf8(two).unwrap());
                out.extend(digits.map(|two| u8::from_str_radix(two, 16).unwrap()));
            }
            _ => panic!("no such command: {command}"),
        }
    }

    fn describe(&mut self, out: &mut Vec<u8>, words: &Words<'_>) {
        let columns = words.named("columns").unwrap_or(COLUMNS);
        self.columns = columns.split(',').map(str::to_owned).collect();
        let columns: Vec<(&[u8], u32)> =
            self.columns.iter().map(|name| (name.as_bytes(), TEXT)).collect();
        let name = words.named("table").unwrap_or("outbox").as_bytes();
        encode::relation(
            out,
            &Table { id: oid(words), schema: b"public", name, columns: &columns },
        );
    }

    /// Hands in a frame, and tells what the sink got and what became of the frame.
    fn hand_in(&mut self, frame: Sent) -> String {
        self.frame = frame;
        let (mut said, mut answers) = (Vec::new(), std::mem::take(&mut self.answers));
        let (sent, unsent) = (&mut self.sent, &mut self.unsent);
        let handled = self.pipeline.frame::<PipelineError>(self.frame.as_frame(), |outgoing| {
            let record = outgoing.record.to_owned();
            let before = unsent.take();
            let same = if before == Some(outgoing.ticket) { " (same ticket)" } else { "" };
            let what = format!("{same} {}", shown(&record));
            match answers.pop_front().as_deref() {
                None => {
                    sent.push((outgoing.ticket, record));
                    said.push(format!("#{}{what}", sent.len()));
                    Ok(())
                }
                Some("full") => {
                    *unsent = Some(outgoing.ticket);
                    said.push(format!("full{what}"));
                    Err(SendError::Full)
                }
                Some(reason) => {
                    said.push(format!("refused{what}"));
                    Err(SendError::Refused(refusal(reason)))
                }
            }
        });
        match handled {
            Err(error) => said.push(failed(&error)),
            Ok(Handled::Done | Handled::DeadLetter(_) | Handled::Full) => {}
            Ok(Handled::Skipped(skipped)) => said.push(format!(
                "skipped row {} of {} at {}: {}: {}",
                skipped.position.index,
                skipped.table,
                skipped.position.commit_lsn,
                skipped.rejection.code,
                skipped.rejection.reason
            )),
        }
        said.join("; ")
    }

    fn confirm(
        &mut self,
        words: &Words<'_>,
        outcome: impl FnOnce(OwnedRecord) -> Outcome,
    ) -> String {
        let number: usize = words.0[0].parse().unwrap();
        let (ticket, record) = self.sent[number - 1].clone();
        match self.pipeline.confirm(Confirmation { ticket, outcome: outcome(record) }) {
            Err(error) => failed(&error),
            Ok(Answer::Stored) => String::new(),
            Ok(Answer::Skipped(refused)) => {
                format!("skipped a record for {}: {}", refused.record.topic, refused.rejection.code)
            }
            Ok(Answer::Send(outgoing)) => {
                let same =
                    if outgoing.ticket == ticket { "the same ticket" } else { "a new ticket" };
                self.sent.push((outgoing.ticket, outgoing.record.clone()));
                format!("#{} under {same}: {}", self.sent.len(), shown(&outgoing.record))
            }
        }
    }

    fn books(&mut self) -> String {
        let in_flight = self.pipeline.in_flight();
        let times: Vec<_> = self.pipeline.drain_settled_times_us().0.map(since_2000).collect();
        format!(
            "settled {}, {} records and {} transactions in flight, {}{}, oldest {:?}, settled times {times:?}",
            self.pipeline.settled(),
            in_flight.records,
            in_flight.transactions,
            if self.pipeline.has_room() { "room" } else { "no room" },
            if self.pipeline.is_idle() { ", idle" } else { "" },
            self.pipeline.oldest_commit_time_us().map(since_2000),
        )
    }
}

/// Commit times are small numbers after Postgres's epoch.
fn since_2000(unix_us: i64) -> i64 {
    PgTime::from_unix_us(unix_us).0
}

fn oid(words: &Words<'_>) -> u32 {
    u32::try_from(words.number("oid", u64::from(OUTBOX))).unwrap()
}

fn refusal(reason: &str) -> Rejection {
    Rejection { code: RejectionCode::Refused, reason: reason.to_owned() }
}

fn failed(error: &PipelineError) -> String {
    let class = if error.is_definite() { "definite" } else { "transient" };
    format!("{class} error: {error}")
}

fn shown(record: &OwnedRecord) -> String {
    let text = |bytes: &Option<Vec<u8>>| {
        bytes.as_deref().map_or("NULL".to_owned(), |bytes| String::from_utf8_lossy(bytes).into())
    };
    let mut out =
        format!("to {}: key {}, value {}", record.topic, text(&record.key), text(&record.value));
    for (name, value) in &record.headers {
        write!(out, ", {name}={}", text(value)).unwrap();
    }
    out
}

/// The totals that are not 0.
fn counted(counters: &Counters) -> String {
    let totals = [
        ("begins", counters.begins),
        ("commits", counters.commits),
        ("keepalives", counters.keepalives),
        ("relations", counters.relations),
        ("annotations", counters.annotations),
        ("rows", counters.rows),
        ("foreign rows", counters.foreign_rows),
        ("updates", counters.updates),
        ("deletes", counters.deletes),
        ("truncates", counters.truncates),
        ("logical messages", counters.logical_messages),
        ("records", counters.records),
        ("bytes", counters.bytes),
        ("confirmed", counters.confirmed),
        ("dead letters", counters.dead_letters),
        ("skipped", counters.skipped),
    ];
    let mut parts: Vec<String> = totals
        .into_iter()
        .filter(|(_, total)| *total > 0)
        .map(|(name, total)| format!("{total} {name}"))
        .collect();
    for code in RejectionCode::ALL {
        if counters.rejections(code) > 0 {
            parts.push(format!("{} rejected as {code}", counters.rejections(code)));
        }
    }
    let topics = counters.topics();
    let sent = topics.iter().map(|total| (total.sent + total.dead_letters, &total.topic));
    parts.extend(sent.map(|(records, topic)| format!("{records} to {topic}")));
    parts.join(", ")
}
