//! Runs the relay: one session after the other, as [`postrider_core::supervisor`] decides.
//!
//! For each session, it connects, runs preflight checks, starts a thread and monitors the source.
//! Invariant: a session that has not started to send is cancelled. A session that has started to
//! send is waited for, within limits.

mod standby;

use std::time::Duration;

use crate::blocking::of_stream;
use crate::bootstrap::Bootstrap;
use crate::catch_up::CatchUpChoice;
use crate::certificates::CertificateMonitor;
use crate::error::RelayError;
use crate::failover_remarks;
use crate::plan::{Plan, PreparedSession};
use crate::poll;
use crate::publication_changes::PublicationChanges;
use crate::sessions::Sessions;
use crate::source_check::{SourceCheck, SourceCheckReply};
use crate::start::{HotStart, OpenSink};
use crate::start_gate::StartGate;
use crate::stop::StopSignal;
use crate::telemetry::Telemetry;
use crate::timelines::Timelines;
use crate::topic_monitor::TopicMonitor;
use crate::watch::{self, Unwatched, Watch};
use crate::{RunOptions, Summary};
use postrider_config::{Delivery, SourceMode};
use postrider_core::gate::Facts;
use postrider_core::lsn::Lsn;
use postrider_core::session::{ControlRequest, End};
use postrider_core::supervisor::NextAction;
use postrider_kafka::{AtLeastOnceWithProgress, ExactlyOnce, KafkaSink, Producer, SinkError};
use postrider_postgres::control::{self, Client, ControlError, Inspection, Known, Requirements};
use standby::Holder;

const STOP_TICK: Duration = Duration::from_millis(20);
const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// Maximum time beyond the grace period for a session to end.
const OVERTIME: Duration = Duration::from_secs(5);
const SETTLING_HELP: &str = "waiting for confirmations of sent records, here or by the relay that has the slot, for at \
    most shutdown.grace; a second signal ends the relay immediately";

pub async fn deliver(
    plan: Plan,
    options: RunOptions,
    stop: StopSignal,
    telemetry: Telemetry,
) -> Result<Summary, RelayError> {
    let every = plan.config.source.status_interval;
    if plan.config.source.mode == SourceMode::Poll {
        let open = |spec: &_, _: &_, _| Producer::open(spec);
        return Box::pin(poll::run(plan, options, stop, telemetry, open)).await;
    }
    // The box keeps the future off the caller's stack, which would need room for each kind of sink.
    if plan.config.kafka.delivery == Delivery::ExactlyOnce {
        Box::pin(run(plan, options, stop, telemetry, ExactlyOnce::open)).await
    } else if plan.keeps_progress() {
        let open =
            move |spec: &_, lineage: &_, _| AtLeastOnceWithProgress::open(spec, lineage, every);
        Box::pin(run(plan, options, stop, telemetry, open)).await
    } else {
        let open = |spec: &_, _: &_, _| Producer::open(spec);
        Box::pin(run(plan, options, stop, telemetry, open)).await
    }
}

pub async fn run<S: KafkaSink + Send + 'static>(
    plan: Plan,
    options: RunOptions,
    stop: StopSignal,
    telemetry: Telemetry,
    open_sink: impl OpenSink<S>,
) -> Result<Summary, RelayError> {
    let topic_monitor = TopicMonitor::of(&plan, telemetry.clone());
    let certificates = CertificateMonitor::of(&plan, &options, telemetry.clone());
    let mut relay = Relay {
        sessions: Sessions::new(plan, options, stop.clone(), telemetry),
        known: None,
        publication_changes: PublicationChanges::default(),
        timelines: Timelines::default(),
        in_recovery: false,
        bootstrap: Bootstrap::default(),
        catch_up: CatchUpChoice::default(),
        holder: Holder::default(),
    };
    let sends = relay.sessions.options.acknowledge;
    let work = certificates.beside(relay.supervise(open_sink));
    let result = if sends { topic_monitor.beside(&stop, work).await } else { work.await };
    let sessions = &mut relay.sessions;
    let delivered = Lsn::new(sessions.totals().settled_lsn);
    let result = result.map_err(|error| error.after(delivered));
    sessions.set_last_state(&result);
    result
}

struct Relay {
    sessions: Sessions,
    /// Source as this process first found it. It must not change.
    known: Option<Known>,
    publication_changes: PublicationChanges,
    timelines: Timelines,
    in_recovery: bool,
    catch_up: CatchUpChoice,
    bootstrap: Bootstrap,
    holder: Holder,
}

impl Relay {
    async fn supervise<S: KafkaSink + Send + 'static>(
        &mut self,
        open_sink: impl OpenSink<S>,
    ) -> Result<Summary, RelayError> {
        loop {
            match self.sessions.next() {
                NextAction::End(conclusion) => return self.sessions.concluded(conclusion),
                NextAction::Standby(every) => self.stand_by(every).await,
                NextAction::Wait(time) => tokio::time::sleep(time).await,
                NextAction::Begin(told) => {
                    if let Some(unconfirmed) = told {
                        let help = SETTLING_HELP;
                        tracing::info!(unconfirmed, help, "told to stop while no session runs");
                    }
                    let ended = Box::pin(self.session(open_sink.clone())).await;
                    if let Err(error) = &ended {
                        self.note_missing(error);
                    }
                    if let Some(held) = self.sessions.ended(ended).await? {
                        self.tell_standby(&held);
                    }
                }
            }
        }
    }

    /// Lets the progress topic be created again. With exactly-once delivery the relay ends instead
    /// (PR-P064), because progress exists nowhere else.
    fn note_missing(&mut self, error: &RelayError) {
        if let RelayError::Sink(SinkError::UnknownTopic { topic }) = error
            && *topic == self.sessions.plan.kafka.progress_topic
            && self.sessions.plan.config.kafka.delivery == Delivery::AtLeastOnce
        {
            self.bootstrap.topic_is_gone();
        }
    }

    async fn prepare(&mut self) -> Result<PreparedSession, RelayError> {
        let client = control::connect(&self.sessions.plan.config.source.connect).await?;
        let mut wanted = self.sessions.plan.requirements()?;
        // A dry run does not create objects.
        wanted.create &= self.sessions.options.acknowledge;
        let is_due = self.known.is_none() || self.bootstrap.is_due();
        if self.sessions.plan.keeps_progress() && self.sessions.options.acknowledge && is_due {
            self.bootstrap.arrange(&self.sessions.plan, &client, &wanted).await?;
        }
        let inspection = control::preflight(&client, &wanted, self.known.as_ref()).await?;
        self.in_recovery = inspection.server.in_recovery;
        if self.known.is_none() {
            self.known = Some(Known::of(&inspection));
            failover_remarks::remark(&client, &self.sessions.plan, &inspection).await;
        }
        if self.sessions.options.once && self.sessions.supervisor.target().is_none() {
            self.sessions.supervisor.end_at(control::current_flush_lsn(&client).await?);
        }
        self.look_at_slot(&client).await?;
        Ok((
            self.sessions.plan.session_params(&client, &inspection).await?,
            client,
            wanted,
            inspection,
        ))
    }

    /// A session that is stopped before it has its stream has sent no record, and is not waited
    /// for.
    async fn session<S: KafkaSink + Send + 'static>(
        &mut self,
        open_sink: impl OpenSink<S>,
    ) -> Result<End, RelayError> {
        let stop = self.sessions.stop.clone();
        // Clears the shutdown of an earlier session's server.
        stop.server_shutdown_is_over();
        let unwatched = Unwatched::default();
        let told = self.sessions.told_to_end();
        let (params, client, wanted, inspection) = tokio::select! {
            ready = self.prepare() => ready?,
            () = told => return Ok(End::Drained),
        };
        if self.sessions.must_end() {
            return Ok(End::Drained);
        }
        let Some(mut reporter) = self.sessions.reporter.take() else {
            return Err(RelayError::Thread);
        };
        let (start_gate, (source_check, asked)) = (StartGate::default(), SourceCheck::new());
        let mut plan = self.sessions.plan.found(&inspection, &wanted);
        plan.config.source.connect = client.server().clone();
        let heartbeat = Plan::heartbeat(inspection.server.wal_sender_timeout);
        let begun = self.sessions.begin(&mut plan.kafka, heartbeat);
        let start = HotStart {
            facts: self.facts(&inspection),
            publication_changes: self.publication_changes.clone(),
            timelines: self.timelines.up_to(Lsn::new(self.sessions.totals().settled_lsn)),
            source_check,
            catch_up: self.catch_up.clone(),
            suspects: begun.suspects,
            plan,
            limits: begun.limits,
            mode: begun.mode,
            params,
            inspection,
            stop,
            start_gate: start_gate.clone(),
        };
        let (done, mut finished) = tokio::sync::oneshot::channel();
        let thread = std::thread::Builder::new().name("postrider-hot".to_owned());
        let spawned = thread.spawn(of_stream(move || {
            let mut owed = begun.owed;
            let result = start.run(&mut reporter, &mut owed, open_sink);
            let _ = done.send((result, reporter, owed));
        }));
        spawned.map_err(|_| RelayError::Thread)?;
        tokio::select! {
            ended = &mut finished => {
                let (result, reporter, owed) = ended.map_err(|_| RelayError::Thread)?;
                self.sessions.owed = Some(owed.settled(self.acknowledged()));
                self.sessions.reporter = Some(reporter);
                unwatched.or(result)
            }
            departure = self.attend(client, &wanted, asked, &unwatched) => {
                // Postgres may be skipping rows, so no further position is acknowledged.
                self.sessions.stop.request(ControlRequest::Abort);
                if !start_gate.close()
                    && let Ok(Ok((_, reporter, owed))) =
                        tokio::time::timeout(ABORT_LIMIT, finished).await
                {
                    self.sessions.owed = Some(owed);
                    self.sessions.reporter = Some(reporter);
                }
                Err(departure.into())
            }
            end = self.call_off(&start_gate) => end,
        }
    }

    fn acknowledged(&self) -> Lsn {
        let view = self.sessions.telemetry.view();
        view.slot.as_ref().map_or(Lsn::ZERO, |slot| Lsn::new(slot.acknowledged_lsn))
    }

    /// Ends before a session that has not started to send, or that does not end in time.
    async fn call_off(&self, start_gate: &StartGate) -> Result<End, RelayError> {
        self.sessions.told_to_end().await;
        if start_gate.close() {
            return Ok(End::Drained);
        }
        let limit = self.sessions.plan.config.shutdown.grace + OVERTIME;
        while self.sessions.stop.most_urgent() < ControlRequest::Abort {
            // For example, a session that waits for a reader of its log cannot end by itself.
            if self.sessions.stop.told_for() >= limit {
                let records = self.sessions.totals().in_flight_records;
                return Err(RelayError::GraceExpired { records });
            }
            tokio::time::sleep(STOP_TICK).await;
        }
        tokio::time::sleep(ABORT_LIMIT).await;
        Err(RelayError::Aborted { records: self.sessions.totals().in_flight_records })
    }

    async fn attend(
        &self,
        client: Client,
        wanted: &Requirements,
        asked: SourceCheckReply,
        unwatched: &Unwatched,
    ) -> ControlError {
        let stream = tokio::select! {
            stream = asked.answer(&client, wanted) => stream,
            never = watch::sample(&client, &wanted.slot, &self.sessions.telemetry) => match never {},
        };
        self.holder.streams(stream);
        let watch = Watch {
            stream,
            in_recovery: self.in_recovery,
            stop: &self.sessions.stop,
            telemetry: &self.sessions.telemetry,
            known: self.known.as_ref(),
            publication_changes: &self.publication_changes,
            wanted,
            unwatched,
        };
        watch.keep(client).await
    }

    fn facts(&self, inspection: &Inspection) -> Facts {
        let created = self.bootstrap.slot_is_ours();
        Facts { created, ..self.sessions.plan.facts(inspection, self.sessions.options.acknowledge) }
    }
}
