//! Opens one session after the other until there is a reason to stop.
//!
//! Enters: a [`Plan`] and requests to stop. Leaves: a [`Summary`] or the error that ended it. What
//! always holds: a stop is a clean one only when all is confirmed that any session has sent; a
//! transient error costs a pause, a definite one ends the relay; a slot that another process holds
//! is waited for (hot standby). Runs on the control plane; each session gets a thread of its own.

mod standby;

use std::time::{Duration, Instant};

use crate::alterations::Alterations;
use crate::blocking::run_blocking;
use crate::bootstrap::Bootstrap;
use crate::error::RelayError;
use crate::plan::{Plan, Prepared};
use crate::question::{Asked, Question};
use crate::refusals::Refusals;
use crate::relogin::Relogin;
use crate::report::Reporter;
use crate::session_mode::{Narrowing, SessionMode};
use crate::start::{HotStart, OpenSink};
use crate::start_gate::StartGate;
use crate::stop::Stop;
use crate::telemetry::{State, Telemetry};
use crate::topic_monitor::TopicMonitor;
use crate::watch::{self, Unwatched, Watch};
use crate::{Options, Summary};
use postrider_config::Delivery;
use postrider_core::gate::Facts;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Lesson;
use postrider_core::session::{End, Limits, Owed, Request, TimeoutEscalation};
use postrider_kafka::{KafkaSink, SinkError, note_settings};
use postrider_postgres::control::{
    self, Client, ControlError, Inspection, Known, Requirements, ServerFacts,
};
use postrider_postgres::wal::{Class, WalError};
use postrider_service::backoff::Backoff;

/// How soon a pause notices a request to stop.
const PAUSE_TICK: Duration = Duration::from_millis(50);
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

/// Runs the relay until it is told to stop, has caught up, or must not go on.
pub async fn run<S: KafkaSink + Send + 'static>(
    plan: Plan,
    options: Options,
    stop: Stop,
    telemetry: Telemetry,
    open_sink: impl OpenSink<S>,
) -> Result<Summary, RelayError> {
    let (retry, topics) = (&plan.config.retry, plan.kafka.topics.clone());
    let reporter =
        Reporter::new(telemetry.clone(), options.patience.unwrap_or(retry.give_up_after), topics);
    let mut supervisor = Supervisor {
        backoff: Backoff { first: retry.initial, max: retry.max },
        failures: 0,
        patience: options.patience.unwrap_or(retry.give_up_after),
        last_progress: Instant::now(),
        plan,
        options,
        stop,
        telemetry,
        reporter: Some(reporter),
        owed: Owed::default(),
        settling: false,
        target: None,
        mode: None,
        narrowing: Narrowing::default(),
        refusals: Refusals::default(),
        known: None,
        alterations: Alterations::default(),
        standby: false,
        bootstrap: Bootstrap::default(),
        escalation: TimeoutEscalation::default(),
        relogin: Relogin::default(),
    };
    let topic_monitor = supervisor.topic_monitor();
    let stop = supervisor.stop.clone();
    let result = tokio::select! {
        result = supervisor.supervise(open_sink) => result,
        error = topic_monitor => {
            stop.request(Request::Abort);
            Err(error)
        }
    };
    let delivered = Lsn::new(supervisor.reporter_totals().settled_lsn);
    let result = result.map_err(|error| error.after(delivered));
    supervisor.set_state(if result.is_ok() { State::Stopped } else { State::Failed });
    result
}

struct Supervisor {
    plan: Plan,
    options: Options,
    stop: Stop,
    telemetry: Telemetry,
    /// Lent to the hot thread while a session runs.
    reporter: Option<Reporter>,
    /// What sessions before the one that runs left unconfirmed.
    owed: Owed,
    /// It was told to stop between two sessions, and goes on for what is owed.
    settling: bool,
    backoff: Backoff,
    /// Sessions that failed since one did useful work.
    failures: u32,
    patience: Duration,
    last_progress: Instant,
    /// What `--once` has to reach; fixed when the relay first reaches Postgres.
    target: Option<Lsn>,
    /// The way of sending that holds up to a position, if it is not the usual one.
    mode: Option<SessionMode>,
    /// How often sessions ended where the last one did.
    narrowing: Narrowing,
    /// What the brokers refused, and with it a session.
    refusals: Refusals,
    /// The source as this process first found it; it must stay the same.
    known: Option<Known>,
    /// What it was told of its publication.
    alterations: Alterations,
    /// Whether the server was a standby when the session was prepared.
    standby: bool,
    /// What Kafka was prepared for.
    bootstrap: Bootstrap,
    /// How long the server may be silent.
    escalation: TimeoutEscalation,
    /// How long logins have been refused.
    relogin: Relogin,
}

impl Supervisor {
    async fn supervise<S: KafkaSink + Send + 'static>(
        &mut self,
        open_sink: impl OpenSink<S>,
    ) -> Result<Summary, RelayError> {
        let started = Instant::now();
        loop {
            if self.must_end() {
                return self.stopped(started);
            }
            if self.stop.requested() >= Request::Drain
                && !std::mem::replace(&mut self.settling, true)
            {
                let (unconfirmed, help) = (self.owed().records(), SETTLING_HELP);
                tracing::info!(unconfirmed, help, "told to stop while no session runs");
            }
            let ended = Box::pin(self.session(open_sink.clone())).await;
            self.forgive();
            match ended {
                Ok(End::Drained) => return self.stopped(started),
                Ok(End::CaughtUp) => return Ok(self.summary(started, true)),
                Ok(End::ModeOver) => self.mode = None,
                // A server that is shutting down takes as long as it likes.
                Ok(End::ServerShutdown) if self.stop.requested() >= Request::Drain => {
                    return self.stopped(started);
                }
                Ok(End::ServerShutdown) => {
                    tracing::info!("Postgres is shutting down; closing the replication stream");
                    self.pause("postgres_shutdown").await;
                }
                Err(error) if error.is_final() => self.wait_for_secret(error).await?,
                Err(error) => self.survive(error).await?,
            }
        }
    }

    /// A session that did its work for a while is forgiven its end: the next pause is short again.
    fn forgive(&mut self) {
        if self.reporter.as_mut().is_some_and(Reporter::take_health) {
            self.failures = 0;
            self.relogin = Relogin::default();
            self.last_progress = Instant::now();
        }
    }

    /// Waits for another password, if one may come; every other final error is given back.
    async fn wait_for_secret(&mut self, error: RelayError) -> Result<(), RelayError> {
        let error = self.relogin.refused(error, &self.plan, Instant::now())?;
        let (help, failures) = (error.hint(), self.failures);
        let help = help.as_deref();
        tracing::warn!(failures, help, "{error}; reading the secret again and trying again");
        self.pause("login_refused").await;
        Ok(())
    }

    /// Waits out a transient error, or a slot that is held.
    async fn survive(&mut self, error: RelayError) -> Result<(), RelayError> {
        if error.class() == Class::Held {
            return self.standby_or(error).await;
        }
        if let RelayError::Refused { cause, lesson } = &error
            && self.narrow_down(cause, lesson).await
        {
            return Ok(());
        }
        if let RelayError::Sink(sink) | RelayError::Refused { cause: sink, .. } = &error {
            let totals = self.reporter_totals();
            let place = (Lsn::new(totals.settled_lsn), Lsn::new(totals.received_lsn));
            self.mode = self.narrowing.after(sink, self.mode, place);
            let denied = matches!(sink, SinkError::Unauthorised { .. });
            // The next session does otherwise, so that it need not wait.
            if sink.wants_caution() || (denied && !self.plan.kafka.topics.waits()) {
                self.failures = 0;
            }
        }
        // Exactly once that would be an end (PR-P064): what it said is in no other place.
        if let RelayError::Sink(SinkError::UnknownTopic { topic }) = &error
            && *topic == self.plan.kafka.progress_topic
            && self.plan.config.kafka.delivery == Delivery::AtLeastOnce
        {
            self.bootstrap.topic_is_gone();
        }
        if let RelayError::Wal(WalError::Silent { .. }) = error {
            self.escalation.silent(Lsn::new(self.reporter_totals().settled_lsn));
        }
        let quiet = self.last_progress.elapsed();
        if !self.patience.is_zero() && quiet >= self.patience {
            let last = Box::new(error);
            return Err(RelayError::GaveUp { seconds: quiet.as_secs(), last });
        }
        let (help, failures) = (error.hint(), self.failures);
        tracing::warn!(failures, help = help.as_deref(), "{error}; trying again");
        self.pause(error.reason()).await;
        Ok(())
    }

    /// Makes the next session treat the records at fault in another way than this one; false if there is
    /// none. It begins at once, but where the fault may be the brokers' own.
    async fn narrow_down(&mut self, cause: &SinkError, lesson: &Lesson) -> bool {
        let settled = Lsn::new(self.reporter_totals().settled_lsn);
        let is_news = self.refusals.learn(cause, lesson, (settled, Instant::now()));
        let topics = self.refusals.unexplained(cause, Instant::now());
        if !topics.is_empty() {
            // Their settings may say why; brokers that do not answer are left to the sessions.
            let kafka = self.plan.kafka.clone();
            let asked = run_blocking(move || note_settings(&kafka, &topics));
            let _ = tokio::time::timeout(SETTINGS_LIMIT, asked).await;
        }
        if is_news {
            self.pause_for("batch_refused", lesson.wait).await;
        }
        is_news
    }

    /// What a session needs to begin with.
    async fn prepare(&mut self) -> Result<Prepared, RelayError> {
        let client = control::connect(&self.plan.config.source.connect).await?;
        let mut wanted = self.plan.requirements()?;
        // A dry run leaves nothing behind.
        wanted.create &= self.options.acknowledge;
        let is_due = self.known.is_none() || self.bootstrap.is_due();
        if self.plan.keeps_progress() && self.options.acknowledge && is_due {
            self.bootstrap.arrange(&self.plan, &client, &wanted).await?;
        }
        let looked = control::preflight(&client, &wanted, self.known.as_ref());
        let inspection = Box::pin(looked).await?;
        self.known.get_or_insert_with(|| Known::of(&inspection));
        if self.options.once && self.target.is_none() {
            self.target = Some(control::current_flush_lsn(&client).await?);
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
            ready = Box::pin(self.prepare()) => ready?,
            () = told => return Ok(End::Drained),
        };
        self.owed = self.owed();
        self.standby = inspection.server.in_recovery;
        if self.must_end() {
            return Ok(End::Drained);
        }
        let Some(mut reporter) = self.reporter.take() else { return Err(RelayError::Thread) };
        let start_gate = StartGate::default();
        let (question, asked) = Question::new();
        let mut plan = self.plan.found(&inspection, &wanted);
        plan.config.source.connect = client.server().clone();
        plan.kafka.batch_bytes = self.refusals.batch_bytes(Instant::now());
        let start = HotStart {
            facts: self.facts(&inspection),
            alterations: self.alterations.clone(),
            question,
            suspects: self.refusals.suspects(),
            plan,
            limits: self.limits(&inspection.server),
            mode: self.mode,
            params,
            inspection,
            stop,
            start_gate: start_gate.clone(),
        };
        let (done, mut finished) = tokio::sync::oneshot::channel();
        let thread = std::thread::Builder::new().name("postrider-hot".to_owned());
        let spawned = thread.spawn(move || {
            let result = start.run(&mut reporter, open_sink);
            // Nobody waits for a session that was called off.
            let _ = done.send((result, reporter));
        });
        spawned.map_err(|_| RelayError::Thread)?;
        tokio::select! {
            ended = &mut finished => {
                let (result, mut reporter) = ended.map_err(|_| RelayError::Thread)?;
                if let Some(slot) = &self.telemetry.view().slot {
                    reporter.acknowledged(Lsn::new(slot.acknowledged_lsn));
                }
                self.reporter = Some(reporter);
                unwatched.or(result)
            }
            departure = self.attend(client, &wanted, asked, &unwatched) => {
                // Nothing more is acknowledged: Postgres may be passing over rows.
                self.stop.request(Request::Abort);
                if !start_gate.close()
                    && let Ok(Ok((_, reporter))) = tokio::time::timeout(ABORT_LIMIT, finished).await
                {
                    self.reporter = Some(reporter);
                }
                Err(departure.into())
            }
            end = self.call_off(&start_gate) => end,
        }
    }

    /// Ends, when told to, before a session that has not begun, or that does not end at once.
    async fn call_off(&self, start_gate: &StartGate) -> Result<End, RelayError> {
        self.told_to_end().await;
        if start_gate.close() {
            return Ok(End::Drained);
        }
        let limit = self.plan.config.shutdown.grace + OVERTIME;
        while self.stop.requested() < Request::Abort {
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
        asked: Asked,
        unwatched: &Unwatched,
    ) -> ControlError {
        let stream = tokio::select! {
            stream = asked.answer(&client, wanted) => stream,
            never = watch::sample(&client, &wanted.slot, &self.telemetry) => match never {},
        };
        let watch = Watch {
            stream,
            standby: self.standby,
            stop: &self.stop,
            telemetry: &self.telemetry,
            known: self.known.as_ref(),
            alterations: &self.alterations,
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

    fn limits(&self, server: &ServerFacts) -> Limits {
        let once = self.target.map(|target| (target.max(self.owed.until()), End::CaughtUp));
        let spot = self.mode.map(|mode| (mode.until, End::ModeOver));
        let heartbeat = Plan::heartbeat(server.wal_sender_timeout);
        Limits {
            status_interval: self.plan.config.source.status_interval.min(heartbeat),
            heartbeat,
            silence: self.escalation.timeout(heartbeat),
            grace: self.plan.config.shutdown.grace,
            until: [once, spot].into_iter().flatten().min_by_key(|(position, _)| *position),
            acknowledge: self.options.acknowledge,
        }
    }

    /// Counts a restart and sleeps, longer each time.
    async fn pause(&mut self, reason: &'static str) {
        self.failures = self.failures.saturating_add(1);
        self.pause_for(reason, self.backoff.wait(self.failures)).await;
    }

    /// Counts a restart and sleeps for so long, but never through a request to stop.
    async fn pause_for(&mut self, reason: &'static str, wait: Duration) {
        let stopping = self.stop.requested() >= Request::Drain;
        if let Some(reporter) = &mut self.reporter {
            reporter.restart(reason);
        }
        let until = Instant::now() + wait;
        while Instant::now() < until && !self.must_end() {
            if !stopping && self.stop.requested() >= Request::Drain {
                // There is something to confirm, and little time.
                self.failures = 0;
                return;
            }
            self.telemetry.tick();
            tokio::time::sleep(PAUSE_TICK.min(wait)).await;
        }
    }

    fn set_state(&mut self, state: State) {
        if let Some(reporter) = &mut self.reporter {
            reporter.state(state);
        }
    }

    /// The end that a signal asked for: a clean one only when every record is confirmed that any
    /// session has sent. Upholds G8.
    fn stopped(&self, started: Instant) -> Result<Summary, RelayError> {
        let owed = self.owed();
        if owed.is_nothing() {
            return Ok(self.summary(started, false));
        }
        let records = owed.records();
        Err(match self.stop.requested() {
            Request::Abort => RelayError::Aborted { records },
            _ => RelayError::GraceExpired { records },
        })
    }

    /// What no session that has ended is known to have confirmed.
    fn owed(&self) -> Owed {
        self.reporter.as_ref().map_or(self.owed, Reporter::owed)
    }

    fn must_end(&self) -> bool {
        self.stop.must_end(self.owed(), self.plan.config.shutdown.grace)
    }

    fn told_to_end(&self) -> impl Future<Output = ()> + use<> {
        self.stop.clone().until_end(self.owed(), self.plan.config.shutdown.grace)
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
