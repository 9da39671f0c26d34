//! Servers that are not the usual ones: of another encoding, or a standby.

use super::{found, verify};
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres::{self, Database};
use support::wait_for;

const ROWS: usize = 50;

#[test]
fn a_database_of_another_encoding_is_compared_by_what_the_relay_makes_of_its_text() {
    let broker = Broker::best();
    let database = Database::encoded(postgres::installed(), "verify_latin", "LATIN1");
    let stage = Stage::before(database, &broker.bootstrap());
    stage.create_slot();
    stage.sql().run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 't', 'clé ' || n % 5, 'A', jsonb_build_object('prix', '£' || n, 'nom', 'Zoë') \
         FROM generate_series(1, 50) AS n",
    );
    stage.relay().run_once();
    let (status, json) = verify(&stage.relay(), "--all-rows-kept");
    assert_eq!((status, found(&json)), (0, Vec::new()), "{json}");
    assert_eq!((&json["rows"], &json["records"]), (&ROWS.into(), &ROWS.into()));
}

/// A standby that only reads spares the primary the work.
#[test]
fn a_standby_is_compared_as_its_primary_is() {
    let Some(options) = postgres::eighteen_options() else { return };
    let broker = Broker::best();
    let mut primary = postgres::start(&options);
    let stage = Stage::new(&primary, &broker.bootstrap(), "verify_standby");
    stage.insert("A", ROWS);
    stage.relay().run_once();
    let standby = postgres::standby_of(&mut primary, &options);
    let there = Stage::before(stage.database.at(&standby), &broker.bootstrap());
    stage.insert("A", ROWS);
    // The slot was made as those before PostgreSQL 17.
    stage.relay().expect_log("does not follow a failover").run_once();
    let count = || there.sql().value("SELECT count(*) FROM outbox") == (2 * ROWS).to_string();
    wait_for("the standby to have every row", || count().then_some(()));
    let (status, json) = verify(&there.relay(), "--all-rows-kept");
    assert_eq!((status, found(&json)), (0, Vec::new()), "{json}");
    assert_eq!(json["rows"], 2 * ROWS);
}
