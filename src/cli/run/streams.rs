//! Runs several streams in one process. Each has a relay with its own sessions, hot thread and
//! Kafka producer; HTTP server, log and control plane are shared.
//!
//! Invariant: a failed stream stops no other. After a failure that may pass, it restarts after ten
//! times its `retry.max`. Otherwise it stays failed until `ctl resume` or a restart, because the
//! next run may not know what this run refused. Its slot is sampled until then. The process ends
//! when no stream runs, with the code of the first failed stream. A failure that a service manager
//! restarts takes precedence.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};
use tracing::Instrument as _;

use super::super::context::Context;
use super::super::exit::ExitCode;
use super::super::failure::{CommandFailure, Diagnostic};
use super::super::logs;
use super::super::progress_display::ProgressDisplay;
use super::super::version;
use super::operate::Operation;
use super::reload::{ConfigSource, InEffect, Reloader};
use super::systemd::{Seen, Systemd};
use super::{RunArgs, finish, introduce, listener, options, setting, trace};
use postrider_config::{ConfigError, Loaded, SourceMode};
use postrider_kafka::DeliveredTap;
use postrider_relay::telemetry::{
    NextRun, RelayState, Snapshot, Telemetry, serve_streams, unix_us,
};
use postrider_relay::{
    ControlRequest, NewRun, Plan, Reading, RelayError, RunOptions, StopSignal, StreamHandle,
    Streams, Summary, deliver, delivered_tap, sample_of_failed,
};

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A failed stream restarts after its `retry.max` times this.
const RETRY_MAX_TIMES: u32 = 10;
const PAUSE_MIN: Duration = Duration::from_secs(1);

enum State {
    Runs,
    /// Failed, until the time of the restart; `None` needs a person.
    Waits {
        failure: CommandFailure,
        until: Option<Instant>,
        _sampling: Sampling,
    },
    Ended(Result<Summary, CommandFailure>),
}

struct Sampling(JoinHandle<()>);

impl Drop for Sampling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Stream {
    handle: StreamHandle,
    plan: Plan,
    options: RunOptions,
    state: State,
}

struct Runs {
    streams: Vec<Stream>,
    running: JoinSet<(usize, Result<Summary, CommandFailure>)>,
    /// Whether failed streams restart.
    is_endless: bool,
    stop: StopSignal,
}

pub(super) fn run(
    (args, context): (&RunArgs, &Context),
    several: Vec<Loaded>,
    (source, stop): (ConfigSource, StopSignal),
    runtime: &Runtime,
) -> Result<ExitCode, CommandFailure> {
    if args.dry_run {
        let names = several.into_iter().filter_map(|loaded| loaded.stream).collect();
        return Err(ConfigError::SeveralStreams { names }.into());
    }
    let Some(first) = several.first().map(|loaded| loaded.config.clone()) else {
        unreachable!("a configuration has a stream at least");
    };
    let graces = several.iter().map(|loaded| loaded.config.shutdown.grace);
    let manager = Systemd::of_environment(graces.max().unwrap_or_default());
    let begin = |loaded: &Loaded| Stream::new(loaded, args, &stop);
    let mut streams: Vec<Stream> = several.iter().map(begin).collect();
    let displays: Vec<_> = streams.iter().map(Stream::display).collect();
    let handles = Streams::new(streams.iter().map(|one| one.handle.clone()).collect());
    let export = share_traces(&mut streams);
    let in_effect = several.into_iter().zip(handles.each());
    let in_effect = in_effect
        .map(|(loaded, one)| InEffect::new(loaded, one.stop.clone(), one.telemetry.clone()));
    let reloader = Reloader {
        source,
        streams: in_effect.collect(),
        notice: manager.as_ref().map(Systemd::reload_notice),
        told: Vec::new(),
    };
    let is_endless = !args.once;
    let runs = Runs { streams, running: JoinSet::new(), is_endless, stop: stop.clone() };
    let code = runtime.block_on(async {
        let begin = || Operation::begin(reloader, &stop, Some(handles.clone()));
        let operation = is_endless.then(begin).transpose()?;
        let (end_http, http_ended) = tokio::sync::oneshot::channel::<()>();
        if let Some(listener) = listener(first.http.bind, args.once).await? {
            let admin = operation.as_ref().map(Operation::at_http);
            let has_page = first.http.dashboard;
            tokio::spawn(serve_streams(listener, handles.clone(), has_page, admin, async {
                let _ = http_ended.await;
            }));
        }
        let work = runs.finish_all();
        let streams = match manager {
            Some(manager) => manager.during(|| Seen::of_streams(&handles), stop, work).await,
            None => work.await,
        };
        drop(end_http);
        if let Some(operation) = operation {
            operation.end().await;
        }
        if let Some(export) = export {
            export.finish();
        }
        conclude((args, context), streams)
    });
    drop(displays);
    code
}

impl Stream {
    fn new(loaded: &Loaded, args: &RunArgs, stop: &StopSignal) -> Self {
        let config = loaded.config.clone();
        let name = loaded.stream.clone().unwrap_or_default();
        logs::span_of(Some(&name)).in_scope(|| introduce(loaded));
        let settings = loaded.effective.iter().map(setting).collect();
        let telemetry = Telemetry::showing(version::build_info_of(loaded), settings);
        let options = options(args, &config);
        let is_shown = config.http.dashboard && config.http.bind.is_some();
        let tap = if is_shown { delivered_tap(&config) } else { DeliveredTap::default() };
        let mut plan = Plan { stream: loaded.stream.clone(), ..Plan::of(config) };
        plan.kafka.tap = tap.clone();
        let handle = StreamHandle { name, telemetry, stop: stop.of_stream(), tap };
        Self { handle, plan, options, state: State::Runs }
    }

    /// Shows progress as log lines, because a terminal has only one bar.
    fn display(&self) -> ProgressDisplay {
        let _of_stream = logs::span_of(Some(&self.handle.name)).entered();
        let telemetry = self.handle.telemetry.clone();
        ProgressDisplay::lines(move || Reading::of_catch_up(&telemetry.view().snapshot))
    }

    fn pause(&self) -> Duration {
        PAUSE_MIN.max(self.plan.config.retry.max * RETRY_MAX_TIMES)
    }

    /// Shows probes the failure, which may not belong to a session.
    fn show_failed(&self, failure: &CommandFailure) {
        let telemetry = &self.handle.telemetry;
        let snapshot = telemetry.view().snapshot.as_ref().clone();
        let told = |finding: &Diagnostic| match &finding.help {
            Some(help) => format!("{}; {help}", finding.what),
            None => finding.what.clone(),
        };
        let finding = failure.findings.first();
        telemetry.publish(Snapshot {
            state: RelayState::Failed,
            holds_slot: false,
            last_failure: finding.map(|finding| told(finding).into()),
            failure_help: finding.and_then(|finding| finding.help.as_deref()).map(Into::into),
            ..snapshot
        });
    }

    /// Waits after a failure, for a time or until `ctl resume`.
    fn wait(&mut self, failure: CommandFailure) {
        for finding in &failure.findings {
            let (why, help) = (finding.why.as_deref(), finding.help.as_deref());
            let (code, what) = (finding.code.as_str(), &finding.what);
            tracing::error!(code, why, help, "this stream has failed: {what}");
        }
        let pause = Some(self.pause()).filter(|_| !failure.exit.needs_human());
        let at_us = pause.map(|pause| unix_us() + i64::try_from(pause.as_micros()).unwrap_or(0));
        let next_run = NextRun {
            stream: self.handle.name.as_str().into(),
            at_us,
            of_position: failure.exit == ExitCode::Position,
        };
        tracing::info!("the other streams keep running; this one {next_run}");
        // Drops a request for the run that has ended.
        self.handle.stop.control().take_new_run();
        let telemetry = self.handle.telemetry.clone();
        telemetry.set_next_run(Some(next_run));
        let (source, span) = (self.plan.config.clone(), tracing::Span::current());
        let sampling = async move {
            if source.source.mode == SourceMode::Stream {
                sample_of_failed(&source, &telemetry).await;
            }
        };
        let sampling = Sampling(tokio::spawn(sampling.instrument(span)));
        let until = pause.map(|pause| Instant::now() + pause);
        self.state = State::Waits { failure, until, _sampling: sampling };
    }

    fn is_due(&mut self) -> bool {
        let State::Waits { until, .. } = &self.state else { return false };
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        let Some(NewRun { config }) = self.handle.stop.control().take_new_run() else {
            return is_over;
        };
        if let Some(config) = config {
            let (traces, tap) = (self.plan.kafka.traces.clone(), self.plan.kafka.tap.clone());
            let stream = self.plan.stream.take();
            self.plan = Plan { stream, ..Plan::of(config.as_ref().clone()) };
            (self.plan.kafka.traces, self.plan.kafka.tap) = (traces, tap);
        }
        true
    }
}

impl Runs {
    /// Returns when each stream has ended or failed.
    async fn finish_all(mut self) -> Vec<Stream> {
        for number in 0..self.streams.len() {
            self.begin(number);
        }
        while self.streams.iter().any(|one| matches!(one.state, State::Runs)) {
            tokio::select! {
                Some(ended) = self.running.join_next() => match ended {
                    Ok((number, result)) => self.ended(number, result),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                () = tokio::time::sleep(LOOK_EVERY) => self.look_at_waiting(),
            }
        }
        self.streams
    }

    fn begin(&mut self, number: usize) {
        let Some(one) = self.streams.get_mut(number) else { return };
        if let State::Waits { .. } = std::mem::replace(&mut one.state, State::Runs) {
            let telemetry = &one.handle.telemetry;
            let snapshot = telemetry.view().snapshot.as_ref().clone();
            telemetry.publish(Snapshot { state: RelayState::Starting, ..snapshot });
            telemetry.set_next_run(None);
        }
        let (plan, options) = (one.plan.clone(), one.options.clone());
        let (stop, telemetry) = (one.handle.stop.anew(), one.handle.telemetry.clone());
        let name = one.handle.name.clone();
        let span = logs::span_of(Some(&name));
        let run = async move {
            let result = deliver(plan, options, stop, telemetry).await;
            (number, result.map_err(|error| CommandFailure::from(error).of_stream(&name)))
        };
        self.running.spawn(run.instrument(span));
    }

    fn ended(&mut self, number: usize, result: Result<Summary, CommandFailure>) {
        let runs =
            |(other, one): (usize, &Stream)| other != number && matches!(one.state, State::Runs);
        let goes_on = !self.stops() && self.streams.iter().enumerate().any(runs);
        let Some(one) = self.streams.get_mut(number) else { return };
        let _of_stream = logs::span_of(Some(&one.handle.name)).entered();
        one.state = match result {
            Ok(summary) => State::Ended(Ok(summary)),
            Err(failure) => {
                one.show_failed(&failure);
                if self.is_endless && goes_on {
                    one.wait(failure);
                    return;
                }
                State::Ended(Err(failure))
            }
        };
    }

    fn look_at_waiting(&mut self) {
        if self.stops() {
            return;
        }
        for number in 0..self.streams.len() {
            if self.streams.get_mut(number).is_some_and(Stream::is_due) {
                self.begin(number);
            }
        }
    }

    fn stops(&self) -> bool {
        self.stop.most_urgent() >= ControlRequest::Drain
    }
}

/// Traces the rows of all streams with one exporter.
fn share_traces(streams: &mut [Stream]) -> Option<postrider_relay::telemetry::TraceExport> {
    let (first, others) = streams.split_first_mut()?;
    let export = trace(&mut first.plan, &first.handle.telemetry);
    for one in others {
        one.plan.kafka.traces = first.plan.kafka.traces.clone();
    }
    export
}

fn conclude(
    (args, context): (&RunArgs, &Context),
    streams: Vec<Stream>,
) -> Result<ExitCode, CommandFailure> {
    let (mut failures, mut summaries) = (Vec::new(), Vec::new());
    for Stream { handle, state, .. } in streams {
        match state {
            State::Ended(Ok(summary)) => summaries.push((handle.name, summary)),
            State::Ended(Err(failure)) | State::Waits { failure, .. } => {
                failures.push((handle.name, failure));
            }
            State::Runs => failures.push((handle.name, RelayError::Thread.into())),
        }
    }
    for (name, summary) in &summaries {
        let _of_stream = logs::span_of(Some(name)).entered();
        let printed = finish(args, context, (Some(name), summary));
        // A closed stdout must not hide a failure.
        if failures.is_empty() {
            printed?;
        }
    }
    let exits = failures.iter().map(|(_, failure)| failure.exit);
    let Some(exit) = exits.min_by_key(|exit| exit.needs_human()) else { return Ok(ExitCode::Ok) };
    let mut whole = CommandFailure::silent(exit);
    for (name, failure) in failures {
        for mut finding in failure.findings {
            finding.what = format!("stream `{name}`: {}", finding.what);
            whole.findings.push(finding);
        }
    }
    Err(whole)
}
