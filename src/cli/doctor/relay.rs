//! Checks of `postrider doctor` for the running relay, and for the reader of the slot. An unread
//! slot with waiting WAL never passes, nor does a reader that does not answer.

use std::thread;
use std::time::Duration;

use super::check::{Check, bytes};
use super::fix::Fix;
use crate::status::relay::{RelayFacts, RelayStatus, Silence};
use postrider_relay::holds_for_tables;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlotReader {
    pub(super) pid: Option<i32>,
    /// Application name and address, as far as the role may see them.
    pub(super) holder: String,
    pub(super) lag_bytes: i64,
    pub(super) is_lost: bool,
}

impl SlotReader {
    fn end_sql(pid: i32) -> Fix {
        Fix::sql(format!("SELECT pg_terminate_backend({pid});"))
    }

    fn shown(&self, pid: i32) -> String {
        match self.holder.as_str() {
            "" => format!("process {pid}"),
            holder => format!("process {pid} ({holder})"),
        }
    }
}

const READY: &str = "relay.ready";
/// A relay reports to systemd about 0.3 s before its brokers answer, and is not ready until then.
const STARTING_SECONDS: f64 = 3.0;
const ASK_AGAIN: Duration = Duration::from_millis(250);
const SEE_LOG: &str = "read the relay's log, which names the error and its remedy";
const TRIES: u32 = 12;

/// A relay that has just started may not be ready.
pub(super) fn once_started(
    mut ask: impl FnMut() -> Result<RelayFacts, Silence>,
) -> Result<RelayFacts, Silence> {
    let is_starting =
        |facts: &RelayFacts| !facts.is_ready && facts.uptime_seconds < STARTING_SECONDS;
    let mut relay = ask();
    for _ in 0..TRIES {
        if !relay.as_ref().is_ok_and(is_starting) {
            break;
        }
        thread::sleep(ASK_AGAIN);
        relay = ask();
    }
    relay
}

fn run() -> Fix {
    Fix::postrider("postrider run")
}

/// `slot` is `None` if there is none, or rows are polled.
pub(super) fn ready(
    relay: &Result<RelayFacts, Silence>,
    slot: Option<&SlotReader>,
    is_polled: bool,
) -> Check {
    let pid = slot.and_then(|slot| Some((slot, slot.pid?)));
    match (relay, pid) {
        (Ok(facts), _) if !facts.is_ready => not_ready(facts),
        (Ok(RelayFacts { paused: Some(paused), .. }), _) => Check::warn(
            READY,
            format!("the relay is {paused}"),
            Fix::postrider("postrider ctl resume"),
        ),
        (Ok(facts), Some((slot, pid))) if !facts.reads_slot => Check::pass(
            READY,
            format!(
                "a relay is ready ({}), and {} reads the slot, which is not asked from here",
                facts.state,
                slot.shown(pid)
            ),
        ),
        (Ok(facts), _) => Check::pass(READY, format!("a relay is ready ({})", facts.state)),
        (Err(Silence::Hangs(why)), Some((_, pid))) => Check::fail(
            READY,
            format!("{why}: it hangs, and process {pid} of the server keeps the slot for it"),
            SlotReader::end_sql(pid),
        ),
        (Err(Silence::Hangs(why)), None) => {
            let run = Fix::postrider("postrider run")
                .told_as("kill that process, and start `postrider run`");
            Check::fail(READY, why.clone(), run)
        }
        (Err(Silence::Nowhere(why)), _) => Check::unknown(READY, why.clone()),
        (Err(Silence::None(why)), Some((slot, pid))) => Check::warn(
            READY,
            format!("{} reads the slot, and {why}", slot.shown(pid)),
            SlotReader::end_sql(pid).told_as(
                "run `postrider doctor` where the relay runs, with its http.bind; if it is gone",
            ),
        ),
        (Err(Silence::None(why)), None) => match slot {
            Some(slot) if slot.lag_bytes > 0 && !slot.is_lost => {
                Check::warn(READY, format!("{why}, and nobody reads the slot"), run())
            }
            None if is_polled => Check::warn(READY, why.clone(), run()),
            _ => Check::unknown(READY, why.clone()),
        },
    }
}

fn not_ready(facts: &RelayFacts) -> Check {
    let failing = || facts.failing.join("; ");
    let what = facts.status.as_ref().map_or_else(failing, RelayStatus::what);
    let finding = format!("the relay that runs is not ready: {what}");
    let help = facts.status.as_ref().and_then(RelayStatus::help).unwrap_or(SEE_LOG);
    // A report does not advise the reader to run it again.
    let command = facts.status.as_ref().and_then(RelayStatus::command);
    let command = command.filter(|command| !command.starts_with("postrider doctor"));
    let fix = match command {
        Some(command) => format!("{help}; {command}"),
        None => help.to_owned(),
    };
    Check::fail(READY, finding, fix)
}

/// `own_name`: application name of this configuration's relay.
pub(super) fn reader(slot: Option<&SlotReader>, own_name: &str) -> Check {
    const ID: &str = "slot.reader";
    let Some(slot) = slot else { return Check::unknown(ID, "there is no slot to look at") };
    if slot.is_lost {
        return Check::unknown(ID, "the slot is lost");
    }
    match slot.pid {
        Some(pid) if slot.holder.is_empty() => Check::pass(
            ID,
            format!("process {pid} reads the slot; its name is hidden from the role"),
        ),
        Some(pid) if holds_for_tables(&slot.holder) => Check::pass(
            ID,
            format!("{} uses the slot while it delivers earlier rows", slot.shown(pid)),
        ),
        Some(pid) if slot.holder.split(" from ").next() == Some(own_name) => {
            Check::pass(ID, format!("{} reads the slot", slot.shown(pid)))
        }
        Some(pid) => Check::warn(
            ID,
            format!(
                "{} reads the slot, and a relay of this configuration is `{own_name}`",
                slot.shown(pid)
            ),
            SlotReader::end_sql(pid).told_as("if that is not a relay"),
        ),
        None if slot.lag_bytes > 0 => Check::warn(
            ID,
            format!(
                "nobody reads the slot, and {} of WAL are not acknowledged",
                bytes(slot.lag_bytes)
            ),
            run(),
        ),
        None => Check::pass(ID, "nobody reads the slot, and nothing waits in it"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Outcome;
    use super::*;

    fn slot(pid: Option<i32>, holder: &str) -> SlotReader {
        SlotReader { pid, holder: holder.to_owned(), lag_bytes: 512, is_lost: false }
    }

    fn facts(is_ready: bool, reads_slot: bool) -> RelayFacts {
        RelayFacts {
            is_ready,
            state: "streaming".to_owned(),
            failing: vec!["topic `a` does not exist".to_owned()],
            paused: None,
            confirmed: 0,
            oldest_seconds: None,
            uptime_seconds: 1.0,
            reads_slot,
            status: None,
        }
    }

    #[test]
    fn a_relay_that_has_just_started_is_asked_again() {
        let answers = |mut is_ready: Vec<bool>, uptime_seconds| {
            let mut asked = 0;
            let relay = once_started(|| {
                asked += 1;
                Ok(RelayFacts { uptime_seconds, ..facts(is_ready.remove(0), true) })
            });
            (relay.unwrap().is_ready, asked)
        };
        assert_eq!(answers(vec![false, false, true], 0.3), (true, 3));
        assert_eq!(answers(vec![true], 0.3), (true, 1));
        assert_eq!(answers(vec![false], 60.0), (false, 1));
    }

    #[test]
    fn a_relay_is_judged_by_its_answer_and_by_who_reads_the_slot() {
        let read = slot(Some(7), "postrider");
        let unread = slot(None, "");
        let ended = SlotReader { lag_bytes: 0, ..unread.clone() };
        let none = || Err(Silence::None("no relay answers at a:1".to_owned()));
        let hangs = || Err(Silence::Hangs("the relay at a:1 has not answered".to_owned()));
        let nowhere = || Err(Silence::Nowhere("http.bind is empty".to_owned()));
        let [pass, skip, warn, fail] =
            [Outcome::Pass, Outcome::Unknown, Outcome::Warn, Outcome::Fail];
        let cases = [
            (Ok(facts(true, true)), Some(&read), pass, ""),
            (Ok(facts(true, false)), Some(&read), pass, ""),
            (Ok(facts(false, true)), Some(&read), fail, ""),
            (hangs(), Some(&read), fail, "SELECT pg_terminate_backend(7);"),
            (hangs(), None, fail, "postrider run"),
            (none(), Some(&read), warn, "SELECT pg_terminate_backend(7);"),
            (none(), Some(&unread), warn, "postrider run"),
            (none(), Some(&ended), skip, ""),
            (none(), None, skip, ""),
            (nowhere(), Some(&read), skip, ""),
        ];
        for (relay, slot, outcome, fix) in cases {
            let check = ready(&relay, slot, false);
            assert_eq!(check.outcome, outcome, "{check:?}");
            assert!(check.fix.unwrap_or_default().text().contains(fix));
        }
        assert!(ready(&Ok(facts(false, true)), None, false).finding.contains("does not exist"));
        let status = |command: &str| {
            let status = serde_json::json!({"level": "failed", "headline": "Stopped", "cause": "It is full.",
                "help": "Make room", "command": command});
            let facts = RelayFacts {
                status: Some(serde_json::from_value(status).unwrap()),
                ..facts(false, true)
            };
            let check = ready(&Ok(facts), None, false);
            (check.finding, check.fix.unwrap_or_default().text().to_owned())
        };
        let (finding, fix) = status("postrider doctor --stream orders");
        assert_eq!(finding, "the relay that runs is not ready: Stopped. It is full.");
        assert_eq!(fix, "Make room");
        assert_eq!(status("postrider prune").1, "Make room; postrider prune");
        let paused =
            || RelayFacts { paused: Some("paused since 1".to_owned()), ..facts(true, true) };
        for slot in [Some(&read), None] {
            let check = ready(&Ok(paused()), slot, false);
            assert_eq!(check.outcome, warn, "{check:?}");
            assert!(check.finding.contains("paused since 1"), "{check:?}");
            assert_eq!(check.fix.unwrap_or_default().text(), "postrider ctl resume");
        }
        assert_eq!(ready(&none(), None, true).outcome, warn, "rows are polled");
    }

    #[test]
    fn the_slot_needs_a_reader_that_is_a_relay() {
        let outcome = |slot: &SlotReader| reader(Some(slot), "postrider").outcome;
        assert_eq!(outcome(&slot(Some(7), "postrider from 10.0.0.1")), Outcome::Pass);
        assert_eq!(outcome(&slot(Some(7), "psql")), Outcome::Warn);
        assert_eq!(outcome(&slot(Some(7), "backfill by postrider from ::1")), Outcome::Pass);
        assert_eq!(outcome(&slot(Some(7), "")), Outcome::Pass);
        assert_eq!(outcome(&slot(None, "")), Outcome::Warn);
        assert_eq!(outcome(&SlotReader { lag_bytes: 0, ..slot(None, "") }), Outcome::Pass);
        assert_eq!(outcome(&SlotReader { is_lost: true, ..slot(None, "") }), Outcome::Unknown);
        assert_eq!(reader(None, "postrider").outcome, Outcome::Unknown);
    }
}
