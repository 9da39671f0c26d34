//! Which dead letters are meant.
//!
//! Enters: options and names as typed. Leaves: a yes or no for each dead letter, and at the end the
//! names that none of them bore. Pure: the caller reads the clock. Called by `survey`.

use std::time::Duration;

use clap::builder::PossibleValuesParser;

use super::letter::{Explained, Place};
use crate::route::RejectionCode;

/// What `list` and `retry` choose by; all that is given must hold.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct FilterArgs {
    /// Rejected for this reason
    #[arg(long, value_name = "CODE", value_parser = codes())]
    pub code: Option<String>,

    /// Meant for this topic
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,

    /// From this table, as the list prints it: public.outbox
    #[arg(long, value_name = "TABLE")]
    pub table: Option<String>,

    /// Of the row with this id
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,

    /// With a timestamp no older than this, such as 30m or 24h
    #[arg(long, value_name = "DURATION", value_parser = crate::cli::parse_duration)]
    pub since: Option<Duration>,

    /// Only the first N, by partition and offset
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,

    /// Also those that were retried already
    #[arg(long)]
    pub all: bool,
}

impl FilterArgs {
    /// The limit, or all there are.
    pub(super) fn most(&self) -> usize {
        self.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
    }
}

fn codes() -> PossibleValuesParser {
    PossibleValuesParser::new(RejectionCode::ALL.map(RejectionCode::as_str))
}

/// One dead letter, or the row it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// By its place in the dead-letter topic.
    At(Place),
    /// By its row's id. A row may have left several.
    Id(String),
}

impl Target {
    /// Reads `PARTITION:OFFSET`; everything else is an id.
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|()| Self::Id(text.to_owned()), Self::At)
    }

    fn means(&self, place: Place, explained: &Explained<'_>) -> bool {
        match self {
            Self::At(wanted) => *wanted == place,
            Self::Id(wanted) => explained.id() == Some(wanted.as_bytes()),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::At(place) => write!(f, "at {place}"),
            Self::Id(id) => write!(f, "with id `{id}`"),
        }
    }
}

/// The choice, and what it has come across.
#[derive(Debug)]
pub(super) struct Filter<'a> {
    args: &'a FilterArgs,
    /// The oldest timestamp wanted, in milliseconds since the Unix epoch.
    oldest_ms: Option<i64>,
    /// What was named, and whether it was met. None named: all are meant.
    named: Vec<(Target, bool)>,
    id: Option<(Target, bool)>,
}

impl<'a> Filter<'a> {
    pub(super) fn new(args: &'a FilterArgs, named: &[Target], now_ms: i64) -> Self {
        let ago_ms = |since: Duration| i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        Self {
            args,
            oldest_ms: args.since.map(|since| now_ms.saturating_sub(ago_ms(since))),
            named: named.iter().map(|target| (target.clone(), false)).collect(),
            id: args.id.clone().map(|id| (Target::Id(id), false)),
        }
    }

    /// Whether this dead letter is meant.
    pub(super) fn admits(
        &mut self,
        place: Place,
        timestamp_ms: Option<i64>,
        explained: &Explained<'_>,
    ) -> bool {
        let mut is_named = self.named.is_empty();
        for (target, met) in &mut self.named {
            if target.means(place, explained) {
                (*met, is_named) = (true, true);
            }
        }
        if let Some((target, met)) = &mut self.id {
            let is_it = target.means(place, explained);
            *met |= is_it;
            is_named &= is_it;
        }
        let fits = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        is_named
            && fits(&self.args.code, Some(&explained.code))
            && fits(&self.args.topic, explained.topic.as_deref())
            && fits(&self.args.table, explained.table.as_deref())
            && self.oldest_ms.is_none_or(|oldest| timestamp_ms.is_some_and(|ms| ms >= oldest))
    }

    /// What was named and is not there.
    pub(super) fn missing(&self) -> Vec<Target> {
        let unmet = |(target, met): &(Target, bool)| (!met).then(|| target.clone());
        self.named.iter().chain(&self.id).filter_map(unmet).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(id: &'static [u8]) -> Explained<'static> {
        Explained {
            code: "no_route".into(),
            reason: "why".into(),
            table: Some("public.outbox".into()),
            lsn: None,
            timestamp_ms: None,
            commit_ms: None,
            topic: None,
            own: vec![("id", Some(id))],
        }
    }

    const AT: Place = Place { partition: 1, offset: 2 };

    fn admits(args: &FilterArgs) -> bool {
        Filter::new(args, &[], 10_000).admits(AT, Some(7_000), &explained(b"a"))
    }

    #[test]
    fn every_option_must_hold() {
        let none = FilterArgs::default;
        assert!(admits(&none()));
        let some = |text: &str| Some(text.to_owned());
        assert!(admits(&FilterArgs { code: some("no_route"), ..none() }));
        assert!(!admits(&FilterArgs { code: some("too_large"), ..none() }));
        assert!(!admits(&FilterArgs { topic: some("orders"), ..none() }));
        assert!(admits(&FilterArgs { table: some("public.outbox"), id: some("a"), ..none() }));
        assert!(!admits(&FilterArgs { table: some("outbox"), id: some("a"), ..none() }));
        assert!(!admits(&FilterArgs { id: some("b"), ..none() }));
        assert!(admits(&FilterArgs { since: Some(Duration::from_secs(3)), ..none() }));
        assert!(!admits(&FilterArgs { since: Some(Duration::from_millis(2_999)), ..none() }));
        let mut timeless = FilterArgs { since: Some(Duration::MAX), ..none() };
        assert!(admits(&timeless));
        timeless.since = Some(Duration::from_secs(1));
        let mut filter = Filter::new(&timeless, &[], 10_000);
        assert!(!filter.admits(AT, None, &explained(b"a")));
    }

    #[test]
    fn what_is_named_and_never_met_is_missing() {
        let args = FilterArgs { id: Some("a".into()), ..FilterArgs::default() };
        let named = ["1:2", "1:3", "a", "b"].map(Target::parse);
        let mut filter = Filter::new(&args, &named, 0);
        assert!(filter.admits(AT, None, &explained(b"a")));
        let other = Place { partition: 9, offset: 9 };
        assert!(!filter.admits(other, None, &explained(b"c")));
        assert_eq!(filter.missing(), [named[1].clone(), named[3].clone()]);
        assert_eq!(named[1].to_string(), "at 1:3");
        assert_eq!(named[3].to_string(), "with id `b`");
    }

    /// A dead letter that another option leaves out is there all the same.
    #[test]
    fn what_is_left_out_is_not_missing() {
        let args = FilterArgs { code: Some("refused".into()), ..FilterArgs::default() };
        let mut filter = Filter::new(&args, &[Target::At(AT)], 0);
        assert!(!filter.admits(AT, None, &explained(b"a")));
        assert_eq!(filter.missing(), []);
    }
}
