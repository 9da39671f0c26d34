//! Several streams in one process: `[[stream]]` tables of one file.

mod apart;
mod chosen;
mod controlled;

use std::fmt::Write as _;
use std::path::Path;

use postrider::sandbox::postgres::Cluster;

use crate::stage::Stage;
use support::relay::{Relay, Running};

/// A database, a slot and topics for each of these names.
fn stages(
    cluster: &Cluster,
    bootstrap: &str,
    names: &[&'static str],
) -> Vec<(&'static str, Stage)> {
    names.iter().map(|name| (*name, Stage::new(cluster, bootstrap, name))).collect()
}

/// The file: what all have, and a table for each.
fn file_of(top: &str, streams: &[(&str, Stage)]) -> String {
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
fn relay(streams: &[(&str, Stage)]) -> Relay {
    let (_, stage) = streams.first().unwrap();
    let own = ["source.url", "source.slot", "route.topic", "dead_letters.topic"];
    own.iter().fold(stage.relay(), |relay, option| relay.unset(option)).unprepared()
}

/// With this file before these words.
fn start(relay: &Relay, file: &Path, words: &[&str]) -> Running {
    relay.start(&[&["-c", file.to_str().unwrap()], words].concat())
}
