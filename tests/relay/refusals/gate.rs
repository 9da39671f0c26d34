//! Refusals at the start that the register of unfit sources cannot express.

use super::attempt::refused;
use super::outbox::Outbox;
use support::postgres;

/// It would stand still at the first PREPARE TRANSACTION of anybody.
#[test]
fn a_slot_with_two_phase_is_refused_and_the_hint_loses_nothing() {
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, "gate");
        outbox.run("SELECT pg_drop_replication_slot(current_database())");
        outbox.run(
            "SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput', false, true)",
        );
        outbox.write();
        let refusal = refused(&outbox.relay(), &["run", "--once"], 78);
        refusal.assert("PR-P071", &["was created with two_phase", "which keeps its position"]);
        let from = refusal.text.find("SELECT").expect("a command");
        let commands = refusal.text.get(from..).unwrap_or_default();
        let end = commands.rfind(';').expect("a command's end");
        let commands: Vec<_> = commands.get(..end).unwrap_or_default().split(';').collect();
        // Whoever runs all of them, though one fails, as psql does, still has the slot.
        let in_the_way = "SELECT pg_create_logical_replication_slot(current_database() || '_copy', \
                          'pgoutput')";
        outbox.run(in_the_way);
        for command in &commands {
            assert!(outbox.database.sql().try_run(command).is_err(), "{command}");
        }
        outbox.run("SELECT pg_drop_replication_slot(current_database() || '_copy')");
        for command in commands {
            outbox.run(command);
        }
        outbox.write();
        outbox.assert_delivered_by(&outbox.relay());
    }
}

/// Who only looks leaves nothing behind that keeps log for ever.
#[test]
fn a_dry_run_creates_nothing() {
    let outbox = Outbox::without_slot(postgres::installed(), "dry");
    for create in ["never", "auto"] {
        let relay = outbox.relay().set("source.create", create);
        let words = ["creates nothing", "route --from-database", "postrider setup"];
        refused(&relay, &["run", "--dry-run"], 78).assert("PR-P039", &words);
    }
    outbox.run("DROP PUBLICATION postrider");
    let relay = outbox.relay().creates_slot();
    refused(&relay, &["run", "--dry-run"], 78).assert("PR-P010", &["creates nothing"]);
    let sql = "SELECT (SELECT count(*) FROM pg_publication)
                    + (SELECT count(*) FROM pg_replication_slots WHERE slot_name = current_database())";
    assert_eq!(outbox.database.sql().value(sql), "0");
}

#[test]
fn a_slot_of_another_database_is_refused() {
    let (here, there) = (
        Outbox::ready(postgres::installed(), "here"),
        Outbox::ready(postgres::installed(), "there"),
    );
    here.write();
    let relay = here.relay().set("source.slot", there.database.name());
    let belongs = format!("it belongs to database `{}`", there.database.name());
    let proposal =
        format!("POSTRIDER_SOURCE__SLOT={}_{}", there.database.name(), here.database.name());
    let words = [&belongs, &proposal, "the slot's own database"];
    refused(&relay, &["run"], 78).assert("PR-P040", &words);
    here.assert_delivered_by(&here.relay());
    // Nothing is said of dropping it where the publication is missing as well.
    here.run("DROP PUBLICATION postrider");
    for arguments in [&["run"][..], &["setup"]] {
        let outcome = relay.start(arguments).outcome();
        assert_eq!(outcome.status.code(), Some(78), "{:?}", outcome.log);
        let said = outcome.log.join("\n");
        assert!(said.contains("PR-P040") && said.contains(&belongs), "{said}");
        assert!(!said.contains("pg_drop_replication_slot"), "{said}");
    }
    // Whoever makes no slot need not care whose it is.
    let outcome = relay.start(&["setup", "--no-slot"]).outcome();
    assert_eq!(outcome.status.code(), Some(0), "{:?}", outcome.log);
    let said = outcome.stdout;
    assert!(said.contains("created: publication") && !said.contains("replication slot"), "{said}");
}

#[test]
fn a_held_slot_ends_a_relay_that_does_not_wait() {
    let outbox = Outbox::ready(postgres::installed(), "held");
    let mut holder = outbox.relay().run();
    holder.wait_for_log("streaming");
    let words = ["slot `held_", "is held by another process", "without --no-wait", "active_pid"];
    refused(&outbox.relay(), &["run", "--no-wait"], 75).assert("PR-P009", &words);
    holder.stop();
    outbox.write();
    outbox.assert_delivered_by(&outbox.relay());
}
