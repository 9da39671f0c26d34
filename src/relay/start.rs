//! Starts a session on its own thread: opens the stream and the sink, checks the source again,
//! decides where to resume, and runs the loop.
//!
//! Invariant: the slot is the lock, so it is taken first. Its holder fences earlier producers
//! before it reads their progress. No record is sent before the resume position is known (G6). The
//! server gets status updates while the sink opens.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::blocking::of_stream;
use crate::catch_up::{CatchUpChoice, Considered};
use crate::clock::Clock;
use crate::coalescing;
use crate::error::RelayError;
use crate::hot::Hot;
use crate::plan::Plan;
use crate::publication_changes::PublicationChanges;
use crate::report::Reporter;
use crate::session_mode::batches_wait;
use crate::source_check::SourceCheck;
use crate::start_gate::StartGate;
use crate::stop::StopSignal;
use crate::timelines::{self, Timelines};
use postrider_core::frame::LastPlace;
use postrider_core::gate::{Facts, Resume, Warning, begins, judge, other_log, unbroken};
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::{Mark, Pipeline, Suspects, Translator};
use postrider_core::session::{End, Limits, Owed, Session};
use postrider_core::supervisor::SessionMode;
use postrider_core::time;
use postrider_kafka::failpoint;
use postrider_kafka::{KafkaSink, KafkaSpec, Lineage, SinkError};
use postrider_postgres::control::{ControlError, Inspection, Known, SlotSample};
use postrider_postgres::wal::{Class, Connection, SessionParams, Stream, StreamEncoding, WalError};

/// Maximum time for an ended stream to report the reason.
const LAST_WORDS: Duration = Duration::from_millis(500);
const LAST_WORDS_TICK: Duration = Duration::from_millis(50);

/// The last argument is the time on the session's clock.
pub trait OpenSink<S>:
    Fn(&KafkaSpec, &Lineage, time::Instant) -> Result<S, SinkError> + Clone + Send + 'static
{
}
impl<S, F> OpenSink<S> for F where
    F: Fn(&KafkaSpec, &Lineage, time::Instant) -> Result<S, SinkError> + Clone + Send + 'static
{
}

pub(super) struct HotStart {
    pub(super) plan: Plan,
    pub(super) limits: Limits,
    pub(super) mode: Option<SessionMode>,
    pub(super) params: SessionParams,
    pub(super) stop: StopSignal,
    pub(super) start_gate: StartGate,
    /// Lacks the slot's position, and facts that only the replication connection knows.
    pub(super) facts: Facts,
    pub(super) timelines: Timelines,
    pub(super) publication_changes: PublicationChanges,
    pub(super) catch_up: CatchUpChoice,
    pub(super) inspection: Inspection,
    pub(super) source_check: SourceCheck,
    /// Findings of earlier sessions about refused records.
    pub(super) suspects: Suspects,
}

impl HotStart {
    pub(super) fn run<S: KafkaSink + Send>(
        self,
        reporter: &mut Reporter,
        owed: &mut Owed,
        open_sink: impl OpenSink<S>,
    ) -> Result<End, RelayError> {
        let source = &self.plan.config.source;
        let mut connection = Connection::open(&source.connect, &self.params)?;
        let is_local = connection.is_local();
        let mut facts = self.facts;
        identify(&mut connection, &mut facts)?;
        let mut pipeline = self.plan.pipeline_of(&facts.lineage)?;
        let process = connection.server_process()?;
        let mut stream = connection
            .start(&source.slot, &source.publication, Lsn::ZERO)
            .map_err(|refused| vanished(refused.error, &source.slot))?;
        if !self.start_gate.cross() {
            return Ok(End::Drained);
        }
        failpoint::pass("slot_taken");
        // The sink follows the slot, which a standby tries five times per second without a client.
        let (spec, lineage) = (&self.plan.kafka, &facts.lineage);
        let clock = Clock::start();
        let open = move || open_sink(spec, lineage, clock.instant());
        let mut sink = meanwhile(&mut stream, self.limits.heartbeat, open)?;
        if facts.exactly_once {
            // Earlier transactions are over: their rows were delivered or never sent.
            *owed = Owed::default();
        }
        failpoint::pass("progress_read");
        // The source is checked again, and last. Another relay may have resumed the stream before
        // this relay took the slot, and the slot may have been taken away since.
        let held = self
            .source_check
            .ask(process, &self.stop, || stream.keep_alive())
            .map_err(|error| last_words(&mut stream, error))?;
        same_source(&self.inspection, &held.inspection)?;
        hold(&mut facts, &held.slot);
        let mut warnings = Vec::new();
        if self.plan.keeps_progress() {
            let acknowledges = self.limits.acknowledge;
            warnings = resume(&facts, &source.slot, acknowledges, &mut pipeline, &mut sink)?;
        }
        if !facts.exactly_once {
            // Progress that is not part of a Kafka transaction lags behind the delivery.
            warnings = self.timelines.follow(&facts, self.plan.keeps_progress(), warnings)?;
        }
        let is_remembered = !self.plan.keeps_progress() && self.limits.acknowledge;
        let delivered = is_remembered
            .then(|| self.timelines.delivered.begin(&facts, &held.slot, &mut pipeline));
        *owed = owed_here(*owed, &warnings);
        for warning in warnings {
            self.publication_changes.warn(&warning, facts.lineage.publication_xid);
        }
        pipeline.set_suspects(self.suspects);
        tell_streaming(reporter, &source.slot, self.mode);
        let profile = coalescing(is_local, batches_wait(self.mode, spec));
        let Self { stop, limits, catch_up, params, timelines, .. } = self;
        let limits = catch_up.bounded(limits, self.mode, held.slot.confirmed_flush);
        let considered = Considered::of(source, (self.mode, &limits), &held);
        let source = catch_up.source(stream, &params, &considered);
        let (limits, windows) = (source.limits(limits), source.windows_from());
        let session = Session::new(pipeline, limits, profile, *owed, clock.instant())
            .translated_by(translator(&params));
        let (place, tap) = (LastPlace::default(), spec.tap.clone());
        let ended =
            Hot { source, session, sink, stop, clock, delivered, place, tap }.run(reporter, owed);
        let ended = catch_up.ended(ended, &limits, windows);
        ended.map_err(of_the_gate).map_err(|error| timelines.delivered.judge(error))
    }
}

fn identify(connection: &mut Connection, facts: &mut Facts) -> Result<(), WalError> {
    let identity = connection.identify_system()?;
    facts.history = connection.timeline_history(identity.timeline)?;
    facts.server = identity.flushed;
    (facts.lineage.system, facts.lineage.timeline) = (identity.system_id, identity.timeline);
    Ok(())
}

fn hold(facts: &mut Facts, slot: &SlotSample) {
    facts.confirmed = slot.confirmed_flush;
    facts.server = facts.server.max(slot.current);
    facts.next_xid = slot.next_xid;
}

/// Records still owed on a server that may have lost the end of the log.
fn owed_here(owed: Owed, warnings: &[Warning]) -> Owed {
    warnings.iter().fold(owed, |owed, warning| match warning {
        Warning::TailLost { end, .. } => owed.lost_after(*end),
        _ => owed,
    })
}

/// Returns warnings for the operator.
fn resume<S: KafkaSink>(
    facts: &Facts,
    slot: &str,
    acknowledges: bool,
    pipeline: &mut Pipeline,
    sink: &mut S,
) -> Result<Vec<Warning>, RelayError> {
    let resume = judge(facts, sink.found())?;
    if let Some(progress) = sink.found().filter(|_| facts.exactly_once) {
        timelines::tell(facts, &progress.lineage, progress.mark.end);
    }
    let whole = sink.found().and_then(|progress| unbroken(facts, progress, &resume));
    let anew = || begins(facts.confirmed, facts.next_xid, &facts.lineage, sink.found());
    sink.whole_since(whole.unwrap_or_else(anew));
    let Resume { mark, check, warnings } = resume;
    if acknowledges {
        tell_start(sink.found().is_some(), mark, slot, facts.confirmed);
    } else {
        tracing::info!(
            at = %facts.confirmed,
            "a dry run begins at the slot's position and does not read the progress in Kafka: \
             rows that the progress covers are shown as well"
        );
    }
    pipeline.resume_at(mark, check);
    sink.begin_at(mark);
    Ok(warnings)
}

fn tell_start(found: bool, mark: Mark, slot: &str, confirmed: Lsn) {
    if !found {
        tracing::info!("Kafka holds no progress of slot `{slot}`; beginning at {confirmed}");
    } else if mark.end > Lsn::ZERO && mark.last.is_none() {
        tracing::info!(
            end = %mark.end,
            "the progress names no commit to look for in the server's WAL: none was delivered \
             yet, or the progress was adopted, or written by an earlier version"
        );
    }
}

fn tell_streaming(reporter: &mut Reporter, slot: &str, mode: Option<SessionMode>) {
    // A reader of the log line may query the HTTP server next, so the state is published first.
    reporter.streaming();
    tracing::info!(slot, mode = mode.map(|mode| mode.kind.as_str()), "streaming");
}

pub(super) fn translator(params: &SessionParams) -> Option<Translator> {
    match &params.encoding {
        StreamEncoding::Utf8 | StreamEncoding::Unknown => None,
        StreamEncoding::Own(charset) => {
            Some(Translator::new(Arc::clone(charset), params.frame_bytes_max))
        }
    }
}

/// The gate can detect another log only after the log was read.
fn of_the_gate(error: RelayError) -> RelayError {
    match &error {
        RelayError::Pipeline(inner) => other_log(inner).map_or(error, RelayError::from),
        _ => error,
    }
}

/// Keeps the stream alive during the work on another thread. The next read of the stream detects
/// its end.
pub(super) fn meanwhile<T: Send>(
    stream: &mut Stream,
    heartbeat: Duration,
    work: impl FnOnce() -> T + Send,
) -> T {
    std::thread::scope(|scope| {
        let (done, finished) = sync_channel(1);
        let working = scope.spawn(of_stream(move || done.send(work())));
        loop {
            match finished.recv_timeout(heartbeat) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) => {
                    let _ = stream.keep_alive();
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        match working.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("a thread that has ended has sent its result"),
        }
    })
}

/// Returns the error that ended the stream, or else `error`. A stream that fails at its first row
/// has already lost its slot, so the stream's own error matters. If another relay holds the slot, a
/// transient error of the stream is only the consequence.
fn last_words(stream: &mut Stream, error: RelayError) -> RelayError {
    let is_taken = error.class() == Class::Held;
    match ended(stream) {
        Some(said) if !(is_taken && said.class().is_transient()) => said.into(),
        _ => error,
    }
}

fn ended(stream: &mut Stream) -> Option<WalError> {
    let deadline = Instant::now() + LAST_WORDS;
    while Instant::now() < deadline {
        if let Err(error) = stream.fill(LAST_WORDS_TICK) {
            return Some(error);
        }
        loop {
            match stream.peek() {
                Err(error) => return Some(error),
                Ok(None) => break,
                Ok(Some(_)) => stream.consume(),
            }
        }
    }
    None
}

/// Converts 42704 from START_REPLICATION: the slot that preflight saw no longer exists.
fn vanished(error: WalError, slot: &str) -> RelayError {
    match error {
        WalError::Server(server) if server.code == "42704" => {
            ControlError::SlotVanished { slot: slot.to_owned(), delivered: None }.into()
        }
        error => error.into(),
    }
}

/// Refuses a source that another process changed before this relay held the slot. That process may
/// have handled the consequences, so the next session judges the source again.
fn same_source(before: &Inspection, now: &Inspection) -> Result<(), RelayError> {
    // A standby that was promoted since then is on another timeline.
    let same_role = before.server.in_recovery == now.server.in_recovery;
    let is_same = same_role && Known::of(before) == Known::of(now);
    if is_same { Ok(()) } else { Err(RelayError::SourceChanged) }
}
