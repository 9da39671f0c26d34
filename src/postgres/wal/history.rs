//! Parses a timeline history file (`TIMELINE_HISTORY`): where a cluster's earlier timelines ended.
//!
//! A line is `1<tab>0/A000198<tab>before 2000-01-01 00:00:00+00`. Output: the earlier timelines,
//! oldest first, each with the position at which its successor branched off. Invariant: an invalid
//! line is an error. Source: `readTimeLineHistory` in PostgreSQL's `timeline.c`.

use super::error::WalError;
use postrider_core::lsn::Lsn;

pub use postrider_core::gate::TimelineHistory;

const MALFORMED: WalError = WalError::Protocol("a malformed timeline history");

pub(super) fn parse(text: &str) -> Result<TimelineHistory, WalError> {
    let lines = text.lines().map(str::trim);
    let said = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let history: TimelineHistory = said.map(ancestor).collect::<Result<_, _>>()?;
    // The server's own rule. Positions need not rise: a backup may be restored to a time before a
    // promotion.
    if history.is_sorted_by(|(one, _), (next, _)| one < next) {
        Ok(history)
    } else {
        Err(MALFORMED)
    }
}

fn ancestor(line: &str) -> Result<(u32, Lsn), WalError> {
    let mut words = line.split_whitespace();
    let (Some(timeline), Some(end)) = (words.next(), words.next()) else { return Err(MALFORMED) };
    let timeline = timeline.parse().map_err(|_| MALFORMED)?;
    let end = end.parse().map_err(|_| MALFORMED)?;
    Ok((timeline, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_names_every_ancestor_and_its_end() {
        let text = "# by hand\n1\t0/A000198\tbefore 2000-01-01 00:00:00+00\n\n\
                    \t2\t1/B000000\tno recovery target specified\n3 1/C000000\n";
        let ancestors = [(1, 0x0A00_0198), (2, 0x1_0B00_0000), (3, 0x1_0C00_0000)];
        assert_eq!(parse(text).unwrap(), ancestors.map(|(number, end)| (number, Lsn::new(end))));
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn g7_anything_else_is_an_error() {
        for text in ["1", "x\t0/1", "1\t0x1", "-1\t0/1", "2\t0/1\n1\t0/2", "1\t0/1\n1\t0/2"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
