//! Visits every state that can be reached, breadth first.
//!
//! Input: [`Rules`]. Output: a [`Verdict`] with the shortest way to a violation, if there is one.
//! Invariant: without a violation the search was complete.

use std::collections::HashSet;

use foldhash::fast::RandomState;

use crate::exactly_once::rules::Rules;
use crate::exactly_once::state::{Left, Packed, State};
use crate::exactly_once::steps::{Next, Step, Steps, end_session};
use crate::exactly_once::stream;
use crate::exactly_once::violation::{Violation, judge};

/// What a search found.
pub struct Verdict {
    /// Distinct states.
    pub states: usize,
    /// The first violation, and the steps to it.
    pub found: Option<(Violation, Vec<Step>)>,
}

/// Visits all of it, or stops at the first violation.
pub fn explore(rules: Rules) -> Verdict {
    let first = State { left: rules.left, ..State::default() };
    let mut seen = Seen::default();
    seen.insert(first.pack(), 0);
    let (mut recovered, mut nexts) = (HashSet::default(), Vec::new());
    let mut at = 0;
    while at < seen.states.len() {
        let state = State::unpack(seen.states[at]);
        let judged = judge(&state).and_then(|()| recovers(state, rules, &mut recovered));
        if let Err(violation) = judged {
            return Verdict {
                states: seen.states.len(),
                found: Some((violation, seen.way(at, rules))),
            };
        }
        Steps::collect(rules, state, &mut nexts);
        for (step, next) in &nexts {
            match next {
                Ok(next) => seen.insert(next.pack(), at),
                Err(violation) => {
                    let mut way = seen.way(at, rules);
                    way.push(*step);
                    return Verdict { states: seen.states.len(), found: Some((*violation, way)) };
                }
            }
        }
        at += 1;
    }
    Verdict { states: seen.states.len(), found: None }
}

/// Where no session may start any more, one more and no faults bring everything to its end.
fn recovers(
    mut state: State,
    rules: Rules,
    known: &mut HashSet<Packed, RandomState>,
) -> Result<(), Violation> {
    let is_mutant = rules.mistake.is_some();
    if is_mutant || state.left.sessions > 0 {
        return Ok(());
    }
    (0..2).for_each(|n| end_session(&mut state, n));
    state.slot.holder = None;
    state.left = Left { sessions: 1, ..Default::default() };
    state.kafka.forget(true);
    if !known.insert(state.pack()) {
        return Ok(());
    }
    let mut nexts: Vec<Next> = Vec::new();
    loop {
        Steps::collect(rules, state, &mut nexts);
        // Progress that says nothing new could be written for ever.
        let is_idle = |step| step == Step::SendProgress(0) && state.relays[0].taken == 0;
        match nexts.iter().find(|(step, _)| step.is_undisturbed() && !is_idle(*step)) {
            Some((_, next)) => state = (*next)?,
            None => break,
        }
    }
    judge(&state)?;
    let rows = stream::rows_within(rules.places);
    let ended = state.kafka.decided_rows() == rows
        && state.slot.confirmed == stream::whole_transactions(rules.places);
    if ended { Ok(()) } else { Err(Violation::Stuck) }
}

/// The states in the order in which they were found: an open-addressed table of indices into it.
#[derive(Default)]
struct Seen {
    states: Vec<Packed>,
    /// For each state, the one it was first reached from.
    parents: Vec<u32>,
    /// Indices into both, plus one; as many as a power of two, at most half of them taken.
    table: Vec<u32>,
}

impl Seen {
    fn insert(&mut self, state: Packed, parent: usize) {
        if self.table.len() < 2 * (self.states.len() + 1) {
            self.grow();
        }
        let mut place = self.place(state);
        while self.table[place] != 0 {
            if self.states[self.table[place] as usize - 1] == state {
                return;
            }
            place = (place + 1) & (self.table.len() - 1);
        }
        self.states.push(state);
        self.parents.push(index(parent));
        self.table[place] = index(self.states.len());
    }

    fn place(&self, state: Packed) -> usize {
        /// Odd, with bits everywhere: the golden ratio.
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut hash = 0;
        for word in state {
            hash = (hash ^ word).wrapping_mul(SPREAD);
            hash ^= hash >> 32;
        }
        usize::try_from(hash >> 32).expect("32 bits") & (self.table.len() - 1)
    }

    fn grow(&mut self) {
        self.table = vec![0; (self.table.len() * 2).max(1 << 16)];
        for at in 0..self.states.len() {
            let mut place = self.place(self.states[at]);
            while self.table[place] != 0 {
                place = (place + 1) & (self.table.len() - 1);
            }
            self.table[place] = index(at + 1);
        }
    }

    /// The steps from the first state to this one.
    fn way(&self, to: usize, rules: Rules) -> Vec<Step> {
        let mut way = Vec::new();
        let (mut at, mut nexts) = (to, Vec::new());
        while at != 0 {
            let parent = self.parents[at] as usize;
            Steps::collect(rules, State::unpack(self.states[parent]), &mut nexts);
            let leads = |next: &&Next| next.1.is_ok_and(|state| state.pack() == self.states[at]);
            way.extend(nexts.iter().find(leads).map(|&(step, _)| step));
            at = parent;
        }
        way.reverse();
        way
    }
}

fn index(at: usize) -> u32 {
    u32::try_from(at).expect("fewer states than fit a u32")
}
