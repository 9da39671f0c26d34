//! One key, one order, though the process that owns the key is frozen for longer than its lease.

use std::thread;

use crate::services::orders::{BODY, assert_one_order, assert_replayed, burst};
use crate::services::stage::{Service, Stage};
use support::http::{Response, place};

/// A short lease.
const BRIEF: [&str; 2] = ["--owner-silence", "500ms"];
const KEY: &str = "paused";

/// Freezes the owner once it is `held`, and thaws it after a burst of requests to the other process.
/// Output: the owner's own response, and those of the burst.
fn overtake(
    stage: &Stage,
    [owner, other]: [&Service; 2],
    held: impl FnOnce(),
    take_over: impl FnOnce() -> Vec<Response>,
) -> (Response, Vec<Response>) {
    let (before, address) = (stage.written(), owner.address.as_str());
    let (late, mut responses) = thread::scope(|scope| {
        let late = scope.spawn(move || place(address, KEY, BODY).unwrap());
        held();
        owner.freeze();
        stage.await_empty_redis();
        let responses = take_over();
        (late.join().unwrap(), responses)
    });
    responses.push(late.clone());
    let body = assert_one_order(before, stage, &responses);
    assert_replayed(&[&owner.address, &other.address], KEY, &body);
    assert!(
        owner.metric("shop_requests_stale_total") >= 1,
        "the owner learns that its lease expired"
    );
    (late, responses)
}

/// The owner is frozen between Redis and Postgres. Its successors place the order; when it continues, it
/// finds their claim, and returns their response.
#[test]
fn an_owner_that_is_overtaken_before_its_transaction_returns_the_response_of_its_successor() {
    let stage = Stage::set();
    let gate = stage.gate("INSERT INTO idempotency_keys");
    let owner = stage.orders_without_timeouts_behind(&gate, &BRIEF);
    let other = stage.orders_without_timeouts(&BRIEF);
    let (late, _) = overtake(
        &stage,
        [&owner, &other],
        || gate.await_held(),
        || {
            let responses = burst(&[&other.address], KEY, |_| (), || ());
            owner.thaw();
            gate.open();
            responses
        },
    );
    assert_eq!((late.status, late.header("idempotent-replayed")), (201, Some("true")));
    owner.stop();
    other.stop();
}

/// The owner is frozen inside its transaction, its key claimed. A successor executes the same key, waits
/// for it in Postgres, and returns the owner's response.
#[test]
fn an_owner_that_hangs_inside_its_transaction_is_waited_for_by_its_successor() {
    let stage = Stage::set();
    let (owner, other) =
        (stage.orders_without_timeouts(&BRIEF), stage.orders_without_timeouts(&BRIEF));
    stage.lock_orders();
    let (late, responses) = overtake(
        &stage,
        [&owner, &other],
        || stage.await_blocked(1),
        || {
            burst(
                &[&other.address],
                KEY,
                |_| stage.await_blocked(2),
                || {
                    stage.unlock_orders();
                    owner.thaw();
                },
            )
        },
    );
    assert_eq!((late.status, late.header("idempotent-replayed")), (201, None), "{late:?}");
    let again = |response: &&Response| response.header("idempotent-replayed").is_some();
    assert!(responses.iter().any(|response| again(&response)), "a successor took over and waited");
    owner.stop();
    other.stop();
}
