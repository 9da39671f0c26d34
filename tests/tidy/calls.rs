//! What may not be written, or in one place only, and clippy does not see.
//!
//! Input: a [`Source`], or all of them. Output: a [`Finding`] for each line.

use regex::Regex;

use super::source::{Finding, Source};

/// What no line may have.
struct Ban {
    pattern: &'static str,
    /// A line that has it, as the test sees.
    example: &'static str,
    /// Where: the beginning of the path.
    under: &'static str,
    but_not: &'static [&'static str],
    what: &'static str,
}

const BANS: [Ban; 5] = [
    Ban {
        pattern: r"\b(TODO|FIXME|XXX)\b",
        example: "// TODO: later",
        under: "",
        but_not: &[],
        what: "a note that work is missing: do it, or drop it",
    },
    // With a reason, clippy would let it be.
    Ban {
        pattern: r"^\s*#\[ignore",
        example: "    #[ignore = \"slow\"]",
        under: "",
        but_not: &[],
        what: "a test runs or does not exist",
    },
    Ban {
        pattern: r"clippy::(unwrap_used|expect_used|print_stdout|dbg_macro|todo|unimplemented)\b",
        example: "#[expect(clippy::unwrap_used, reason = \"it is there\")]",
        under: "src/",
        but_not: &[],
        what: "return a typed error; print in cli, by its context",
    },
    // What hopes that something happens meanwhile fails on a busy machine.
    Ban {
        pattern: r"\b(sleep|sleep_until|sleep_ms|park_timeout)\(",
        example: "std::thread::sleep(PAUSE);",
        under: "tests/",
        but_not: &[
            "tests/support/src/wait.rs",
            "tests/support/src/task.rs",
            // A seed draws the moments of what happens, and time passes until the next of them.
            "tests/long/crash/",
            "tests/relay/delivery/drawn.rs",
        ],
        what: "a test sleeps: wait until it is so (`wait_until`), see that it stays so (`stays`), or \
               say why a time must pass (`let_pass`), all of tests/support/src/wait.rs",
    },
    // It would acknowledge past the ledger.
    Ban {
        pattern: "pg_replication_slot_advance",
        example: "\"SELECT pg_replication_slot_advance($1)\"",
        under: "src/",
        // To where it was acknowledged already.
        but_not: &["src/postgres/wal/catch_up/mod.rs"],
        what: "the slot moves by acknowledgement only",
    },
];

/// The clock on the wall may jump: it stamps what is shown, sent or written down, and decides nothing.
const CLOCK: Ban = Ban {
    pattern: r"\bSystemTime\b",
    example: "use std::time::SystemTime;",
    under: "src/",
    but_not: &[
        "src/postgres/wal/stream.rs",
        // The time of a commit that a row's transaction stands for.
        "src/postgres/wal/table/mod.rs",
        // The same of a row that was polled.
        "src/postgres/wal/poll/mod.rs",
        // When a window was asked for, as the server says of a frame of a stream.
        "src/postgres/wal/catch_up/mod.rs",
        // How long ago is a time of day.
        "src/cli/replay.rs",
        // The clock of this machine is what is checked.
        "src/postgres/certificate.rs",
        "src/cli/doctor/postgres.rs",
        "src/kafka/deliveries.rs",
        // When a token expires is a time of day.
        "src/kafka/token_login.rs",
        "src/credentials/time.rs",
        "src/relay/telemetry/mod.rs",
        "src/cli/logs/line.rs",
        "src/patterns/dead_letter/mod.rs",
    ],
    what: "the time of day may jump; measure with Instant, or list the place",
};

pub fn banned(source: &Source) -> Vec<Finding> {
    BANS.iter().flat_map(|ban| ban.lines(source)).collect()
}

pub fn wall_clock(source: &Source) -> Vec<Finding> {
    CLOCK.lines(source)
}

impl Ban {
    fn lines(&self, source: &Source) -> Vec<Finding> {
        let is_in = |path: &&str| source.path.starts_with(*path);
        if !is_in(&self.under) || self.but_not.iter().any(is_in) || source.path == file!() {
            return Vec::new();
        }
        let pattern = Regex::new(self.pattern).expect("a pattern");
        let lines = source.text.lines().enumerate();
        let lines = lines.filter(|(_, line)| pattern.is_match(line));
        lines.map(|(index, _)| source.finding(index + 1, self.what)).collect()
    }
}

pub fn module_docs(source: &Source) -> Vec<Finding> {
    let missing = !source.text.starts_with("//! ");
    let what = || source.finding(1, "a file begins with its module doc (`//! ...`)");
    missing.then(what).into_iter().collect()
}

/// Where Postgres is told an LSN.
const LOOP: &str = "src/relay/hot.rs";

/// What the loop tells goes on from here to the stream.
const HANDED_ON: [&str; 2] = ["src/postgres/wal/catch_up/mod.rs", "src/relay/log_source.rs"];

/// Upholds G1's first half: only the loop tells Postgres an LSN, and it has one from the session alone.
pub fn one_acknowledgement(sources: &[Source]) -> Vec<Finding> {
    let calls = sources.iter().flat_map(|source| {
        let lines = source.shipped_lines().filter(|(_, line)| line.contains(".acknowledge("));
        lines.map(move |(line, _)| (source, line))
    });
    let calls: Vec<(&Source, usize)> = calls.collect();
    if calls.is_empty() {
        let what = "nothing tells Postgres what is settled".to_owned();
        return vec![Finding { path: LOOP.to_owned(), line: 0, what }];
    }
    let is_right = |path: &str| path == LOOP || HANDED_ON.contains(&path);
    let wrong = calls.iter().filter(|(source, _)| !is_right(&source.path));
    wrong
        .map(|(source, line)| source.finding(*line, "only the relay's loop tells Postgres an LSN"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_banned_is_reported_where_it_is_banned() {
        for ban in BANS.iter().chain([&CLOCK]) {
            let found = |path: &str| ban.lines(&Source::new(path, ban.example)).len();
            assert_eq!(found(&format!("{}x.rs", ban.under)), 1, "{}", ban.example);
            assert_eq!(found("benches/x.rs"), usize::from(ban.under.is_empty()), "{}", ban.example);
            assert!(ban.but_not.iter().all(|path| found(path) == 0), "{}", ban.example);
        }
        let text =
            "// mastodons\nlet_pass(PAUSE, \"why\"); is_asleep(); run(\"SELECT pg_sleep(1)\")";
        assert_eq!(banned(&Source::new("tests/relay/wal.rs", text)), []);
    }

    #[test]
    fn files_without_a_module_doc_are_reported() {
        assert_eq!(module_docs(&Source::new("src/x.rs", "//! What it is.\n")), []);
        assert_eq!(module_docs(&Source::new("src/x.rs", "use a::b;\n//! Late.\n")).len(), 1);
    }

    #[test]
    fn g1_a_second_acknowledgement_is_reported() {
        let call = "fn f() { stream.acknowledge(settled); }";
        let relay = || Source::new(LOOP, call);
        assert_eq!(one_acknowledgement(&[relay()]), []);
        assert_eq!(one_acknowledgement(&[relay(), Source::new("src/relay/x.rs", call)]).len(), 1);
        assert_eq!(one_acknowledgement(&[Source::new("src/cli/run.rs", call)]).len(), 1);
        assert_eq!(one_acknowledgement(&[Source::new("src/relay/x.rs", "fn f() {}")]).len(), 1);
        let test =
            Source::new("src/wal/mod.rs", &format!("#[cfg(test)]\nmod tests {{\n{call}\n}}"));
        assert_eq!(one_acknowledgement(&[relay(), test]), []);
    }
}
