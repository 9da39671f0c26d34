//! One key, one order.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use postrider::sandbox::redis::Redis;

use crate::services::stage::Stage;
use support::http::{Response, get, place};
use support::promtool;
use support::wait::{wait_for, wait_until};

pub(crate) const BODY: &str = r#"{"customer":"ada","sku":"tea","quantity":2,"amount_cents":990}"#;
const CLIENTS: usize = 200;

#[test]
fn a_repeated_request_gets_the_same_response_and_makes_one_order() {
    let stage = Stage::set();
    let service = stage.orders();
    let first = place(&service.address, "k-1", BODY).unwrap();
    assert_eq!((first.status, first.header("idempotent-replayed")), (201, None), "{first:?}");
    let again = place(&service.address, "k-1", &BODY.replace(':', " : ")).unwrap();
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")));
    assert_eq!((&again.body, again.header("location")), (&first.body, first.header("location")));

    let other = place(&service.address, "k-1", &BODY.replace("990", "991")).unwrap();
    assert_eq!((other.status, other.json()["field"].as_str()), (422, Some("idempotency-key")));
    assert_eq!(stage.written(), [1, 1, 1, 1]);

    let path = first.header("location").unwrap().to_owned();
    let order = get(&service.address, &path);
    assert_eq!((order.status, order.json()["sku"].as_str()), (200, Some("tea")));
    let status = get(&service.address, &format!("{path}/status")).json();
    assert_eq!(
        (&status["status"], &status["history"][0]["event"]),
        (&"PENDING".into(), &"OrderCreated".into())
    );
    assert_eq!(status["history"].as_array().unwrap().len(), 1);
    assert_eq!(stage.count("SELECT sequence FROM outbox"), 1);
    let metrics = get(&service.address, "/metrics").body;
    assert!(metrics.contains("\nshop_requests_new_total 1\n"), "{metrics}");
    promtool::check_metrics(&metrics);
    assert_eq!(get(&service.address, "/readyz").status, 200);
    service.stop();
}

/// Sends the same request from many clients at once, one half before `between` and one after;
/// `then` runs while the second half is in flight. `between` gets the number of responses so far.
pub(crate) fn burst(
    addresses: &[&str],
    key: &str,
    between: impl FnOnce(&AtomicUsize),
    then: impl FnOnce(),
) -> Vec<Response> {
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let send = |number: usize| {
            let (address, answered) = (addresses[number % addresses.len()], &answered);
            scope.spawn(move || {
                let response = place_admitted(address, key);
                answered.fetch_add(1, Ordering::Relaxed);
                response
            })
        };
        let mut clients: Vec<_> = (0..CLIENTS / 2).map(send).collect();
        between(&answered);
        clients.extend((CLIENTS / 2..CLIENTS).map(send));
        then();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// Retries requests that were refused without being started, as a client does.
pub(crate) fn place_admitted(address: &str, key: &str) -> Response {
    loop {
        let response = place(address, key, BODY).unwrap();
        if response.status != 503 || response.json()["title"] != "service overloaded" {
            return response;
        }
    }
}

fn is_placed(response: &Response) -> bool {
    response.status == 201
}

/// One order, one first response; all others are replays of it, or 409 with Retry-After.
pub(crate) fn assert_one_order(before: [i64; 4], stage: &Stage, responses: &[Response]) -> String {
    assert_eq!(stage.written(), before.map(|count| count + 1), "one order");
    let is_first = |response: &&Response| response.header("idempotent-replayed").is_none();
    let (placed, rest): (Vec<_>, Vec<_>) =
        responses.iter().partition(|response| response.status == 201);
    assert_eq!(placed.iter().copied().filter(is_first).count(), 1, "one is the first");
    let bodies: BTreeSet<_> = placed.iter().map(|response| &response.body).collect();
    assert_eq!(bodies.len(), 1, "all get the same response");
    for response in rest {
        assert_eq!(response.status, 409, "{response:?}");
        assert!(response.header("retry-after").is_some());
    }
    placed[0].body.clone()
}

/// Later requests get that response. Redis may have taken a lease whose reply was too late for the service:
/// until that is released, requests get 409.
pub(crate) fn assert_replayed(addresses: &[&str], key: &str, body: &str) {
    for address in addresses {
        let last = wait_for("the stored response", || {
            let response = place(address, key, BODY).unwrap();
            let told_to_wait = response.status == 409 && response.header("retry-after").is_some();
            (!told_to_wait).then_some(response)
        });
        assert_eq!((last.status, last.header("idempotent-replayed")), (201, Some("true")));
        assert_eq!(last.body, body);
    }
}

#[test]
fn two_hundred_identical_requests_make_one_order_whatever_happens_to_redis() {
    // A Redis of its own: it is killed.
    let mut redis = Redis::start().unwrap();
    let mut stage = Stage::set();
    stage.redis_url = redis.url();
    let (one, two) = (stage.orders(), stage.orders());
    let addresses = [one.address.as_str(), two.address.as_str()];
    let judged = |stage: &Stage, key: &str| {
        let before = stage.written();
        let responses = burst(&addresses, key, |_| (), || ());
        assert_replayed(&addresses, key, &assert_one_order(before, stage, &responses));
    };
    judged(&stage, "calm");
    redis.kill().unwrap();
    judged(&stage, "down");
    redis.restart().unwrap();
    judged(&stage, "back");
    one.stop();
    two.stop();
}

/// The owner is inside its transaction, most of the first half has got 409, and Redis is flushed before the
/// second half is sent. So another request becomes the owner, and waits for the first one.
#[test]
fn two_hundred_identical_requests_make_one_order_though_redis_is_flushed_half_way() {
    let stage = Stage::set();
    let (one, two) = (stage.orders_without_timeouts(&[]), stage.orders_without_timeouts(&[]));
    let addresses = [one.address.as_str(), two.address.as_str()];
    let before = stage.written();
    stage.lock_orders();
    let flush = |answered: &AtomicUsize| {
        stage.await_blocked(1);
        wait_until("answers", || answered.load(Ordering::Relaxed) >= CLIENTS / 4);
        stage.flush();
    };
    // The first owner's service releases its keys at once, which may be all that the others see: one client
    // retries until it is an owner.
    let come_again = || {
        wait_for("an order", || {
            addresses.iter().map(|address| place_admitted(address, "flushed")).find(is_placed)
        })
    };
    let responses = burst(&addresses, "flushed", flush, || {
        std::thread::scope(|scope| {
            let owner = scope.spawn(come_again);
            stage.await_blocked(2);
            stage.unlock_orders();
            owner.join().unwrap();
        });
    });
    let body = assert_one_order(before, &stage, &responses);
    assert_replayed(&addresses, "flushed", &body);
    // On a busy machine Redis may be too slow to decide on the second one; it waits in Postgres all the same.
    let owners = [&one, &two].map(|service| {
        service.metric("shop_requests_new_total") + service.metric("shop_requests_unsure_total")
    });
    assert!(owners.iter().sum::<u64>() >= 2, "the flush removed the first owner: {owners:?}");
    one.stop();
    two.stop();
}

/// The outcome of a failed COMMIT is unknown, so the key is kept until it expires; and no response was
/// cached before.
#[test]
fn an_order_whose_commit_fails_is_not_cached_and_is_placed_by_the_next_request() {
    let stage = Stage::set();
    let service = stage.orders_without_timeouts(&["--owner-silence", "500ms"]);
    stage.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE 'not this one'; END $$;
         CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON orders
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    assert_eq!(place(&service.address, "k", BODY).unwrap().status, 503);
    stage.await_empty_redis();
    assert_eq!(stage.written(), [0; 4]);
    stage.run("DROP TRIGGER refuse ON orders");
    let placed = place(&service.address, "k", BODY).unwrap();
    assert_eq!((placed.status, placed.header("idempotent-replayed")), (201, None));
    service.stop();
}
