//! Controls the sessions of a run, for all kinds of sources.
//!
//! Invariant: the error of a session either ends the run, or is logged and counted here. Readiness
//! shows the error until the next session streams.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::blocking::run_blocking;
use crate::certificates::name_expired;
use crate::clock::Clock;
use crate::error::RelayError;
use crate::failure::failure;
use crate::frame_source::FrameSource;
use crate::hot::Hot;
use crate::login_retry::can_change;
use crate::plan::Plan;
use crate::report::Reporter;
use crate::session_mode::settings;
use crate::specs::tap_headers;
use crate::stop::StopSignal;
use crate::telemetry::{RelayState, Snapshot, Telemetry};
use crate::{RunOptions, Summary};
use postrider_config::Delivery;
use postrider_core::frame::LastPlace;
use postrider_core::lsn::Lsn;
use postrider_core::session::{End, Limits, Owed, Session};
use postrider_core::supervisor::{
    AfterSession, Conclusion, Left, NextAction, RefusalConsequence, SessionStart, Supervisor,
    SupervisorPolicy,
};
use postrider_kafka::{KafkaSink, KafkaSpec, SinkError, learn_topic_settings};
use postrider_service::backoff::{Backoff, draw};

const STOP_TICK: Duration = Duration::from_millis(20);
const SETTINGS_LIMIT: Duration = Duration::from_secs(2);

pub(super) struct Sessions {
    pub(super) plan: Plan,
    pub(super) options: RunOptions,
    pub(super) stop: StopSignal,
    pub(super) telemetry: Telemetry,
    pub(super) clock: Clock,
    pub(super) supervisor: Supervisor,
    /// Lent to the hot thread during a session of a stream.
    pub(super) reporter: Option<Reporter>,
    /// Unconfirmed rest of the session that has just ended, if it got that far.
    pub(super) owed: Option<Owed>,
    pub(super) runtime: Handle,
    started: Instant,
}

impl Sessions {
    /// Must be called on a Tokio thread.
    pub(super) fn new(
        plan: Plan,
        options: RunOptions,
        stop: StopSignal,
        telemetry: Telemetry,
    ) -> Self {
        let (retry, clock) = (&plan.config.retry, Clock::start());
        let patience = options.patience.unwrap_or(retry.give_up_after);
        let policy = SupervisorPolicy {
            backoff: Backoff { first: retry.initial, max: retry.max },
            give_up_after: patience,
            login_give_up_after: retry.login_give_up_after,
            grace: plan.config.shutdown.grace,
            wait_for_slot: options.wait_for_slot,
            acknowledge: options.acknowledge,
        };
        let topics = plan.kafka.topics.clone();
        Self {
            supervisor: Supervisor::new(policy, draw(), clock.instant()),
            reporter: Some(Reporter::new(telemetry.clone(), patience, topics, plan.origin)),
            owed: None,
            runtime: Handle::current(),
            started: Instant::now(),
            plan,
            options,
            stop,
            telemetry,
            clock,
        }
    }

    pub(super) fn next(&mut self) -> NextAction {
        let next = self.supervisor.next(self.clock.instant(), self.stop.snapshot());
        match next {
            // A polling relay waits during a pause as it does during other waits.
            NextAction::Begin(_) if self.stop.holds_sessions() => {
                self.telemetry.tick();
                return NextAction::Wait(STOP_TICK);
            }
            NextAction::Begin(_) => self.take_routes(),
            NextAction::Wait(_) => self.telemetry.tick(),
            NextAction::Standby(_) | NextAction::End(_) => {}
        }
        next
    }

    /// A partly delivered transaction is completed with the old routes first.
    fn take_routes(&mut self) {
        let Some((generation, config)) = self.stop.next_config() else { return };
        let is_within = self.reporter.as_ref().is_some_and(Reporter::ended_within);
        if is_within && self.plan.config.kafka.delivery == Delivery::ExactlyOnce {
            return;
        }
        self.plan = self.plan.routed_by(&config);
        self.plan.kafka.tap.take_headers(tap_headers(&self.plan.config));
        self.stop.take(generation);
        tracing::info!("the routes of the reloaded configuration are in effect");
    }

    /// The server receives a message at least once per two heartbeats.
    pub(super) fn begin(&mut self, kafka: &mut KafkaSpec, heartbeat: Duration) -> SessionStart {
        let usual = Limits {
            status_interval: self.plan.config.source.status_interval.min(heartbeat),
            heartbeat,
            // The supervisor sets this limit.
            silence: Duration::ZERO,
            grace: self.plan.config.shutdown.grace,
            until: None,
            acknowledge: self.options.acknowledge,
        };
        let begun = self.supervisor.start(self.clock.instant(), usual);
        kafka.batch_bytes = begun.batch_bytes;
        *kafka = settings(begun.mode, kafka);
        begun
    }

    /// Returns the reason for waiting for the slot, or the error that ends the run.
    pub(super) async fn ended(
        &mut self,
        ended: Result<End, RelayError>,
    ) -> Result<Option<RelayError>, RelayError> {
        let ended = match ended {
            Err(error) => Err(name_expired(error).await),
            ended => ended,
        };
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
            return Ok(None);
        };
        if let Some(learned) = learned {
            self.take_over(&error, learned).await;
        }
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
            AfterSession::Unreadable { sessions } => {
                return Err(error.after_sessions(sessions, &self.plan.config.source.slot));
            }
            AfterSession::SlotHeld => return Err(self.slot_held()),
            AfterSession::Standby => return Ok(Some(error)),
            AfterSession::Retry { failures } if error.is_final() => {
                let give_up_after_s = self.plan.config.retry.login_give_up_after.as_secs();
                let again = if can_change(&error, &self.plan) {
                    "reading the secret again and trying again"
                } else {
                    "trying again"
                };
                tracing::warn!(failures, give_up_after_s, help, "{error}; {again}");
                self.count_restart("login_refused");
            }
            AfterSession::Retry { failures } => {
                if let Some(codec) = self.change_codec(&error) {
                    tracing::warn!(help, codec, "{error}; using {codec} until restarted");
                } else {
                    tracing::warn!(failures, help, "{error}; trying again");
                }
                self.count_restart(error.reason());
            }
            AfterSession::SendDifferently => self.count_restart("batch_refused"),
            AfterSession::GoOn | AfterSession::ServerShutdown => {}
        }
        Ok(None)
    }

    fn change_codec(&mut self, error: &RelayError) -> Option<&'static str> {
        let RelayError::Sink(error) = error else { return None };
        let codec = error.next_codec()?;
        codec.clone_into(&mut self.plan.kafka.compression);
        Some(codec)
    }

    fn left(&mut self) -> Left {
        let totals = self.totals();
        let sink_let_in = self.plan.kafka.topics.was_let_in();
        let reporter = self.reporter.as_mut();
        Left {
            sink_let_in,
            owed: self.owed.take().unwrap_or(self.supervisor.owed()),
            settled: Lsn::new(totals.settled_lsn),
            received: Lsn::new(totals.received_lsn),
            has_streamed: reporter.as_ref().is_some_and(|reporter| reporter.has_streamed()),
            useful: reporter.map_or(Duration::ZERO, Reporter::take_useful_time),
        }
    }

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
            // The settings of these topics may explain the refusal.
            let kafka = self.plan.kafka.clone();
            let asked = run_blocking(move || learn_topic_settings(&kafka, &topics));
            let _ = tokio::time::timeout(SETTINGS_LIMIT, asked).await;
        }
    }

    fn slot_held(&self) -> RelayError {
        RelayError::SlotHeld { slot: self.plan.config.source.slot.clone() }
    }

    fn count_restart(&mut self, reason: &'static str) {
        if let Some(reporter) = &mut self.reporter {
            reporter.restart(reason);
        }
    }

    pub(super) fn set_state(&mut self, state: RelayState) {
        if let Some(reporter) = &mut self.reporter {
            reporter.state(state);
        }
    }

    pub(super) fn set_last_state<T>(&mut self, result: &Result<T, RelayError>) {
        self.set_state(if result.is_ok() { RelayState::Stopped } else { RelayState::Failed });
    }

    /// A stop was requested, and no records are left to confirm or the time for it is over.
    pub(super) fn must_end(&self) -> bool {
        self.stop.must_end(self.supervisor.owed(), self.plan.config.shutdown.grace)
    }

    pub(super) fn told_to_end(&self) -> impl Future<Output = ()> + use<> {
        self.stop.clone().until_end(self.supervisor.owed(), self.plan.config.shutdown.grace)
    }

    pub(super) fn totals(&self) -> Snapshot {
        let published = || self.telemetry.view().snapshot.as_ref().clone();
        self.reporter.as_ref().map_or_else(published, |reporter| reporter.totals().clone())
    }

    pub(super) fn concluded(&self, conclusion: Conclusion) -> Result<Summary, RelayError> {
        let caught_up = match conclusion {
            Conclusion::Stopped => false,
            Conclusion::CaughtUp => true,
            Conclusion::GraceExpired { records } => {
                return Err(RelayError::GraceExpired { records });
            }
            Conclusion::Aborted { records } => return Err(RelayError::Aborted { records }),
        };
        let streamed = self.reporter.as_ref().map_or(Duration::ZERO, Reporter::streamed_for);
        Ok(Summary {
            caught_up,
            seconds: self.started.elapsed().as_secs_f64(),
            streaming_seconds: streamed.as_secs_f64(),
            ..Summary::of(&self.totals())
        })
    }
}

/// These sessions run on one thread, so the reporter is not lent.
impl Sessions {
    pub(super) fn run_to_end(
        &mut self,
        session: impl FnMut(&mut Self) -> Result<End, RelayError>,
    ) -> Result<Summary, RelayError> {
        let result = self.supervise(session);
        self.set_last_state(&result);
        result
    }

    fn supervise(
        &mut self,
        mut session: impl FnMut(&mut Self) -> Result<End, RelayError>,
    ) -> Result<Summary, RelayError> {
        let runtime = self.runtime.clone();
        loop {
            match self.next() {
                NextAction::End(conclusion) => return self.concluded(conclusion),
                NextAction::Standby(_) => unreachable!("only a relay of a stream waits for a slot"),
                NextAction::Wait(time) => std::thread::sleep(time.min(STOP_TICK)),
                NextAction::Begin(_) => {
                    let ended = session(self);
                    if runtime.block_on(self.ended(ended))?.is_some() {
                        return Err(self.slot_held());
                    }
                }
            }
        }
    }

    pub(super) fn drive(
        &mut self,
        source: impl FrameSource,
        session: Session,
        sink: impl KafkaSink,
    ) -> Result<End, RelayError> {
        let (stop, clock, mut owed) = (self.stop.clone(), self.clock, self.supervisor.owed());
        let (place, tap) = (LastPlace::default(), self.plan.kafka.tap.clone());
        let hot = Hot { source, session, sink, stop, clock, delivered: None, place, tap };
        let ended = hot.run(self.reporter(), &mut owed);
        self.owed = Some(owed);
        ended
    }

    pub(super) fn reporter(&mut self) -> &mut Reporter {
        let Some(reporter) = &mut self.reporter else { unreachable!("nothing is lent") };
        reporter
    }
}
