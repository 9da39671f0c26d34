//! The two ways in which published sagas lose money, and what the shop does in the same place: a result that
//! could not be written after the gateway was called, and a reply of the gateway that was lost.

use crate::services::stage::Stage;
use support::wait::wait_until;

/// One in twenty first calls loses its reply, by the hash of its key: of these orders, some do.
const INTENTS: &str = "INSERT INTO payments (order_id, order_placed, amount_cents, status)
    SELECT ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, '{}', 100, 'PENDING'
        FROM generate_series(1, 100) AS n";
const BOOKINGS: &str = "SELECT count(*) FROM gateway_operations WHERE kind = 'charge'";
const CHARGED: &str = "SELECT count(*) FROM payments WHERE status = 'CHARGED'";

#[test]
fn a_result_that_could_not_be_written_is_asked_for_again_and_charged_once() {
    let stage = Stage::set();
    stage.run(INTENTS);
    stage.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE 'not this one'; END $$;
         CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON payments DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW WHEN (NEW.status = 'CHARGED') EXECUTE FUNCTION refuse()",
    );
    let service = stage.start(&["payments"]);
    wait_until("the bookings", || stage.count(BOOKINGS) == 100);
    // The money is taken, and the intent is there to say so: in the transaction it would be gone.
    assert_eq!((stage.count(CHARGED), stage.count("SELECT count(*) FROM payments")), (0, 100));
    stage.run("DROP TRIGGER refuse ON payments");
    wait_until("the results", || stage.count(CHARGED) == 100);
    assert_eq!(stage.count(BOOKINGS), 100);
    service.stop();
}

#[test]
fn a_charge_whose_reply_is_lost_is_repeated_with_its_key_and_booked_once() {
    let stage = Stage::set();
    stage.run(INTENTS);
    stage.run(
        "CREATE TABLE repeated (order_id uuid);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO repeated VALUES (NEW.order_id); RETURN NULL; END $$;
         CREATE TRIGGER note AFTER UPDATE ON payments FOR EACH ROW
             WHEN (OLD.attempts = 1 AND NEW.attempts = 2) EXECUTE FUNCTION note()",
    );
    let service = stage.start(&["payments"]);
    wait_until("the results", || stage.count(CHARGED) == 100);
    let repeated = stage.count("SELECT count(*) FROM repeated");
    assert!((1..100).contains(&repeated), "{repeated} replies were lost");
    assert_eq!(stage.count(BOOKINGS), 100);
    service.stop();
}
