//! One key, one order, though the process that owns the key stands still beyond the owner's time.

use std::thread;

use crate::services::orders::{BODY, assert_one_order, assert_remembered, storm};
use crate::services::stage::{Service, Stage};
use support::http::{Answer, place};

/// An owner that is silent for so long is taken for dead.
const BRIEF: [&str; 2] = ["--owner-silence", "500ms"];
const KEY: &str = "paused";

/// Freezes the owner once it is `held`, and has it go on when the storm has had its way with the other
/// process. Leaves: the owner's own answer, and those of the storm.
fn overtake(
    stage: &Stage,
    [owner, other]: [&Service; 2],
    held: impl FnOnce(),
    take_over: impl FnOnce() -> Vec<Answer>,
) -> (Answer, Vec<Answer>) {
    let (before, address) = (stage.written(), owner.address.as_str());
    let (late, mut answers) = thread::scope(|scope| {
        let late = scope.spawn(move || place(address, KEY, BODY).unwrap());
        held();
        owner.freeze();
        stage.await_empty_redis();
        let answers = take_over();
        (late.join().unwrap(), answers)
    });
    answers.push(late.clone());
    let body = assert_one_order(before, stage, &answers);
    assert_remembered(&[&owner.address, &other.address], KEY, &body);
    assert!(owner.metric("shop_requests_stale_total") >= 1, "the owner was told");
    (late, answers)
}

/// The owner stands still between Redis and Postgres. Its successors place the order; when it goes on,
/// it finds that, and gives their answer.
#[test]
fn an_owner_that_is_overtaken_before_its_transaction_gives_the_answer_of_its_successor() {
    let stage = Stage::set();
    let gate = stage.gate("INSERT INTO idempotency_keys");
    let owner = stage.patient_orders_behind(&gate, &BRIEF);
    let other = stage.patient_orders(&BRIEF);
    let (late, _) = overtake(
        &stage,
        [&owner, &other],
        || gate.await_held(),
        || {
            let answers = storm(&[&other.address], KEY, |_| (), || ());
            owner.thaw();
            gate.open();
            answers
        },
    );
    assert_eq!((late.status, late.header("idempotent-replayed")), (201, Some("true")));
    owner.stop();
    other.stop();
}

/// The owner stands still inside its transaction, its key claimed. A successor works for the same key,
/// waits for it in Postgres, and gives the owner's answer.
#[test]
fn an_owner_that_stands_still_inside_its_transaction_is_waited_for_by_its_successor() {
    let stage = Stage::set();
    let (owner, other) = (stage.patient_orders(&BRIEF), stage.patient_orders(&BRIEF));
    stage.hold_orders();
    let (late, answers) = overtake(
        &stage,
        [&owner, &other],
        || stage.await_blocked(1),
        || {
            storm(
                &[&other.address],
                KEY,
                |_| stage.await_blocked(2),
                || {
                    stage.let_go();
                    owner.thaw();
                },
            )
        },
    );
    assert_eq!((late.status, late.header("idempotent-replayed")), (201, None), "{late:?}");
    let again = |answer: &&Answer| answer.header("idempotent-replayed").is_some();
    assert!(answers.iter().any(|answer| again(&answer)), "a successor took over and waited");
    owner.stop();
    other.stop();
}
