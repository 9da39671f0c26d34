//! Selects the dead letters that an operator requested.
//!
//! A named letter in the topic counts as found, even if another condition excludes it.

use super::{DeadLetter, PartitionOffset};

/// Conditions that must all hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Reason code.
    pub code: Option<String>,
    /// Intended or source topic.
    pub topic: Option<String>,
    /// Outbox table.
    pub table: Option<String>,
    /// Event type.
    pub event_type: Option<String>,
    /// Id, which must exist.
    pub id: Option<String>,
    /// Earliest time of writing, in Unix milliseconds.
    pub since_ms: Option<i64>,
    /// Any of these, which must all exist; empty: any.
    pub targets: Vec<Target>,
}

/// A dead letter, or its row or message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Position of the letter.
    At(PartitionOffset),
    /// Id, perhaps of several letters.
    Id(String),
}

impl Target {
    /// Parses `PARTITION:OFFSET`, or else an id.
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|()| Self::Id(text.to_owned()), Self::At)
    }

    fn means(&self, letter: &DeadLetter) -> bool {
        match self {
            Self::At(at) => *at == letter.at,
            Self::Id(id) => letter.id() == Some(id.as_bytes()),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::At(at) => write!(f, "at {at}"),
            Self::Id(id) => write!(f, "with id `{id}`"),
        }
    }
}

impl Filter {
    /// True if a letter is selected. Removes it from `missing`; start with [`Filter::named`].
    pub fn admits(&self, letter: &DeadLetter, missing: &mut Vec<Target>) -> bool {
        missing.retain(|target| !target.means(letter));
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        let late_enough = |oldest| letter.timestamp_ms.is_some_and(|ms| ms >= oldest);
        is(&self.code, Some(&letter.code))
            && is(&self.topic, letter.topic.as_deref())
            && is(&self.table, letter.table())
            && is(&self.event_type, letter.event_type())
            && self.id.as_deref().is_none_or(|id| letter.id() == Some(id.as_bytes()))
            && self.since_ms.is_none_or(late_enough)
            && (self.targets.is_empty() || self.targets.iter().any(|target| target.means(letter)))
    }

    /// Targets that must exist.
    pub fn named(&self) -> Vec<Target> {
        self.targets.iter().cloned().chain(self.id.clone().map(Target::Id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(id: &str) -> DeadLetter {
        let headers = vec![("id".into(), Some(id.into())), ("event_type".into(), Some("A".into()))];
        DeadLetter {
            at: PartitionOffset { partition: 1, offset: 2 },
            timestamp_ms: Some(7_000),
            headers,
            ..DeadLetter::rejected(0, "no_route", "why")
        }
    }

    fn admits(filter: &Filter) -> bool {
        filter.admits(&letter("a"), &mut Vec::new())
    }

    #[test]
    fn every_option_must_hold() {
        let all = Filter::default;
        let some = |text: &str| Some(text.to_owned());
        for good in [
            all(),
            Filter { code: some("no_route"), ..all() },
            Filter { table: some("public.outbox"), id: some("a"), ..all() },
            Filter { event_type: some("A"), ..all() },
            Filter { since_ms: Some(7_000), ..all() },
            Filter { since_ms: Some(i64::MIN), ..all() },
        ] {
            assert!(admits(&good), "{good:?}");
        }
        for bad in [
            Filter { code: some("too_large"), ..all() },
            Filter { topic: some("orders"), ..all() },
            Filter { table: some("outbox"), id: some("a"), ..all() },
            Filter { event_type: some("B"), ..all() },
            Filter { id: some("b"), ..all() },
            Filter { since_ms: Some(7_001), ..all() },
        ] {
            assert!(!admits(&bad), "{bad:?}");
        }
        let timeless = DeadLetter { timestamp_ms: None, ..letter("a") };
        let since = Filter { since_ms: Some(0), ..all() };
        assert!(!since.admits(&timeless, &mut Vec::new()));
    }

    #[test]
    fn what_is_named_and_never_met_is_missing() {
        let targets = ["1:2", "1:3", "a", "b"].map(Target::parse).to_vec();
        let filter = Filter { id: Some("a".into()), targets: targets.clone(), ..Filter::default() };
        let mut missing = filter.named();
        assert!(filter.admits(&letter("a"), &mut missing));
        let at = PartitionOffset { partition: 9, offset: 9 };
        assert!(!filter.admits(&DeadLetter { at, ..letter("c") }, &mut missing));
        assert_eq!(missing, [targets[1].clone(), targets[3].clone()]);
        assert_eq!(targets[1].to_string(), "at 1:3");
        assert_eq!(targets[3].to_string(), "with id `b`");
    }

    #[test]
    fn what_is_left_out_is_not_missing() {
        let targets = vec![Target::parse("1:2")];
        let filter = Filter { code: Some("refused".into()), targets, ..Filter::default() };
        let mut missing = filter.named();
        assert!(!filter.admits(&letter("a"), &mut missing));
        assert_eq!(missing, []);
    }
}
