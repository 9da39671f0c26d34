//! Runs the relay: session after session, as [`postrider_core::supervisor`] decides. [`run`] takes any
//! sink, [`deliver`] the one that `kafka.delivery` names.
//!
//! Input: a [`Plan`] and requests to stop. Output: a [`Summary`] or the error that ended the relay. Per
//! session it connects, runs preflight checks, starts a thread, monitors the source meanwhile, and logs the
//! outcome. Invariant: whether, when and how the next session begins is decided in the core; a session that
//! has not begun to send is cancelled, one that has is waited for, within limits.

mod standby;

use std::time::{Duration, Instant};

use crate::blocking::run_blocking;
use crate::bootstrap::Bootstrap;
use crate::clock::Clock;
use crate::error::RelayError;
use crate::failure::failure;
use crate::plan::{Plan, PreparedSession};
use crate::poll;
use crate::publication_changes::PublicationChanges;
use crate::report::Reporter;
use crate::source_check::{SourceCheck, SourceCheckReply};
use crate::start::{HotStart, OpenSink};
use crate::start_gate::StartGate;
use crate::stop::StopSignal;
use crate::telemetry::{RelayState, Telemetry};
use crate::topic_monitor::TopicMonitor;
use crate::watch::{self, Unwatched, Watch};
use crate::{RunOptions, Summary};
use postrider_config::{Delivery, SourceMode};
use postrider_core::gate::Facts;
use postrider_core::lsn::Lsn;
use postrider_core::session::{ControlRequest, End, Limits, Owed};
use postrider_core::supervisor::{
    AfterSession, Conclusion, Left, NextAction, RefusalConsequence, Supervisor, SupervisorPolicy,
};
use postrider_kafka::{
    AtLeastOnceWithProgress, ExactlyOnce, KafkaSink, Producer, SinkError, learn_topic_settings,
};
use postrider_postgres::control::{
    self, Client, ControlError, Inspection, Known, Requirements, ServerFacts,
};
use postrider_service::backoff::{Backoff, draw};

/// How soon a second signal is noticed while a session opens.
const STOP_TICK: Duration = Duration::from_millis(20);
/// How long a session that must end at once may take to close its connections.
const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// How long beyond the grace a session may take to end, if it ends at all.
const OVERTIME: Duration = Duration::from_secs(5);
const SETTLING_HELP: &str = "what was sent is confirmed first, here or by the relay that has the slot, \
                             for shutdown.grace at most; a second signal ends it at once";
/// How long a topic's settings are waited for, once, when it has refused something.
const SETTINGS_LIMIT: Duration = Duration::from_secs(2);

/// As [`run`], with the producer that the configuration asks for.
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
    // Not on the stack of the caller, which would have room for each kind of sink.
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

/// Runs the relay until it is told to stop, has caught up, or must not go on.
pub async fn run<S: KafkaSink + Send + 'static>(
    plan: Plan,
    options: RunOptions,
    stop: StopSignal,
    telemetry: Telemetry,
    open_sink: impl OpenSink<S>,
) -> Result<Summary, RelayError> {
    let retry = &plan.config.retry;
    let patience = options.patience.unwrap_or(retry.give_up_after);
    let policy = SupervisorPolicy {
        backoff: Backoff { first: retry.initial, max: retry.max },
        give_up_after: patience,
        login_give_up_after: retry.login_give_up_after,
        grace: plan.config.shutdown.grace,
        wait_for_slot: options.wait_for_slot,
        acknowledge: options.acknowledge,
    };
    let clock = Clock::start();
    let mut relay = Relay {
        supervisor: Supervisor::new(policy, draw(), clock.instant()),
        clock,
        reporter: Some(Reporter::new(telemetry.clone(), patience, plan.kafka.topics.clone())),
        plan,
        options,
        stop,
        telemetry,
        owed: None,
        known: None,
        publication_changes: PublicationChanges::default(),
        in_recovery: false,
        bootstrap: Bootstrap::default(),
    };
    let topic_monitor = relay.topic_monitor();
    let stop = relay.stop.clone();
    let result = tokio::select! {
        result = relay.supervise(open_sink) => result,
        error = topic_monitor => {
            stop.request(ControlRequest::Abort);
            Err(error)
        }
    };
    let delivered = Lsn::new(relay.reporter_totals().settled_lsn);
    let result = result.map_err(|error| error.after(delivered));
    relay.set_state(if result.is_ok() { RelayState::Stopped } else { RelayState::Failed });
    result
}

struct Relay {
    supervisor: Supervisor,
    clock: Clock,
    plan: Plan,
    options: RunOptions,
    stop: StopSignal,
    telemetry: Telemetry,
    /// Lent to the hot thread while a session runs.
    reporter: Option<Reporter>,
    /// What the session that has just ended leaves unconfirmed, if it got so far.
    owed: Option<Owed>,
    /// The source as this process first found it; it must stay the same.
    known: Option<Known>,
    /// What it was told of its publication.
    publication_changes: PublicationChanges,
    /// Whether the server was in recovery when the session was prepared.
    in_recovery: bool,
    /// What Kafka was prepared for.
    bootstrap: Bootstrap,
}

impl Relay {
    async fn supervise<S: KafkaSink + Send + 'static>(
        &mut self,
        open_sink: impl OpenSink<S>,
    ) -> Result<Summary, RelayError> {
        let started = Instant::now();
        loop {
            match self.supervisor.next(self.clock.instant(), self.stop.snapshot()) {
                NextAction::End(conclusion) => return self.concluded(conclusion, started),
                NextAction::Standby(every) => self.stand_by(every).await,
                NextAction::Wait(time) => {
                    self.telemetry.tick();
                    tokio::time::sleep(time).await;
                }
                NextAction::Begin(told) => {
                    if let Some(unconfirmed) = told {
                        let help = SETTLING_HELP;
                        tracing::info!(unconfirmed, help, "told to stop while no session runs");
                    }
                    let ended = Box::pin(self.session(open_sink.clone())).await;
                    self.ended(ended).await?;
                }
            }
        }
    }

    /// Tells the supervisor how a session ended, and the operator what comes of it. An error that ends the
    /// relay is given back.
    async fn ended(&mut self, ended: Result<End, RelayError>) -> Result<(), RelayError> {
        let left = self.left();
        let (now, request) = (self.clock.instant(), self.stop.most_urgent());
        let result = match &ended {
            Ok(end) => Ok(*end),
            Err(error) => Err(failure(error, &self.plan)),
        };
        let (verdict, learned) = self.supervisor.ended(now, request, left, result);
        let Err(error) = ended else {
            if verdict == AfterSession::ServerShutdown {
                tracing::info!("Postgres is shutting down; closing the replication stream");
                self.count_restart("postgres_shutdown");
            }
            return Ok(());
        };
        if let Some(learned) = learned {
            self.take_over(&error, learned).await;
        }
        self.note_missing(&error);
        let hint = error.hint();
        let help = hint.as_deref();
        if let Some(reporter) = &mut self.reporter {
            reporter.failed(&error, help);
        }
        match verdict {
            AfterSession::Final => return Err(error),
            AfterSession::GaveUp { quiet } => {
                let last = Box::new(error);
                return Err(RelayError::GaveUp { seconds: quiet.as_secs(), last });
            }
            AfterSession::SlotHeld => {
                return Err(RelayError::SlotHeld { slot: self.plan.config.source.slot.clone() });
            }
            AfterSession::Standby => self.tell_standby(&error),
            AfterSession::Retry { failures } if error.is_final() => {
                tracing::warn!(
                    failures,
                    help,
                    "{error}; reading the secret again and trying again"
                );
                self.count_restart("login_refused");
            }
            AfterSession::Retry { failures } => {
                tracing::warn!(failures, help, "{error}; trying again");
                self.count_restart(error.reason());
            }
            AfterSession::SendDifferently => self.count_restart("batch_refused"),
            AfterSession::GoOn | AfterSession::ServerShutdown => {}
        }
        Ok(())
    }

    /// What the session that has just ended leaves.
    fn left(&mut self) -> Left {
        let totals = self.reporter_totals();
        let reporter = self.reporter.as_mut();
        Left {
            owed: self.owed.take().unwrap_or(self.supervisor.owed()),
            settled: Lsn::new(totals.settled_lsn),
            received: Lsn::new(totals.received_lsn),
            has_streamed: reporter.as_ref().is_some_and(|reporter| reporter.has_streamed()),
            useful: reporter.map_or(Duration::ZERO, Reporter::take_useful_time),
        }
    }

    /// Says what was learned of a refused batch, and looks for what else may explain it.
    async fn take_over(&self, error: &RelayError, learned: RefusalConsequence) {
        let RelayError::Refused { cause: cause @ SinkError::BatchRefused { topic, .. }, analysis } =
            error
        else {
            return;
        };
        if let Some(bytes) = learned.smaller_batches {
            tracing::warn!(
                topic,
                bytes,
                help = cause.hint(),
                "the topic accepts only smaller batches: batches for all topics are smaller for \
                 at least an hour"
            );
        }
        if learned.is_news {
            let next = match analysis.refused {
                0 => "trying again with single records",
                _ => "trying again without what it refused",
            };
            tracing::warn!(refused = analysis.refused, help = cause.hint(), "{cause}; {next}");
        }
        let topics = learned.unexplained;
        if !topics.is_empty() {
            // Their settings may say why; brokers that do not answer are left to the sessions.
            let kafka = self.plan.kafka.clone();
            let asked = run_blocking(move || learn_topic_settings(&kafka, &topics));
            let _ = tokio::time::timeout(SETTINGS_LIMIT, asked).await;
        }
    }

    /// A progress topic that is gone is arranged anew. Exactly once that would be an end (PR-P064): what it
    /// said is in no other place.
    fn note_missing(&mut self, error: &RelayError) {
        if let RelayError::Sink(SinkError::UnknownTopic { topic }) = error
            && *topic == self.plan.kafka.progress_topic
            && self.plan.config.kafka.delivery == Delivery::AtLeastOnce
        {
            self.bootstrap.topic_is_gone();
        }
    }

    fn count_restart(&mut self, reason: &'static str) {
        if let Some(reporter) = &mut self.reporter {
            reporter.restart(reason);
        }
    }

    /// What a session needs to begin with.
    async fn prepare(&mut self) -> Result<PreparedSession, RelayError> {
        let client = control::connect(&self.plan.config.source.connect).await?;
        let mut wanted = self.plan.requirements()?;
        // A dry run leaves nothing behind.
        wanted.create &= self.options.acknowledge;
        let is_due = self.known.is_none() || self.bootstrap.is_due();
        if self.plan.keeps_progress() && self.options.acknowledge && is_due {
            self.bootstrap.arrange(&self.plan, &client, &wanted).await?;
        }
        let inspection = control::preflight(&client, &wanted, self.known.as_ref()).await?;
        self.known.get_or_insert_with(|| Known::of(&inspection));
        if self.options.once && self.supervisor.target().is_none() {
            self.supervisor.end_at(control::current_flush_lsn(&client).await?);
        }
        self.look_at_slot(&client).await?;
        Ok((self.plan.session_params(&client, &inspection).await?, client, wanted, inspection))
    }

    /// One session, from preflight to its end. One that has not got its stream when it is told to
    /// end has sent nothing, and is not waited for.
    async fn session<S: KafkaSink + Send + 'static>(
        &mut self,
        open_sink: impl OpenSink<S>,
    ) -> Result<End, RelayError> {
        let stop = self.stop.clone();
        // Whatever an earlier session knew of its server.
        stop.server_shutdown_is_over();
        let unwatched = Unwatched::default();
        let told = self.told_to_end();
        let (params, client, wanted, inspection) = tokio::select! {
            ready = self.prepare() => ready?,
            () = told => return Ok(End::Drained),
        };
        self.in_recovery = inspection.server.in_recovery;
        if self.must_end() {
            return Ok(End::Drained);
        }
        let Some(mut reporter) = self.reporter.take() else { return Err(RelayError::Thread) };
        let start_gate = StartGate::default();
        let (source_check, asked) = SourceCheck::new();
        let mut plan = self.plan.found(&inspection, &wanted);
        plan.config.source.connect = client.server().clone();
        let usual = self.usual_limits(&inspection.server);
        let begun = self.supervisor.start(self.clock.instant(), usual);
        plan.kafka.batch_bytes = begun.batch_bytes;
        let start = HotStart {
            facts: self.facts(&inspection),
            publication_changes: self.publication_changes.clone(),
            source_check,
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
        let spawned = thread.spawn(move || {
            let mut owed = begun.owed;
            let result = start.run(&mut reporter, &mut owed, open_sink);
            // Nobody waits for a session that was called off.
            let _ = done.send((result, reporter, owed));
        });
        spawned.map_err(|_| RelayError::Thread)?;
        tokio::select! {
            ended = &mut finished => {
                let (result, reporter, owed) = ended.map_err(|_| RelayError::Thread)?;
                self.owed = Some(owed.settled(self.acknowledged()));
                self.reporter = Some(reporter);
                unwatched.or(result)
            }
            departure = self.attend(client, &wanted, asked, &unwatched) => {
                // Nothing more is acknowledged: Postgres may be passing over rows.
                self.stop.request(ControlRequest::Abort);
                if !start_gate.close()
                    && let Ok(Ok((_, reporter, owed))) =
                        tokio::time::timeout(ABORT_LIMIT, finished).await
                {
                    self.owed = Some(owed);
                    self.reporter = Some(reporter);
                }
                Err(departure.into())
            }
            end = self.call_off(&start_gate) => end,
        }
    }

    /// What the slot was last seen to have acknowledged.
    fn acknowledged(&self) -> Lsn {
        let view = self.telemetry.view();
        view.slot.as_ref().map_or(Lsn::ZERO, |slot| Lsn::new(slot.acknowledged_lsn))
    }

    /// Ends, when told to, before a session that has not begun, or that does not end at once.
    async fn call_off(&self, start_gate: &StartGate) -> Result<End, RelayError> {
        self.told_to_end().await;
        if start_gate.close() {
            return Ok(End::Drained);
        }
        let limit = self.plan.config.shutdown.grace + OVERTIME;
        while self.stop.most_urgent() < ControlRequest::Abort {
            // A session that waits for whoever reads its log, say, cannot end by itself.
            if self.stop.told_for() >= limit {
                let records = self.reporter_totals().in_flight_records;
                return Err(RelayError::GraceExpired { records });
            }
            tokio::time::sleep(STOP_TICK).await;
        }
        tokio::time::sleep(ABORT_LIMIT).await;
        Err(RelayError::Aborted { records: self.reporter_totals().in_flight_records })
    }

    /// Answers what a beginning session asks, then watches.
    async fn attend(
        &self,
        client: Client,
        wanted: &Requirements,
        asked: SourceCheckReply,
        unwatched: &Unwatched,
    ) -> ControlError {
        let stream = tokio::select! {
            stream = asked.answer(&client, wanted) => stream,
            never = watch::sample(&client, &wanted.slot, &self.telemetry) => match never {},
        };
        let watch = Watch {
            stream,
            in_recovery: self.in_recovery,
            stop: &self.stop,
            telemetry: &self.telemetry,
            known: self.known.as_ref(),
            publication_changes: &self.publication_changes,
            wanted,
            unwatched,
        };
        watch.keep(client).await
    }

    /// What the gate has to know, as far as the control plane knows it.
    fn facts(&self, inspection: &Inspection) -> Facts {
        let created = self.bootstrap.slot_is_ours();
        Facts { created, ..self.plan.facts(inspection, self.options.acknowledge) }
    }

    /// Looks at topics as long as it is polled; a dry run sends nothing to any.
    fn topic_monitor(&self) -> impl Future<Output = RelayError> + use<> {
        let topic_monitor = TopicMonitor::of(&self.plan, self.telemetry.clone());
        let sends = self.options.acknowledge;
        async move { if sends { topic_monitor.keep().await } else { std::future::pending().await } }
    }

    /// What bounds a session, but for what the supervisor has to say.
    fn usual_limits(&self, server: &ServerFacts) -> Limits {
        let heartbeat = Plan::heartbeat(server.wal_sender_timeout);
        Limits {
            status_interval: self.plan.config.source.status_interval.min(heartbeat),
            heartbeat,
            silence: Duration::ZERO,
            grace: self.plan.config.shutdown.grace,
            until: None,
            acknowledge: self.options.acknowledge,
        }
    }

    fn set_state(&mut self, state: RelayState) {
        if let Some(reporter) = &mut self.reporter {
            reporter.state(state);
        }
    }

    fn concluded(&self, conclusion: Conclusion, started: Instant) -> Result<Summary, RelayError> {
        match conclusion {
            Conclusion::Stopped => Ok(self.summary(started, false)),
            Conclusion::CaughtUp => Ok(self.summary(started, true)),
            Conclusion::GraceExpired { records } => Err(RelayError::GraceExpired { records }),
            Conclusion::Aborted { records } => Err(RelayError::Aborted { records }),
        }
    }

    fn must_end(&self) -> bool {
        self.stop.must_end(self.supervisor.owed(), self.plan.config.shutdown.grace)
    }

    fn told_to_end(&self) -> impl Future<Output = ()> + use<> {
        self.stop.clone().until_end(self.supervisor.owed(), self.plan.config.shutdown.grace)
    }

    fn reporter_totals(&self) -> crate::telemetry::Snapshot {
        let published = || self.telemetry.view().snapshot.as_ref().clone();
        self.reporter.as_ref().map_or_else(published, |reporter| reporter.totals().clone())
    }

    fn summary(&self, started: Instant, caught_up: bool) -> Summary {
        let totals = self.reporter_totals();
        let streamed = self.reporter.as_ref().map_or(Duration::ZERO, Reporter::streamed_for);
        Summary {
            caught_up,
            seconds: started.elapsed().as_secs_f64(),
            streaming_seconds: streamed.as_secs_f64(),
            ..Summary::of(&totals)
        }
    }
}
