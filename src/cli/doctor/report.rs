//! Prints what `postrider doctor` found: a line a check for people, one object for scripts.
//!
//! Input: checks in the order in which they were made. Output: text, the worst last, or JSON, with counts. Pure.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::apply::FixPlan;
use super::check::{Check, Outcome};
use crate::failure::printable;

/// See the module.
pub(super) struct Report {
    pub(super) checks: Vec<Check>,
}

impl Report {
    /// The worst of all that count.
    pub(super) fn worst(&self) -> Outcome {
        let counting = self.checks.iter().filter(|check| !check.is_allowed);
        counting.map(|check| check.outcome).max().unwrap_or(Outcome::Pass)
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }

    /// For people. `is_quiet`: only what fails.
    pub(super) fn to_text(&self, color: bool, is_quiet: bool) -> String {
        let mut out = String::new();
        let is_shown = |check: &&Check| !is_quiet || check.outcome == Outcome::Fail;
        let mut checks: Vec<_> = self.checks.iter().filter(is_shown).collect();
        let width = checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
        // The worst is what stands above the prompt.
        checks.sort_by_key(|check| check.outcome);
        for check in checks {
            let (begin, end) = if color { colors(check.outcome) } else { ("", "") };
            let label = check.outcome.label();
            let _ = write!(
                out,
                "{begin}{label}{end}  {:width$}  {}",
                check.id,
                printable(&check.finding)
            );
            if let Some(code) = check.code {
                let _ = write!(out, " ({})", code.as_str());
            }
            out.push_str(if check.is_allowed { " (allowed)\n" } else { "\n" });
            if let Some(fix) = &check.fix {
                let _ = writeln!(out, "      fix: {}", printable(fix.text()));
            }
        }
        let _ = writeln!(
            out,
            "{} {}: {} passed, {} warn, {} fail, {} skipped",
            self.checks.len(),
            if self.checks.len() == 1 { "check" } else { "checks" },
            self.count(Outcome::Pass),
            self.count(Outcome::Warn),
            self.count(Outcome::Fail),
            self.count(Outcome::Unknown)
        );
        out
    }

    /// For scripts.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "what": "doctor",
            "ok": self.worst() != Outcome::Fail,
            "passed": self.count(Outcome::Pass),
            "warnings": self.count(Outcome::Warn),
            "failed": self.count(Outcome::Fail),
            "unknown": self.count(Outcome::Unknown),
            "checks": self.checks.iter().map(Check::to_json).collect::<Vec<_>>(),
        })
    }
}

/// What `--fix` says behind the report. `created`: none where it was only to tell.
pub(super) fn fix_text(plan: &FixPlan, left: &[&str], created: Option<&[String]>) -> String {
    let mut out = String::new();
    for object in created.unwrap_or_default() {
        let _ = writeln!(out, "created: {object}");
    }
    if created.is_none() {
        for object in &plan.creates {
            let _ = writeln!(out, "would create: {object}");
        }
    }
    for why in &plan.refused {
        let _ = writeln!(out, "not created: {why}");
    }
    if !left.is_empty() {
        let _ = writeln!(out, "left to you, by the fix above: {}", left.join(", "));
    }
    match created {
        None if plan.creates.is_empty() => out.push_str("there is nothing to create\n"),
        None => out.push_str("nothing was changed; --execute creates it\n"),
        Some([]) => out.push_str("nothing was created\n"),
        Some(_) => {}
    }
    printable(&out)
}

const fn colors(outcome: Outcome) -> (&'static str, &'static str) {
    match outcome {
        Outcome::Pass => ("\x1b[32m", "\x1b[0m"),
        Outcome::Unknown => ("\x1b[2m", "\x1b[0m"),
        Outcome::Warn => ("\x1b[33m", "\x1b[0m"),
        Outcome::Fail => ("\x1b[1;31m", "\x1b[0m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_its_line_and_its_fix() {
        let checks = vec![
            Check::pass("a.b", "well"),
            Check::fail("a.longer", "broken", "repair it"),
            Check::warn("c.d", "slow", "speed it up"),
        ];
        let report = Report { checks };
        let text = report.to_text(false, false);
        assert_eq!(
            text,
            "PASS  a.b       well\nWARN  c.d       slow\n      fix: speed it up\nFAIL  a.longer  broken\n      \
             fix: repair it\n3 checks: 1 passed, 1 warn, 1 fail, 0 skipped\n"
        );
        assert_eq!(report.worst(), Outcome::Fail);
        let value = report.to_json();
        assert_eq!((value["ok"].as_bool(), value["failed"].as_u64()), (Some(false), Some(1)));
        assert_eq!(value["checks"][1]["fix"]["text"], "repair it");
        let mut report = report;
        report.checks[1].is_allowed = true;
        assert_eq!(report.worst(), Outcome::Warn);
        assert!(report.to_text(false, false).contains("FAIL  a.longer  broken (allowed)\n"));
        assert_eq!(report.to_json()["checks"][1]["allowed"], true);
        assert!(report.to_text(true, false).contains("\x1b[1;31mFAIL\x1b[0m"));
        let named = Check::fail("a.b", "transaction `\x1b[2J`", "COMMIT PREPARED '\x1b[2J'");
        assert!(!Report { checks: vec![named] }.to_text(false, false).contains('\x1b'));
    }
}
