//! A database that is not fit to stream from.

use postrider::sandbox::postgres::{Options, Stop};

use super::attempt::refused;
use super::outbox::Outbox;
use support::{postgres, unique};

/// A fault, what it is answered with, and what fixes it.
struct Fault {
    spoil: &'static str,
    exit: i32,
    code: &'static str,
    words: &'static [&'static str],
    fix: &'static str,
}

/// Slots are named after their database.
const FAULTS: [Fault; 13] = [
    Fault {
        spoil: "ALTER TABLE outbox RENAME TO elsewhere",
        exit: 78,
        code: "PR-P032",
        words: &["table public.outbox does not exist in database", "postrider setup"],
        fix: "ALTER TABLE elsewhere RENAME TO outbox",
    },
    Fault {
        spoil: "ALTER TABLE outbox RENAME COLUMN payload TO body",
        exit: 78,
        code: "PR-P034",
        words: &["has no column payload (it has id, aggregate_type", "body", "[outbox]"],
        fix: "ALTER TABLE outbox RENAME COLUMN body TO payload",
    },
    Fault {
        spoil: "ALTER PUBLICATION postrider SET (publish = 'update, delete')",
        exit: 78,
        code: "PR-P035",
        words: &["does not publish inserts", "SET (publish = 'insert');"],
        fix: "ALTER PUBLICATION postrider SET (publish = 'insert')",
    },
    Fault {
        spoil: "ALTER PUBLICATION postrider DROP TABLE outbox",
        exit: 78,
        code: "PR-P036",
        words: &["does not contain table public.outbox", "ADD TABLE \"public\".\"outbox\";"],
        fix: "ALTER PUBLICATION postrider ADD TABLE outbox",
    },
    Fault {
        spoil: "ALTER PUBLICATION postrider SET TABLE outbox WHERE (event_type <> 'secret')",
        exit: 78,
        code: "PR-P037",
        words: &["filters the rows of table public.outbox", "ADD TABLE \"public\".\"outbox\";"],
        fix: "ALTER PUBLICATION postrider SET TABLE outbox",
    },
    Fault {
        spoil: "ALTER PUBLICATION postrider SET TABLE outbox (id, aggregate_id, event_type)",
        exit: 78,
        code: "PR-P038",
        words: &["hides column", "payload", "ADD TABLE \"public\".\"outbox\";"],
        fix: "ALTER PUBLICATION postrider SET TABLE outbox",
    },
    Fault {
        spoil: "ALTER TABLE outbox RENAME event_type TO kind;
                ALTER TABLE outbox ADD event_type text GENERATED ALWAYS AS (kind || '') STORED",
        exit: 78,
        code: "PR-P038",
        words: &["hides column event_type", "a generated column is published from 18 on only"],
        fix: "ALTER TABLE outbox DROP event_type; ALTER TABLE outbox RENAME kind TO event_type",
    },
    Fault {
        spoil: "SELECT pg_drop_replication_slot(current_database());
                SELECT pg_create_logical_replication_slot(current_database(), 'test_decoding')",
        exit: 78,
        code: "PR-P040",
        words: &["its plugin is `test_decoding`", "set source.slot to another name"],
        fix: "SELECT pg_drop_replication_slot(current_database())",
    },
    Fault {
        spoil: "SELECT pg_drop_replication_slot(current_database());
                SELECT pg_create_physical_replication_slot(current_database())",
        exit: 78,
        code: "PR-P040",
        words: &["it is a physical slot", "set source.slot to another name"],
        fix: "SELECT pg_drop_replication_slot(current_database())",
    },
    Fault {
        spoil: "DROP PUBLICATION postrider",
        exit: 70,
        code: "PR-P010",
        words: &[
            "publication `postrider` does not exist, but slot `gate_",
            "is source.publication = `postrider` right? this database has no publications",
            "do not drop the slot",
            "if the publication was renamed: ALTER PUBLICATION .. RENAME TO its former name",
            "if it was dropped: CREATE PUBLICATION \"postrider\" FOR TABLE",
            "`postrider repair --execute --drop-slot`",
        ],
        // The row was written before: nothing is lost.
        fix: "CREATE PUBLICATION postrider FOR TABLE outbox \
              WITH (publish = 'insert', publish_via_partition_root = true)",
    },
    Fault {
        spoil: "ALTER PUBLICATION postrider DROP TABLE outbox; ALTER TABLE outbox SET UNLOGGED",
        exit: 78,
        code: "PR-P033",
        words: &["public.outbox is unlogged, which cannot be an outbox", "source.tables"],
        fix: "ALTER TABLE outbox SET LOGGED; ALTER PUBLICATION postrider ADD TABLE outbox",
    },
    Fault {
        spoil: "CREATE TABLE child () INHERITS (outbox)",
        exit: 78,
        code: "PR-P055",
        words: &["public.child is an inheritance child of table public.outbox", "source.tables"],
        fix: "DROP TABLE child",
    },
    Fault {
        spoil: "ALTER TABLE outbox RENAME TO plain;
                CREATE TABLE outbox (LIKE plain INCLUDING DEFAULTS) PARTITION BY HASH (aggregate_id);
                CREATE UNLOGGED TABLE part PARTITION OF outbox FOR VALUES WITH (MODULUS 1, REMAINDER 0);
                ALTER PUBLICATION postrider SET TABLE outbox",
        exit: 78,
        code: "PR-P055",
        words: &["public.part is an unlogged partition of table public.outbox", "SET LOGGED"],
        fix: "DROP TABLE outbox; ALTER TABLE plain RENAME TO outbox;
               ALTER PUBLICATION postrider SET TABLE outbox",
    },
];

#[test]
fn a_database_that_is_not_fit_is_refused_until_it_is_mended() {
    for cluster in postgres::versions() {
        for fault in &FAULTS {
            answer(&Outbox::ready(cluster, "gate"), fault);
        }
    }
}

fn answer(outbox: &Outbox, fault: &Fault) {
    outbox.write();
    outbox.run(fault.spoil);
    let refusal = refused(&outbox.relay(), &["run", "--once"], fault.exit);
    refusal.assert(fault.code, fault.words);
    outbox.run(fault.fix);
    if fault.fix.contains("pg_drop_replication_slot") {
        // A new slot begins anew; the row waits in the table for whoever re-sends it.
        outbox.forget_written();
        outbox.relay().creates_slot().allow_log("created slot").run_once();
    }
    outbox.write();
    outbox.assert_delivered_by(&outbox.relay());
}

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

#[test]
fn what_is_missing_and_may_not_be_created_is_refused() {
    let outbox = Outbox::without_slot(postgres::installed(), "never");
    let relay = outbox.relay();
    let words = ["is source.slot = `never_", "`postrider setup`", "setup --from-now"];
    refused(&relay, &["run"], 78).assert("PR-P039", &words);
    outbox.run("DROP PUBLICATION postrider");
    let words = ["publication `postrider` does not exist", "CREATE PUBLICATION \"postrider\""];
    refused(&relay, &["run"], 78).assert("PR-P010", &words);
    outbox.relay().creates_slot().run_once();
    outbox.write();
    outbox.assert_delivered_by(&relay);
}

/// A name that is mistyped is asked for before anything is advised, above all what loses rows.
#[test]
fn a_mistyped_name_is_asked_for_and_loses_nothing() {
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, "typo");
        // Of no table of ours, so that it is named last.
        outbox.run("CREATE PUBLICATION a_other");
        outbox.write();
        let relay = outbox.relay().set("source.publication", "nopub");
        let refusal = refused(&relay, &["run"], 70);
        let words =
            "is source.publication = `nopub` right? this database has `postrider`, `a_other`";
        refusal
            .assert("PR-P010", &[words, "set source.publication to the publication of the slot"]);
        for words in ["pg_drop_replication_slot", "--from-now"] {
            assert!(!refusal.text.contains(words), "{}", refusal.text);
        }
        let has = format!("this database has `{}`", outbox.database.name());
        let relay = outbox.relay().set("source.slot", "noslot");
        refused(&relay, &["run"], 78).assert("PR-P039", &["`noslot` right?", &has]);
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
fn a_server_that_does_not_decode_is_refused() {
    let mut cluster = postgres::start(&Options::default().with("wal_level", "replica"));
    let outbox = Outbox::without_slot(&cluster, "level");
    let words = ["wal_level is `replica`", "ALTER SYSTEM SET wal_level = 'logical'", "restart"];
    refused(&outbox.relay(), &["run"], 78).assert("PR-P030", &words);
    outbox.run("ALTER SYSTEM SET wal_level = 'logical'");
    cluster.restart(Stop::Fast).unwrap();
    outbox.create_slot();
    outbox.write();
    outbox.assert_delivered_by(&outbox.relay());
}

#[test]
fn a_role_that_may_not_replicate_is_refused() {
    let outbox = Outbox::ready(postgres::installed(), "role");
    let role = unique("role");
    let source = outbox.database.create_role(&role, "");
    outbox.write();
    let relay = outbox.relay().set("source.url", &source.url());
    let words = [&format!("role `{role}` may not replicate"), "ALTER ROLE \"role_", "REPLICATION;"];
    refused(&relay, &["run"], 77).assert("PR-P031", &words.map(AsRef::as_ref));
    outbox.run(&format!("ALTER ROLE {role} REPLICATION"));
    outbox.assert_delivered_by(&relay);
}

#[test]
fn a_role_that_may_not_create_is_told_the_statement() {
    let outbox = Outbox::without_slot(postgres::installed(), "create");
    let role = unique("role");
    outbox.run("DROP PUBLICATION postrider");
    let source = outbox.database.create_role(&role, "REPLICATION");
    let relay = outbox.relay().set("source.url", &source.url()).creates_slot();
    let words = [
        "GRANT CREATE ON DATABASE",
        "may not create publication `postrider`",
        "as a superuser",
        "CREATE PUBLICATION",
    ];
    refused(&relay, &["run"], 77).assert("PR-P044", &words);
}

#[test]
fn a_lost_slot_is_refused_and_the_relay_does_not_make_a_new_one() {
    for version in postgres::versions() {
        let options = match version.version() {
            18.. => postgres::eighteen_options().unwrap(),
            _ => Options::default(),
        };
        let options = options
            .with("max_slot_wal_keep_size", "1MB")
            .with("max_wal_size", "32MB")
            .with("min_wal_size", "32MB");
        let cluster = postgres::start(&options);
        let outbox = Outbox::ready(&cluster, "lost");
        outbox.write();
        for _ in 0..8 {
            outbox.run("CREATE TABLE t (); DROP TABLE t; SELECT pg_switch_wal(); CHECKPOINT");
        }
        let words =
            ["is lost", "pg_drop_replication_slot('lost_", "re-send", "still in the outbox"];
        refused(&outbox.relay(), &["run"], 70).assert("PR-P041", &words);
        outbox.run("SELECT pg_drop_replication_slot(current_database())");
        outbox.forget_written();
        // Only the operator knows that the slot is not the first one.
        let relay = outbox.relay().creates_slot();
        relay.expect_log("created slot").run_once();
        outbox.write();
        outbox.assert_delivered_by(&outbox.relay());
    }
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
