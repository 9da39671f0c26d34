//! What happens around the stream, measured and accounted for: one line of JSON for each part.
//!
//! Input: `FULL=1` for the large runs, small ones otherwise; `PARTS`, such as `backfill verify`, for some of them.
//! Output: lines on stdout, and whether each part did what it is for.

pub(crate) mod backfill;
mod poll;
mod prune;
mod repair;
mod replay;
mod verify;

type Part = (&'static str, fn(bool) -> bool);

const PARTS: [Part; 6] = [
    ("backfill", backfill::run),
    ("repair", repair::run),
    ("replay", replay::run),
    ("verify", verify::run),
    ("prune", prune::run),
    ("poll", poll::run),
];

/// Whether all is as it should be.
pub(crate) fn all() -> bool {
    let is_full = std::env::var("FULL").is_ok_and(|full| full == "1");
    let wanted = std::env::var("PARTS").unwrap_or_default();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.split(' ').any(|part| part == name);
    // Each is run, whatever became of the one before.
    let parts = PARTS.iter().filter(|(name, _)| is_wanted(name));
    parts.map(|(_, run)| run(is_full)).fold(true, |so_far, part| so_far & part)
}
