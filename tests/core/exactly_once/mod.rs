//! A model of exactly-once delivery, explored to its last state.
//!
//! Simulation and kills on real servers try many histories; this tries all of them, in a world that
//! is small enough. Each file is a part of the specification: `stream` what is to be carried,
//! `broker` Kafka, `steps` the relay's protocol and what may be done to it, `violation` what must
//! never be, `rules` the mistakes that must be noticed. `state` and `search` are the machine.
//!
//! # What is modelled
//!
//! * Two relay processes, killed or stalled between any two steps; a session that lost the slot
//!   without knowing it goes on with the rows in its buffer.
//! * The start: take the slot, fence, read progress, skip what it covers.
//! * Kafka transactions over two partitions of data and the one of progress. Every partition gets
//!   its marker by itself; the commit is answered before that. Epochs as leaders know them.
//! * Produce that is delayed beyond the end of its sender. In one epoch a record is stored once and
//!   in order, however often it is sent.
//! * EndTxn that is lost, delayed, doubled and reordered, two at a time, also beyond the end of its
//!   sender; answers that are lost or come late, when the library has sent it again.
//! * Aborts: by a relay whose record was refused, and by the coordinator itself (timeout).
//! * A transaction of Postgres that is split between Kafka transactions, one without any row, and
//!   Postgres coming back with an older position of the slot.
//!
//! # What is not
//!
//! * Brokers that lose what they confirmed, repeat markers or lose the coordinator's log.
//! * Rows that change between two readings: another publication, a timeline that lost commits. The
//!   gate refuses those.
//! * Late AddPartitionsToTxn and InitProducerId: the first can only open a transaction that nothing
//!   is in, the second is a session that dies right after fencing, which is modelled.
//! * More than one late record for each partition; they leave no trace once their epoch is fenced.
//! * Time. Nothing here waits, so nothing here rests on a timeout.
//!
//! `traces` holds the code that ships against the model: whatever that does must be a step of this.
//!
//! `cargo test --test core exactly_once:: -- --nocapture` prints a line for each exploration.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test says what is wrong by panicking; indices are small numbers of its own making"
)]

mod broker;
mod rules;
mod search;
mod state;
mod steps;
mod stream;
mod traces;
mod violation;

use rules::{Mistake, Rules};
use search::{Verdict, explore};
use state::{Left, State};
use steps::Steps;
use violation::Violation;

/// Two sessions, the whole stream, and one of every fault that is counted.
const WIDE: Rules = Rules {
    mistake: None,
    places: stream::PLACES,
    idle_progress: true,
    left: Left { sessions: 2, rewinds: 1, expiries: 1, aborts: 1 },
};

/// Three sessions that overlap, over a shorter stream.
const DEEP: Rules = Rules {
    mistake: None,
    places: 2,
    idle_progress: false,
    left: Left { sessions: 3, rewinds: 1, expiries: 1, aborts: 0 },
};

/// What mutants are looked for in: nothing more is needed to catch them.
const SMALL: Rules = Rules {
    mistake: None,
    places: stream::PLACES,
    idle_progress: false,
    left: Left { sessions: 2, rewinds: 0, expiries: 0, aborts: 1 },
};

/// Explores and prints a line.
fn report(name: &str, rules: Rules) -> Verdict {
    let verdict = explore(rules);
    let states = verdict.states;
    match &verdict.found {
        None => println!("{name}: {states} states, all of them, no violation"),
        Some((violation, way)) => {
            println!("{name}: {states} states, {violation:?} in {} steps: {way:?}", way.len());
        }
    }
    verdict
}

/// A mutant must be caught at this, by a shortest way of so many steps.
fn caught(mistake: Mistake, violation: Violation, steps: usize) {
    let verdict = report(&format!("{mistake:?}"), Rules { mistake: Some(mistake), ..SMALL });
    let (found, way) =
        verdict.found.expect("a mutant survived: the model looks at the wrong things");
    assert_eq!((found, way.len()), (violation, steps), "{way:?}");
}

#[test]
fn g6_the_design_holds_under_every_fault() {
    let verdict = report("design, two sessions", WIDE);
    assert_eq!(verdict.found, None);
    assert!(verdict.states >= 1_000_000, "{} states are too few to mean much", verdict.states);
}

#[test]
fn g6_the_design_holds_with_three_sessions() {
    let verdict = report("design, three sessions", DEEP);
    assert_eq!(verdict.found, None);
    assert!(verdict.states >= 500_000, "{} states are too few to mean much", verdict.states);
}

#[test]
fn g6_the_design_needs_no_broker_that_verifies() {
    let mistake = Some(Mistake::BrokerDoesNotVerify);
    let verdict = report("design, brokers before 3.6", Rules { mistake, places: 3, ..SMALL });
    assert_eq!(verdict.found, None);
}

#[test]
fn g6_mutant_that_does_not_fence_is_caught() {
    caught(Mistake::DoesNotFence, Violation::Duplicate, 15);
}

#[test]
fn g6_mutant_that_ignores_progress_is_caught() {
    caught(Mistake::IgnoresProgress, Violation::Duplicate, 21);
}

#[test]
fn g6_mutant_that_trusts_an_ambiguous_end_is_caught() {
    caught(Mistake::TrustsAmbiguousEnd, Violation::Lost, 17);
}

#[test]
fn g6_mutant_that_acknowledges_before_the_commit_is_caught() {
    caught(Mistake::AcknowledgesBeforeCommit, Violation::AcknowledgedUnsafe, 6);
}

#[test]
fn g6_mutant_that_reads_progress_before_fencing_is_caught() {
    caught(Mistake::ReadsProgressBeforeFencing, Violation::Duplicate, 21);
}

#[test]
fn g6_mutant_that_writes_progress_outside_the_transaction_is_caught() {
    caught(Mistake::ProgressOutsideTheTransaction, Violation::Lost, 5);
}

#[test]
fn g6_mutant_that_commits_before_all_reports_is_caught() {
    caught(Mistake::CommitsBeforeReports, Violation::Lost, 8);
}

#[test]
fn g6_mutant_that_aborts_before_all_reports_is_caught() {
    caught(Mistake::AbortsBeforeReports, Violation::Duplicate, 16);
}

/// Else two states could pass for one, and what lies behind the second would not be visited.
#[test]
fn a_state_is_what_its_words_say() {
    let left = Left { sessions: 2, rewinds: 1, expiries: 1, aborts: 1 };
    let (mut state, mut nexts) = (State { left, ..State::default() }, Vec::new());
    for turn in 0..20_000_usize {
        assert_eq!(State::unpack(state.pack()), state);
        Steps::collect(WIDE, state, &mut nexts);
        // A walk without aim: it starts again where it can go no further.
        let chosen = nexts.get(turn * turn % 31 % nexts.len().max(1));
        state = chosen.map_or(State { left, ..State::default() }, |(_, next)| {
            (*next).expect("the design has no violation")
        });
    }
}
