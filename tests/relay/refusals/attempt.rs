//! One start of the relay that is to be refused, and the rules that every refusal keeps.

use serde_json::Value;

use support::kafka;
use support::relay::{Outcome, Relay, is_slow_broker};
use support::secured;

/// A password that lets nobody in, and that nobody may see.
pub(super) const CANARY: &str = "canary-in-a-coal-mine";

/// What a refused start told the user.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The stable code.
    pub(super) code: String,
    /// What failed, why and what to do: all that was said.
    pub(super) text: String,
    /// What to do.
    pub(super) help: String,
    /// The lines of the log at WARN or above.
    pub(super) warnings: Vec<Value>,
}

/// Runs `postrider` with these arguments: it must end with `exit` and one clear error.
pub(super) fn refused(relay: &Relay, arguments: &[&str], exit: i32) -> Refusal {
    let arguments = [arguments, &["--output", "json"]].concat();
    judge(&relay.start(&arguments).outcome(), exit)
}

/// Holds an outcome against the rules.
pub(super) fn judge(outcome: &Outcome, exit: i32) -> Refusal {
    assert_no_secret(outcome);
    let Outcome { status, stdout, log } = outcome;
    assert_eq!(status.code(), Some(exit), "{}", log.join("\n"));
    assert_eq!(stdout, "", "a refusal delivers nothing");
    let lines: Vec<Value> = log
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect();
    let (reports, log): (Vec<Value>, Vec<Value>) =
        lines.into_iter().partition(|line| line.get("errors").is_some());
    let [report] = reports.as_slice() else { panic!("one error is enough: {reports:#?}") };
    assert_eq!(report["exit_code"], exit);
    let Some([error]) = report["errors"].as_array().map(Vec::as_slice) else {
        panic!("one error is enough: {report:#}")
    };
    let part = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    for name in ["code", "what", "help"] {
        assert_ne!(part(name), "", "no {name}: {error:#}");
    }
    // The topic for dead letters is looked at beside, and may be told of before the end.
    let is_aside = |line: &Value| {
        line["target"] == "postrider::relay::bootstrap"
            && line["message"].to_string().contains("dead-letters")
    };
    let warnings = log.into_iter().filter(|line| is_warning(line) && !is_aside(line)).collect();
    let text = [part("what"), part("why"), part("help")].join("\n");
    Refusal { code: part("code"), text, help: part("help"), warnings }
}

impl Refusal {
    /// Its code, its words, and no warning besides.
    pub(super) fn assert(&self, code: &str, words: &[&str]) {
        assert_eq!(self.code, code, "{}", self.text);
        for words in words {
            assert!(self.text.contains(words), "no `{words}` in: {}", self.text);
        }
        assert!(self.warnings.is_empty(), "unexpected: {:#?}", self.warnings);
    }
}

/// Neither a password that fits nor one that does not is in any output, as it is or as URLs and
/// quoted texts write it.
pub(super) fn assert_no_secret(outcome: &Outcome) {
    let written = format!("{}\n{}", outcome.stdout, outcome.log.join("\n"));
    for secret in [CANARY, secured::PASSWORD, "p%40ss", "p@ss", kafka::PASSWORD] {
        assert!(!written.contains(secret), "`{secret}` is in:\n{written}");
    }
    assert!(!written.contains("panicked"), "{written}");
}

/// A log line at WARN or above.
pub(super) fn is_warning(line: &Value) -> bool {
    let is_plain = matches!(line["level"].as_str(), Some("INFO" | "DEBUG" | "TRACE"));
    !is_plain && !is_slow_broker(line)
}
