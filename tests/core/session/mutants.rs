//! Mistakes in the code that ships, each of which the simulation must notice.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use postrider::mutants::{Mutant, made, make};

use crate::session::Plan;
use crate::session::judge::Violation;
use crate::session::world::World;

/// A mutant must be noticed within so many seeds, or the simulation looks at the wrong things.
const SEEDS: u64 = 100;

/// The guarantee that a mutant violates first, and the seeds that it takes; a failed assertion of the
/// product counts.
fn noticed(plan: &Plan, mutant: Mutant) -> Option<(u64, &'static str)> {
    make(Some(mutant));
    let found = (0..SEEDS).find_map(|seed| {
        match catch_unwind(AssertUnwindSafe(|| World::run(plan, seed))) {
            Ok(Ok(_)) => None,
            Ok(Err(Violation { guarantee, .. })) => Some((seed + 1, guarantee)),
            Err(_) => Some((seed + 1, "assertion")),
        }
    });
    make(None);
    found
}

#[test]
fn g1_g3_g4_g5_g6_g8_every_mutant_is_noticed() {
    let plan = Plan::new();
    let mut survivors = Vec::new();
    // A mutant that panics is noticed: there is nothing to tell of it.
    let hook = take_hook();
    set_hook(Box::new(move |panic| made().map_or_else(|| hook(panic), |_| ())));
    for mutant in Mutant::ALL {
        match noticed(&plan, mutant) {
            Some((seeds, guarantee)) => println!("{mutant:?}: {guarantee} in seed {seeds}"),
            None => survivors.push(mutant),
        }
    }
    assert!(survivors.is_empty(), "not noticed within {SEEDS} seeds: {survivors:?}");
}
