//! The rows that a repair covers.
//!
//! A repair that has sent something continues with its original rows.

use serde::{Deserialize, Serialize};

/// Rows that a repair covers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RepairScope {
    /// Earliest time of writing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Moment>,
    /// Time of writing must be earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Moment>,
    /// `None`: such rows must not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<UnknownRows>,
}

/// A point in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The operator's text, for example `2h`.
    pub typed: String,
    /// Time in Postgres's format, computed when it was entered.
    pub at: String,
}

/// Treatment of rows that may have been delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownRows {
    /// Send, perhaps twice.
    Send,
    /// Skip, although they may be missing.
    Skip,
}

impl RepairScope {
    /// True if a repair may continue with `other`. Only the treatment of unknown rows may be
    /// decided later.
    pub fn goes_on_as(&self, other: &Self) -> bool {
        let typed = |moment: &Option<Moment>| moment.as_ref().map(|moment| moment.typed.clone());
        typed(&self.since) == typed(&other.since)
            && typed(&self.until) == typed(&other.until)
            && (self.unknown.is_none() || self.unknown == other.unknown)
    }

    /// Command-line options.
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
