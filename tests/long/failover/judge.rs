//! The verdict: what was written, what the last primary has, what lies in the topics.
//!
//! Pure, and knows nothing of the relay. That it sees each kind of fault is asserted before every run.

use std::collections::{HashMap, HashSet};

use crate::crash::judge::Seen;
use crate::failover::settings::{Plan, Standby};
use crate::failover::writers::{Fate, Written};
use crate::load::rows::Lane;
use crate::load::settings::Mode;

/// Everything that can be wrong, and what a failover may take back; rows by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Rows that the last primary has.
    pub(crate) rows: usize,
    /// It has them, and no topic does.
    pub(crate) lost: Vec<u32>,
    /// First visible after a later row of their lane.
    pub(crate) reordered: Vec<u32>,
    /// Visible again, once per surplus record.
    pub(crate) duplicated: Vec<u32>,
    /// In a topic, and taken back by a failover: committed at a primary whose standby did not have them.
    pub(crate) tail_lost: Vec<u32>,
    /// In a topic, and never committed, or not so.
    pub(crate) phantom: Vec<u32>,
    /// Postgres said that they are committed, and they are nowhere: no standby had them, nor the relay.
    pub(crate) gone: Vec<u32>,
}

impl Verdict {
    /// Whether the guarantees of this run hold.
    pub(crate) fn is_sound(&self, plan: &Plan) -> bool {
        let kept = plan.standby == Standby::Asynchronous
            || (self.tail_lost.is_empty() && self.gone.is_empty());
        let once = plan.delivery == Mode::AtLeastOnce || self.duplicated.is_empty();
        let sound = self.lost.is_empty() && self.reordered.is_empty() && self.phantom.is_empty();
        sound && kept && once && self.rows > 0
    }
}

/// Judges a run.
pub(crate) fn judge(written: &[Written], kept: &[u32], seen: &[Seen]) -> Verdict {
    let fates: HashMap<u32, &Written> = written.iter().map(|row| (row.number, row)).collect();
    let there: HashSet<u32> = kept.iter().copied().collect();
    let mut verdict = Verdict { rows: there.len(), ..Verdict::default() };
    let mut visible = HashSet::new();
    let mut latest: HashMap<(u8, Lane), u32> = HashMap::new();
    for record in seen {
        let row = fates.get(&record.number).filter(|row| row.lane == record.lane);
        let Some(row) = row.filter(|row| row.fate != Fate::Doomed) else {
            verdict.phantom.push(record.number);
            continue;
        };
        if !visible.insert(row.number) {
            verdict.duplicated.push(row.number);
            continue;
        }
        // Numbers of a lane rise in the order of commits, whichever server they are on.
        let last = latest.entry((record.place, record.lane)).or_insert(row.number);
        if row.number < *last {
            verdict.reordered.push(row.number);
        }
        *last = row.number.max(*last);
        if !there.contains(&row.number) {
            verdict.tail_lost.push(row.number);
        }
    }
    verdict.lost = kept.iter().copied().filter(|number| !visible.contains(number)).collect();
    let is_gone = |row: &&Written| {
        let is_somewhere = there.contains(&row.number) || visible.contains(&row.number);
        row.fate == Fate::Confirmed && !is_somewhere
    };
    verdict.gone = written.iter().filter(is_gone).map(|row| row.number).collect();
    verdict
}

/// Shows the judge a sound run, and then that run with each fault in turn.
///
/// # Panics
/// When a fault would not be noticed.
pub(crate) fn assert_sees_each_fault() {
    let row = |number, lane, fate| Written { number, lane, fate };
    let seen = |number, lane, offset| Seen { number, lane, place: 0, offset, stored: 0 };
    let written = [
        row(1, 7, Fate::Confirmed),
        row(2, 7, Fate::Unknown),
        row(3, 8, Fate::Doomed),
        row(4, 8, Fate::Confirmed),
    ];
    let records = [seen(1, 7, 0), seen(2, 7, 1), seen(4, 8, 2)];
    let sound = judge(&written, &[1, 2, 4], &records);
    let of = |delivery, standby| Plan { promotions: 1, delivery, standby, rows_per_s: 1, seed: 0 };
    let strict = of(Mode::ExactlyOnce, Standby::Synchronous);
    let loose = of(Mode::AtLeastOnce, Standby::Asynchronous);
    assert!(sound.is_sound(&strict), "{sound:?}");
    let lost = judge(&written, &[1, 2, 4], &records[..2]);
    assert!(lost.lost == [4] && !lost.is_sound(&loose));
    let swapped = judge(&written, &[1, 2, 4], &[records[1], records[0], records[2]]);
    assert!(swapped.reordered == [1] && !swapped.is_sound(&loose));
    let again = judge(&written, &[1, 2, 4], &[records[0], records[1], records[2], records[0]]);
    assert!(again.duplicated == [1] && !again.is_sound(&strict) && again.is_sound(&loose));
    let tail = judge(&written, &[1, 4], &records);
    assert!(tail.tail_lost == [2] && tail.duplicated.is_empty());
    assert!(!tail.is_sound(&strict) && tail.is_sound(&loose));
    let gone = judge(&written, &[1, 2], &records[..2]);
    assert!(gone.gone == [4] && !gone.is_sound(&strict) && gone.is_sound(&loose));
    for phantom in [seen(3, 8, 3), seen(9, 8, 3), seen(4, 7, 3)] {
        let found = judge(&written, &[1, 2, 4], &[records[0], records[1], records[2], phantom]);
        assert!(found.phantom.len() == 1 && !found.is_sound(&loose));
    }
}
