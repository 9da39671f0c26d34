//! A gateway that was away for longer than it remembers idempotency keys does not charge twice.
//!
//! The clock is shifted in the rows: what happened 30 hours ago is written down as of then.

use std::time::Duration;

use crate::services::dead_letters::produce;
use crate::services::stage::Stage;
use support::wait::{stays, wait_until};

/// Payments by number: what was booked before the reply was lost, and when.
///
/// 1 a charge, 2 a declined charge, 3 a charge whose order was given up since, 4 a refund: all 30 hours ago.
/// 5 a charge and 6 a refund that never arrived, 30 hours ago. 7 a charge that was booked 22 hours ago, and
/// 8 one that never arrived then: their keys may be sent again.
const OUTAGE: &str = "
    CREATE TEMP TABLE lost AS SELECT n, ('00000000-0000-0000-0000-00000000000' || n)::uuid AS id,
        now() - CASE WHEN n < 7 THEN interval '30 hours' ELSE interval '22 hours' END AS at,
        CASE WHEN n IN (4, 6) THEN 'REFUNDING' ELSE 'PENDING' END AS status
        FROM generate_series(1, 8) AS n;
    INSERT INTO payments
            (order_id, order_placed, amount_cents, status, undo, attempts, first_attempt_at, updated_at)
        SELECT id, '{}', 100, status, n = 3, 9, at, at FROM lost;
    INSERT INTO gateway_operations (key, kind, reference, amount_cents, declined, at)
        SELECT 'charge-' || id, 'charge', id, 100, CASE n WHEN 2 THEN 'no' END, at
            FROM lost WHERE n IN (1, 2, 3, 4, 6, 7)
        UNION ALL SELECT 'refund-' || id, 'refund', id, 100, NULL, at FROM lost WHERE n = 4";

fn order(number: u32) -> String {
    format!("00000000-0000-0000-0000-00000000000{number}")
}

#[test]
fn a_gateway_that_was_away_for_30_hours_charges_nobody_twice() {
    let stage = Stage::set();
    stage.run(OUTAGE);
    let service = stage.start(&["payments"]);
    let status = |number: u32, status: &str| {
        let id = order(number);
        stage.count(&format!(
            "SELECT count(*) FROM payments WHERE order_id = '{id}' AND status = '{status}'"
        )) == 1
    };
    let repeated = "SELECT count(*) FROM (SELECT 1 FROM gateway_operations
                    WHERE declined IS NULL GROUP BY reference, kind HAVING count(*) > 1) AS twice";
    wait_until("what the gateway knows", || {
        assert_eq!(stage.count(repeated), 0, "charged or refunded twice");
        let known = [(1, "CHARGED"), (2, "DECLINED"), (3, "REFUNDED"), (4, "REFUNDED")];
        let young = [(7, "CHARGED"), (8, "CHARGED")];
        known.into_iter().chain(young).all(|(number, ended)| status(number, ended))
    });
    service.wait_for(&["\nshop_payments_unknown 2\n"]);
    let asked_again = "UPDATE payments SET next_attempt_at = now() WHERE status <> 'CHARGED'";
    let is_open = || {
        stage.run(asked_again);
        status(5, "PENDING") && status(6, "REFUNDING") && stage.count(repeated) == 0
    };
    stays("nobody is charged or refunded blindly", Duration::from_secs(3), is_open);
    let never_sent = "SELECT count(*) FROM gateway_operations WHERE reference LIKE '%5'";
    assert_eq!(stage.count(never_sent), 0);

    // A person finds that 5 was never charged and writes that down; the next deadline is answered.
    let id = order(5);
    stage.run(&format!(
        "UPDATE payments SET status = 'DECLINED', reason = 'never charged, by the gateway''s books'
         WHERE order_id = '{id}' AND status = 'PENDING'"
    ));
    produce(&stage.bootstrap(), "OrderTimedOut", &id);
    let failed = format!(
        "SELECT count(*) FROM outbox WHERE event_type = 'PaymentFailed' AND aggregate_id = '{id}'"
    );
    wait_until("PaymentFailed", || stage.count(&failed) == 1);
    // And that 6 was never refunded: the refund is sent anew.
    let id = order(6);
    stage.run(&format!(
        "UPDATE payments SET attempts = 0, first_attempt_at = NULL, next_attempt_at = now()
         WHERE order_id = '{id}' AND status = 'REFUNDING'"
    ));
    wait_until("the refund", || status(6, "REFUNDED"));
    service.wait_for(&["\nshop_payments_unknown 0\n"]);
    assert_eq!(stage.count(repeated), 0);
    service.stop();
}
