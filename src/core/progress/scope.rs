//! Which rows a repair is about.
//!
//! Input: what the operator typed. Output: a [`RepairScope`], kept in the progress while the repair has not ended.
//! Invariant: a repair that has sent something goes on with the rows that it was begun for. Pure.

use serde::{Deserialize, Serialize};

/// Which rows a repair is about, and what becomes of those of which nobody can tell.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RepairScope {
    /// Only rows that were written then or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Moment>,
    /// Only rows that were written before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Moment>,
    /// `None`: there must be none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<UnknownRows>,
}

/// A time of day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// As the operator wrote it, such as `2h`.
    pub typed: String,
    /// As Postgres reads it, as of when it was written.
    pub at: String,
}

/// What becomes of rows that may have been delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownRows {
    /// They are sent, and may come twice.
    Send,
    /// They are left out, and may be missing.
    Skip,
}

impl RepairScope {
    /// Whether one that was begun with this scope may go on with `other`, which was typed now: the same, but that
    /// what becomes of rows of which nobody can tell may be settled later.
    pub fn goes_on_as(&self, other: &Self) -> bool {
        let typed = |moment: &Option<Moment>| moment.as_ref().map(|moment| moment.typed.clone());
        typed(&self.since) == typed(&other.since)
            && typed(&self.until) == typed(&other.until)
            && (self.unknown.is_none() || self.unknown == other.unknown)
    }

    /// As options of the command.
    pub fn options(&self) -> String {
        let moment = |name, moment: &Option<Moment>| {
            moment.as_ref().map(|moment| format!("{name} '{}'", moment.typed))
        };
        let unknown = self.unknown.map(|rule| match rule {
            UnknownRows::Send => "--unknown send".to_owned(),
            UnknownRows::Skip => "--unknown skip".to_owned(),
        });
        let all = [moment("--since", &self.since), moment("--until", &self.until), unknown];
        let all: Vec<String> = all.into_iter().flatten().collect();
        if all.is_empty() { "no options".to_owned() } else { all.join(" ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repair_goes_on_as_it_began_and_unknown_rows_may_be_settled_later() {
        let moment = |at: &str| Some(Moment { typed: "2h".to_owned(), at: at.to_owned() });
        let begun = RepairScope { since: moment("10:00"), ..RepairScope::default() };
        let later = RepairScope { since: moment("11:00"), ..RepairScope::default() };
        assert!(begun.goes_on_as(&later), "the same words");
        assert!(!begun.goes_on_as(&RepairScope::default()));
        let skips = RepairScope { unknown: Some(UnknownRows::Skip), ..later };
        assert!(begun.goes_on_as(&skips) && !skips.goes_on_as(&begun));
        assert_eq!(skips.options(), "--since '2h' --unknown skip");
        assert_eq!(RepairScope::default().options(), "no options");
    }
}
