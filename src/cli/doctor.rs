//! `postrider doctor`: checks everything that would stop or harm a run, and prints each fix.
//!
//! Invariant: without `--fix --execute` nothing is written. A running relay is not disturbed. The
//! answer comes within about 15 s even if no server answers. Only servers that a selected check
//! needs are asked.

mod apply;
mod certificates;
pub(super) mod check;
mod config;
mod failover;
mod fix;
pub(super) mod kafka;
mod partitioner;
mod postgres;
mod pruning;
mod relay;
mod report;
mod selection;
mod server;
mod source;
mod source_fix;
mod topics_now;

use std::time::Duration;

use clap::Args;
use tokio::time::timeout;

use super::context::Context;
use super::each_stream::EachStream;
use super::exit::ExitCode;
use super::failure::{CommandFailure, printable};
use super::marks::columns;
use super::prune::beginning;
use super::status::relay::{RelayFacts, Silence, relay_facts};
use super::stream_position::{SlotPlace, StreamPosition, progress_of};
use apply::FixPlan;
use check::{Check, Outcome};
pub(super) use config::{memory_limit, too_large_together};
use kafka::FromSource;
use postgres::FromPostgres;
use postrider_config::{Config, Delivery, Loaded, SourceMode};
use postrider_core::gate::{GateError, Warning, unfinished};
use postrider_core::pipeline::Mark;
use postrider_kafka::{KafkaSpec, Lineage};
use postrider_postgres::control::{self, Client};
use postrider_relay::{Plan, RelayError, kafka_spec};
use report::Report;
use selection::{IdParser, Selection};

/// Time limit of Postgres and of Kafka, which are asked concurrently.
const LIMIT: Duration = Duration::from_secs(9);

/// `doctor [--check ID ..] [--allow ID ..] [--deny-warnings]`
#[derive(Debug, Args)]
#[command(after_help = "\
Checks Postgres, Kafka, the relay at http.bind and this machine, and writes nothing. The relay
may run meanwhile. --fix --execute creates missing objects and changes no existing object,
except that it adds a table to a publication. With several streams, prints one report each;
--stream selects one.

Exit code: 0 no failure, 1 a failure (with --deny-warnings, also a warning). With --check, the
checks that a selected check depends on are shown and count, too, if they fail.

Examples:
  postrider doctor
  postrider doctor --output json | jq -r '.checks[] | select(.status == \"fail\") | .fix.text'
  postrider doctor -q                          only what fails
  postrider doctor --check slot --check kafka.listeners
  postrider doctor --deny-warnings --allow kafka.tls --allow slot.limit
  postrider doctor --fix                       print what would be created
  postrider doctor --fix --execute")]
pub struct DoctorArgs {
    /// Show only checks whose id starts with this, for example slot or slot.limit; repeatable
    #[arg(
        id = "only",
        long = "check",
        alias = "only",
        value_name = "ID",
        value_parser = IdParser,
        hide_possible_values = true
    )]
    pub only: Vec<String>,
    /// Check only this stream, if the file has several ([[stream]])
    #[arg(long, value_name = "NAME")]
    pub stream: Option<String>,
    /// Ignore checks whose id starts with this in the exit code; repeatable
    #[arg(long, value_name = "ID", value_parser = IdParser, hide_possible_values = true)]
    pub allow: Vec<String>,
    /// Exit with code 1 on warnings
    #[arg(long)]
    pub deny_warnings: bool,
    /// Plan what can be created without risk: table, publication, slot, topics, partitions of
    /// future days
    #[arg(long)]
    pub fix: bool,
    /// Apply the plan and check again; without it, --fix only prints the plan
    #[arg(long, requires = "fix")]
    pub execute: bool,
}

pub(crate) fn run(args: &DoctorArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    Selection::of(&args.only)?;
    Selection::of(&args.allow)?;
    let streams = match EachStream::load(context, Vec::new()) {
        Ok(streams) => streams,
        Err(failure) => {
            let report = report(args, without_configuration(failure))?;
            return print(args, context, &report);
        }
    };
    if args.fix {
        return streams.one_by_one(|stream| fix(args, (context, &streams), stream));
    }
    let found = streams.at_once(|stream| examine(args, &streams, stream));
    streams.print_all(found, |stream, report| {
        let text =
            report.to_text(columns(std::io::stdout()), context.color_stdout(), context.is_quiet());
        streams.print(stream, &text, || report.to_json())?;
        Ok(exit_of(args, &report))
    })
}

fn fix(
    args: &DoctorArgs,
    (context, streams): (&Context, &EachStream<'_>),
    stream: &Loaded,
) -> Result<ExitCode, CommandFailure> {
    let print = |report: &Report, plan: &FixPlan, left: &[&str], created: Option<&[String]>| {
        let mut text =
            report.to_text(columns(std::io::stdout()), context.color_stdout(), context.is_quiet());
        text.push_str(&report::fix_text(plan, left, created));
        streams.print(stream, &text, || {
            let mut value = report.to_json();
            if let Some(fields) = value.as_object_mut() {
                fields.insert("fix".to_owned(), plan.to_json(left, created));
            }
            value
        })?;
        Ok(exit_of(args, report))
    };
    let report = examine(args, streams, stream)?;
    let relay = Plan::of(stream.config.clone());
    let runtime = super::runtime()?;
    let plan = FixPlan::of(&relay, &report.checks, &runtime);
    if !args.execute {
        let left = apply::left(&report.checks, Some(&plan));
        return print(&report, &plan, &left, None);
    }
    if !context.json() {
        let of = stream.stream.as_deref().filter(|_| streams.are_several());
        let of = of.map(|name| format!("stream `{name}`: ")).unwrap_or_default();
        let lines = plan.creates.iter().map(|object| format!("{of}to be created: {object}\n"));
        context.print(&printable(&lines.collect::<String>()))?;
    }
    let (created, made) =
        if plan.is_empty() { (Vec::new(), Ok(())) } else { plan.execute(&relay, &runtime) };
    let report = examine(args, streams, stream)?;
    let left = apply::left(&report.checks, None);
    let exit = print(&report, &plan, &left, Some(&created))?;
    made.map(|()| exit)
}

fn examine(
    args: &DoctorArgs,
    streams: &EachStream<'_>,
    loaded: &Loaded,
) -> Result<Report, CommandFailure> {
    let selection = Selection::of(&args.only)?;
    let config = &loaded.config;
    let relay = if selection.wants_relay() {
        let slot =
            (config.source.mode == SourceMode::Stream).then_some(config.source.slot.as_str());
        relay::once_started(|| relay_facts(config.http.bind, slot, loaded.stream.as_deref()))
    } else {
        Err(Silence::Nowhere("it was not asked".to_owned()))
    };
    let mut checks = config::checks(loaded, &relay, config::in_flight(streams.all()));
    checks.extend(of_servers(config, &relay, selection)?);
    let role = &config.source.connect.user;
    report(args, checks.into_iter().map(|check| check.of_role(role)).collect())
}

fn without_configuration(failure: CommandFailure) -> Vec<Check> {
    let mut checks: Vec<_> = Check::failed("config.valid", failure).collect();
    checks.push(Check::unknown("config.others", "nothing was asked without a configuration"));
    checks
}

fn report(args: &DoctorArgs, mut checks: Vec<Check>) -> Result<Report, CommandFailure> {
    let selection = Selection::of(&args.only)?;
    let allowed = Selection::of(&args.allow)?;
    for check in &checks {
        assert!(selection::is_known(check.id), "`{}` is not among the ids of checks", check.id);
    }
    checks.retain(|check| selection.shows(check));
    let mut checks: Vec<_> = checks.into_iter().map(Check::masked).collect();
    for check in checks.iter_mut().filter(|check| check.outcome >= Outcome::Warn) {
        check.is_allowed = !args.allow.is_empty() && allowed.has(check.id);
    }
    Ok(Report { checks })
}

fn print(
    args: &DoctorArgs,
    context: &Context,
    report: &Report,
) -> Result<ExitCode, CommandFailure> {
    if context.json() {
        context.print_json(&report.to_json())?;
    } else {
        context.print(&report.to_text(
            columns(std::io::stdout()),
            context.color_stdout(),
            context.is_quiet(),
        ))?;
    }
    Ok(exit_of(args, report))
}

fn exit_of(args: &DoctorArgs, report: &Report) -> ExitCode {
    let worst = report.worst();
    let is_wrong = worst == Outcome::Fail || args.deny_warnings && worst == Outcome::Warn;
    if is_wrong { ExitCode::CheckFailed } else { ExitCode::Ok }
}

/// Asks Postgres first, because its rows name the topics.
fn of_servers(
    config: &Config,
    relay: &Result<RelayFacts, Silence>,
    selection: Selection<'_>,
) -> Result<Vec<Check>, CommandFailure> {
    let plan = Plan::of(config.clone());
    let runtime = super::runtime()?;
    let reached = selection.wants_kafka().then(|| {
        let kafka = kafka_spec(config);
        std::thread::spawn(move || postrider_kafka::topic_names(&kafka).map(drop))
    });
    let connect = selection.wants_postgres().then(|| config.source.connect.clone());
    let certificates =
        connect.map(|connect| std::thread::spawn(move || certificates::of_postgres(&connect)));
    let (mut checks, postgres) = if selection.wants_postgres() {
        runtime.block_on(postgres::checks(&plan, selection))
    } else {
        (Vec::new(), FromPostgres::nothing("Postgres was not asked"))
    };
    let is_polled = config.source.mode == SourceMode::Poll;
    checks.push(relay::ready(relay, postgres.slot.as_ref(), is_polled));
    if !is_polled {
        checks.push(relay::reader(postgres.slot.as_ref(), &config.source.connect.application_name));
    }
    let reached = reached.map(|reached| match reached.join() {
        Ok(answer) => answer,
        Err(panic) => std::panic::resume_unwind(panic),
    });
    if let Some(client) = &postgres.client {
        let kafka_answers = matches!(reached, Some(Ok(())));
        let found = position(&plan, &runtime, client, kafka_answers);
        let looked = found.checks.into_iter().map(|check| check.unless_told_by(&checks));
        let looked: Vec<_> = looked.collect();
        checks.extend(looked);
        if let Some(why) = found.no_beginning {
            pruning::beginning_unknown(&mut checks, &config.source.slot, why);
        }
    }
    let transactional_id = transactional_id(&plan, &runtime, postgres.client.as_ref());
    runtime.shutdown_background();
    if let Some(certificates) = certificates {
        checks.extend(certificates.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    }
    match reached {
        None => {}
        Some(Err(error)) => checks.extend(kafka::out_of_reach(&kafka_spec(config), error)),
        Some(Ok(())) => {
            let kafka = KafkaSpec { topics: plan.kafka.topics.clone(), ..kafka_spec(config) };
            let source = FromSource {
                topics: postgres.topics.as_deref().map_err(String::as_str),
                transactional_id: transactional_id.as_deref().map_err(|why| *why),
            };
            checks.extend(kafka::checks(config, &kafka, source));
        }
    }
    Ok(checks)
}

/// Transactional id, which contains the cluster's identifier.
fn transactional_id(
    plan: &Plan,
    runtime: &tokio::runtime::Runtime,
    client: Option<&Client>,
) -> Result<String, &'static str> {
    const UNKNOWN: &str = "Postgres was not reached, whose identifier is part of the id";
    if plan.config.kafka.delivery != Delivery::ExactlyOnce {
        return Err("no transactional id is used");
    }
    let client = client.ok_or(UNKNOWN)?;
    let server = runtime.block_on(async { timeout(LIMIT, control::server(client)).await });
    let server = server.ok().and_then(Result::ok).ok_or(UNKNOWN)?;
    let (system, _) = server.system.ok_or("the role may not ask for the cluster's identifier")?;
    let slot = plan.config.source.slot.clone();
    let lineage = Lineage { system, database: server.database, slot, ..Lineage::default() };
    Ok(lineage.transactional_id())
}

struct Position {
    checks: Vec<Check>,
    /// Why `prune` would not know which rows were delivered.
    no_beginning: Option<&'static str>,
}

impl From<Check> for Position {
    fn from(check: Check) -> Self {
        Self { checks: vec![check], no_beginning: None }
    }
}

/// Asks the gate if a run can continue from the slot.
fn position(
    plan: &Plan,
    runtime: &tokio::runtime::Runtime,
    client: &Client,
    kafka_answers: bool,
) -> Position {
    const ID: &str = "progress.position";
    if !plan.keeps_progress() {
        let checks = vec![Check::pass(ID, "only the slot stores where delivery resumes")];
        return Position { checks, no_beginning: Some(beginning::UNKEPT) };
    }
    if !kafka_answers {
        return Check::unknown(ID, "the brokers that store the progress were not reached").into();
    }
    let name = plan.config.source.slot.as_str();
    let slot = control::sample(client, name);
    let place = match runtime.block_on(async { timeout(LIMIT, slot).await }) {
        Err(_) => {
            return Check::unknown(ID, format!("no answer within {} s", LIMIT.as_secs())).into();
        }
        Ok(Ok(None)) => return without_slot(plan, runtime, client).into(),
        Ok(Err(error)) => return Check::unknown(ID, error.to_string()).into(),
        Ok(Ok(Some(slot))) if slot.wal_status == "lost" => {
            return Check::unknown(ID, "the slot is lost").into();
        }
        Ok(Ok(Some(slot))) => SlotPlace {
            slot: name.to_owned(),
            confirmed: slot.confirmed_flush,
            next_xid: slot.next_xid,
        },
    };
    match judged(place, plan, runtime, client) {
        Ok(found) => found,
        Err(failure) if failure.exit == ExitCode::Unavailable => {
            let why = failure.findings.into_iter().next().map_or_else(String::new, |one| one.what);
            Check::unknown(ID, why).into()
        }
        Err(failure) => {
            Position { checks: Check::failed(ID, failure).collect(), no_beginning: None }
        }
    }
}

fn judged(
    place: SlotPlace,
    plan: &Plan,
    runtime: &tokio::runtime::Runtime,
    client: &Client,
) -> Result<Position, CommandFailure> {
    const ID: &str = "progress.position";
    let stream = StreamPosition::after(place, plan, runtime, client)?;
    let exactly_once = plan.config.kafka.delivery == Delivery::ExactlyOnce;
    let warnings = stream.judge(exactly_once).map_err(RelayError::from)?.warnings;
    // Further refusals of `prune` are covered by a warning below.
    let no_beginning = beginning::named_by(&stream).ok().and_then(Result::err);
    let checks = if stream.progress.is_none() {
        let finding = "Kafka has no progress of the slot: delivery begins where the slot is";
        vec![Check::pass(ID, finding)]
    } else if warnings.is_empty() {
        vec![Check::pass(ID, "slot and progress in Kafka agree")]
    } else {
        let warn = |warning: Warning| Check::warn(ID, warning.to_string(), warning.hint());
        warnings.into_iter().map(warn).collect()
    };
    Ok(Position { checks, no_beginning })
}

/// If rows of a missing slot were delivered, it needs a repair, not only a new slot.
fn without_slot(plan: &Plan, runtime: &tokio::runtime::Runtime, client: &Client) -> Check {
    const ID: &str = "progress.position";
    let slot = plan.config.source.slot.clone();
    let Ok(server) = runtime.block_on(control::server(client)) else {
        return Check::unknown(ID, "the server does not report its identity");
    };
    let found = match progress_of(plan, &server, &slot) {
        Err(failure) => {
            let why = failure.findings.into_iter().next().map_or_else(String::new, |one| one.what);
            return Check::unknown(ID, why);
        }
        Ok(None) => {
            return Check::unknown(
                ID,
                "there is no slot to look at, and no progress of one in Kafka",
            );
        }
        Ok(Some(found)) => found,
    };
    let gone = match unfinished(&found) {
        Some(error) => error,
        None if found.mark == Mark::default() => {
            return Check::unknown(
                ID,
                "there is no slot to look at, and no slot has delivered anything",
            );
        }
        None => GateError::SlotGone { slot: slot.clone(), delivered: found.mark.end },
    };
    // The progress may belong to a slot that was created since the first look.
    if !matches!(runtime.block_on(control::slot(client, &slot)), Ok(None)) {
        return Check::unknown(ID, "the slot is being made at this moment");
    }
    let mut failed = Check::failed(ID, RelayError::from(gone));
    failed.next().unwrap_or_else(|| unreachable!("an error has a finding"))
}
