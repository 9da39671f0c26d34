//! Publication, tables and slot in all ways in which they are wrong.

use super::Report;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;

/// One thing that is wrong.
struct Case {
    id: &'static str,
    status: &'static str,
    /// SQL that breaks it; `SLOT` is the slot's name.
    breaks: &'static str,
    /// SQL that is part of the fix as it is printed.
    fix: &'static str,
    /// SQL that is run instead, where the fix is a command, a setting, or a choice that only a person makes.
    besides: &'static str,
}

const CASES: [Case; 13] = [
    Case {
        id: "publication.inserts",
        status: "fail",
        breaks: "ALTER PUBLICATION postrider SET (publish = 'update')",
        fix: "ALTER PUBLICATION \"postrider\" SET (publish = 'insert');",
        besides: "",
    },
    Case {
        id: "publication.only_inserts",
        status: "warn",
        breaks: "ALTER PUBLICATION postrider SET (publish = 'insert, delete')",
        fix: "ALTER PUBLICATION \"postrider\" SET (publish = 'insert');",
        besides: "",
    },
    Case {
        id: "publication.tables",
        status: "fail",
        breaks: "ALTER PUBLICATION postrider DROP TABLE outbox",
        fix: "ALTER PUBLICATION \"postrider\" ADD TABLE \"public\".\"outbox\";",
        besides: "",
    },
    Case {
        id: "publication.rows",
        status: "fail",
        breaks: "ALTER PUBLICATION postrider SET TABLE outbox WHERE (event_type <> 'x')",
        fix: "BEGIN; ALTER PUBLICATION \"postrider\" DROP TABLE \"public\".\"outbox\"; ALTER PUBLICATION",
        besides: "",
    },
    Case {
        id: "publication.columns",
        status: "fail",
        breaks: "ALTER PUBLICATION postrider SET TABLE outbox (id, payload)",
        fix: "BEGIN; ALTER PUBLICATION \"postrider\" DROP TABLE \"public\".\"outbox\"; ALTER PUBLICATION",
        besides: "",
    },
    Case {
        id: "publication.no_other_tables",
        status: "warn",
        breaks: "CREATE TABLE other (id int); ALTER PUBLICATION postrider ADD TABLE other",
        fix: "source.tables",
        besides: "ALTER PUBLICATION postrider DROP TABLE other",
    },
    Case {
        id: "table.exists",
        status: "fail",
        breaks: "ALTER TABLE outbox RENAME TO events",
        fix: "source.tables",
        besides: "ALTER TABLE events RENAME TO outbox",
    },
    Case {
        id: "table.columns",
        status: "fail",
        breaks: "ALTER TABLE outbox RENAME COLUMN event_type TO kind",
        fix: "[outbox]",
        besides: "ALTER TABLE outbox RENAME COLUMN kind TO event_type",
    },
    Case {
        id: "table.kind",
        status: "fail",
        breaks: "CREATE TABLE child () INHERITS (outbox)",
        fix: "publish it and name it in source.tables",
        besides: "ALTER TABLE child NO INHERIT outbox",
    },
    Case {
        id: "slot.exists",
        status: "fail",
        breaks: "SELECT pg_drop_replication_slot('SLOT')",
        fix: "postrider setup",
        besides: "SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')",
    },
    Case {
        id: "slot.kind",
        status: "fail",
        breaks: "SELECT pg_drop_replication_slot('SLOT'); \
                 SELECT pg_create_logical_replication_slot('SLOT', 'test_decoding')",
        fix: "set source.slot to another name",
        besides: "SELECT pg_drop_replication_slot('SLOT'); \
                  SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')",
    },
    Case {
        id: "slot.two_phase",
        status: "fail",
        breaks: "SELECT pg_drop_replication_slot('SLOT'); \
                 SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput', false, true)",
        fix: "SELECT pg_drop_replication_slot('SLOT') FROM pg_copy_logical_replication_slot(",
        besides: "",
    },
    Case {
        id: "publication.exists",
        status: "fail",
        breaks: "DROP PUBLICATION postrider",
        fix: "`postrider setup --from-now`",
        besides: "SELECT pg_drop_replication_slot('SLOT'); \
                  CREATE PUBLICATION postrider FOR TABLE outbox WITH (publish = 'insert'); \
                  SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')",
    },
];

/// The SQL of a fix, from these words on: a statement, a transaction to its end, or all that follows.
fn statements<'a>(fix: &'a str, begin: &str) -> &'a str {
    let from = &fix[fix.find(begin).unwrap()..];
    let end = match begin {
        _ if begin.starts_with("BEGIN;") => "COMMIT;",
        _ if begin.starts_with("SELECT") => return from,
        _ => ";",
    };
    from.split_once(end).map_or(from, |(sql, _)| &from[..sql.len() + end.len()])
}

#[test]
fn each_broken_source_has_its_finding_and_its_fix() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "doctor");
    let sound = Report::of(&stage.relay());
    // No relay runs, which matters once something waits for it.
    let is_steady = |id: &&str| !["relay.ready", "slot.reader"].contains(id);
    let steady = |report: &Report| -> Vec<String> {
        report.wrong().into_iter().filter(is_steady).map(str::to_owned).collect()
    };
    let wrong_before = steady(&sound);
    for case in &CASES {
        let sql = |text: &str| {
            let session = stage.sql();
            for statement in text.split("; ").filter(|statement| !statement.is_empty()) {
                session.run(&statement.replace("SLOT", stage.slot()));
            }
        };
        assert_eq!(sound.status(case.id), "pass", "{}", case.id);
        sql(case.breaks);
        let told = Report::of(&stage.relay());
        let fix = case.fix.replace("SLOT", stage.slot());
        told.demands(case.id, case.status, &fix);
        if case.besides.is_empty() {
            sql(statements(told.fix(case.id), &fix));
        } else {
            sql(case.besides);
        }
        let now = Report::of(&stage.relay());
        assert_eq!(now.status(case.id), "pass", "{}", case.id);
        assert_eq!(steady(&now), wrong_before, "{}", case.id);
    }
}

#[test]
fn a_table_that_takes_rows_of_any_size_is_told_with_its_constraint() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "doctor_size");
    stage.sql().run("ALTER TABLE outbox ADD COLUMN note text");
    let report = Report::of(&stage.relay());
    report.demands("table.row_size", "warn", "CHECK");
    stage.sql().run(report.fix("table.row_size"));
    assert_eq!(Report::of(&stage.relay()).status("table.row_size"), "pass");
}

#[test]
fn rows_that_would_be_dead_letters_are_told_before_they_are() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "doctor_rows");
    assert_eq!(Report::of(&stage.relay()).status("rows.deliverable"), "unknown", "no row");
    stage.insert("A", 3);
    assert_eq!(Report::of(&stage.relay()).status("rows.deliverable"), "pass");
    stage.insert("not a topic", 2);
    let report = Report::of(&stage.relay());
    report.demands("rows.deliverable", "warn", "postrider route --from-database");
    let finding = report.find("rows.deliverable")["finding"].as_str().unwrap().to_owned();
    assert!(finding.starts_with("2 of the newest 5 rows"), "{finding}");
}

#[test]
fn nothing_is_written_and_a_relay_runs_on() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "doctor_beside");
    let mut running = stage.relay().run();
    running.wait_for_log("streaming");
    stage.insert("A", 10);
    stage.wait_acknowledged(stage.log_end());
    let before = (stage.acknowledged(), stage.slot_value("active_pid"));
    let report = Report::of(&stage.relay());
    assert_eq!(
        (report.status("slot.reader"), report.exit),
        ("pass", Some(0)),
        "{:?}",
        report.wrong()
    );
    assert_eq!(stage.slot_value("active_pid"), before.1);
    assert!(stage.acknowledged() >= before.0);
    assert_eq!(stage.records().len(), 10);
    running.stop();
}
