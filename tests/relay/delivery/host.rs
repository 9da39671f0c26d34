//! What the machine withholds from the relay.

use crate::trial::{DELIVERIES, TOPIC, Trial, trials};
use support::postgres::{self, Database};
use support::relay::Relay;
use support::topic;

/// Rows flow for a while, the relay is killed where it can say nothing, and all is there.
fn goes_on(trial: &Trial, relay: &Relay) {
    let running = relay.run();
    let load = trial.load(&[(300, 1), (600, 50)]);
    load.wait_committed(1_500);
    load.stop();
    trial.stage.insert(TOPIC, 20_000);
    trial.wait_settled();
    running.stop();
    trial.assert_once();
}

/// KiB of memory that the process may have for data, stacks included, whether it touches it or not;
/// and KiB of each stack.
const DATA_KIB: u32 = 96 * 1024;
const STACK_KIB: u32 = 512;

#[test]
fn row_68_a_memory_limit_under_load_is_kept() {
    for trial in trials("memory") {
        let limits = format!("ulimit -s {STACK_KIB}; ulimit -d {DATA_KIB}");
        let relay = trial.relay().set("kafka.max_in_flight", "8MiB").after(&limits);
        goes_on(&trial, &relay);
    }
}

#[test]
fn row_69_few_descriptors_and_a_closed_stderr_stop_nothing() {
    for shell in ["ulimit -n 96; exec 2>&-", "exec 2>/dev/full"] {
        for trial in trials("descriptors") {
            goes_on(&trial, &trial.relay().after(shell));
        }
    }
}

/// Text that is not UTF-8 in the database: LATIN1 becomes UTF-8, and what has no
/// encoding at all is passed on as it is, or is a dead letter.
#[test]
fn row_72_other_encodings_are_delivered() {
    let wanted = [("LATIN1", r"\351", Some("é".as_bytes())), ("SQL_ASCII", r"\351", None)];
    for (delivery, (encoding, key, wanted)) in DELIVERIES.into_iter().zip(wanted) {
        let database = Database::encoded(postgres::installed(), "encoded", encoding);
        let trial = Trial::of(database, delivery);
        trial.stage.create_slot();
        let relay = trial.relay().allow_log("dead letter").allow_log("SQL_ASCII");
        let running = relay.run();
        trial.stage.insert(TOPIC, 5);
        trial.stage.sql().run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('t', E'{key}', '{TOPIC}', '{{}}')"
        ));
        trial.stage.insert(TOPIC, 5);
        trial.wait_settled();
        running.stop();
        let verdict = trial.assert_once();
        assert_eq!(verdict.delivered, 11);
        let names = topic::names(trial.stage.bootstrap(), &trial.stage.topic(""));
        let records = topic::read(trial.stage.bootstrap(), &names);
        // Every other key is a digit.
        let is_strange = |key: &Option<Vec<u8>>| key.as_ref().is_none_or(|key| !key[0].is_ascii());
        let strange: Vec<_> = records.iter().filter(|it| is_strange(&it.key)).collect();
        let [strange] = strange.as_slice() else { panic!("{strange:?}") };
        eprintln!("{encoding}: {strange:?}");
        if let Some(wanted) = wanted {
            assert_eq!(strange.key.as_deref(), Some(wanted));
        }
    }
}

/// As with a log driver that blocks.
#[test]
fn row_164_a_stderr_that_nobody_reads_holds_up_neither_rows_nor_signals() {
    for trial in trials("unread") {
        let folder = tempfile::tempdir().unwrap();
        goes_on(&trial, &trial.relay().variable("RUST_LOG", "trace").unread(folder.path()));
    }
}
