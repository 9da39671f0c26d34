//! Headline of the dashboard: the relay's state in a sentence, its cause, and the next command.
//!
//! Invariant: commands come only from the relay's own remedies. The text of an error may come from
//! a database or a row, so it is never the source of a command.

use serde::Serialize;

use crate::telemetry::health::{Health, SILENCE_HELP, STALL, STALL_HELP, of_pause};
use crate::telemetry::snapshot::{FailedPart, RelayState, Snapshot, UnavailableTopic};
use crate::telemetry::{StreamEnds, View, time_text};

/// Words that a command in a remedy starts with.
const COMMANDS: [&str; 7] =
    ["postrider ", "kafka-topics.sh ", "kafka-acls.sh ", "SELECT ", "ALTER ", "GRANT ", "CREATE "];

/// Text before a command in a remedy, unless the remedy starts with the command.
const BEFORE_COMMAND: [&str; 4] = ["\n", ": ", "; ", "("];

/// Share of `max_slot_wal_keep_size` below which the slot is about to be lost, as in the shipped
/// alert.
const SAFE_SHARE_MIN: f64 = 0.2;

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Status {
    /// `ok`, `waiting`, `failed` or `unknown`.
    level: &'static str,
    headline: String,
    cause: Option<String>,
    help: Option<String>,
    command: Option<String>,
}

impl Status {
    pub(super) fn of(view: &View, health: &Health, ends: &StreamEnds, is_late: bool) -> Self {
        let found = trouble(view, health, ends);
        let mut status = found.unwrap_or_else(|| Self::without_trouble(view, is_late));
        status.command = status.command.map(|command| of_stream(command, ends));
        status
    }

    fn failed(headline: impl Into<String>, cause: impl Into<String>) -> Self {
        let (headline, cause) = (headline.into(), Some(cause.into()));
        let command = Some("postrider doctor".to_owned());
        Self { level: "failed", headline, cause, help: None, command }
    }

    fn waiting(headline: impl Into<String>, cause: impl Into<String>) -> Self {
        Self { level: "waiting", ..Self::failed(headline, cause) }
    }

    fn helped(self, help: &str) -> Self {
        let command = command_of(help).map(str::to_owned).or(self.command);
        // The command appears on a line of its own, so the help text does not repeat it.
        let around = command.as_deref().and_then(|command| help.split_once(command));
        let (before, after) = around.unwrap_or((help, ""));
        let before = before.trim_end_matches([':', ' ', '`']);
        let after = after.trim_start_matches([';', ' ', '`']);
        let help = match (before, after) {
            ("", "") => None,
            (before, "") if around.is_some() => Some(sentence(before)),
            (before, "") => Some(capitalized(before)),
            ("", after) => Some(capitalized(after)),
            (before, after) => Some(format!("{} {}", sentence(before), capitalized(after))),
        };
        Self { help, command, ..self }
    }

    fn without_trouble(view: &View, is_late: bool) -> Self {
        let (state, in_flight) = (view.snapshot.state, view.snapshot.in_flight_records);
        let (level, headline, cause) = match state {
            RelayState::Standby => (
                "unknown",
                "Another relay delivers",
                Some("This relay takes over when the other relay ends.".to_owned()),
            ),
            _ if is_late => (
                "waiting",
                "The relay is catching up",
                Some(format!("Rows wait for delivery; {in_flight} records are in flight.")),
            ),
            _ => ("ok", "Rows are delivered as they are committed", None),
        };
        Self { level, headline: headline.to_owned(), cause, help: None, command: None }
    }
}

fn trouble(view: &View, health: &Health, ends: &StreamEnds) -> Option<Status> {
    let snapshot = &view.snapshot;
    if let Some(ended) = not_streaming(view, health) {
        return Some(ended);
    }
    if let Some(since_us) = view.operated.paused_since_us {
        let since = time_text(since_us);
        let cause = format!("Since {since}: {}.", of_pause(view));
        let status = Status::waiting("Paused by request", cause);
        return Some(status.helped("`postrider ctl resume`"));
    }
    if snapshot.state == RelayState::Standby {
        return None;
    }
    if let Some(wait) = view.slot.and_then(|slot| slot.waits) {
        let status = Status::failed("Postgres sends nothing", sentence(wait.what()));
        return Some(status.helped(wait.help()));
    }
    if let Some(locked) = &snapshot.locked_rows {
        let status = Status::failed("Rows wait for a row lock", sentence(&locked.to_string()));
        return Some(status.helped(&locked.help()));
    }
    if let Some(topic) = snapshot.unavailable.awaited() {
        return Some(unavailable(topic, ends));
    }
    let stalled = of_brokers(snapshot, ends).or_else(|| safe(view));
    let failing = || health.checks.iter().find(|check| !check.ok);
    let other =
        || Some(Status::failed("The relay makes no progress", sentence(&failing()?.detail)));
    let lost = || snapshot.unavailable.named.first().map(|topic| unavailable(topic, ends));
    stalled.or_else(other).or_else(lost)
}

fn not_streaming(view: &View, health: &Health) -> Option<Status> {
    let snapshot = &view.snapshot;
    let hangs = health.checks.iter().find(|check| check.name == "loop" && !check.ok);
    if let Some(hangs) = hangs {
        let help = "take a stack (gdb -p, eu-stack), then restart the relay; Postgres keeps \
                    unconfirmed rows";
        return Some(
            Status::failed("The relay's thread hangs", sentence(&hangs.detail)).helped(help),
        );
    }
    let next = view.next_run.as_ref().map(|next| format!(" The stream {next}."));
    let headline = match snapshot.state {
        RelayState::Failed => "Stopped by an error",
        RelayState::Retrying | RelayState::Starting if snapshot.last_failure.is_some() => {
            match snapshot.failed_part {
                Some(FailedPart::Postgres) => "Reading from Postgres fails; the relay retries",
                Some(FailedPart::Kafka) => "Delivery to Kafka fails; the relay retries",
                _ => "The last session failed; the relay retries",
            }
        }
        RelayState::Retrying => "The relay retries",
        RelayState::Starting => return Some(starting()),
        RelayState::Draining => {
            return Some(
                Status::waiting(
                    "Stopping",
                    "Reading has stopped; the last records are being confirmed.",
                )
                .plain(),
            );
        }
        RelayState::Stopped => {
            return Some(
                Status::waiting("The relay has stopped", "All records were confirmed.").plain(),
            );
        }
        RelayState::Standby | RelayState::Streaming | RelayState::Stalled => return None,
    };
    let retries = snapshot.state != RelayState::Failed;
    let safe = if retries { " Nothing is lost: rows wait in Postgres." } else { "" };
    let cause = sentence(&what_failed(snapshot)) + safe + &next.unwrap_or_default();
    let status = Status::failed(headline, cause);
    Some(match &snapshot.failure_help {
        Some(help) => status.helped(help),
        None => status,
    })
}

fn starting() -> Status {
    Status::waiting("Starting", "The relay is connecting to Postgres and Kafka.").plain()
}

impl Status {
    /// For a status without a next step.
    fn plain(self) -> Self {
        Self { command: None, ..self }
    }
}

/// Removes the remedy from the message.
fn what_failed(snapshot: &Snapshot) -> String {
    let whole = snapshot.last_failure.as_deref().unwrap_or("The cause is not known");
    let help = snapshot.failure_help.as_deref().unwrap_or_default();
    let what = whole.strip_suffix(help).and_then(|rest| rest.strip_suffix("; ")).unwrap_or(whole);
    what.to_owned()
}

fn unavailable(topic: &UnavailableTopic, ends: &StreamEnds) -> Status {
    let (name, seconds) = (&topic.topic, topic.age.as_secs());
    let what = if topic.reason == "missing" {
        "does not exist"
    } else {
        "cannot be written by this relay"
    };
    let status = if topic.waiting {
        let cause = format!(
            "Topic `{name}` {what}. Its rows, and all rows behind them, have waited for {seconds} s."
        );
        Status::failed(format!("Rows wait for topic `{name}`"), cause)
    } else {
        let cause = format!("Topic `{name}` {what}. Its rows have been rejected for {seconds} s.");
        Status::waiting(format!("Rows of topic `{name}` are rejected"), cause)
    };
    status.helped(&of_brokers_named(&topic.help, ends))
}

fn of_brokers(snapshot: &Snapshot, ends: &StreamEnds) -> Option<Status> {
    if snapshot.holds_slot && !snapshot.broker_connected {
        let cause = match &ends.brokers[..] {
            [] => "No broker answers.".to_owned(),
            [one] => format!("{one} does not answer."),
            several => format!("None of {} answers.", several.join(", ")),
        };
        return Some(Status::failed("No Kafka broker answers", cause).helped(SILENCE_HELP));
    }
    let seconds = snapshot.unconfirmed_for.as_secs();
    (snapshot.unconfirmed_for >= STALL).then(|| {
        let cause = format!(
            "{} records are in flight. Nothing of the oldest transaction was confirmed for {seconds} s.",
            snapshot.in_flight_records
        );
        let status = Status::failed("The Kafka brokers confirm nothing", cause);
        status.helped(&of_brokers_named(STALL_HELP, ends))
    })
}

fn safe(view: &View) -> Option<Status> {
    let slot = view.slot?;
    let (safe, all) = (slot.safe_bytes?, slot.safe_bytes?.saturating_add(slot.retained_bytes));
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
    let share = safe as f64 / all.max(1) as f64;
    (share < SAFE_SHARE_MIN).then(|| {
        let cause = format!(
            "Postgres invalidates the slot after {safe} more bytes of WAL (max_slot_wal_keep_size). Undelivered rows are then lost."
        );
        Status::failed("The slot is about to be lost", cause).helped("`postrider lag`")
    })
}

/// Replaces `BROKER` in the remedy with these brokers.
fn of_brokers_named(help: &str, ends: &StreamEnds) -> String {
    if ends.brokers.is_empty() {
        return help.to_owned();
    }
    help.replace("BROKER", &ends.brokers.join(","))
}

/// First command in a remedy: in backquotes, or up to the end of its line or clause. Commands with
/// a placeholder such as `<role>` cannot be run unchanged.
fn command_of(help: &str) -> Option<&str> {
    let is_command = |text: &&str| COMMANDS.iter().any(|name| text.starts_with(name));
    let is_whole = |text: &&str| !text.contains('<');
    if let Some(quoted) = help.split('`').skip(1).step_by(2).find(is_command) {
        return Some(quoted).filter(is_whole);
    }
    let begins = |at: &usize| {
        let before = help.get(..*at).unwrap_or_default();
        before.is_empty() || BEFORE_COMMAND.iter().any(|end| before.ends_with(end))
    };
    let places =
        COMMANDS.iter().flat_map(|name| help.match_indices(name).map(|(at, _)| at)).filter(begins);
    let command = help.get(places.min()?..)?;
    let end = command.find(['\n', ';']).unwrap_or(command.len());
    command.get(..end).filter(is_whole)
}

/// Names the stream in the command, if the process runs several streams.
fn of_stream(command: String, ends: &StreamEnds) -> String {
    match &ends.stream {
        Some(name) if command.starts_with("postrider ") && !command.contains("--stream") => {
            format!("{command} --stream {name}")
        }
        _ => command,
    }
}

fn sentence(fragment: &str) -> String {
    let end = if fragment.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{}{end}", capitalized(fragment.trim_end()))
}

fn capitalized(fragment: &str) -> String {
    let mut letters = fragment.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    first + letters.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{BuildInfo, Role, SlotMetrics, Telemetry, readiness};
    use std::time::{Duration, Instant};

    fn status(snapshot: Snapshot, slot: Option<SlotMetrics>) -> Status {
        let ends = StreamEnds {
            stream: Some("orders".to_owned()),
            brokers: vec!["kafka-1:9092".to_owned(), "kafka-2:9092".to_owned()],
            ..StreamEnds::default()
        };
        let telemetry = Telemetry::new(BuildInfo { ends: ends.clone(), ..BuildInfo::default() });
        telemetry.publish(snapshot);
        telemetry.publish_slot(slot);
        let view = telemetry.view();
        Status::of(&view, &readiness(&view, Role::Any), &ends, false)
    }

    fn streaming() -> Snapshot {
        Snapshot {
            state: RelayState::Streaming,
            holds_slot: true,
            broker_connected: true,
            last_progress: Some(Instant::now()),
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_relay_without_trouble_has_no_cause_and_no_command() {
        let status = status(streaming(), None);
        assert_eq!((status.level, status.cause, status.command), ("ok", None, None));
    }

    #[test]
    fn a_missing_topic_comes_with_the_command_that_creates_it() {
        let topic = UnavailableTopic {
            topic: "orders".to_owned(),
            reason: "missing",
            age: Duration::from_secs(30),
            waiting: true,
            help: "create it: `postrider setup --topics=orders`; or: kafka-topics.sh --bootstrap-server BROKER".to_owned(),
        };
        let mut snapshot = streaming();
        snapshot.unavailable.named.push(topic);
        let status = status(snapshot, None);
        assert_eq!(status.headline, "Rows wait for topic `orders`");
        assert!(status.cause.unwrap().contains("does not exist. Its rows"));
        let command = status.command.unwrap();
        assert_eq!(command, "postrider setup --topics=orders --stream orders");
        let other = "Create it. Or: kafka-topics.sh --bootstrap-server kafka-1:9092,kafka-2:9092";
        assert_eq!(status.help.as_deref(), Some(other));
    }

    #[test]
    fn a_failed_session_says_what_failed_and_that_nothing_is_lost() {
        let retrying = |part| Snapshot {
            state: RelayState::Retrying,
            last_failure: Some("connection refused; create it: ALTER ROLE r REPLICATION".into()),
            failure_help: Some("create it: ALTER ROLE r REPLICATION".into()),
            failed_part: Some(part),
            ..Snapshot::default()
        };
        let postgres = status(retrying(FailedPart::Postgres), None);
        assert_eq!(postgres.headline, "Reading from Postgres fails; the relay retries");
        let cause = "Connection refused. Nothing is lost: rows wait in Postgres.";
        assert_eq!(postgres.cause.as_deref(), Some(cause));
        assert_eq!(postgres.help.as_deref(), Some("Create it."));
        assert_eq!(postgres.command.as_deref(), Some("ALTER ROLE r REPLICATION"));
        let kafka = status(retrying(FailedPart::Kafka), None);
        assert_eq!(kafka.headline, "Delivery to Kafka fails; the relay retries");
    }

    #[test]
    fn brokers_that_do_not_answer_are_named() {
        let down = Snapshot { broker_connected: false, ..streaming() };
        let status = status(down, None);
        assert_eq!(status.headline, "No Kafka broker answers");
        assert_eq!(status.cause.as_deref(), Some("None of kafka-1:9092, kafka-2:9092 answers."));
        assert_eq!(status.command.as_deref(), Some("postrider doctor --stream orders"));
    }

    #[test]
    fn no_command_is_taken_from_the_text_of_an_error() {
        let failed = |help: Option<&str>| Snapshot {
            state: RelayState::Failed,
            last_failure: Some("`postrider evil`; run `postrider doctor --fix`".into()),
            failure_help: help.map(Into::into),
            ..Snapshot::default()
        };
        let without = status(failed(None), None);
        assert_eq!(without.command.as_deref(), Some("postrider doctor --stream orders"));
        let with = status(failed(Some("run `postrider doctor --fix`")), None);
        assert_eq!(with.headline, "Stopped by an error");
        assert_eq!(with.cause.as_deref(), Some("`postrider evil`."));
        assert_eq!(with.command.as_deref(), Some("postrider doctor --fix --stream orders"));
    }

    #[test]
    fn a_slot_that_is_about_to_be_lost_is_a_failure() {
        let slot = |safe| {
            Some(SlotMetrics { retained_bytes: 900, safe_bytes: safe, ..SlotMetrics::default() })
        };
        assert_eq!(status(streaming(), slot(Some(100))).headline, "The slot is about to be lost");
        assert_eq!(status(streaming(), slot(Some(900))).level, "ok");
        assert_eq!(status(streaming(), slot(None)).level, "ok");
    }

    #[test]
    fn commands_end_with_their_line_or_clause() {
        assert_eq!(
            command_of("allow it: kafka-acls.sh --add\nthen wait"),
            Some("kafka-acls.sh --add")
        );
        assert_eq!(
            command_of("at the standby: SELECT pg_wal_replay_resume(); more"),
            Some("SELECT pg_wal_replay_resume()")
        );
        assert_eq!(command_of("see the log"), None);
        let grant = "as its owner: GRANT SELECT ON t TO r; then retry";
        assert_eq!(command_of(grant), Some("GRANT SELECT ON t TO r"));
        assert_eq!(command_of("run: ALTER ROLE <role> REPLICATION"), None);
        assert_eq!(command_of("the words SELECT and ALTER are no command"), None);
    }
}
