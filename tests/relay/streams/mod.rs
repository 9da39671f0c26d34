//! Several streams in one process: `[[stream]]` tables of one file.

mod anew;
mod apart;
mod chosen;
mod commands;
mod controlled;
mod divided;
mod ends;
mod mixed;

use std::fmt::Write as _;
use std::path::Path;

use postrider::sandbox::postgres::Cluster;
use serde_json::Value;

use crate::stage::Stage;
use support::relay::{Relay, Running};
use support::wait_for;

/// A database, a slot and topics for each of these names.
pub(crate) fn stages(
    cluster: &Cluster,
    bootstrap: &str,
    names: &[&'static str],
) -> Vec<(&'static str, Stage)> {
    names.iter().map(|name| (*name, Stage::new(cluster, bootstrap, name))).collect()
}

/// The file: what all have, and a table for each.
pub(crate) fn file_of(top: &str, streams: &[(&str, Stage)]) -> String {
    let mut text = format!("{top}\n[retry]\ninitial = \"100ms\"\nmax = \"200ms\"\n");
    for (name, stage) in streams {
        let (url, slot) = (stage.database.address().url(), stage.slot());
        let topic = format!("{}${{routedByValue}}", stage.topic(""));
        write!(
            text,
            "[[stream]]\nname = \"{name}\"\nsource.url = \"{url}\"\nsource.slot = \"{slot}\"\n\
             route.topic = \"{topic}\"\ndead_letters.topic = \"{}\"\n",
            stage.topic("dead-letters")
        )
        .unwrap();
    }
    text
}

/// What starts it: all that the tables say is left to them.
pub(crate) fn relay(streams: &[(&str, Stage)]) -> Relay {
    let (_, stage) = streams.first().unwrap();
    let own = ["source.url", "source.slot", "route.topic", "dead_letters.topic"];
    own.iter().fold(stage.relay(), |relay, option| relay.unset(option)).unprepared()
}

/// With this file before these words.
pub(crate) fn start(relay: &Relay, file: &Path, words: &[&str]) -> Running {
    relay.start(&[&["-c", file.to_str().unwrap()], words].concat())
}

/// `postrider ctl` of the process that this relay starts: exit code, and what it printed as JSON.
fn ctl(relay: &Relay, file: &Path, words: &[&str]) -> (i32, Value) {
    let words = [&["ctl"], words, &["--output", "json"]].concat();
    let outcome = start(relay, file, &words).outcome();
    let answer = outcome.stdout.lines().next().unwrap_or("null");
    (outcome.status.code().unwrap(), serde_json::from_str(answer).unwrap())
}

/// Takes the slot from the relay that reads it.
pub(crate) fn drop_slot(stage: &Stage) {
    let slot = stage.slot();
    wait_for("the slot to be dropped", || {
        let sql = stage.sql();
        let _ = sql.try_run(&format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'"
        ));
        sql.try_run(&format!("SELECT pg_drop_replication_slot('{slot}')")).ok()
    });
}
