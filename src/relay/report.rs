//! Reports the relay's activity: snapshots for health checks and metrics, and log lines.
//!
//! Input: the session's counters in each turn of its loop, and changes of state. Output: a
//! [`Snapshot`] with totals across sessions every 250 ms, log lines, and an error if brokers were
//! away or stored nothing for too long. A turn without a snapshot costs one clock reading, and the
//! latencies of confirmed transactions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::error::RelayError;
use crate::frame_source::FrameSource;
use crate::meter::CatchUp;
use crate::outage::Outage;
use crate::telemetry::{
    Count, DROPPED, FailedPart, Histogram, RESTART_REASONS, RelayState, SILENCE_HELP, SKIPPED,
    STALL, STALL_HELP, Snapshot, Telemetry, TopicCount, UnavailableTopic, UnavailableTopics,
    unix_us,
};
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::{Counters, Pipeline, TopicTotal, UpdatePolicy};
use postrider_core::route::{RejectionCode, RowOrigin};
use postrider_core::session::{Draining, Oldest, Session, StallDetector, Stalled};
use postrider_kafka::failpoint;
use postrider_kafka::{SinkError, TopicBook};
use postrider_postgres::wal::LockedRows;

const PUBLISH_EVERY: Duration = Duration::from_millis(250);
const PROGRESS_EVERY: Duration = Duration::from_mins(1);

/// Time after which a held slot belongs to another relay, which delivers the remaining rows.
/// Earlier, the holder may be this relay's previous stream (`wal_sender_timeout`: one minute by
/// default).
const OTHERS_WORK: Duration = Duration::from_mins(2);

pub(super) struct Reporter {
    telemetry: Telemetry,
    topics: TopicBook,
    /// Confirmed records when a stall was logged.
    stalled: Option<u64>,
    answering_since: Option<Instant>,
    clock: Clock,
    stall: StallDetector,
    current: Snapshot,
    /// Totals of the earlier sessions.
    past: Snapshot,
    last_publish: Option<Instant>,
    last_line: (Instant, u64),
    last_latencies: Histogram,
    outage: Outage,
    outage_due: Option<Duration>,
    streaming_since: Option<Instant>,
    last_session: Duration,
    caught_up: bool,
    /// End of the log before the session, if unread messages existed.
    unread: Option<Lsn>,
    acknowledged: Lsn,
    updates_warned_of: u64,
    oldest: Oldest,
    standby_since: Option<Instant>,
    ended_within: bool,
}

impl Reporter {
    /// The relay ends after `give_up_after` without a broker or a stored record; zero means never.
    pub(super) fn new(
        telemetry: Telemetry,
        give_up_after: Duration,
        topics: TopicBook,
        origin: RowOrigin,
    ) -> Self {
        Self {
            oldest: telemetry.oldest(),
            telemetry,
            topics,
            stalled: None,
            answering_since: None,
            clock: Clock::start(),
            stall: StallDetector::new(give_up_after),
            current: Snapshot { is_polled: origin == RowOrigin::Poll, ..Snapshot::default() },
            past: Snapshot::default(),
            last_publish: None,
            last_line: (Instant::now(), 0),
            last_latencies: Histogram::default(),
            outage: Outage::default(),
            outage_due: None,
            streaming_since: None,
            last_session: Duration::ZERO,
            caught_up: false,
            unread: None,
            acknowledged: Lsn::ZERO,
            updates_warned_of: 0,
            standby_since: None,
            ended_within: false,
        }
    }

    /// Changes the state, and publishes it at once.
    pub(super) fn state(&mut self, state: RelayState) {
        self.current.state = state;
        if state == RelayState::Standby {
            self.standby_since.get_or_insert_with(Instant::now);
        } else if self.standby_since.take().is_some_and(|since| since.elapsed() >= OTHERS_WORK) {
            self.oldest = Oldest::default();
            self.telemetry.keep_oldest(self.oldest);
        }
        self.current.locked_rows = None;
        self.current.holds_slot = matches!(state, RelayState::Streaming | RelayState::Draining);
        if !self.current.holds_slot {
            self.current.in_flight_records = 0;
            self.current.in_flight_bytes = 0;
            // Rows keep waiting while a session is retried. Another relay handles rows that a
            // standby left.
            let waits =
                matches!(state, RelayState::Starting | RelayState::Retrying | RelayState::Failed);
            self.current.oldest_unacknowledged_us = self.oldest.time_us().filter(|_| waits);
        }
        self.publish();
    }

    pub(super) fn streaming(&mut self) {
        self.streaming_since = Some(Instant::now());
        self.caught_up = false;
        self.stall.begin();
        self.updates_warned_of = 0;
        // A later drain is not caused by the error of an earlier session.
        self.current.last_failure = None;
        self.current.failed_part = None;
        self.current.failure_help = None;
        self.state(RelayState::Streaming);
    }

    pub(super) fn restart(&mut self, reason: &'static str) {
        debug_assert!(RESTART_REASONS.contains(&reason), "{reason} is not shown before it happens");
        match self.current.restarts.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => self.current.restarts.push((reason, 1)),
        }
        self.state(RelayState::Retrying);
    }

    pub(super) fn failed(&mut self, error: &RelayError, help: Option<&str>) {
        self.current.failed_part = Some(error.part());
        self.current.failure_help = help.map(Into::into);
        let help = help.map(|help| format!("; {help}")).unwrap_or_default();
        self.current.last_failure = Some(format!("{error}{help}").into());
    }

    /// Reports that the server process of an earlier session still holds the slot.
    pub(super) fn left_behind(&mut self, pid: i32) {
        let why = format!(
            "process {pid} of the server, which streamed to this relay before, still holds the slot; it ends when the \
             server notices that the connection is gone (wal_sender_timeout), or by SELECT pg_terminate_backend({pid});"
        );
        if self.current.state != RelayState::Retrying
            || self.current.last_failure.as_deref() != Some(&*why)
        {
            tracing::info!("{why}");
            self.current.last_failure = Some(why.into());
            self.current.failed_part = Some(FailedPart::Slot);
            self.current.failure_help = None;
            self.state(RelayState::Retrying);
        }
    }

    pub(super) fn draining(&mut self, draining: Draining) {
        let Draining { unconfirmed, grace } = draining;
        tracing::info!(unconfirmed, grace_s = grace.as_secs(), "draining");
        self.state(RelayState::Draining);
        failpoint::pass("draining");
    }

    pub(super) fn held_back(&mut self, time: Duration) {
        self.current.back_pressure += time;
    }

    /// Fails if brokers were away, or stored nothing, for longer than allowed.
    pub(super) fn tick(
        &mut self,
        pipeline: &mut Pipeline,
        source: &impl FrameSource,
        broker_connected: bool,
    ) -> Result<(), RelayError> {
        self.measure_latency(pipeline);
        let now = Instant::now();
        if !self.is_due(broker_connected, now) {
            return Ok(());
        }
        self.current.broker_connected = broker_connected;
        self.current.unavailable = unavailable(&self.topics);
        self.gather(pipeline, source);
        self.current.unconfirmed_for = self.stall.unconfirmed_for();
        self.warn_of_locks(source.locked_rows());
        self.publish();
        self.warn_of_stall(now);
        self.write_lines(pipeline, source.is_caught_up(), now);
        self.warn_of_updates(pipeline.unwelcome_updates());
        let awaited = self.current.unavailable.awaited();
        // A row that waits for a topic counts too.
        let records = pipeline.in_flight().records.max(u64::from(awaited.is_some()));
        let now = self.clock.instant();
        let looked = self.stall.look(broker_connected, records, pipeline.progress(), now);
        looked.map_err(|stalled| match (stalled, awaited) {
            (Stalled::NothingStored { seconds, .. }, Some(awaited)) => gave_up(seconds, awaited),
            (stalled, _) => stalled.into(),
        })
    }

    /// Whether a snapshot is due. A change of `broker_connected` is published at once, because
    /// Postgres learns of confirmed records within a quarter of a second.
    fn is_due(&self, broker_connected: bool, now: Instant) -> bool {
        broker_connected != self.current.broker_connected
            || self.last_publish.is_none_or(|last| now.duration_since(last) >= PUBLISH_EVERY)
    }

    /// Logs the start and the end of a stall while brokers answer.
    fn warn_of_stall(&mut self, now: Instant) {
        let Snapshot { broker_connected, unconfirmed_for, in_flight_records, .. } = self.current;
        // After an outage, brokers get this time again.
        let since = broker_connected.then(|| self.answering_since.unwrap_or(now));
        self.answering_since = since;
        let answers = since.is_some_and(|since| now.duration_since(since) >= STALL);
        let awaits = self.current.unavailable.awaited().is_some();
        let confirmed = self.current.confirmed;
        if unconfirmed_for.is_zero() {
            // A new session without records to confirm does not show the state of the brokers.
            if self.stalled.take_if(|before| confirmed > *before).is_some() {
                tracing::info!("the Kafka brokers confirm records again");
            }
        } else if unconfirmed_for >= STALL && answers && !awaits && self.stalled.is_none() {
            self.stalled = Some(confirmed);
            let (records, seconds) = (in_flight_records, unconfirmed_for.as_secs());
            tracing::warn!(
                records,
                seconds,
                help = STALL_HELP,
                "the Kafka brokers confirm nothing"
            );
        }
    }

    /// Logs once that rows wait for a lock, again if the holder changes, and once at the end.
    fn warn_of_locks(&mut self, locked: Option<Arc<LockedRows>>) {
        let of = |locked: &LockedRows| {
            (locked.table.clone(), locked.holder.as_ref().map(|holder| holder.end_sql.clone()))
        };
        if locked.as_deref().map(of) != self.current.locked_rows.as_deref().map(of) {
            if let Some(locked) = &locked {
                let LockedRows { table, rows, seconds, holder } = &**locked;
                let name = |is_certain| {
                    let holder = holder.as_ref().filter(|holder| holder.is_certain == is_certain);
                    holder.map(|holder| holder.name.as_str())
                };
                tracing::warn!(
                    table,
                    rows,
                    seconds,
                    holder = name(true),
                    possible_holder = name(false),
                    open_s = holder.as_ref().and_then(|holder| holder.seconds),
                    help = locked.help(),
                    "rows wait for a row lock"
                );
            } else {
                tracing::info!("no rows wait for locks");
            }
        }
        self.current.locked_rows = locked;
    }

    pub(super) fn session_ended(&mut self, session: &Session, source: &impl FrameSource) {
        let pipeline = session.pipeline();
        self.gather(pipeline, source);
        let (settled, reached) = (pipeline.settled(), pipeline.reached());
        let is_whole = pipeline.may_end_here() && reached.part.is_none() && pipeline.is_idle();
        self.ended_within = !is_whole;
        self.oldest = self.oldest.after(settled, reached, pipeline.oldest_commit_time_us());
        self.telemetry.keep_oldest(self.oldest);
        self.past = self.current.clone();
        self.last_session = self.streamed_for().saturating_sub(self.stall.unconfirmed_for());
    }

    /// Whether the last session may have left a partly stored transaction.
    pub(super) const fn ended_within(&self) -> bool {
        self.ended_within
    }

    /// Takes the streaming time of the ended session, up to its last confirmation.
    pub(super) fn take_useful_time(&mut self) -> Duration {
        std::mem::take(&mut self.last_session)
    }

    /// Notes the slot's state; `acknowledged` may come from another relay.
    pub(super) fn slot_reaches(&mut self, acknowledged: Lsn, log_end: Lsn) {
        self.oldest = self.oldest.settled(acknowledged);
        self.telemetry.keep_oldest(self.oldest);
        self.acknowledged = acknowledged;
        self.unread = (acknowledged < log_end).then_some(log_end);
        self.current.catch_up = self.unread.map(|until| {
            let (from, until, since) = (acknowledged.get(), until.get(), Instant::now());
            // A session that ended before it caught up belongs to this catch-up.
            let begun = self.current.catch_up.filter(|_| self.has_streamed() && !self.caught_up);
            let begun = begun.unwrap_or(CatchUp { from, until, since });
            CatchUp { until, ..begun }
        });
    }

    pub(super) const fn totals(&self) -> &Snapshot {
        &self.current
    }

    pub(super) const fn has_streamed(&self) -> bool {
        self.streaming_since.is_some()
    }

    pub(super) fn streamed_for(&self) -> Duration {
        self.streaming_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn measure_latency(&mut self, pipeline: &mut Pipeline) {
        let (settled, traces) = pipeline.drain_settled_times_us();
        let mut settled = settled.peekable();
        if settled.peek().is_some() {
            let now = unix_us();
            for commit_time in settled {
                // The server's clock may be ahead. An impossible latency counts as zero.
                let age = u64::try_from(now.saturating_sub(commit_time)).unwrap_or(0);
                self.current.commit_to_confirm.record(age);
                self.current.transactions_settled += 1;
                if let Some(context) = traces.settled(commit_time) {
                    self.current.exemplars.keep(context.trace_id, age, now);
                }
            }
        }
        traces.arm();
    }

    fn gather(&mut self, pipeline: &Pipeline, source: &impl FrameSource) {
        let counters = pipeline.counters();
        let in_flight = pipeline.in_flight();
        let current = &mut self.current;
        let awaits = current.unavailable.awaited().is_some();
        let idle = in_flight.records == 0 && !awaits;
        // A large transaction is settled only at its end.
        let advances = self.stall.unconfirmed_for().is_zero();
        if pipeline.settled().get() != current.settled_lsn || idle || advances {
            current.last_progress = Some(Instant::now());
        }
        current.received_lsn = source.received().get();
        current.settled_lsn = pipeline.settled().get();
        current.in_flight_records = in_flight.records;
        current.in_flight_bytes = in_flight.bytes;
        current.oldest_unacknowledged_us =
            self.oldest.with(pipeline.settled(), pipeline.oldest_commit_time_us());
        current.received_bytes = self.past.received_bytes + source.received_bytes();
        current.messages = add(&self.past.messages, &messages(counters));
        current.ignored = add(&self.past.ignored, &ignored(counters));
        current.rejections = add(&self.past.rejections, &rejections(counters));
        current.topics = topics(&self.past.topics, counters);
        current.confirmed = self.past.confirmed + counters.confirmed;
    }

    fn publish(&mut self) {
        self.last_publish = Some(Instant::now());
        self.telemetry.publish(self.current.clone());
    }

    fn write_lines(&mut self, pipeline: &Pipeline, source_is_caught_up: bool, now: Instant) {
        let records = self.records();
        let has_read = self.unread.is_none_or(|end| pipeline.settled() >= end);
        if !self.caught_up && has_read && pipeline.is_idle() && source_is_caught_up {
            self.caught_up = true;
            let took_ms = u64::try_from(self.streamed_for().as_millis()).unwrap_or(u64::MAX);
            // Without unread log, the acknowledged position is the settled one.
            let settled = self.position(pipeline.settled().max(self.acknowledged));
            tracing::info!(records, took_ms, settled, "caught up");
        }
        let (last, before) = self.last_line;
        let Snapshot { broker_connected, unconfirmed_for, .. } = self.current;
        self.outage_due = self.outage.look(now, broker_connected, unconfirmed_for);
        self.current.state = match (self.current.state, self.outage.is_told()) {
            (RelayState::Streaming, true) => RelayState::Stalled,
            (RelayState::Stalled, false) => RelayState::Streaming,
            (state, _) => state,
        };
        // Records that were only passed to the Kafka client do not count as progress.
        let advances = broker_connected && unconfirmed_for < STALL;
        if now.duration_since(last) >= PROGRESS_EVERY && records != before && advances {
            let in_flight = self.current.in_flight_records;
            let latest = self.current.commit_to_confirm.since(&self.last_latencies);
            let p99_ms = latest.quantile_us(990).map(|us| us.div_ceil(1_000));
            let settled = self.position(pipeline.settled());
            tracing::info!(records, in_flight, p99_ms, settled, "progress");
            self.last_latencies = self.current.commit_to_confirm;
            self.last_line = (now, records);
        }
    }

    pub(super) const fn take_outage(&mut self) -> Option<Duration> {
        self.outage_due.take()
    }

    /// `reason`: why no broker answers.
    pub(super) fn tell_outage(&self, lasted: Duration, reason: Option<String>) {
        let Snapshot { broker_connected, in_flight_records, unavailable, .. } = &self.current;
        let (cause, help) = match (broker_connected, unavailable.awaited()) {
            (false, _) => {
                let reason = reason.unwrap_or_else(|| "no answer yet".to_owned());
                (format!("no broker answers: {reason}"), SILENCE_HELP)
            }
            (true, Some(topic)) => {
                (format!("topic `{}` is {}", topic.topic, topic.reason), topic.help.as_str())
            }
            (true, None) => ("the brokers answer and confirm nothing".to_owned(), STALL_HELP),
        };
        let view = self.telemetry.view();
        let waiting_wal_bytes = view.slot.map(|slot| slot.lag_bytes);
        let (seconds, oldest_s) = (lasted.as_secs(), view.oldest_unacknowledged_age.as_secs());
        tracing::warn!(
            seconds,
            cause,
            in_flight_records,
            waiting_wal_bytes,
            oldest_s,
            help,
            "Kafka has confirmed no records"
        );
    }

    fn warn_of_updates(&mut self, (updates, policy): (u64, UpdatePolicy)) {
        const HELP: &str = "an outbox is append-only: insert a new row instead; outbox.on_update = \
                            \"ignore\" silences this";
        const WHAT: &str = "outbox rows were updated, and updates are not delivered";
        if updates > self.updates_warned_of {
            if policy == UpdatePolicy::Error {
                tracing::error!(updates, help = HELP, "{WHAT}");
            } else {
                tracing::warn!(updates, help = HELP, "{WHAT}");
            }
        }
        self.updates_warned_of = updates;
    }

    /// `None` for polled rows, which have no position in the server's log.
    fn position(&self, at: Lsn) -> Option<String> {
        (!self.current.is_polled).then(|| at.to_string())
    }

    fn records(&self) -> u64 {
        self.current.topics.iter().map(|t| t.sent + t.dead_lettered).sum()
    }
}

fn unavailable(topics: &TopicBook) -> UnavailableTopics {
    let all = topics.unavailable();
    let named = all.topics.into_iter().map(|one| UnavailableTopic {
        topic: one.absent.topic,
        reason: one.absent.fault.as_str(),
        age: one.age,
        waiting: one.absent.waiting,
        help: one.help,
    });
    UnavailableTopics { named: named.collect(), missing: all.missing, forbidden: all.forbidden }
}

fn gave_up(seconds: u64, awaited: &UnavailableTopic) -> RelayError {
    let topic = awaited.topic.clone();
    let last = match awaited.reason {
        "missing" => SinkError::UnknownTopic { topic },
        _ => SinkError::Unauthorised { topic },
    };
    RelayError::GaveUp { seconds, last: Box::new(last.into()) }
}

fn messages(counters: &Counters) -> Vec<Count> {
    vec![
        ("begin", counters.begins),
        ("commit", counters.commits),
        ("insert", counters.rows + counters.foreign_rows),
        ("relation", counters.relations),
        ("keepalive", counters.keepalives),
        ("logical", counters.logical_messages),
    ]
}

fn ignored(counters: &Counters) -> Vec<Count> {
    vec![
        ("update", counters.updates),
        ("delete", counters.deletes),
        ("truncate", counters.truncates),
        (SKIPPED, counters.skipped),
        (DROPPED, counters.dropped),
        ("repeat", counters.repeats),
    ]
}

fn rejections(counters: &Counters) -> Vec<Count> {
    RejectionCode::ALL.iter().map(|code| (code.as_str(), counters.rejections(*code))).collect()
}

fn add(past: &[Count], session: &[Count]) -> Vec<Count> {
    let before =
        |name| past.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count);
    session.iter().map(|(name, count)| (*name, before(*name) + count)).collect()
}

/// Adds the sent records by topic. The number of named topics is limited as in a session.
/// Upholds G3.
fn topics(past: &[TopicCount], counters: &Counters) -> Vec<TopicCount> {
    let mut all = past.to_vec();
    let mut places: HashMap<&str, usize> =
        past.iter().enumerate().map(|(place, count)| (&*count.topic, place)).collect();
    for total in counters.topics() {
        let mut name = total.topic.as_str();
        if all.len() >= TopicTotal::NAMED_MAX && !places.contains_key(name) {
            name = TopicTotal::OTHERS;
        }
        let place = *places.entry(name).or_insert_with(|| {
            all.push(TopicCount { topic: name.into(), sent: 0, dead_lettered: 0, bytes: 0 });
            all.len() - 1
        });
        let Some(count) = all.get_mut(place) else { unreachable!("it was found or added") };
        count.sent += total.sent;
        count.dead_lettered += total.dead_letters;
        count.bytes += total.bytes;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::BuildInfo;

    #[test]
    fn probes_hear_at_once_of_brokers_that_answer() {
        let telemetry = Telemetry::new(BuildInfo::default());
        let mut reporter =
            Reporter::new(telemetry, Duration::ZERO, TopicBook::default(), RowOrigin::Log);
        let now = Instant::now();
        assert!(reporter.is_due(false, now));
        reporter.streaming();
        assert!(!reporter.is_due(false, now) && reporter.is_due(true, now));
        assert!(reporter.is_due(false, now + 2 * PUBLISH_EVERY));
        reporter.current.broker_connected = true;
        assert!(!reporter.is_due(true, now) && reporter.is_due(false, now));
    }

    #[test]
    fn brokers_confirm_again_once_they_have_confirmed_something() {
        let telemetry = Telemetry::new(BuildInfo::default());
        let mut reporter =
            Reporter::new(telemetry, Duration::ZERO, TopicBook::default(), RowOrigin::Log);
        let now = Instant::now();
        let mut stalled = |unconfirmed_for, confirmed, at| {
            let current = &mut reporter.current;
            (current.broker_connected, current.confirmed) = (true, confirmed);
            current.unconfirmed_for = unconfirmed_for;
            reporter.warn_of_stall(at);
            reporter.stalled.is_some()
        };
        assert!(!stalled(STALL, 7, now), "they have their time");
        assert!(stalled(STALL, 7, now + STALL));
        assert!(stalled(Duration::ZERO, 7, now + STALL), "a session begins anew");
        assert!(!stalled(Duration::ZERO, 8, now + STALL));
    }

    #[test]
    fn g3_sessions_that_each_name_other_topics_do_not_grow_the_totals() {
        let mut past = Vec::new();
        for session in 0..5 {
            let names = (0..TopicTotal::NAMED_MAX + 7).map(|number| match number {
                0 => "common".to_owned(),
                number => format!("{session}-{number}"),
            });
            let mut counters = Counters::default();
            names.for_each(|name| counters.count_record(&name, 10, None));
            past = topics(&past, &counters);
        }
        assert_eq!(past.len(), TopicTotal::NAMED_MAX + 1);
        let common = TopicCount { topic: "common".into(), sent: 5, dead_lettered: 0, bytes: 50 };
        assert_eq!(past.first(), Some(&common));
        assert_eq!(past.last().map(|count| &*count.topic), Some(TopicTotal::OTHERS));
        let sent: u64 = past.iter().map(|count| count.sent).sum();
        assert_eq!(sent, 5 * (TopicTotal::NAMED_MAX as u64 + 7));
    }
}
