//! What may not be written at all, or in one place only.
//!
//! Enters: a [`Source`], or all of them. Leaves: a [`Finding`] for each place.

use super::source::{Finding, Source};

/// A piece of code that is banned, and what to do instead.
struct Ban {
    code: &'static str,
    instead: &'static str,
}

/// Banned wherever it stands, tests included.
const EVERYWHERE: &[Ban] = &[
    Ban { code: "todo!", instead: "write it, or leave it out" },
    Ban { code: "unimplemented!", instead: "write it, or leave it out" },
    Ban { code: "dbg!", instead: "use tracing" },
    Ban { code: "#[ignore", instead: "a test runs or does not exist" },
    Ban { code: "#[allow(", instead: "use #[expect(.., reason = ..)]" },
    Ban { code: "#![allow(", instead: "use #![expect(.., reason = ..)]" },
];

/// Banned in code that ships.
const SHIPPED: &[Ban] = &[
    Ban { code: ".unwrap()", instead: "return a typed error" },
    Ban { code: ".expect(\"", instead: "return a typed error" },
];

/// Banned outside `cli`: data goes to stdout in one room only.
const PRINTS: &[Ban] = &[
    Ban { code: "println!", instead: "print in cli, log elsewhere" },
    Ban { code: "print!", instead: "print in cli, log elsewhere" },
];

/// The only files of the tests that sleep: waits that end, and times that pass for a reason that is given.
const WAITING: [&str; 2] = ["tests/support/src/wait.rs", "tests/support/src/task.rs"];

/// Where a seed draws the moments of what happens, and time passes until the next of them.
const DRAWN: [&str; 2] = ["tests/long/crash/", "tests/relay/delivery/drawn.rs"];

/// What sleeps.
const SLEEPS: [&str; 4] = ["sleep(", "sleep_until(", "sleep_ms(", "park_timeout("];

/// Words that say the work is not done. Split here, lest this file report itself.
const UNDONE: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

pub fn banned(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in source.code.lines().enumerate() {
        let number = index + 1;
        let shipped = !source.is_test(number);
        let mut report = |bans: &[Ban]| {
            for ban in bans.iter().filter(|ban| holds(line, ban.code)) {
                let what = format!("`{}` is banned here: {}", ban.code, ban.instead);
                findings.push(source.finding(number, what));
            }
        };
        report(EVERYWHERE);
        if shipped {
            report(SHIPPED);
        }
        if shipped && source.room() != Some("cli") {
            report(PRINTS);
        }
    }
    findings
}

/// Whether the line holds the code, not as the tail of a longer word.
fn holds(line: &str, code: &str) -> bool {
    line.match_indices(code).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        let is_tail = before.is_some_and(|char| char.is_alphanumeric() || char == '_');
        !(is_tail && code.starts_with(char::is_alphabetic))
    })
}

/// A test that sleeps in the hope that something happens meanwhile fails on a busy machine.
pub fn sleeping_tests(source: &Source) -> Vec<Finding> {
    let may_sleep = WAITING.iter().chain(&DRAWN).any(|path| source.path.starts_with(path));
    if may_sleep || !source.path.starts_with("tests/") {
        return Vec::new();
    }
    let lines = source.code.lines().enumerate().map(|(index, line)| (index + 1, line));
    let sleeps = lines.filter(|(_, line)| SLEEPS.iter().any(|code| holds(line, code)));
    let what = "a test sleeps: wait until it is so (`wait_until`), see that it stays so (`stays`), or \
                say why a time must pass (`let_pass`), all of tests/support/src/wait.rs";
    sleeps.map(|(number, _)| source.finding(number, what)).collect()
}

pub fn undone(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().enumerate();
    let undone = lines.filter(|(_, line)| {
        let mut words = line.split(|char: char| !char.is_alphanumeric());
        words.any(|word| UNDONE.contains(&word))
    });
    undone
        .map(|(index, _)| {
            source.finding(index + 1, "a note that work is missing: do it, or drop it")
        })
        .collect()
}

pub fn module_docs(source: &Source) -> Vec<Finding> {
    let missing = !source.text.starts_with("//! ");
    let what = || source.finding(1, "a file begins with its module doc (`//! ...`)");
    missing.then(what).into_iter().collect()
}

/// Where Postgres is told an LSN.
const LOOP: &str = "src/relay/hot.rs";

/// Upholds G1's first half: only the loop tells Postgres an LSN, and it has one from the session alone.
pub fn one_acknowledgement(sources: &[Source]) -> Vec<Finding> {
    let mut calls = Vec::new();
    for source in sources.iter().filter(|source| source.room().is_some()) {
        for (line, code) in source.shipped_lines() {
            if code.contains(".acknowledge(") {
                calls.push((source, line));
            }
        }
    }
    let relay = sources.iter().find(|source| {
        let mut lines = source.shipped_lines();
        source.room() == Some("relay") && lines.any(|(_, line)| holds(line, "Stream"))
    });
    if let (Some(relay), true) = (relay, calls.is_empty()) {
        return vec![relay.finding(0, "nothing tells Postgres what is settled")];
    }
    let wrong = calls.iter().filter(|(source, _)| source.path != LOOP);
    wrong
        .map(|(source, line)| source.finding(*line, "only the relay's loop tells Postgres an LSN"))
        .collect()
}

/// Moving the slot by SQL would acknowledge past the ledger.
pub fn no_back_door(source: &Source) -> Vec<Finding> {
    if source.room().is_none() {
        return Vec::new();
    }
    let function = concat!("pg_replication_slot", "_advance");
    let lines = source.text.lines().enumerate();
    let calls = lines.filter(|(index, line)| line.contains(function) && !source.is_test(index + 1));
    calls
        .map(|(index, _)| source.finding(index + 1, "the slot moves by acknowledgement only"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banned_calls_are_reported() {
        for ban in EVERYWHERE.iter().chain(SHIPPED).chain(PRINTS) {
            let text =
                format!("//! D.\nfn f() {{ x{} }}", ban.code.replace("expect(\"", "expect(\"\")"));
            let text = text.replace("x#", "#").replace("xprint", "print").replace("xtodo", "todo");
            let text = text.replace("xun", "un").replace("xdbg", "dbg");
            let found = banned(&Source::new("src/wal/mod.rs", &text));
            assert_eq!(found.len(), 1, "{text}: {found:?}");
        }
    }

    #[test]
    fn what_is_not_banned_passes() {
        let text = "//! D.\nfn f() { x.unwrap_or(1); eprintln!(); expect(\"x\"); } // .unwrap()\n\
                    const S: &str = \"todo!\";\n#[cfg(test)]\nmod tests { fn f() { x.unwrap(); println!() } }";
        assert_eq!(banned(&Source::new("src/wal/mod.rs", text)), []);
        assert_eq!(banned(&Source::new("src/cli/run.rs", "fn f() { println!() }")), []);
    }

    #[test]
    fn tests_that_sleep_are_reported() {
        for code in SLEEPS {
            let text = format!("//! D.\nfn f() {{ std::thread::{code}x) }}");
            assert_eq!(
                sleeping_tests(&Source::new("tests/relay/wal.rs", &text)).len(),
                1,
                "{code}"
            );
            for path in ["src/wal/mod.rs", WAITING[0], DRAWN[1]] {
                assert_eq!(sleeping_tests(&Source::new(path, &text)), []);
            }
        }
        let text = "fn f() { let_pass(PAUSE, \"why\"); is_asleep(); } // sleep(1)";
        assert_eq!(sleeping_tests(&Source::new("tests/relay/wal.rs", text)), []);
    }

    #[test]
    fn notes_of_missing_work_are_reported() {
        for word in UNDONE {
            let text = format!("//! D.\n// {word}: later\n");
            assert_eq!(undone(&Source::new("src/x.rs", &text)).len(), 1, "{word}");
        }
        assert_eq!(undone(&Source::new("src/x.rs", "// mastodons")), []);
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
        let none = "fn f(stream: &mut Stream) {}";
        assert_eq!(one_acknowledgement(&[Source::new("src/relay/x.rs", none)]).len(), 1);
        let test = format!("#[cfg(test)]\nmod tests {{ {call} }}");
        assert_eq!(one_acknowledgement(&[relay(), Source::new("src/wal/mod.rs", &test)]), []);
    }

    #[test]
    fn moving_the_slot_by_sql_is_reported() {
        let text = format!(
            "const A: &str = \"SELECT {}($1)\";",
            concat!("pg_replication_slot", "_advance")
        );
        assert_eq!(no_back_door(&Source::new("src/control/mod.rs", &text)).len(), 1);
        assert_eq!(no_back_door(&Source::new("tests/relay/main.rs", &text)), []);
    }
}
