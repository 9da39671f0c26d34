//! The verdict: what was committed, what lies in the topics, what Postgres was told.
//!
//! Input: the account of the second slot, everything that was read, every status update that went
//! through. Output: a [`Verdict`]. Pure, and knows nothing of the relay. That it sees each kind of
//! fault is asserted before every run ([`assert_sees_each_fault`]).

use crate::load::rows::{Lane, NO_LANE, NOBODY, PLACES, lanes};

/// Faults of each kind that are told in words.
pub(crate) const SHOWN: usize = 5;

/// Milliseconds since the run began.
pub(crate) type Moment = u32;

/// What was committed, in the order of the commits.
#[derive(Debug, Default, Clone)]
pub(crate) struct Truth {
    pub(crate) transactions: Vec<Committed>,
    pub(crate) rows: Vec<(u32, Lane)>,
}

impl Truth {
    /// Rows of the largest transaction.
    pub(crate) fn largest_transaction(&self) -> usize {
        let ends = self.transactions.iter().map(|one| one.rows_end);
        let begins = std::iter::once(0).chain(ends.clone());
        ends.zip(begins).map(|(end, begin)| end - begin).max().unwrap_or(0)
    }
}

/// A committed transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Committed {
    /// The position that may be acknowledged once all of its rows are stored.
    pub(crate) end_lsn: u64,
    /// Where its rows end among all rows.
    pub(crate) rows_end: usize,
}

/// A record that was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// `NOBODY` where it is no row as it should be.
    pub(crate) number: u32,
    pub(crate) lane: Lane,
    /// Which partition of which topic, counted through.
    pub(crate) place: u8,
    pub(crate) offset: u32,
    /// When the broker stored it, by the broker's clock.
    pub(crate) stored: Moment,
}

/// A status update that acknowledged something new.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    /// What is acknowledged.
    pub(crate) flush: u64,
    /// The highest position that it names in any way.
    pub(crate) said: u64,
    /// The highest position that Postgres had sent on that connection.
    pub(crate) sent: u64,
    /// What was visible then, by place: everything below this offset.
    pub(crate) ends: [u32; PLACES],
    pub(crate) moment: Moment,
    /// When no transaction was decided and unmarked any more, and when that was visible.
    pub(crate) marked: Moment,
    pub(crate) looked: Moment,
}

/// A disaster, after which rows may be repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kill {
    pub(crate) moment: Moment,
    /// No more than may be in flight.
    pub(crate) is_capped: bool,
}

/// All that was observed.
#[derive(Debug, Default, Clone)]
pub(crate) struct Journal {
    pub(crate) truth: Truth,
    /// Read with `read_committed`.
    pub(crate) committed: Vec<Seen>,
    /// Read with `read_uncommitted`.
    pub(crate) uncommitted: Vec<Seen>,
    pub(crate) told: Vec<Told>,
    pub(crate) kills: Vec<Kill>,
}

/// Everything that can be wrong; rows by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) rows: usize,
    /// Committed, and not visible in a topic of its own.
    pub(crate) lost: Vec<u32>,
    /// Visible again, once per surplus record.
    pub(crate) duplicated: Vec<u32>,
    /// The most of these between two kills.
    pub(crate) duplicated_max_per_kill: usize,
    /// First visible after a later row of its lane.
    pub(crate) reordered: Vec<u32>,
    /// In a topic, committed in Kafka or not, and no row that was committed in Postgres, or not as
    /// it was committed: another topic, key or value.
    pub(crate) phantom: Vec<Seen>,
    /// What was wrong with an acknowledgement, in words.
    pub(crate) unsafe_acks: Vec<String>,
}

impl Verdict {
    /// What no mode allows.
    pub(crate) fn is_sound(&self) -> bool {
        self.lost.is_empty()
            && self.reordered.is_empty()
            && self.phantom.is_empty()
            && self.unsafe_acks.is_empty()
    }
}

/// What is known of a row, by its number.
#[derive(Clone, Copy)]
struct Fate {
    /// Its place in the order of commits.
    order: u32,
    lane: Lane,
    /// Where it first became visible.
    first: Option<(u8, u32)>,
}

impl Journal {
    /// Judges the run.
    pub(crate) fn judge(&self) -> Verdict {
        let mut fates = self.fates();
        let mut verdict = Verdict { rows: self.truth.rows.len(), ..Verdict::default() };
        let mut latest = vec![None; lanes() * PLACES];
        let mut repeats = vec![0; self.kills.len() + 1];
        for seen in &self.committed {
            let Some(fate) = explain(&mut fates, seen) else {
                verdict.phantom.push(*seen);
                continue;
            };
            if fate.first.is_some() {
                verdict.duplicated.push(seen.number);
                repeats[self.kills_before(seen.stored)] += 1;
                continue;
            }
            fate.first = Some((seen.place, seen.offset));
            let order = Some(fate.order);
            // Offsets order one partition. A lane has one, unless a key moved; that is not its order.
            let last = &mut latest[usize::from(seen.place) * lanes() + usize::from(seen.lane)];
            if order < *last {
                verdict.reordered.push(seen.number);
            }
            *last = order.max(*last);
        }
        let foreign = self.uncommitted.iter().filter(|seen| explain(&mut fates, seen).is_none());
        verdict.phantom.extend(foreign);
        // What is repeated before the first of them has no excuse.
        let is_capped = std::iter::once(true).chain(self.kills.iter().map(|kill| kill.is_capped));
        let capped = repeats.into_iter().zip(is_capped).filter(|(_, is_capped)| *is_capped);
        verdict.duplicated_max_per_kill = capped.map(|(repeats, _)| repeats).max().unwrap_or(0);
        let numbers = self.truth.rows.iter().map(|(number, _)| *number);
        verdict.lost = numbers.filter(|number| fates[*number as usize].first.is_none()).collect();
        verdict.unsafe_acks = self.unsafe_acks(&fates);
        verdict
    }

    /// All that was seen of a row, in words.
    pub(crate) fn history(&self, number: u32) -> String {
        let order = self.truth.rows.iter().position(|(one, _)| *one == number);
        let end = order.map(|order| {
            let at = self.truth.transactions.partition_point(|one| one.rows_end <= order);
            self.truth.transactions[at].end_lsn
        });
        let of = |records: &[Seen]| -> Vec<Seen> {
            records.iter().filter(|seen| seen.number == number).copied().collect()
        };
        let told = end.and_then(|end| self.told.iter().find(|told| told.flush >= end));
        format!(
            "committed as {order:?}, end {end:X?}; visible {:?}; stored {:?}; covered by {told:X?}",
            of(&self.committed),
            of(&self.uncommitted)
        )
    }

    /// The most records that were stored within so many ms.
    pub(crate) fn busiest(&self, window_ms: Moment) -> usize {
        let mut moments: Vec<Moment> = self.committed.iter().map(|seen| seen.stored).collect();
        moments.sort_unstable();
        let mut first = 0;
        let within = moments.iter().enumerate().map(|(last, moment)| {
            while moment - moments[first] > window_ms {
                first += 1;
            }
            last + 1 - first
        });
        within.max().unwrap_or(0)
    }

    fn kills_before(&self, moment: Moment) -> usize {
        self.kills.partition_point(|kill| kill.moment <= moment)
    }

    fn fates(&self) -> Vec<Fate> {
        let most = self.truth.rows.iter().map(|(number, _)| *number as usize + 1).max();
        let nobody = Fate { order: NOBODY, lane: NO_LANE, first: None };
        let mut fates = vec![nobody; most.unwrap_or(0)];
        for (order, &(number, lane)) in (0..).zip(&self.truth.rows) {
            let fate = &mut fates[number as usize];
            assert_eq!(fate.order, NOBODY, "row {number} was committed twice");
            *fate = Fate { order, lane, first: None };
        }
        fates
    }

    /// G1: when a status update went on to Postgres, every row at or below its position was visible;
    /// and no position was beyond what Postgres had sent.
    fn unsafe_acks(&self, fates: &[Fate]) -> Vec<String> {
        let mut found = Vec::new();
        let mut checked = 0;
        for told in &self.told {
            let Told { flush, said, sent, moment, marked, looked, .. } = told;
            let kills = self.kills_before(*moment);
            if said > sent {
                found.push(format!("{said:X} told after {kills} kills, beyond {sent:X} sent"));
            }
            let covered = self.truth.transactions.partition_point(|one| one.end_lsn <= *flush);
            let end = covered.checked_sub(1).map_or(0, |at| self.truth.transactions[at].rows_end);
            // What was visible stays so, and need not be looked at again.
            for (number, _) in self.truth.rows.get(checked..end).unwrap_or_default() {
                let first = fates[*number as usize].first;
                let is_visible =
                    |(place, offset): (u8, u32)| offset < told.ends[usize::from(place)];
                if !first.is_some_and(is_visible) {
                    // Only the first are shown, and a history looks through everything.
                    let history = (found.len() < SHOWN).then(|| self.history(*number));
                    let end = first.map(|(place, _)| told.ends[usize::from(place)]);
                    found.push(format!(
                        "{flush:X} told at {moment} after {kills} kills, markers awaited until {marked}; \
                         at {looked} row {number} was not visible: {first:?}, the end was {end:?}; {}",
                        history.unwrap_or_default()
                    ));
                }
            }
            checked = checked.max(end);
        }
        found
    }
}

/// The committed row that a record is, as it was committed.
fn explain<'a>(fates: &'a mut [Fate], seen: &Seen) -> Option<&'a mut Fate> {
    let fate = fates.get_mut(seen.number as usize)?;
    (fate.order != NOBODY && fate.lane == seen.lane).then_some(fate)
}

/// Shows the judge a sound journal, and then that journal with each fault in turn.
///
/// # Panics
/// When a fault would not be noticed.
pub(crate) fn assert_sees_each_fault() {
    let sound = sound();
    let verdict = sound.judge();
    assert!(verdict.is_sound() && verdict.duplicated.is_empty(), "{verdict:?}");
    let judge = |spoil: &dyn Fn(&mut Journal)| {
        let mut journal = sound.clone();
        spoil(&mut journal);
        journal.judge()
    };
    assert_eq!(judge(&|it| it.committed.retain(|seen| seen.number != 2)).lost, [2]);
    let again = judge(&|it| it.committed.push(Seen { offset: 9, ..it.committed[0] }));
    assert_eq!((again.duplicated, again.duplicated_max_per_kill), (vec![1], 1));
    let outage = judge(&|it| {
        it.committed.push(Seen { offset: 9, ..it.committed[0] });
        it.kills[0].is_capped = false;
    });
    assert_eq!((outage.duplicated, outage.duplicated_max_per_kill), (vec![1], 0));
    assert_eq!(judge(&|it| it.committed.swap(0, 1)).reordered, [1]);
    assert_eq!(judge(&|it| it.committed[2].lane += 1).lost, [4]);
    for number in [0, 3, 5, NOBODY] {
        let doomed = |it: &mut Journal| it.uncommitted.push(Seen { number, ..it.committed[0] });
        assert_eq!(judge(&doomed).phantom.len(), 1, "{number}");
    }
    assert_eq!(judge(&|it| it.told[1].ends[1] = 0).unsafe_acks.len(), 1);
    assert_eq!(judge(&|it| it.told[0] = Told { flush: 20, ..it.told[0] }).unsafe_acks.len(), 1);
    assert_eq!(judge(&|it| it.told[1].sent = 19).unsafe_acks.len(), 1);
}

/// Rows 1 and 2 of one lane, then row 4 of another; row 3 was rolled back.
fn sound() -> Journal {
    let seen = |number, lane, place, offset| Seen { number, lane, place, offset, stored: 0 };
    let told = |flush, ends: [u32; 2]| {
        let mut all = [0; PLACES];
        all[..2].copy_from_slice(&ends);
        Told { flush, said: flush, sent: flush, ends: all, moment: 0, marked: 0, looked: 0 }
    };
    let committed = vec![seen(1, 7, 0, 0), seen(2, 7, 0, 1), seen(4, 8, 1, 0)];
    Journal {
        truth: Truth {
            transactions: vec![
                Committed { end_lsn: 10, rows_end: 2 },
                Committed { end_lsn: 20, rows_end: 3 },
            ],
            rows: vec![(1, 7), (2, 7), (4, 8)],
        },
        uncommitted: committed.clone(),
        committed,
        told: vec![told(10, [2, 0]), told(20, [2, 1])],
        kills: vec![Kill { moment: 0, is_capped: true }],
    }
}
