//! One key, one order.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::services::stage::Stage;
use support::http::{Answer, get, place};
use support::wait::{wait_for, wait_until};

pub(crate) const BODY: &str = r#"{"customer":"ada","sku":"tea","quantity":2,"amount_cents":990}"#;
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

/// Sends the same request from many clients at once, one half before `between` and one after;
/// `then` comes while the second half is under way. `between` is told how many have been answered.
pub(crate) fn storm(
    addresses: &[&str],
    key: &str,
    between: impl FnOnce(&AtomicUsize),
    then: impl FnOnce(),
) -> Vec<Answer> {
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let send = |number: usize| {
            let (address, answered) = (addresses[number % addresses.len()], &answered);
            scope.spawn(move || {
                let answer = place_admitted(address, key);
                answered.fetch_add(1, Ordering::Relaxed);
                answer
            })
        };
        let mut clients: Vec<_> = (0..CLIENTS / 2).map(send).collect();
        between(&answered);
        clients.extend((CLIENTS / 2..CLIENTS).map(send));
        then();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// Sends again what was turned away before it began, as a client does.
pub(crate) fn place_admitted(address: &str, key: &str) -> Answer {
    loop {
        let answer = place(address, key, BODY).unwrap();
        if answer.status != 503 || answer.json()["title"] != "service overloaded" {
            return answer;
        }
    }
}

fn is_placed(answer: &Answer) -> bool {
    answer.status == 201
}

/// One order, one first answer; all others are the same again, or are told to come again, and then
/// get it.
pub(crate) fn assert_one_order(before: [i64; 4], stage: &Stage, answers: &[Answer]) -> String {
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
    placed[0].body.clone()
}

/// Whoever comes later gets that answer. Redis may have taken a claim whose answer came too late for the
/// service to hear: until that lapses, who asks is told to come again.
pub(crate) fn assert_remembered(addresses: &[&str], key: &str, body: &str) {
    for address in addresses {
        let last = wait_for("the answer that is remembered", || {
            let answer = place(address, key, BODY).unwrap();
            let told_to_wait = answer.status == 409 && answer.header("retry-after").is_some();
            (!told_to_wait).then_some(answer)
        });
        assert_eq!((last.status, last.header("idempotent-replayed")), (201, Some("true")));
        assert_eq!(last.body, body);
    }
}

#[test]
fn two_hundred_identical_requests_make_one_order_whatever_becomes_of_redis() {
    let mut stage = Stage::set();
    let (one, two) = (stage.orders(), stage.orders());
    let addresses = [one.address.as_str(), two.address.as_str()];
    let judged = |stage: &Stage, key: &str| {
        let before = stage.written();
        let answers = storm(&addresses, key, |_| (), || ());
        assert_remembered(&addresses, key, &assert_one_order(before, stage, &answers));
    };
    judged(&stage, "calm");
    stage.redis.kill().unwrap();
    judged(&stage, "down");
    stage.redis.restart().unwrap();
    judged(&stage, "back");
    one.stop();
    two.stop();
}

/// The owner is inside its transaction, most of the first half has been told so, and Redis forgets all
/// of it before the second half is sent. So another becomes the owner, and waits for the first one.
#[test]
fn two_hundred_identical_requests_make_one_order_though_redis_is_flushed_half_way() {
    let stage = Stage::set();
    let (one, two) = (stage.patient_orders(&[]), stage.patient_orders(&[]));
    let addresses = [one.address.as_str(), two.address.as_str()];
    let before = stage.written();
    stage.hold_orders();
    let flush = |answered: &AtomicUsize| {
        stage.await_blocked(1);
        wait_until("answers", || answered.load(Ordering::Relaxed) >= CLIENTS / 4);
        stage.flush();
    };
    // The first owner's service gives its claims back at once, which may be all that the others see: one
    // client comes again until it is an owner.
    let come_again = || {
        wait_for("an order", || {
            addresses.iter().map(|address| place_admitted(address, "flushed")).find(is_placed)
        })
    };
    let answers = storm(&addresses, "flushed", flush, || {
        std::thread::scope(|scope| {
            let owner = scope.spawn(come_again);
            stage.await_blocked(2);
            stage.let_go();
            owner.join().unwrap();
        });
    });
    let body = assert_one_order(before, &stage, &answers);
    assert_remembered(&addresses, "flushed", &body);
    let owners = [&one, &two].map(|service| service.metric("shop_requests_new_total"));
    assert!(owners.iter().sum::<u64>() >= 2, "Redis forgot the first owner: {owners:?}");
    one.stop();
    two.stop();
}

/// Nobody knows what became of a COMMIT that fails, so the key is kept until its time is over; and
/// Redis has not been told of an answer before.
#[test]
fn an_order_whose_commit_fails_is_not_remembered_and_is_placed_by_who_comes_next() {
    let stage = Stage::set();
    let service = stage.patient_orders(&["--owner-silence", "500ms"]);
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
