//! One key, one order.

use std::collections::BTreeSet;

use crate::client::{Answer, get, place};
use crate::stage::Stage;

const BODY: &str = r#"{"customer":"ada","sku":"tea","quantity":2,"amount_cents":990}"#;
const CLIENTS: usize = 200;

#[test]
fn a_request_that_is_sent_again_is_answered_again_and_makes_one_order() {
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
    assert_eq!(get(&service.address, "/readyz").status, 200);
    service.stop();
}

/// Sends the same request from many clients at once; `disturb` comes in the middle.
fn storm(
    stage: &Stage,
    addresses: &[&str],
    key: &str,
    disturb: impl FnOnce() + Send,
) -> Vec<Answer> {
    let before = stage.written();
    let answers = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let address = addresses[number % addresses.len()];
                scope.spawn(move || place(address, key, BODY).unwrap())
            })
            .collect();
        scope.spawn(disturb);
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(stage.written(), before.map(|count| count + 1), "one order");
    let is_first = |answer: &&Answer| answer.header("idempotent-replayed").is_none();
    let (placed, rest): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 201);
    assert_eq!(placed.iter().copied().filter(is_first).count(), 1, "one is the first");
    let bodies: BTreeSet<_> = placed.iter().map(|answer| &answer.body).collect();
    assert_eq!(bodies.len(), 1, "all get the same answer");
    for answer in rest {
        assert_eq!(answer.status, 409, "{answer:?}");
        assert!(answer.header("retry-after").is_some());
    }
    let last = place(addresses[0], key, BODY).unwrap();
    assert_eq!((last.status, last.header("idempotent-replayed")), (201, Some("true")));
    answers
}

#[test]
fn two_hundred_identical_requests_make_one_order_whatever_becomes_of_redis() {
    let mut stage = Stage::set();
    let (one, two) = (stage.orders(), stage.orders());
    let addresses = [one.address.as_str(), two.address.as_str()];
    storm(&stage, &addresses, "calm", || ());
    let url = stage.redis.url();
    storm(&stage, &addresses, "flushed", || {
        let mut redis = redis::Client::open(url).unwrap().get_connection().unwrap();
        redis::cmd("FLUSHALL").exec(&mut redis).unwrap();
    });
    stage.redis.kill().unwrap();
    let answers = storm(&stage, &addresses, "down", || ());
    assert!(answers.iter().all(|answer| answer.status == 201), "Postgres alone decides");
    stage.redis.restart().unwrap();
    storm(&stage, &addresses, "back", || ());
    one.stop();
    two.stop();
}
