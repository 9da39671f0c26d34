//! `shop sagas`: an operator lists orders that are stuck, shows one, and moves it, as planned.

use serde_json::{Value, json};

use crate::services::dead_letters::produce;
use crate::services::stage::Stage;
use support::unique;
use support::wait::wait_until;

const OPEN: &str = "00000000-0000-0000-0000-000000000001";
const LATE: &str = "00000000-0000-0000-0000-000000000002";
const ENDED: &str = "00000000-0000-0000-0000-000000000003";

/// An order that is paid, one that is late besides, and one that was confirmed.
const ORDERS: &str = "
    INSERT INTO orders (id, customer, amount_cents, status, sku, quantity)
        SELECT ('00000000-0000-0000-0000-00000000000' || n)::uuid, 'ada', 100,
            CASE n WHEN 3 THEN 'CONFIRMED' ELSE 'PAID' END, 'tea', 1 FROM generate_series(1, 3) AS n;
    INSERT INTO sagas (kind, id, state, status, deadline, put_off, ended_at)
        SELECT 'order', id, jsonb_build_object('payment', 'charged', 'given_up', false,
                'stock', CASE status WHEN 'CONFIRMED' THEN 'reserved' ELSE 'awaited' END), status,
            CASE status WHEN 'PAID' THEN now() + interval '1 hour' END,
            CASE WHEN id::text LIKE '%2' THEN 1 ELSE 0 END,
            CASE status WHEN 'CONFIRMED' THEN now() END FROM orders;
    INSERT INTO saga_history (kind, id, number, event, status)
        SELECT kind, id, 1, 'OrderCreated', 'PENDING' FROM sagas";

/// Runs `shop sagas`; its exit code, and the lines that it printed.
fn sagas(stage: &Stage, args: &[&str]) -> (i32, Vec<Value>) {
    let (code, out, _) = stage.command(&[&["sagas"], args].concat());
    (code, out.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn an_operator_finds_and_moves_an_order_that_is_stuck() {
    let stage = Stage::set();
    stage.run(ORDERS);
    let ids = |args: &[&str]| {
        let (code, lines) = sagas(&stage, args);
        assert_eq!(code, 0);
        lines.iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&["list"]), [LATE]);
    assert_eq!(ids(&["list", "--all"]), [OPEN, LATE]);
    assert_eq!(ids(&["list", "--all", "--limit", "1"]), [OPEN]);

    let events = "SELECT count(*) FROM outbox WHERE event_type = 'OrderTimedOut'";
    let effect = |from: &str, changed: bool, emitted: &[&str]| {
        json!({
            "id": LATE, "from": from, "to": "CANCELLING", "changed": changed, "ended": false,
            "emitted": emitted,
        })
    };
    let planned = sagas(&stage, &["compensate", LATE]);
    let expected = effect("PAID", true, &["OrderTimedOut"]);
    assert_eq!(planned, (0, vec![json!({ "planned": expected })]));
    assert_eq!((stage.count(events), ids(&["list", "--all"]).len()), (0, 2), "nothing happened");
    let done = sagas(&stage, &["compensate", LATE, "--execute"]);
    assert_eq!(done, (0, vec![json!({ "done": expected })]));
    assert_eq!(stage.count(events), 1);
    // Cancelled once; what was lost of it is asked for again by `advance`.
    let again = sagas(&stage, &["compensate", LATE, "--execute"]);
    assert_eq!(again, (0, vec![json!({ "done": effect("CANCELLING", false, &[]) })]));
    let advanced = sagas(&stage, &["advance", LATE, "--execute"]);
    let expected = effect("CANCELLING", false, &["OrderTimedOut"]);
    assert_eq!(advanced, (0, vec![json!({ "done": expected })]));
    assert_eq!(stage.count(events), 2);
    let status =
        format!("SELECT count(*) FROM orders WHERE id = '{LATE}' AND status = 'CANCELLING'");
    assert_eq!(stage.count(&status), 1, "the order says so too");

    let ended = json!({
        "id": ENDED, "from": "CONFIRMED", "to": "CONFIRMED", "changed": false, "ended": true,
        "emitted": [],
    });
    for action in ["advance", "compensate"] {
        let done = sagas(&stage, &[action, ENDED, "--execute"]);
        assert_eq!(done, (0, vec![json!({ "done": ended })]));
    }
}

#[test]
fn a_saga_is_shown_with_the_messages_that_moved_it() {
    let stage = Stage::set();
    stage.run(ORDERS);
    let service = stage.orders();
    produce(&stage.bootstrap(), "PaymentFailed", OPEN);
    let ended = "SELECT count(*) FROM sagas WHERE status = 'CANCELLED'";
    wait_until("the end", || stage.count(ended) == 1);
    service.stop();
    let (code, lines) = sagas(&stage, &["show", OPEN]);
    let saga = &lines[0];
    assert_eq!((code, &saga["status"], &saga["timers"]), (0, &json!("CANCELLED"), &json!([])));
    assert_eq!(saga["state"], Value::Null, "what is stored is not printed");
    let history = saga["history"].as_array().unwrap();
    let events: Vec<_> = history.iter().map(|entry| entry["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["OrderCreated", "PaymentFailed"]);
    assert_eq!(history[0]["cause"], Value::Null);
    let cause = history[1]["cause"].as_str().unwrap();
    let marked = format!("SELECT count(*) FROM processed_messages WHERE message_id = '{cause}'");
    assert_eq!(stage.count(&marked), 1);
}

#[test]
fn sagas_end_with_the_exit_codes_of_the_other_commands() {
    let stage = Stage::set();
    let (code, out, stderr) = stage.command(&["sagas", "show", OPEN]);
    assert_eq!((code, out.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("there is no saga `order`") && stderr.contains("help: "), "{stderr}");
    assert_eq!(stage.command(&["sagas", "advance", OPEN, "--execute"]).0, 1);
    assert_eq!(stage.command(&["sagas", "advance", "x"]).0, 2);
    let nowhere = ["--database-url", "postgres://nobody@127.0.0.1:1/none?sslmode=disable"];
    assert_eq!(stage.command(&[&["sagas", "list"], &nowhere[..]].concat()).0, 69);
    stage.run("ALTER TABLE saga_history RENAME COLUMN cause TO elsewhere");
    stage.run(ORDERS);
    let (code, _, stderr) = stage.command(&["sagas", "compensate", OPEN, "--execute"]);
    assert_eq!(code, 78, "{stderr}");
    assert!(stderr.contains("migrations/0003_application.sql"), "{stderr}");
    let (database, role) = (stage.database.name(), unique("stranger"));
    stage.run(&format!("CREATE ROLE {role}; ALTER DATABASE {database} SET role = '{role}'"));
    assert_eq!(stage.command(&["sagas", "list"]).0, 77);
}
