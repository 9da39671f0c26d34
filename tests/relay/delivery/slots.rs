//! Where a slot begins, and what stands in its place later.

use crate::trial::{DELIVERIES, TOPIC, Trial, trials};
use support::judge::judge;
use support::{postgres, wait_for};

/// The first change after the slot was made had the slot's own position, and was passed over as known.
/// Here the row that begins exactly at the slot's position would be lost, in one of eight new slots.
#[test]
fn dbz_1400_the_first_change_after_slot_creation_is_delivered() {
    for delivery in DELIVERIES {
        for by_relay in [true, false] {
            let cluster = postgres::installed();
            let trial = Trial::without_slot(cluster, "first_change", delivery);
            let relay = trial.relay().creates_slot().allow_log("created slot");
            if by_relay {
                relay.run_once();
            } else {
                trial.stage.create_slot();
            }
            trial.stage.insert(TOPIC, 1);
            trial.stage.insert(TOPIC, 2);
            relay.run_once();
            assert_eq!(trial.assert_once().delivered, 3, "by the relay: {by_relay}");
        }
    }
}

/// Without an offset of its own the connector began at the newest transaction, not where the slot was.
/// Here all that was committed while no relay ran would be lost but the last transaction.
#[test]
fn dbz_1730_a_start_goes_on_from_the_slot_and_not_from_the_newest_transaction() {
    for trial in trials("from_the_slot") {
        let running = trial.relay().run();
        trial.stage.insert(TOPIC, 5);
        trial.wait_settled();
        running.kill();
        for _ in 0..40 {
            trial.stage.insert(TOPIC, 3);
        }
        trial.relay().run_once();
        assert_eq!(trial.assert_kept().delivered, 125);
    }
}

/// Changes between snapshot and stream were filtered out by a position taken at the wrong moment.
/// Here rows committed around the creation of the slot would be lost, or older ones be delivered.
#[test]
fn dbz_2288_rows_around_the_creation_of_the_slot_fall_on_one_side_of_its_position() {
    for delivery in DELIVERIES {
        let trial = Trial::without_slot(postgres::installed(), "hand_over", delivery);
        let load = trial.load(&[(400, 1), (400, 7), (300, 40)]);
        wait_for("rows", || (load.committed() > 300).then_some(()));
        let relay = trial.relay().creates_slot();
        let mut running = relay.allow_log("created slot").allow_log("trying again").run();
        let created = running.wait_for_log("created slot");
        let begins = position_in(&created);
        let enough = load.committed() + 600;
        wait_for("rows", || (load.committed() > enough).then_some(()));
        load.stop();
        trial.wait_settled();
        running.stop();
        let committed = trial.oracle.committed();
        let (before, after) =
            committed.split_at(committed.partition_point(|it| it.end_lsn <= begins));
        assert!(!before.is_empty() && !after.is_empty(), "{begins:X}");
        let verdict = judge(after, &trial.stage.records(), &trial.tap.statuses());
        // A row from before would be a phantom to this judge.
        verdict.assert_at_least_once();
    }
}

/// A slot that somebody dropped and made again was taken for the old one; what lay between was lost.
/// Here the start would go on as if nothing had happened: it is refused, or told where both are borne.
#[test]
fn dbz_5739_a_slot_made_again_behind_our_back_is_not_taken_for_the_old_one() {
    for trial in trials("made_again") {
        let relay = trial.relay().set("progress.at_least_once", "true");
        let mut running = relay.run();
        running.wait_for_log("\"streaming\"");
        trial.stage.insert(TOPIC, 3);
        trial.wait_settled();
        running.stop();
        trial.stage.insert(TOPIC, 1);
        let sql = trial.stage.sql();
        sql.run(&format!("SELECT pg_drop_replication_slot('{}')", trial.stage.slot()));
        trial.stage.create_slot();
        trial.stage.insert(TOPIC, 2);
        let before = trial.stage.acknowledged();
        if trial.delivery == "exactly_once" {
            let refused = relay.allow_log("").start(&["run", "--once"]).wait();
            assert_eq!(refused.code(), Some(70));
            assert_eq!(trial.stage.acknowledged(), before, "nothing is acknowledged");
            assert_eq!(trial.stage.records().len(), 3);
        } else {
            relay.expect_log("re-send the rows committed between them").run_once();
            assert_eq!(trial.stage.records().len(), 5);
        }
    }
}

/// The position in `created slot `x` at 0/1234; ...`.
fn position_in(line: &str) -> u64 {
    let (_, position) = line.split_once("` at ").unwrap();
    let (high, low) = position.split_once(';').unwrap().0.split_once('/').unwrap();
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    number(high) << 32 | number(low)
}
