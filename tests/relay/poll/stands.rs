//! `doctor`, `status` and `trace` where rows are polled: no slot is missed, and rows are found.

use serde_json::Value;

use super::{Scene, insert};
use support::kafka;
use support::relay::Outcome;

fn ask(scene: &Scene, arguments: &[&str]) -> (Value, Option<i32>) {
    let arguments = [arguments, &["--output", "json"]].concat();
    let Outcome { status, stdout, log } = scene.relay.start(&arguments).outcome();
    let value = serde_json::from_str(&stdout);
    (value.unwrap_or_else(|_| panic!("{stdout}{}", log.join("\n"))), status.code())
}

#[test]
fn a_source_without_a_slot_is_sound_and_its_rows_are_found() {
    let Some(kafka) = kafka::shared() else { return };
    let scene = Scene::new(&kafka.bootstrap(), "poll_stands", &[]);
    insert(&scene.stage, 0..1);
    let id = scene.stage.sql().value("SELECT id FROM outbox");
    let trace = || ask(&scene, &["trace", &id]);
    let (pending, exit) = trace();
    assert_eq!((&pending["state"], exit), (&"pending".into(), Some(0)), "{pending}");
    scene.relay.run_once();
    let (delivered, exit) = trace();
    assert_eq!((&delivered["state"], exit), (&"delivered".into(), Some(0)), "{delivered}");
    let shown = scene.relay.start(&["trace", &id]).outcome().stdout;
    assert!(!shown.contains("slot"), "{shown}");
    let (status, exit) = ask(&scene, &["status"]);
    assert_eq!((status["ok"].as_bool(), exit), (Some(true), Some(0)), "{status}");
    assert!(status["slot"].is_null(), "{status}");
    let (report, exit) = ask(&scene, &["doctor"]);
    let failed: Vec<_> =
        report["checks"].as_array().unwrap().iter().filter(|it| it["status"] == "fail").collect();
    assert!(failed.is_empty() && exit == Some(0), "{failed:?}");
}
