//! An outbox that is divided by aggregate: a slot and a stream for each partition, as docs/scaling.md has it.

use std::collections::{BTreeMap, BTreeSet};

use super::{relay, start};
use crate::operate::Desk;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;

const PAGE: &str = include_str!("../../../docs/scaling.md");
const PARTS: [u8; 2] = [0, 1];
const KEYS: usize = 20;

/// The page's first block of this language. Slots are the server's, so they get the test's name.
fn block(language: &str, stage: &Stage) -> String {
    let (_, rest) = PAGE.split_once(&format!("\n```{language}\n")).unwrap();
    let (block, _) = rest.split_once("\n```\n").unwrap();
    block.replace("postrider_", &format!("{}_", stage.slot()))
}

/// Commits 100 transactions; the next row of each key has the next number.
fn write(stage: &Stage, from: usize) {
    for transaction in (from..from + 500).step_by(5) {
        stage.sql().run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT 't', n % {KEYS}, 'A', to_jsonb(n) FROM generate_series({transaction}, {}) AS n",
            transaction + 4
        ));
    }
}

#[test]
fn g2_an_outbox_divided_by_aggregate_keeps_the_order_of_each_key_and_loses_no_row() {
    let broker = Broker::best();
    for cluster in postgres::versions() {
        let stage = Stage::empty(cluster, &broker.bootstrap(), "divided");
        stage.sql().run(&block("sql", &stage));
        for part in PARTS {
            let slot = format!("{}_{part}", stage.slot());
            let create = format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
            stage.sql().run(&create);
        }
        let desk = Desk::new();
        desk.write(&format!(
            "source.url = \"{}\"\nroute.topic = \"{}${{routedByValue}}\"\ndead_letters.topic = \"{}\"\n{}",
            stage.database.address().url(),
            stage.topic(""),
            stage.topic("dead-letters"),
            block("toml", &stage)
        ));
        let streams = [("whole", stage)];
        let relay = relay(&streams).allow_log("");
        let [(_, stage)] = &streams;
        write(stage, 0);
        let running = start(&relay, &desk.file(), &["run"]);
        stage.wait_for_records(100);
        running.kill();
        write(stage, 500);
        let running = start(&relay, &desk.file(), &["run"]);
        stage.wait_for_records(1_000);
        running.stop();
        assert!(start(&relay, &desk.file(), &["run", "--once"]).wait().success());
        each_key_in_order(stage);
        for part in PARTS {
            let drop = format!("SELECT pg_drop_replication_slot('{}_{part}')", stage.slot());
            stage.sql().run(&drop);
        }
    }
}

/// By the first time that each row arrived, as it may come again behind a kill.
fn each_key_in_order(stage: &Stage) {
    let mut seen = BTreeSet::new();
    let mut keys: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    for record in stage.records() {
        let number: usize = String::from_utf8(record.value.unwrap()).unwrap().parse().unwrap();
        if seen.insert(number) {
            keys.entry(record.key.unwrap()).or_default().push(number);
        }
    }
    assert_eq!((seen.len(), keys.len()), (1_000, KEYS));
    for (key, numbers) in keys {
        assert!(numbers.is_sorted(), "{key:?}: {numbers:?}");
    }
}
