//! Prints the results of `postrider doctor`: a line per check, the worst last, or one JSON object.
//! Pure.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::apply::FixPlan;
use super::check::{Check, Outcome};
use crate::failure::printable;
use crate::marks::wrapped;

pub(super) struct Report {
    pub(super) checks: Vec<Check>,
}

impl Report {
    /// Worst outcome without allowed checks.
    pub(super) fn worst(&self) -> Outcome {
        let counting = self.checks.iter().filter(|check| !check.is_allowed);
        counting.map(|check| check.outcome).max().unwrap_or(Outcome::Pass)
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }

    /// `width`: columns of the terminal; `None` does not wrap. `is_quiet`: only failures.
    pub(super) fn to_text(&self, width: Option<usize>, color: bool, is_quiet: bool) -> String {
        let mut out = String::new();
        let is_shown = |check: &&Check| !is_quiet || check.outcome == Outcome::Fail;
        let mut checks: Vec<_> = self.checks.iter().filter(is_shown).collect();
        let id_width = checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
        // The worst checks are next to the prompt.
        checks.sort_by_key(|check| check.outcome);
        for check in checks {
            let (begin, end) = if color { colors(check.outcome) } else { ("", "") };
            let label = check.outcome.label();
            let _ = write!(out, "{begin}{label}{end}  {:id_width$}", check.id);
            let mut finding = printable(&check.finding);
            if let Some(code) = check.code {
                let _ = write!(finding, " ({})", code.as_str());
            }
            if check.is_allowed {
                finding.push_str(" (allowed)");
            }
            let column = label.len() + 2 + id_width + 2;
            out.push_str(&finding_text(&finding, width, column));
            if let Some(fix) = &check.fix {
                let _ = writeln!(out, "      fix: {}", fix_lines(&printable(fix.text()), width));
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

const INDENT: usize = 6;
const FINDING_MIN: usize = 40;

fn finding_text(finding: &str, width: Option<usize>, column: usize) -> String {
    let Some(width) = width else { return format!("  {finding}\n") };
    let (column, begin) = match width.saturating_sub(column) {
        FINDING_MIN.. => (column, "  ".to_owned()),
        _ => (INDENT, format!("\n{:INDENT$}", "")),
    };
    let lines = wrapped(finding, width.saturating_sub(column).max(INDENT));
    format!("{begin}{}\n", lines.join(&format!("\n{:column$}", "")))
}

/// A clause per line, if the fix does not fit in a line. Clauses are not wrapped, because they may
/// be commands.
fn fix_lines(fix: &str, width: Option<usize>) -> String {
    const BEGIN: &str = "\n           ";
    let fix = fix.replace('\n', BEGIN);
    if width.is_none_or(|width| BEGIN.len() - 1 + fix.chars().count() <= width) {
        return fix;
    }
    let (mut lines, mut quote, mut depth) = (String::new(), None, 0_i32);
    let mut rest = fix.chars().peekable();
    while let Some(letter) = rest.next() {
        lines.push(letter);
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '`' | '"') => quote = Some(letter),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, ';') if depth == 0 && rest.next_if_eq(&' ').is_some() => lines.push_str(BEGIN),
            _ => {}
        }
    }
    lines
}

/// `created`: `None` without `--execute`.
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
        let text = report.to_text(None, false, false);
        assert_eq!(
            text,
            "PASS  a.b       well\nWARN  c.d       slow\n      fix: speed it up\nFAIL  a.longer  broken\n      \
             fix: repair it\n3 checks: 1 passed, 1 warn, 1 fail, 0 skipped\n"
        );
        let narrow = report.to_text(Some(40), false, false);
        assert!(
            narrow.contains("FAIL  a.longer\n      broken\n      fix: repair it\n"),
            "{narrow}"
        );
        assert_eq!(report.worst(), Outcome::Fail);
        let value = report.to_json();
        assert_eq!((value["ok"].as_bool(), value["failed"].as_u64()), (Some(false), Some(1)));
        assert_eq!(value["checks"][1]["fix"]["text"], "repair it");
        let mut report = report;
        report.checks[1].is_allowed = true;
        assert_eq!(report.worst(), Outcome::Warn);
        assert!(report.to_text(None, false, false).contains("FAIL  a.longer  broken (allowed)\n"));
        assert_eq!(report.to_json()["checks"][1]["allowed"], true);
        assert!(report.to_text(None, true, false).contains("\x1b[1;31mFAIL\x1b[0m"));
        let finding = "a finding of many words that has no room in one line of a terminal";
        let fix = "run `a; b`; SELECT f('x;y'); then (c; d) restart the server";
        let long = Report { checks: vec![Check::fail("a.b", finding, fix)] };
        let shown = long.to_text(Some(60), false, false);
        assert!(
            shown.starts_with(
                "FAIL  a.b  a finding of many words that has no room in one\n           line of a terminal\n      \
                 fix: run `a; b`;\n           SELECT f('x;y');\n           then (c; d) restart the server\n"
            ),
            "{shown}"
        );
        let named = Check::fail("a.b", "transaction `\x1b[2J`", "COMMIT PREPARED '\x1b[2J'");
        assert!(!Report { checks: vec![named] }.to_text(None, false, false).contains('\x1b'));
    }
}
