//! One key, one order, though the process that owns the key is frozen for longer than its lease, or its
//! client hangs up.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::services::orders::{BODY, assert_one_order, assert_replayed, burst};
use crate::services::stage::{Service, Stage};
use support::http::{Response, place};
use support::wait::{let_pass, wait_for, wait_until};

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

/// Clients give up while their orders are being written. Each order is placed all the same, and the next
/// attempt has its response long before a lease expires, which lasts 30 s.
#[test]
fn clients_that_hang_up_have_their_orders_and_the_next_attempts_the_responses() {
    const CLIENTS: usize = 10;
    let stage = Stage::set();
    let service = stage.orders_without_timeouts(&[]);
    let keys: Vec<String> = (0..CLIENTS).map(|number| format!("hung-up-{number}")).collect();
    stage.lock_orders();
    thread::scope(|scope| {
        for key in &keys {
            scope.spawn(|| hang_up(&service.address, key, Duration::from_millis(300)));
        }
    });
    stage.await_blocked(i64::try_from(CLIENTS).unwrap());
    stage.unlock_orders();
    wait_until("the orders", || stage.count("SELECT count(*) FROM orders") >= 10);
    let placed = Instant::now();
    for key in &keys {
        let next = wait_for("the response", || {
            let next = place(&service.address, key, BODY).unwrap();
            (next.status != 409).then_some(next)
        });
        assert_eq!((next.status, next.header("idempotent-replayed")), (201, Some("true")));
    }
    assert!(placed.elapsed() < Duration::from_secs(20), "{:?}", placed.elapsed());
    assert_eq!(stage.written(), [10; 4]);
    service.stop();
}

/// Sends an order, and breaks the connection before there can be a response.
fn hang_up(address: &str, key: &str, after: Duration) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = BODY.len();
    let head = format!(
        "POST /orders HTTP/1.1\r\nhost: shop\r\ncontent-type: application/json\r\n\
         idempotency-key: {key}\r\ncontent-length: {length}\r\n\r\n{BODY}"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let_pass(after, "the client loses patience");
}
