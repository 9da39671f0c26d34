//! Who may know whom: the rooms' table, and the crates and corners of `std` each may use.
//!
//! Enters: a [`Source`]. Leaves: a [`Finding`] for each path that crosses a wall, and for a room that
//! the table lacks. Test code may look over the walls.

use super::source::{Finding, Source, Token, closing};

/// What a room may import; `room::Item` allows that item alone.
struct Room {
    name: &'static str,
    knows: &'static [&'static str],
}

const fn room(name: &'static str, knows: &'static [&'static str]) -> Room {
    Room { name, knows }
}

/// A position may be named wherever it passes, and wherever rows do, their fields' types: `PgTime`, what
/// was kept of a row that was too large to be held (`wal` passes it on in pieces), and its hash. What
/// text is in UTF-8 counts for those, and for what the server says.
const ROOMS: &[Room] = &[
    room("config", &["lsn", "outbox", "route", "pipeline"]),
    room(
        "wal",
        &[
            "lsn",
            "frame",
            "gate::History",
            "config",
            "pgoutput::Charset",
            "pgoutput::DecodeError",
            "pgoutput::Excerpt",
        ],
    ),
    room(
        "control",
        &["lsn", "outbox::OutboxSpec", "outbox::TableName", "outbox::Wanted", "config", "wal"],
    ),
    room(
        "kafka",
        &[
            "lsn",
            "record",
            "route",
            "ledger",
            "pipeline",
            "progress",
            "sink",
            "time",
            "transaction",
            "config",
            "failpoint",
            "log_throttle",
        ],
    ),
    room("telemetry", &["http", "prometheus"]),
    room("http", &[]),
    room("prometheus", &[]),
    room("failpoint", &[]),
    room("backoff", &[]),
    room("log_throttle", &[]),
    room(
        "relay",
        &[
            "lsn",
            "pgoutput",
            "outbox",
            "route",
            "ledger",
            "pipeline",
            "gate",
            "session",
            "sink",
            "time",
            "wal",
            "control",
            "kafka",
            "config",
            "telemetry",
            "failpoint",
            "backoff",
        ],
    ),
    room("outbox_writer", &[]),
    room("idempotency", &[]),
    // `kafka` knows nothing of the relay: one reader of topics and one producer serve both halves.
    room("dead_letter", &["record", "kafka", "ledger", "pipeline", "route", "time"]),
    room(
        "inbox",
        &["record", "dead_letter", "kafka", "ledger", "route", "backoff", "log_throttle"],
    ),
    room("saga", &["outbox_writer"]),
    // `control`'s address: who may read a connection string and check a certificate is one place.
    room(
        "shop",
        &[
            "config",
            "control::AddressError",
            "control::LoginRefused",
            "control::SqlAddress",
            "http",
            "log_throttle",
            "prometheus",
            "outbox_writer",
            "idempotency",
            "dead_letter",
            "inbox",
            "saga",
        ],
    ),
    room("bin", &["shop", "config"]),
    room(
        "cli",
        &[
            "lsn",
            "record",
            "dead_letter",
            "pgoutput",
            "outbox",
            "route",
            "ledger",
            "pipeline",
            "time",
            "wal",
            "control",
            "kafka",
            "config",
            "telemetry",
            "record",
            "dead_letter",
            "relay",
            "log_throttle",
            "sandbox",
            "shop",
        ],
    ),
    room("main", &["cli"]),
    room("lib", &[]),
];

/// Crates that only some rooms may use.
const CRATES: &[(&str, &[&str])] = &[
    (
        "tokio",
        &[
            "control",
            "relay",
            "telemetry",
            "http",
            "cli",
            "idempotency",
            "inbox",
            "shop",
            "bin",
            "main",
        ],
    ),
    (
        "tokio_postgres",
        &[
            "control",
            "relay",
            "cli",
            "outbox_writer",
            "idempotency",
            "inbox",
            "saga",
            "shop",
            "bin",
        ],
    ),
    ("rdkafka", &["kafka", "inbox", "shop"]),
    ("redis", &["idempotency", "inbox", "shop"]),
    ("axum", &["telemetry", "http", "shop"]),
    ("hyper", &["http"]),
    ("rustls", &["wal", "control"]),
    ("clap", &["cli", "config", "shop", "bin", "main"]),
];

pub fn rooms(source: &Source) -> Vec<Finding> {
    let Some(name) = source.room() else { return Vec::new() };
    let Some(room) = ROOMS.iter().find(|room| room.name == name) else {
        return vec![source.finding(0, format!("room `{name}` is not in the table of tests/tidy"))];
    };
    let mut findings = Vec::new();
    for (line, path) in shipped_paths(source) {
        let Some(inside) = inside_package(source, &path) else { continue };
        if inside.first() == Some(&"") || inside.first() == Some(&name) || inside.is_empty() {
            continue;
        }
        let known = |knows: &&&str| {
            let mut segments = knows.split("::").zip(&inside);
            knows.split("::").count() <= inside.len() && segments.all(|(a, b)| a == *b)
        };
        if !room.knows.iter().any(|knows| known(&knows)) {
            let what = format!("room `{name}` may not know `{}`", inside.join("::"));
            findings.push(source.finding(line, what));
        }
    }
    findings
}

pub fn crates(source: &Source) -> Vec<Finding> {
    let Some(name) = source.room() else { return Vec::new() };
    let mut findings = Vec::new();
    for (line, path) in shipped_paths(source) {
        let Some(first) = path.segments.first() else { continue };
        let restricted = CRATES.iter().find(|(krate, _)| krate == first);
        if restricted.is_some_and(|(_, rooms)| !rooms.contains(&name)) {
            findings.push(source.finding(line, format!("room `{name}` may not use `{first}`")));
        }
    }
    findings
}

/// The thread that owns the replication socket has no runtime under it.
pub fn hot_path(source: &Source) -> Vec<Finding> {
    if source.room() != Some("relay") {
        return Vec::new();
    }
    let paths: Vec<_> = shipped_paths(source).collect();
    let line_of = |wanted: &[&str]| {
        let found = paths.iter().find(|(_, path)| path.segments.starts_with(&owned(wanted)));
        found.map(|(line, _)| *line)
    };
    let stream = line_of(&["crate", "wal", "Stream"]);
    let runtime = line_of(&["tokio"]).or(line_of(&["tokio_postgres"]));
    match (stream, runtime) {
        (Some(_), Some(line)) => vec![
            source
                .finding(line, "a file that owns `wal::Stream` is on the hot path: no tokio there"),
        ],
        _ => Vec::new(),
    }
}

fn owned(segments: &[&str]) -> Vec<String> {
    segments.iter().map(ToString::to_string).collect()
}

/// A path as written, groups of `use` multiplied out, with the number of inline modules around it.
struct Path {
    segments: Vec<String>,
    inline_modules: usize,
}

/// The path from the package's root, or nothing for paths of other crates and for relative ones that
/// stay inside the room.
fn inside_package<'p>(source: &Source, path: &'p Path) -> Option<Vec<&'p str>> {
    let segments: Vec<&str> = path.segments.iter().map(String::as_str).collect();
    match *segments.first()? {
        "crate" | "postrider" => Some(segments.get(1..)?.to_vec()),
        "super" => {
            let ups = segments.iter().take_while(|segment| **segment == "super").count();
            let depth = module_depth(&source.path) + path.inline_modules;
            (ups >= depth).then(|| segments.get(ups..).unwrap_or_default().to_vec())
        }
        _ => None,
    }
}

/// How deep the file's module lies below the package's root: 1 for `src/wal/mod.rs`.
fn module_depth(path: &str) -> usize {
    let inside = path.trim_start_matches("src/").trim_end_matches(".rs");
    let segments: Vec<&str> = inside.split('/').collect();
    segments.len() - usize::from(segments.last() == Some(&"mod"))
}

fn shipped_paths(source: &Source) -> impl Iterator<Item = (usize, Path)> {
    let all = paths(&source.tokens).into_iter();
    all.filter(|(line, _)| !source.is_test(*line))
}

/// Every path with `::` in it or after `use`, in order.
fn paths(tokens: &[Token]) -> Vec<(usize, Path)> {
    let mut found = Vec::new();
    let mut modules: Vec<usize> = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        modules.retain(|&end| end > index);
        let text =
            |offset: usize| tokens.get(index + offset).map_or("", |token| token.text.as_str());
        if token.text == "mod" && text(2) == "{" {
            modules.push(closing(tokens, index + 2));
        }
        let before = index.checked_sub(1).map_or("", |before| tokens[before].text.as_str());
        let starts = before != "::" && (before == "use" || text(1) == "::") && is_name(&token.text);
        let in_group = ["{", ","].contains(&before) && group_prefix(tokens, index);
        if starts && !in_group {
            let mut expanded = Vec::new();
            expand(tokens, index, Vec::new(), &mut expanded);
            let inline_modules = modules.len();
            found.extend(
                expanded
                    .into_iter()
                    .map(|(line, segments)| (line, Path { segments, inline_modules })),
            );
        }
    }
    found
}

fn is_name(text: &str) -> bool {
    text.starts_with(|char: char| char.is_alphabetic() || char == '_')
}

/// Whether the token stands inside a `{..}` that follows `::`, so that its path began earlier.
fn group_prefix(tokens: &[Token], index: usize) -> bool {
    let opens = |&at: &usize| tokens[at].text == "{" && closing(tokens, at) > index;
    let open = (0..index).rev().take_while(|&at| tokens[at].text != ";").find(opens);
    open.and_then(|open| open.checked_sub(1)).is_some_and(|before| tokens[before].text == "::")
}

/// Follows a path from `at`, through groups; returns the index after it.
fn expand(
    tokens: &[Token],
    mut at: usize,
    mut prefix: Vec<String>,
    found: &mut Vec<(usize, Vec<String>)>,
) -> usize {
    let line = tokens.get(at).map_or(0, |token| token.line);
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    loop {
        if text(at) == "{" {
            let end = closing(tokens, at);
            at += 1;
            while at < end {
                at = if text(at) == "," {
                    at + 1
                } else {
                    expand(tokens, at, prefix.clone(), found)
                };
            }
            return end + 1;
        }
        prefix.push(text(at).to_owned());
        if text(at + 1) != "::" || !(is_name(text(at + 2)) || ["{", "*"].contains(&text(at + 2))) {
            break;
        }
        at += 2;
    }
    found.push((line, prefix));
    at + 1 + if text(at + 1) == "as" { 2 } else { 0 }
}

/// Where the time of day is asked for: to be shown, sent, or written down.
const STAMPS: [&str; 5] = [
    "src/wal/stream.rs",
    "src/kafka/deliveries.rs",
    "src/telemetry/mod.rs",
    "src/cli/logs/line.rs",
    "src/dead_letter/mod.rs",
];

/// Every other place asks a clock that does not jump.
pub fn wall_clock(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.room().is_some()) {
        let is_asked = |(_, line): &(usize, &str)| line.contains("SystemTime");
        if STAMPS.contains(&source.path.as_str()) {
            continue;
        }
        for (line, _) in source.shipped_lines().filter(is_asked) {
            let what = "the time of day may jump; measure with Instant, or list the place";
            findings.push(source.finding(line, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.what.as_str()).collect()
    }

    #[test]
    fn every_way_to_write_a_forbidden_import_is_reported() {
        for text in [
            "use crate::wal::Stream;",
            "use crate::{lsn::Lsn, wal::Stream};",
            "use super::wal::Stream;",
            "fn f(stream: &crate::wal::Stream) {}",
            "mod inner { use super::super::wal::Stream; }",
            "use crate::wal::*;",
            "use crate::wal;",
        ] {
            let found = rooms(&Source::new("src/config.rs", text));
            assert_eq!(found.len(), 1, "{text}: {:?}", what(&found));
        }
    }

    #[test]
    fn allowed_imports_pass() {
        let text = "use std::{fmt, io::Read};\nuse crate::{lsn::Lsn, ledger::{Ledger, Ticket as T}};\n\
                    use crate::wal::Frame;\nfn f() { let x = Frame::Wal { a, b: c::d }; super::lsn::f() }\n\
                    mod m { use super::wal_like; }\n#[cfg(test)]\nmod tests { use crate::kafka::X; }";
        assert_eq!(what(&rooms(&Source::new("src/relay.rs", text))), [""; 0]);
        let within = "use super::frame::Frame;\nuse super::super::config::Tls;";
        assert_eq!(what(&rooms(&Source::new("src/wal/stream.rs", within))), [""; 0]);
        assert_eq!(what(&rooms(&Source::new("src/main.rs", "use postrider::cli;"))), [""; 0]);
    }

    #[test]
    fn each_wall_stands() {
        for (path, text) in [
            ("src/config/mod.rs", "use crate::wal::Frame;"),
            ("src/wal/stream.rs", "use crate::pipeline::Pipeline;"),
            ("src/kafka/mod.rs", "use crate::wal::Frame;"),
            ("src/telemetry/mod.rs", "use crate::relay::State;"),
            ("src/saga/mod.rs", "use crate::config::Config;"),
            ("src/shop/load.rs", "use crate::kafka::Sink;"),
            ("src/shop/load.rs", "use super::super::relay;"),
            ("src/shop/connect.rs", "use crate::control::{SqlAddress, connect};"),
            ("src/bin/shop.rs", "use postrider::relay::run;"),
            ("src/cellar/mod.rs", ""),
        ] {
            assert_eq!(rooms(&Source::new(path, text)).len(), 1, "{path}: {text}");
        }
        for room in ROOMS {
            for other in ROOMS.iter().filter(|other| other.name != room.name) {
                let text = format!("use crate::{}::Anything;", other.name);
                let found = rooms(&Source::new(&format!("src/{}.rs", room.name), &text));
                assert_eq!(found.is_empty(), room.knows.contains(&other.name), "{found:?}");
            }
        }
    }

    #[test]
    fn crates_stay_in_their_rooms() {
        for (path, text) in [
            ("src/wal/stream.rs", "use tokio::net::TcpStream;"),
            ("src/kafka/mod.rs", "fn f() { tokio::spawn(x); }"),
            ("src/relay/mod.rs", "use rdkafka::ClientConfig;"),
            ("src/saga/mod.rs", "use {tokio::time, std::fs};"),
            ("src/config.rs", "use rdkafka as kafka;"),
        ] {
            assert_eq!(crates(&Source::new(path, text)).len(), 1, "{path}: {text}");
        }
        for (krate, allowed) in CRATES {
            for room in ROOMS {
                let text = format!("use {krate}::Anything;");
                let found = crates(&Source::new(&format!("src/{}.rs", room.name), &text));
                assert_eq!(found.is_empty(), allowed.contains(&room.name), "{found:?}");
            }
        }
        assert_eq!(crates(&Source::new("src/control/mod.rs", "use tokio::time::sleep;")), []);
        assert_eq!(crates(&Source::new("src/kafka/x.rs", "use rdkafka::Message;")), []);
    }

    #[test]
    fn a_runtime_beside_the_stream_is_reported() {
        let both = "use crate::wal::{Frame, Stream};\nuse tokio::sync::watch;";
        assert_eq!(hot_path(&Source::new("src/relay/hot.rs", both)).len(), 1);
        let frame_only = "use crate::wal::Frame;\nuse tokio::sync::watch;";
        assert_eq!(hot_path(&Source::new("src/relay/hot.rs", frame_only)), []);
    }

    #[test]
    fn the_time_of_day_is_reported_outside_of_its_places() {
        let found = |path: &str| {
            let text = "use std::time::SystemTime;\n#[cfg(test)]\nmod t { use X::SystemTime; }";
            wall_clock(&[Source::new(path, text)]).len()
        };
        assert_eq!(found("src/relay/report.rs"), 1);
        assert_eq!(found("src/telemetry/mod.rs"), 0);
        assert_eq!(found("tests/it/main.rs"), 0);
    }
}
