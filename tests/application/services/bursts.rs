//! More requests than the database has sessions for.

use crate::services::orders::BODY;
use crate::services::stage::Stage;
use support::http::{get, place};
use support::wait::wait_until;

/// Many more than there are sessions.
const CLIENTS: usize = 60;

#[test]
fn a_request_without_a_slot_is_told_to_retry_and_leaves_nothing_behind() {
    let stage = Stage::set();
    let service = stage.orders_without_timeouts(&[]);
    let address = service.address.as_str();
    stage.lock_orders();
    let shed = || service.metric("shop_requests_shed_total");
    assert_eq!(shed(), 0);
    let responses = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                scope.spawn(move || (number, place(address, &number.to_string(), BODY).unwrap()))
            })
            .collect();
        wait_until("requests that are refused", || shed() > 0);
        // Those in flight still are, and probes and metrics are served.
        for path in ["/livez", "/readyz", "/metrics"] {
            assert_eq!(get(address, path).status, 200, "{path}");
        }
        let unknown = get(address, "/orders/0199f2a4-7c1e-7cc3-98c4-dc0c0c07398f/status");
        assert_eq!((unknown.status, unknown.json()["title"].as_str()), OVERLOADED);
        stage.unlock_orders();
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let (placed, turned): (Vec<_>, Vec<_>) =
        responses.iter().partition(|(_, response)| response.status == 201);
    assert!(!placed.is_empty() && !turned.is_empty());
    for (_, response) in &turned {
        assert_eq!((response.status, response.json()["title"].as_str()), OVERLOADED);
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
        assert_eq!(response.header("retry-after"), Some("1"));
    }
    assert_eq!(shed(), turned.len() as u64 + 1);
    assert_eq!(stage.written(), [i64::try_from(placed.len()).unwrap(); 4]);

    let again = place(address, &turned[0].0.to_string(), BODY).unwrap();
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, None), "{again:?}");
    service.stop();
}

/// The key's owner hangs inside its transaction, in another process, and Redis is unavailable: so each
/// repeat has to go to Postgres, where it would wait.
#[test]
fn one_hot_key_takes_one_slot_and_leaves_the_others_to_other_keys() {
    let stage = Stage::set();
    let service = stage.orders_without_timeouts(&["--redis-url", "redis://127.0.0.1:1"]);
    let address = service.address.as_str();
    stage.run(
        "BEGIN; INSERT INTO idempotency_keys (scope, key, fingerprint, status, headers, body) \
         VALUES ('POST /orders', 'hot', sha256(''), 201, '[]', '')",
    );
    std::thread::scope(|scope| {
        let first = scope.spawn(|| place(address, "hot", BODY).unwrap());
        stage.await_blocked(1);
        let repeats: Vec<_> =
            (0..CLIENTS).map(|_| scope.spawn(|| place(address, "hot", BODY).unwrap())).collect();
        for repeat in repeats {
            let repeat = repeat.join().unwrap();
            assert_eq!((repeat.status, repeat.header("retry-after")), (409, Some("1")));
        }
        assert_eq!(place(address, "other", BODY).unwrap().status, 201);
        stage.run("ROLLBACK");
        assert_eq!(first.join().unwrap().status, 201);
    });
    assert_eq!(service.metric("shop_requests_shed_total"), 0);
    service.stop();
}

const OVERLOADED: (u16, Option<&str>) = (503, Some("service overloaded"));
