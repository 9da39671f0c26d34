//! `postrider run`: runs the relay, its HTTP endpoints and signal handling until it ends or is
//! stopped.
//!
//! The first SIGTERM or Ctrl-C drains, the second aborts; SIGHUP reloads the configuration
//! (`reload`). SQL, HTTP and signals run on this thread; the relay starts its own.

use std::future::Future;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::codes::ErrorCode;
use super::context::{Context, broken};
use super::counted::counted;
use super::doctor::too_large_together;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::logs;
use super::needs_slot;
use super::progress_display::ProgressDisplay;
use super::version;
use postrider_config::{Config, Effective, Loaded, Shown, SourceMode};
use postrider_core::lsn::Lsn;
use postrider_relay::telemetry::{
    HttpError, Listener, Setting, Telemetry, TraceExport, TraceSettings, serve,
};
use postrider_relay::{
    ControlRequest, Plan, Reading, RunOptions, StopSignal, Summary, deliver, delivered_tap,
    run as run_relay,
};
use tracing::Instrument as _;

mod file_watch;
mod operate;
mod print;
mod reload;
mod reload_report;
mod streams;
mod systemd;

use operate::Operation;
use print::Printer;
pub(super) use print::to_json as record_json;
use reload::{ConfigSource, InEffect, Reloader};
use systemd::{Seen, Systemd};

/// Maximum wait of `--once` for servers, unless `retry.give_up_after` is set.
const ONCE_PATIENCE: Duration = Duration::from_mins(1);

/// `run [--once] [--dry-run] [--no-wait] [--debezium FILE]`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postrider run\n  postrider run --once\n  PGHOST=db PGUSER=postrider POSTRIDER_KAFKA__BROKERS=kafka:9092 postrider run"
)]
pub struct RunArgs {
    /// Deliver all rows committed before the start, acknowledge them and exit. Exit with code
    /// 69 after one minute without progress (or retry.give_up_after, if set). Wait while
    /// another relay uses the slot, unless --no-wait is given.
    #[arg(long)]
    pub once: bool,
    /// Decode and route all rows committed before the start, and print them. Nothing is sent,
    /// acknowledged or created, and no topic is looked up.
    #[arg(long)]
    pub dry_run: bool,
    /// Exit with code 75 if another relay uses the slot, instead of waiting
    #[arg(long)]
    pub no_wait: bool,
    /// Import this Debezium file and use it instead of a configuration file
    #[arg(long, value_name = "FILE")]
    pub debezium: Option<PathBuf>,
}

pub(crate) fn run(args: &RunArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let runtime = super::runtime()?;
    let stop = StopSignal::default();
    {
        // Signals are received before anything else, because a start may be stopped at once.
        let _inside = runtime.enter();
        runtime.spawn(listen_for_signals(stop.clone()));
    }
    let source = ConfigSource { context: context.clone(), debezium: args.debezium.clone() };
    let loaded = match <[Loaded; 1]>::try_from(source.load()?) {
        Ok([one]) => one,
        Err(several) => {
            let code = streams::run((args, context), warned(several), (source, stop), &runtime);
            runtime.shutdown_background();
            return code;
        }
    };
    let span = logs::span_of(loaded.stream.as_deref());
    let _of_stream = span.clone().entered();
    if args.dry_run {
        needs_slot(&loaded.config, "run --dry-run")?;
    }
    introduce(&loaded);
    let config = loaded.config.clone();
    let bind = config.http.bind.filter(|_| !args.dry_run);
    let tap = config.http.dashboard.then(|| delivered_tap(&config));
    let settings = loaded.effective.iter().map(setting).collect();
    let telemetry = Telemetry::showing(version::build_info_of(&loaded), settings);
    let options = options(args, &config);
    let manager = Systemd::of_environment(config.shutdown.grace);
    let mut plan = Plan { stream: loaded.stream.clone(), ..Plan::of(config) };
    let export = if args.dry_run { None } else { trace(&mut plan, &telemetry) };
    let is_endless = !args.once && !args.dry_run;
    plan.kafka.tap = tap.clone().filter(|_| bind.is_some()).unwrap_or_default();
    let work = async {
        let reloader = Reloader {
            source,
            streams: vec![InEffect::new(loaded, stop.clone(), telemetry.clone())],
            notice: manager.as_ref().map(Systemd::reload_notice),
            told: Vec::new(),
        };
        let begin = || Operation::begin(reloader, &stop, None);
        let operation = is_endless.then(begin).transpose()?;
        let (end_http, http_ended) = tokio::sync::oneshot::channel::<()>();
        if let Some(listener) = listener(bind, args.once).await? {
            let admin = operation.as_ref().map(Operation::at_http);
            tokio::spawn(serve(listener, telemetry.clone(), tap, admin, async {
                let _ = http_ended.await;
            }));
        }
        let work = run_or_print((args, context), plan, options, stop.clone(), telemetry.clone());
        let summary = match manager {
            Some(manager) => manager.during(|| Seen::of(&telemetry), stop, work).await,
            None => Box::pin(work).await,
        };
        drop(end_http);
        if let Some(operation) = operation {
            operation.end().await;
        }
        if let Some(export) = export {
            export.finish();
        }
        let summary = summary?;
        finish(args, context, (None, &summary))
    };
    let code = runtime.block_on(work.instrument(span));
    // A pending connection attempt cannot be cancelled, so it is not awaited.
    runtime.shutdown_background();
    code
}

fn warned(streams: Vec<Loaded>) -> Vec<Loaded> {
    if let Some(what) = too_large_together(&streams) {
        let help =
            "lower kafka.max_in_flight, which each stream has, or raise the limit of the container";
        tracing::warn!(help, "{what}");
    }
    streams
}

#[derive(Serialize)]
struct StreamSummary<'a> {
    stream: &'a str,
    #[serde(flatten)]
    summary: &'a Summary,
}

async fn run_or_print(
    (args, context): (&RunArgs, &Context),
    plan: Plan,
    options: RunOptions,
    stop: StopSignal,
    telemetry: Telemetry,
) -> Result<Summary, CommandFailure> {
    if !args.dry_run {
        let watched = telemetry.clone();
        let read = move || Reading::of_catch_up(&watched.view().snapshot);
        let _display = ProgressDisplay::start(context, read);
        return deliver(plan, options, stop, telemetry).await.map_err(CommandFailure::from);
    }
    let told = Arc::new(OnceLock::new());
    let ended = (stop.clone(), Arc::clone(&told));
    let printer = move |_: &_, _: &_, _| {
        let (stop, told) = ended.clone();
        Ok(Printer::new(std::io::stdout(), move |error| {
            let _ = told.set(error);
            stop.request(ControlRequest::Drain);
        }))
    };
    let summary = Box::pin(run_relay(plan, options, stop, telemetry, printer)).await;
    match told.get() {
        Some(error) => Err(broken(error)),
        None => summary.map_err(|error| creates_nothing(CommandFailure::from(error))),
    }
}

/// A failure to trace stops no row.
fn trace(plan: &mut Plan, telemetry: &Telemetry) -> Option<TraceExport> {
    let variable = |name: &str| std::env::var(name).ok();
    let settings = match TraceSettings::new(&plan.config.traces, variable) {
        Ok(settings) => settings?,
        Err(error) => {
            tracing::warn!(help = "rows are not traced; set it right or unset it", "{error}");
            return None;
        }
    };
    let endpoint = settings.shown();
    match settings.start(telemetry.build()) {
        Ok((traces, export)) => {
            tracing::info!(endpoint, "tracing rows to an OpenTelemetry collector");
            telemetry.counts_spans(traces.clone());
            plan.kafka.traces = traces;
            Some(export)
        }
        Err(error) => {
            tracing::warn!("cannot trace rows: {error}");
            None
        }
    }
}

/// With `--once`, an address that another relay has is not an error.
async fn listener(bind: Option<SocketAddr>, once: bool) -> Result<Option<Listener>, HttpError> {
    let Some(address) = bind else { return Ok(None) };
    match Listener::bind(address).await {
        Ok(listener) => {
            tracing::info!(address = %listener.address(), "serving health and metrics over HTTP");
            Ok(Some(listener))
        }
        Err(error) if once => {
            let help = error.hint();
            tracing::warn!(help, "{error}; continuing without health and metrics");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn setting(effective: &Effective) -> Setting {
    let Effective { key, value, origin } = effective;
    let value = match value {
        Shown::Text(text) => text.clone(),
        Shown::List(_) | Shown::Switch(_) | Shown::Count(_) => value.to_string(),
    };
    Setting { key: key.clone(), value, origin: origin.to_string() }
}

fn introduce(loaded: &Loaded) {
    let Config { source, kafka, .. } = &loaded.config;
    let file = loaded.file.as_ref().map_or_else(|| "none".into(), |file| file.to_string_lossy());
    let hosts: Vec<String> = source.connect.endpoints.iter().map(ToString::to_string).collect();
    let build = version::build_info(&source.slot);
    tracing::info!(
        version = build.version,
        config = %file,
        database = format!("{} on {}", source.connect.database, hosts.join(", ")),
        role = source.connect.user,
        mode = source.mode.as_str(),
        slot = (source.mode == SourceMode::Stream).then_some(source.slot.as_str()),
        brokers = kafka.brokers.join(","),
        delivery = kafka.delivery.as_str(),
        "starting"
    );
}

/// A dry run requires an existing slot, because a new one would show no waiting rows.
fn creates_nothing(failure: CommandFailure) -> CommandFailure {
    let is_missing = failure.is(ErrorCode::PUBLICATION_MISSING)
        || failure.is(ErrorCode::TABLE_MISSING)
        || failure.is(ErrorCode::SLOT_MISSING);
    if !is_missing {
        return failure;
    }
    let help = failure.findings.last().and_then(|finding| finding.help.clone()).unwrap_or_default();
    failure.help(format!(
        "a dry run reads an existing slot and creates nothing; `postrider route --from-database` \
         shows rows of the table without one. {help}"
    ))
}

fn options(args: &RunArgs, config: &Config) -> RunOptions {
    let patience = (args.once && config.retry.give_up_after.is_zero()).then_some(ONCE_PATIENCE);
    RunOptions {
        once: args.once || args.dry_run,
        wait_for_slot: !args.no_wait,
        acknowledge: !args.dry_run,
        patience,
    }
}

fn finish(
    args: &RunArgs,
    context: &Context,
    (stream, summary): (Option<&str>, &Summary),
) -> Result<ExitCode, CommandFailure> {
    let Summary { confirmed, dead_letters, skipped, settled, .. } = summary;
    if args.dry_run {
        let records = summary.records;
        tracing::info!(records, dead_letters, skipped, "printed; nothing was sent or acknowledged");
        return std::io::stdout().flush().map(|()| ExitCode::Ok).map_err(|error| broken(&error));
    }
    tracing::info!(confirmed, dead_letters, skipped, %settled, "stopped");
    if args.once && context.json() {
        match stream {
            Some(stream) => context.print_json(&StreamSummary { stream, summary })?,
            None => context.print_json(summary)?,
        }
    } else if args.once {
        let letters = match dead_letters {
            0 => "none of them a dead letter".to_owned(),
            1 => "1 dead letter sent".to_owned(),
            // Letters of ended sessions are counted again, and need not be confirmed.
            many => format!("{many} dead letters sent, repeats included"),
        };
        let left_out = if *skipped > 0 {
            format!(", {} left out", counted(*skipped, "row"))
        } else {
            String::new()
        };
        let of = stream.map(|name| format!("{name}: ")).unwrap_or_default();
        // Polled rows have no position in the log.
        let position = if *settled == Lsn::ZERO {
            String::new()
        } else {
            format!("; settled up to {settled}")
        };
        context.print(&format!(
            "{of}{} confirmed, {letters}{left_out}{position}\n",
            counted(*confirmed, "record")
        ))?;
    }
    Ok(ExitCode::Ok)
}

/// Signals within this time count as one: GNU timeout signals the process and its group, and
/// wrappers may repeat a terminal's Ctrl-C.
const TOGETHER: Duration = Duration::from_millis(500);

/// Drains on the first SIGTERM or Ctrl-C, aborts on the second. Signals are received from this call
/// on; requires a runtime.
pub(super) fn listen_for_signals(stop: StopSignal) -> impl Future<Output = ()> {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
            tracing::error!("cannot receive signals: only SIGKILL stops this process");
            return;
        };
        let mut last: Option<Instant> = None;
        loop {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if last.is_some_and(|last| last.elapsed() < TOGETHER) {
                continue;
            }
            last = Some(Instant::now());
            if stop.signal() == ControlRequest::Abort {
                tracing::warn!(signal = name, "aborting");
            } else {
                tracing::info!(signal = name, "stopping; signal again to abort");
            }
        }
    }
}
