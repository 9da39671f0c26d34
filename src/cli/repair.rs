//! `postrider repair`: after a slot was lost, dropped or moved, delivers the rows that are missing
//! in Kafka, and creates the slot just behind them.
//!
//! Invariant: without `--execute` only temporary files are written. A row that may have been
//! delivered is neither sent nor left out without the operator's decision.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::backfill::{Delivered, deliver, exit_of};
use super::context::Context;
use super::counted::counted;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::needs_slot;
use super::progress_display::{ProgressDisplay, tell_interrupted};
use super::replay::moment;
use super::run::listen_for_signals;
use crate::verify::VerifyError;
use postrider_config::Loaded;
use postrider_core::progress::{Moment, RepairScope, UnknownRows};
use postrider_relay::{
    Meter, Plan, RepairCounts, RepairJob, RepairPreview, RepairSlot, StopSignal, Summary, TableJob,
    TableRows, preview_repair,
};

/// `repair [--since MOMENT] [--until MOMENT] [--unknown send|skip] [--execute] ..`
#[derive(Debug, Args)]
#[command(after_help = "Compares the rows in the outbox with the records of their topics, by id. \
With --execute, repair
creates the slot and sends the missing rows in the order of \
outbox.order_by, with the header
postrider-origin: repair. `postrider run` then delivers all \
rows committed since.

The slot is replaced if it was lost, if it has passed missing rows, or, \
with --drop-slot, if it
cannot be decoded. Stop the relay first; writers keep running. After an \
interruption, run repair
again.

Rows whose delivery is unknown are refused unless --unknown is \
given, for example rows of a
compacted topic, or rows written before the stream began (`setup \
--existing skip`).

Examples:
  postrider repair                         print the plan; nothing \
is written
  postrider repair --execute --rate 20000  at most 20,000 rows per second
  postrider \
repair --since 2d --unknown skip --execute")]
pub struct RepairArgs {
    /// Only rows written at or after this (outbox.created_at): a time, or a duration ago, for
    /// example 2h
    #[arg(long, value_name = "MOMENT")]
    pub since: Option<String>,
    /// Only rows written before this
    #[arg(long, value_name = "MOMENT")]
    pub until: Option<String>,
    /// What happens to rows whose delivery is unknown: send or skip [default: refuse]
    #[arg(long, value_enum, value_name = "RULE", hide_possible_values = true)]
    pub unknown: Option<Unknown>,
    /// Drop an existing slot, even if it cannot be decoded. Its undelivered data that no table
    /// contains is lost: deleted rows and logical messages.
    #[arg(long)]
    pub drop_slot: bool,
    /// Maximum rows per second
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Folder for temporary files, about 220 bytes per row [default: the system's]
    #[arg(long, value_name = "FOLDER")]
    pub work_dir: Option<PathBuf>,
    /// Repair; without it, only print the plan
    #[arg(long)]
    pub execute: bool,
}

/// What becomes of rows of which nobody can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Unknown {
    /// They are sent, and may come twice.
    Send,
    /// They are left out, and may be missing.
    Skip,
}

impl RepairArgs {
    fn job(&self) -> RepairJob {
        let typed = |text: &String| Moment { typed: text.clone(), at: moment(text) };
        let unknown = self.unknown.map(|rule| match rule {
            Unknown::Send => UnknownRows::Send,
            Unknown::Skip => UnknownRows::Skip,
        });
        let (since, until) = (self.since.as_ref().map(typed), self.until.as_ref().map(typed));
        RepairJob {
            scope: RepairScope { since, until, unknown },
            drops_slot: self.drop_slot,
            folder: self.work_dir.clone().unwrap_or_else(std::env::temp_dir),
        }
    }
}

pub(crate) fn run(args: &RepairArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let Loaded { config, stream, .. } = context.load(Vec::new())?;
    needs_slot(&config, "postrider repair")?;
    let plan = Plan { stream, ..Plan::of(config) };
    let (job, runtime) = (args.job(), super::runtime()?);
    if !args.execute {
        let (stop, meter) = (StopSignal::default(), Meter::default());
        let read = meter.clone();
        let display = ProgressDisplay::start(context, move || read.reading());
        let found = runtime.block_on(async {
            tokio::spawn(listen_for_signals(stop.clone()));
            preview_repair(&plan, &job, stop.clone(), meter.clone()).await
        });
        runtime.shutdown_background();
        drop(display);
        let found = found?.ok_or_else(|| {
            tell_interrupted(meter.reading(), "nothing", (&[], &[]));
            VerifyError::Stopped
        })?;
        print_plan(&plan, &found, context)?;
        return Ok(ExitCode::Ok);
    }
    let rows = TableRows::Repair(job);
    let delivered = deliver(&runtime, plan, TableJob { rows, rate: args.rate }, None, context);
    runtime.shutdown_background();
    let Delivered { summary, reading } = delivered?;
    if !summary.caught_up {
        let kept = "the delivered rows: the next repair compares and sends only what is missing";
        tell_interrupted(reading, kept, (&[], &[]));
    }
    if context.json() {
        context.print_json(&json!({
            "what": "repair", "finished": summary.caught_up,
            "needed": summary.nothing_to_repair.is_none(), "summary": summary,
        }))?;
    } else {
        context.print(&text(&summary))?;
    }
    exit_of(&summary)
}

fn text(summary: &Summary) -> String {
    let Summary { confirmed, dead_letters, skipped, repaired, .. } = summary;
    let compared = repaired.as_ref().map(counts).unwrap_or_default();
    if let Some(why) = &summary.nothing_to_repair {
        return format!("{compared}{why}\n`postrider run` delivers the rows committed since\n");
    }
    let verdict = if summary.caught_up {
        "the repair has ended: `postrider run` delivers the rows committed since"
    } else {
        "the repair was interrupted: resume it before `postrider run`"
    };
    format!(
        "{compared}{} confirmed, {}, {} left out\n{verdict}\n",
        counted(*confirmed, "record"),
        counted(*dead_letters, "dead letter"),
        counted(*skipped, "row")
    )
}

fn counts(counts: &RepairCounts) -> String {
    let mut text = String::new();
    let mut line = |what: &str, rows: u64, note: &str| {
        let _ = writeln!(text, "{}", format!("  {what:<10} {rows:>10}  {note}").trim_end());
    };
    line("rows", counts.rows, "");
    line("delivered", counts.delivered, "in Kafka, as a record or a dead letter");
    let late = counts.after_newer_rows_of_their_key;
    let late = if late == 0 || counts.missing == 0 {
        String::new()
    } else {
        format!("; {late} of those to be sent come after newer rows of their key")
    };
    line("missing", counts.missing, &format!("not in Kafka{late}"));
    if counts.pending > 0 {
        let undecided = match counts.undecided {
            0 => String::new(),
            rows => format!("; whether it has passed {rows} of them cannot be told yet"),
        };
        let note = format!("the slot has not passed them, and delivers them{undecided}");
        line("pending", counts.pending, &note);
    }
    if counts.left_out > 0 {
        line("left out", counts.left_out, "by a rule, or by route.rejected = \"skip\"");
    }
    line("unknown", counts.unknown, "nobody can tell whether they were delivered");
    for (reason, rows) in &counts.unknown_because {
        let _ = writeln!(text, "    {rows}: {reason}");
    }
    for topic in &counts.topics_missing {
        let _ = writeln!(
            text,
            "topic {topic} does not exist: its rows count as missing; if it was deleted, they come again"
        );
    }
    text
}

fn print_plan(plan: &Plan, found: &RepairPreview, context: &Context) -> Result<(), CommandFailure> {
    let slot = &plan.config.source.slot;
    if context.json() {
        return context.print_json(&json!({ "what": "repair", "name": slot, "plan": found }));
    }
    let state = match &found.slot {
        RepairSlot::Missing => "does not exist".to_owned(),
        RepairSlot::Lost { reason } => format!("is lost ({reason})"),
        RepairSlot::Unreadable { at, reason } => format!(
            "is at {at}, and cannot be decoded past this change: {reason}\nrows that were deleted before they were \
             delivered are lost with it, and nobody can tell how many"
        ),
        RepairSlot::Alive { at, held } => {
            let in_use = if *held { ", and in use: stop the relay first" } else { "" };
            format!("is at {at}{in_use}")
        }
    };
    let messages = if plan.config.messages.prefixes.is_empty() {
        ""
    } else {
        "logical messages are in no table: what a lost slot has not delivered of them is gone\n"
    };
    let text = format!(
        "{}{messages}slot `{slot}` {state}\n{}\nnothing was written; --execute repairs\n",
        counts(&found.counts),
        found.action
    );
    context.print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_come_late_and_topics_that_are_missing_are_told() {
        let shown = counts(&RepairCounts {
            rows: 9,
            delivered: 5,
            missing: 4,
            after_newer_rows_of_their_key: 2,
            topics_missing: vec!["orders".to_owned()],
            ..RepairCounts::default()
        });
        for words in [
            "  rows                9\n",
            "  missing             4  not in Kafka; 2 of those to be sent come after newer rows of their key\n",
            "topic orders does not exist: its rows count as missing",
        ] {
            assert!(shown.contains(words), "no `{words}` in {shown}");
        }
        assert!(!shown.contains("pending"), "{shown}");
    }
}
