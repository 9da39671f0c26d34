//! A service with a database of its own, made by `shop migrate`.

use crate::services::stage::Stage;
use support::postgres::{self, Database};

const OF_INBOX: &str = "consumer_offsets,consumer_sequences,processed_messages";
const OF_OUTBOX: &str = "outbox,outbox_sequences";

#[test]
fn each_service_is_given_its_tables_and_no_other_ones_and_keeps_them() {
    let stage = Stage::set();
    for (service, pieces, own) in [
        (
            "orders",
            vec![OF_INBOX, OF_OUTBOX, "idempotency_keys,saga_history,saga_timers,sagas"],
            "orders",
        ),
        ("payments", vec![OF_INBOX, OF_OUTBOX], "gateway_operations,payments"),
        ("inventory", vec![OF_INBOX, OF_OUTBOX], "reservations,stock"),
        ("notifications", vec![OF_INBOX], "notifications"),
    ] {
        let database = Database::create(postgres::installed(), service);
        let url = database.address().unix_url();
        // A later version runs it over what is there.
        for _ in 0..2 {
            let (status, _, stderr) = stage.command(&["migrate", service, "--database-url", &url]);
            assert_eq!(status, 0, "{stderr}");
        }
        let mut expected: Vec<&str> = pieces.iter().flat_map(|names| names.split(',')).collect();
        expected.extend(own.split(','));
        expected.sort_unstable();
        let tables = "SELECT string_agg(relname, ',' ORDER BY relname::text) FROM pg_class
             WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace";
        assert_eq!(database.sql().value(tables), expected.join(","), "{service}");
    }
}

#[test]
fn payments_work_in_a_database_without_orders() {
    let stage = Stage::set();
    let database = Database::create(postgres::installed(), "payments");
    let url = database.address().unix_url();
    let (status, _, stderr) = stage.command(&["migrate", "payments", "--database-url", &url]);
    assert_eq!(status, 0, "{stderr}");
    let service = stage.start_at(&url, &["payments"]);
    service.wait_for(&["shop_payments_open 0"]);
    service.stop();
    let (status, out, stderr) = stage.command(&["maintain", "--database-url", &url]);
    // The slot is the relay's, and there is none here.
    assert!(
        status == 78 && stderr.contains("no logical replication slot `postrider`"),
        "{status} {stderr}"
    );
    assert!(out.contains("\"table\":\"payments\"") && !out.contains("sagas"), "{out}");
}
