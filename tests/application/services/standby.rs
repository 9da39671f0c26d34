//! A read-only server, such as a standby, makes the service not ready.

use postrider::sandbox::postgres::Options;

use crate::services::orders::BODY;
use crate::services::stage::Stage;
use support::http::{get, place};
use support::postgres;
use support::wait::wait_until;

#[test]
fn a_read_only_database_makes_the_service_not_ready_until_it_accepts_writes() {
    // A cluster of its own: it is configured.
    let cluster = postgres::start(&Options::default());
    let stage = Stage::on(&cluster);
    let service = stage.orders();
    let ready = || {
        let response = get(&service.address, "/readyz");
        (response.status, response.body)
    };
    assert_eq!(ready().0, 200);
    // Holds for sessions that are open already, this one among them, and may be undone from it.
    stage.run("ALTER SYSTEM SET default_transaction_read_only = on");
    stage.run("SELECT pg_reload_conf()");
    let refused = (503, "the database is read-only\n".to_owned());
    wait_until("a service that is not ready", || ready() == refused);
    assert_eq!(place(&service.address, "k", BODY).unwrap().status, 503);
    assert_eq!(ready(), refused, "a new session is refused, and for that reason");
    stage.run("ALTER SYSTEM RESET default_transaction_read_only");
    stage.run("SELECT pg_reload_conf()");
    wait_until("a service that is ready", || ready().0 == 200);
    wait_until("an order", || place(&service.address, "k", BODY).unwrap().status == 201);
    service.stop();
}
