//! `postrider backfill`: delivers the rows that were in the outbox before its slot, and creates the
//! slot just behind them.
//!
//! Invariant: without `--execute` nothing is written. If progress is kept, an interrupted backfill
//! resumes where it stopped. A relay does not start before the backfill has ended.

use clap::Args;
use serde_json::json;

use super::codes::ErrorCode;
use super::context::Context;
use super::counted::counted;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::needs_slot;
use super::progress_display::{ProgressDisplay, tell_interrupted};
use super::run::listen_for_signals;
use super::version;
use postrider_config::Loaded;
use postrider_relay::telemetry::Telemetry;
use postrider_relay::{
    DELIVERING, JobPreview, Meter, Plan, Reading, StopSignal, Summary, TableJob, TableRows, Total,
    Unit, deliver_tables, preview,
};

/// `backfill [--execute] [--restart] [--rate ROWS]`
#[derive(Debug, Args)]
#[command(after_help = "Creates the slot, delivers every row committed before it in the order of \
outbox.order_by, and
exits. `postrider run` then delivers all rows committed since. Each record \
has the header
postrider-origin: backfill.

If progress is stored in Kafka (exactly_once, or \
progress.at_least_once), an interrupted
backfill resumes where it stopped. The table and its \
publication must exist: `postrider setup
--existing send` creates the publication and no \
slot.

Examples:
  postrider backfill                          print the plan; nothing is \
written
  postrider backfill --execute --rate 20000   at most 20,000 rows per second")]
pub struct BackfillArgs {
    /// Deliver; without it, only print the plan
    #[arg(long)]
    pub execute: bool,
    /// Send all rows again. If no progress is stored, use the slot of the interrupted backfill;
    /// otherwise drop that slot first, and a new one is created.
    #[arg(long)]
    pub restart: bool,
    /// Maximum rows per second
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
}

pub(crate) fn run(args: &BackfillArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let Loaded { config, stream, .. } = context.load(Vec::new())?;
    needs_slot(&config, "postrider backfill")?;
    let plan = Plan { stream, ..Plan::of(config) };
    let rows = TableRows::Backfill { restart: args.restart };
    let job = TableJob { rows, rate: args.rate };
    let runtime = super::runtime()?;
    if !args.execute {
        let found = runtime.block_on(preview(&plan, &job))?;
        print_plan(&plan, &found, args.restart, context)?;
        return Ok(ExitCode::Ok);
    }
    let keeps_progress = plan.keeps_progress();
    let delivered = deliver(&runtime, plan, job, None, context);
    runtime.shutdown_background();
    let Delivered { summary, reading } = delivered?;
    if !summary.caught_up {
        let (kept, words): (_, (&[&str], &[&str])) = if keeps_progress {
            ("the position of the last delivered row", (&["--restart"], &[]))
        } else {
            (
                "the slot; no position is stored, so --restart sends all rows again",
                (&[], &["--restart"]),
            )
        };
        tell_interrupted(reading, kept, words);
    }
    if context.json() {
        context.print_json(
            &json!({ "what": "backfill", "finished": summary.caught_up, "summary": summary }),
        )?;
    } else {
        context.print(&text(&summary))?;
    }
    exit_of(&summary)
}

/// A job that delivered no row has failed.
pub(super) fn exit_of(summary: &Summary) -> Result<ExitCode, CommandFailure> {
    let Summary { caught_up, confirmed, dead_letters, .. } = *summary;
    if !caught_up {
        return Ok(ExitCode::Unavailable);
    }
    // `confirmed` includes the dead letters.
    if dead_letters > 0 && confirmed <= dead_letters {
        let what = format!("every row of this run became a dead letter ({dead_letters})");
        let failure = CommandFailure::new(ExitCode::CheckFailed, ErrorCode::ALL_REJECTED, what);
        return Err(failure.help(
            "postrider dead-letters list, which has the reasons; without them, the rows are sent by: postrider \
             dead-letters retry --execute",
        ));
    }
    Ok(ExitCode::Ok)
}

pub(super) struct Delivered {
    pub(super) summary: Summary,
    pub(super) reading: Option<Reading>,
}

/// `rows` is the number of rows, if counted. The first signal drains, the second aborts.
pub(super) fn deliver(
    runtime: &tokio::runtime::Runtime,
    plan: Plan,
    job: TableJob,
    rows: Option<u64>,
    context: &Context,
) -> Result<Delivered, CommandFailure> {
    let stop = StopSignal::default();
    let telemetry = Telemetry::new(version::build_info(&plan.config.source.slot));
    let (meter, observed) = (Meter::default(), telemetry.clone());
    // A repair first determines which rows it delivers.
    let is_repair = matches!(job.rows, TableRows::Repair(_));
    if !is_repair {
        meter.begin(DELIVERING, Unit::Rows, rows.map_or(Total::Unknown, Total::Exactly));
    }
    let read = {
        let meter = meter.clone();
        move || Some(meter.reading()?.with_delivered(&observed.view().snapshot))
    };
    let _display = ProgressDisplay::start(context, read.clone());
    let summary = runtime.block_on(async {
        tokio::spawn(listen_for_signals(stop.clone()));
        Box::pin(deliver_tables(plan, job, stop, telemetry, meter)).await
    });
    Ok(Delivered { summary: summary?, reading: read() })
}

fn text(summary: &Summary) -> String {
    let Summary { confirmed, dead_letters, skipped, .. } = summary;
    let verdict = if summary.caught_up {
        "the backfill has ended: `postrider run` delivers the rows committed since"
    } else {
        "the backfill was interrupted: resume it before `postrider run`"
    };
    format!(
        "{} confirmed, {}, {} left out\n{verdict}\n",
        counted(*confirmed, "record"),
        counted(*dead_letters, "dead letter"),
        counted(*skipped, "row")
    )
}

fn print_plan(
    plan: &Plan,
    found: &JobPreview,
    restart: bool,
    context: &Context,
) -> Result<(), CommandFailure> {
    // With progress, the job resumes and repeats no row.
    let is_restarted = restart && !plan.keeps_progress();
    let slot = &plan.config.source.slot;
    if context.json() {
        return context.print_json(&json!({
            "what": "backfill", "slot": slot, "slot_exists": found.slot_exists,
            "has_streamed": found.has_streamed,
            "begun": found.begun, "tables": found.tables,
        }));
    }
    let lines: Vec<String> = found
        .tables
        .iter()
        .map(|table| {
            format!(
                "{table}
"
            )
        })
        .collect();
    let state = match (&found.begun, found.slot_exists) {
        (Some(begun), _) if begun.repair.is_some() => {
            format!("a repair of slot `{slot}` has begun: a backfill would be refused")
        }
        (Some(_), _) => {
            format!("would resume the backfill of slot `{slot}`: these rows are left")
        }
        (None, _) if found.has_streamed => format!(
            "a backfill would be refused: the stream of slot `{slot}` has begun before; `postrider repair` sends what is missing"
        ),
        (None, true) if is_restarted => {
            format!("sends all rows again, with slot `{slot}` that is there")
        }
        (None, true) => format!(
            "slot `{slot}` exists: a backfill would be refused; `postrider repair` sends what is missing"
        ),
        (None, false) => format!("makes slot `{slot}`"),
    };
    context.print(&(lines.concat() + &state + "\nnothing was written; --execute delivers\n"))
}
