//! A check of `postrider doctor`, and its result.
//!
//! Invariant: an id names one question and is stable, because scripts use it. A failure or a
//! warning has a fix. A question without an answer never passes.

use serde_json::{Value, json};

use super::fix::Fix;
use crate::codes::ErrorCode;
use crate::failure::CommandFailure;
use postrider_kafka::WantedTopic;
use postrider_secrets::mask::mask_sentence;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Pass,
    Unknown,
    /// The relay runs, but may lose time, disk or safety.
    Warn,
    /// The relay does not run, or will soon stop.
    Fail,
}

impl Outcome {
    /// Label with the width of the widest.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Unknown => "SKIP",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lack {
    /// Created by `postrider setup`: table, publication, a table in it, or slot.
    Source,
    Days,
    Topic(WantedTopic),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Check {
    /// For example `slot.alive`.
    pub(super) id: &'static str,
    pub(super) outcome: Outcome,
    pub(super) finding: String,
    pub(super) fix: Option<Fix>,
    pub(super) lacks: Vec<Lack>,
    /// Code of the error that would end the relay.
    pub(super) code: Option<ErrorCode>,
    /// Whether `--allow` excludes the check from the exit code.
    pub(super) is_allowed: bool,
}

impl Check {
    pub(super) fn pass(id: &'static str, finding: impl Into<String>) -> Self {
        Self {
            id,
            outcome: Outcome::Pass,
            finding: finding.into(),
            fix: None,
            lacks: Vec::new(),
            code: None,
            is_allowed: false,
        }
    }

    pub(super) fn unknown(id: &'static str, why: impl Into<String>) -> Self {
        Self { outcome: Outcome::Unknown, ..Self::pass(id, why) }
    }

    pub(super) fn warn(id: &'static str, finding: impl Into<String>, fix: impl Into<Fix>) -> Self {
        Self { outcome: Outcome::Warn, fix: Some(fix.into()), ..Self::pass(id, finding) }
    }

    pub(super) fn fail(id: &'static str, finding: impl Into<String>, fix: impl Into<Fix>) -> Self {
        Self { outcome: Outcome::Fail, ..Self::warn(id, finding, fix) }
    }

    pub(super) fn failed(
        id: &'static str,
        failure: impl Into<CommandFailure>,
    ) -> impl Iterator<Item = Self> {
        failure.into().findings.into_iter().map(move |finding| {
            let place = finding.excerpt.map(|at| format!(" ({}:{})", at.path.display(), at.line));
            let place = place.unwrap_or_default();
            let why = finding.why.map(|why| format!(": {why}")).unwrap_or_default();
            Self {
                id,
                outcome: Outcome::Fail,
                finding: format!("{}{place}{why}", finding.what),
                fix: finding.help.map(Fix::from),
                code: Some(finding.code),
                ..Self::pass(id, "")
            }
        })
    }

    /// Replaces the steps of the fix, but not its words.
    #[must_use]
    pub(super) fn with_steps(mut self, steps: Fix) -> Self {
        let said = self.fix.as_ref().map_or("", Fix::text).to_owned();
        self.fix = Some(steps.told_as(said));
        self
    }

    #[must_use]
    pub(super) fn lacking(mut self, lacks: impl IntoIterator<Item = Lack>) -> Self {
        self.lacks.extend(lacks);
        self
    }

    /// Skips the check if another check has failed with the same error.
    pub(super) fn unless_told_by(self, others: &[Self]) -> Self {
        let is_same = |other: &&Self| {
            other.outcome == Outcome::Fail && other.code.is_some() && other.code == self.code
        };
        match others.iter().find(is_same).filter(|_| self.outcome == Outcome::Fail) {
            Some(other) => Self::unknown(self.id, format!("check `{}` failed", other.id)),
            None => self,
        }
    }

    pub(super) fn of_role(self, role: &str) -> Self {
        let fix = self.fix.map(|fix| fix.filled("<role>", &identifier(role)));
        Self { fix, ..self }
    }

    #[must_use]
    pub(super) fn masked(self) -> Self {
        let finding = mask_sentence(&self.finding).into_owned();
        let fix = self.fix.map(Fix::masked);
        Self { finding, fix, ..self }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "status": self.outcome.word(),
            "finding": self.finding,
            "fix": self.fix.as_ref().map(Fix::to_json),
            "code": self.code.map(ErrorCode::as_str),
            "allowed": self.is_allowed,
        })
    }
}

pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

pub(crate) fn duration(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

pub(crate) fn bytes(bytes: i64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let (mut amount, mut unit) = (bytes, "bytes");
    for next in UNITS {
        if amount < 10_240 {
            break;
        }
        (amount, unit) = (amount / 1_024, next);
    }
    format!("{amount} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_told_in_units_that_people_read() {
        assert_eq!([119, 120, 7_200, 200_000].map(duration), ["119 s", "2 min", "2 h", "2 days"]);
        let amounts = [10_239, 10_240, 20 << 20, 16 << 30];
        assert_eq!(amounts.map(bytes), ["10239 bytes", "10 KiB", "20 MiB", "16 GiB"]);
    }

    #[test]
    fn a_fix_names_the_role_that_is_known() {
        let check = Check::fail("a.b", "no", "ALTER ROLE <role> REPLICATION;").of_role("relay");
        assert_eq!(check.fix.unwrap().text(), "ALTER ROLE \"relay\" REPLICATION;");
    }

    #[test]
    fn an_error_is_told_once() {
        let failed = |id, code| Check { code: Some(code), ..Check::fail(id, "no", "make it") };
        let publication = [failed("publication.exists", ErrorCode::P001)];
        let again = failed("a.b", ErrorCode::P001).unless_told_by(&publication);
        assert_eq!(again, Check::unknown("a.b", "check `publication.exists` failed"));
        let other = || failed("a.b", ErrorCode::P002);
        assert_eq!(other().unless_told_by(&publication), other());
    }

    #[test]
    fn what_could_not_be_asked_is_no_pass() {
        assert!(Outcome::Unknown > Outcome::Pass && Outcome::Fail > Outcome::Warn);
        assert_eq!(Check::unknown("a.b", "why").to_json()["status"], "unknown");
    }
}
