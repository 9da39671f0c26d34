//! One contestant delivers a backlog, alone on the machine; or is killed in the middle of it and started again.
//!
//! Input: the rows, which lie behind a slot. Output: [`Figures`], or what is wrong with what was delivered. Invariant:
//! the clock runs from the first stored record to the last, by the brokers' time, so that a start costs nothing
//! but `first_record_s`; no contestant is asked anything meanwhile that costs it time.

use std::time::Duration;

use rdkafka::consumer::BaseConsumer;

use super::contestants::{Contestant, Process, Stage, Task};
use super::figures::{Figures, per_row, to_mib};
use super::judge::Account;
use super::rows::{BASE_SLOT, Rows};
use super::sampler::{Processes, Sampler, Samples, now_ms};
use crate::sql::Sql;
use crate::wait::{let_pass, wait_for, within};
use crate::{topic, unique};

/// No drain of a sensible size takes longer.
const LIMIT: Duration = Duration::from_mins(15);
/// How long rows may be missing when as many records are there.
const REST_LIMIT: Duration = Duration::from_secs(30);
const REST_LOOK: Duration = Duration::from_secs(1);
/// How often the ends of the topics are asked for, which costs a request for each partition.
const LOOK: Duration = Duration::from_millis(250);
/// Topics for which that is often enough.
const TOPICS_OF_A_LOOK: u32 = 10;
/// So many looks to one question whether the worker still runs, which it answers itself.
const LOOKS_PER_QUESTION: u32 = 20;

/// A backlog and who has written it.
pub(super) struct Backlog<'a> {
    pub(super) stage: &'a Stage,
    pub(super) sql: &'a Sql,
    pub(super) rows: &'a Rows,
    /// The position behind the last row.
    pub(super) end: &'a str,
}

impl Backlog<'_> {
    /// Lets a contestant deliver all of it.
    pub(super) fn drain(&self, contestant: Contestant) -> Result<Figures, String> {
        let task = self.task(contestant);
        self.stage.prepare(contestant, &task);
        let began_ms = now_ms();
        let mut process = self.stage.start(contestant, &task);
        let sampler = Sampler::start(self.stage.processes(&process));
        let outcome = self.await_end(contestant, &mut process, &task);
        let seen = sampler.finish();
        let outcome = outcome.and_then(|()| process.failure().map_or(Ok(()), Err));
        drop(process);
        let figures = outcome.and_then(|()| {
            if !contestant.has_topics() {
                let ended_ms = seen.ended_ms();
                return Ok(self.figures(&seen, contestant, (began_ms, ended_ms)));
            }
            let account = self.judge(&task, false)?;
            let (first_ms, last_ms) = account.span_ms();
            let mut figures = self.figures(&seen, contestant, (first_ms, last_ms));
            figures.set("first_record_s", seconds(first_ms - began_ms));
            figures.set("whole_s", seconds(last_ms - began_ms));
            if let Some(rate) = account.steady_rows_per_s() {
                figures.set("steady_rows_per_s", rate);
            }
            Ok(figures)
        });
        self.clear(contestant, &task);
        figures
    }

    /// Kills it with half of the rows delivered, and starts it again at once.
    pub(super) fn kill(&self, contestant: Contestant) -> Result<Figures, String> {
        let task = self.task(contestant);
        self.stage.prepare(contestant, &task);
        let mut process = self.stage.start(contestant, &task);
        let (half, consumer) = (self.rows.shape.rows / 2, self.asking());
        let reached = within(LIMIT, || (self.stored(&consumer, &task) >= half).then_some(()));
        let killed_ms = now_ms();
        process.kill_and_start();
        let outcome = reached.ok_or_else(|| "half of the rows never came".to_owned());
        let outcome = outcome.and_then(|()| self.await_end(contestant, &mut process, &task));
        let may_repeat = !matches!(contestant, Contestant::ExactlyOnce(_));
        // What comes again was counted, so that others may still be missing.
        let judged = outcome.and_then(|()| {
            let whole = within(REST_LIMIT, || {
                let judged = self.judge(&task, may_repeat).ok();
                if judged.is_none() {
                    let_pass(REST_LOOK, "all topics are read each time, which costs CPU time");
                }
                judged
            });
            whole.map_or_else(|| self.judge(&task, may_repeat), Ok)
        });
        drop(process);
        let figures = judged.map(|account| {
            let mut figures = Figures::default();
            let (_, last_ms) = account.span_ms();
            figures.set("finished_s", seconds(last_ms - killed_ms));
            // Otherwise all was there before it was seen.
            if last_ms > killed_ms {
                figures.set("recovery_s", seconds(account.silence_ms(killed_ms)));
            }
            figures.set("repeats", count(account.repeated));
            figures
        });
        self.clear(contestant, &task);
        figures
    }

    /// A slot and topics for one drain.
    fn task(&self, contestant: Contestant) -> Task {
        let slot = unique("compare");
        let prefix = format!("{slot}.");
        if contestant == Contestant::Poll {
            Rows::fill_polled(self.sql);
        } else {
            let copy = format!("SELECT pg_copy_logical_replication_slot('{BASE_SLOT}', '{slot}')");
            self.sql.run(&copy);
        }
        if contestant.has_topics() {
            self.stage.make_topics(&self.rows.topics(&prefix));
        }
        Task { slot, prefix, end: Some(self.end.to_owned()) }
    }

    fn await_end(
        &self,
        contestant: Contestant,
        process: &mut Process,
        task: &Task,
    ) -> Result<(), String> {
        if contestant.ends() {
            let ended = within(LIMIT, || process.has_ended().then_some(()));
            return ended.ok_or_else(|| "it did not end".to_owned());
        }
        let pause =
            LOOK * (u32::try_from(self.rows.shape.topics).unwrap() / TOPICS_OF_A_LOOK).max(1);
        let (mut looks, consumer) = (0, self.asking());
        let outcome = within(LIMIT, || {
            let_pass(pause, "the ends of topics are asked for seldom, since it costs CPU time");
            looks += 1;
            if self.stored(&consumer, task) >= self.rows.shape.rows {
                return Some(Ok(()));
            }
            let is_asked = looks % LOOKS_PER_QUESTION == 0;
            is_asked.then(|| process.failure()).flatten().map(Err)
        });
        outcome.unwrap_or_else(|| Err("not all rows came".to_owned()))
    }

    /// Who asks for the ends of topics, those of open transactions among them.
    fn asking(&self) -> BaseConsumer {
        let mut config = topic::client(&self.stage.kafka.bootstrap());
        config.set("isolation.level", "read_uncommitted").create().unwrap()
    }

    /// Records in the topics.
    fn stored(&self, consumer: &BaseConsumer, task: &Task) -> usize {
        let names = self.rows.topics(&task.prefix);
        let ends = names.iter().flat_map(|name| topic::ends(consumer, name));
        usize::try_from(ends.map(|(_, end)| end).sum::<i64>()).unwrap()
    }

    fn judge(&self, task: &Task, may_repeat: bool) -> Result<Account, String> {
        let account = Account::of(&self.stage.kafka.bootstrap(), self.rows, &task.prefix);
        account.fault(may_repeat).map_or(Ok(account), Err)
    }

    fn figures(&self, samples: &Samples, contestant: Contestant, span: (i64, i64)) -> Figures {
        let rows = self.rows.shape.rows;
        let (cpu, whole) = (samples.between(span), samples.whole());
        let mut figures = Figures::default();
        figures.set("rows_per_s", count(rows) / seconds(span.1 - span.0).max(1e-3));
        figures.set("cpu_us_per_row", per_row(cpu.relay, rows));
        figures.set("cpu_us_per_row_with_start", per_row(whole.relay, rows));
        // What is decoded before the first record counts.
        let server = if contestant == Contestant::Poll { whole.server } else { whole.walsender };
        figures.set("server_cpu_us_per_row", per_row(server, rows));
        if contestant.has_topics() {
            figures.set("broker_cpu_us_per_row", per_row(cpu.broker, rows));
        }
        figures.set("peak_rss_mib", to_mib(samples.peak_rss_bytes));
        figures.set("peak_private_mib", to_mib(samples.peak_private_bytes));
        figures
    }

    /// Takes slot and topics away.
    fn clear(&self, contestant: Contestant, task: &Task) {
        if contestant.has_slot() {
            drop_slot(self.sql, &task.slot);
        }
        self.stage.delete_topics(&task.prefix);
    }
}

impl Stage {
    /// Topics whose records have the time at which the broker stored them.
    pub(super) fn make_topics(&self, names: &[String]) {
        let settings = [("message.timestamp.type", "LogAppendTime")];
        topic::create_all(&self.kafka.bootstrap(), names, 3, &settings);
    }

    /// Deletes the topics behind a prefix.
    pub(super) fn delete_topics(&self, prefix: &str) {
        let bootstrap = self.kafka.bootstrap();
        topic::delete_all(&bootstrap, &topic::names(&bootstrap, prefix));
    }

    /// Whose CPU time counts.
    pub(super) fn processes(&self, process: &Process) -> Processes {
        Processes {
            relay: process.id(),
            postmaster: self.cluster.process().unwrap(),
            broker: self.kafka.process(0),
        }
    }
}

/// Once its reader is gone.
pub(super) fn drop_slot(sql: &Sql, slot: &str) {
    let drop = format!("SELECT pg_drop_replication_slot('{slot}')");
    wait_for("the slot to be free", || sql.try_run(&drop).ok());
}

pub(super) fn seconds(ms: i64) -> f64 {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default()).as_secs_f64()
}

pub(super) fn count(rows: usize) -> f64 {
    f64::from(u32::try_from(rows).unwrap())
}
