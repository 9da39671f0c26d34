//! The example of docs/operations/prune.md, as it stands there.

use std::path::Path;
use std::process::Command;

use postrider::sandbox::postgres::Options;

use super::beginning::Case;
use super::scene::Scene;
use support::wait::wait_until;
use support::{kafka, root};

const PAGE: &str = "docs/operations/prune.md";
const SECTION: &str = "\n## Delete old rows\n";

/// The first block of the section in this language.
fn block(language: &str) -> String {
    let text = std::fs::read_to_string(root().join(PAGE)).unwrap();
    let (_, section) = text.split_once(SECTION).unwrap();
    // Every other piece lies between two fences, and begins with its language.
    let blocks = section.split("\n```").skip(1).step_by(2);
    let mut blocks = blocks.map(|block| block.split_once('\n').unwrap());
    blocks.find(|(of, _)| *of == language).unwrap().1.to_owned()
}

/// The lines, but for the time, which differs.
fn steady(text: &str) -> Vec<String> {
    let line = |line: &str| match line.split_once("rows from before ") {
        Some((before, _)) => before.to_owned(),
        None => line.to_owned(),
    };
    text.lines().map(line).collect()
}

#[test]
fn the_example_of_the_page_deletes_what_it_says() {
    let Some(kafka) = kafka::shared() else { return };
    let scene = Scene::without_slot(&Options::default(), &kafka.bootstrap());
    // The page's slot has the default name.
    let relay = scene.relay().set("kafka.delivery", "exactly_once").set("source.slot", "postrider");
    let topic = format!("progress.{}", scene.stage.slot());
    let case = Case { scene, relay: relay.set("progress.topic", &topic).unprepared() };
    case.make_slot(&[]);
    let next = || {
        let sql = case.scene.sql();
        sql.value("SELECT txid_snapshot_xmax(txid_current_snapshot())")
    };
    case.scene.insert("sent", 900, "8 days");
    let before = next();
    let running = case.relay.run();
    let sql = case.scene.sql();
    wait_until("the slot to pass", || {
        sql.run("CHECKPOINT");
        sql.value(&format!(
            "SELECT catalog_xmin::text::bigint >= {before} FROM pg_replication_slots \
             WHERE slot_name = 'postrider'"
        )) == "t"
    });
    running.stop();
    case.scene.insert("waiting", 100, "8 days");
    let own = Path::new(env!("CARGO_BIN_EXE_postrider")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let path = std::iter::once(own.to_path_buf()).chain(std::env::split_paths(&path));
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("bash")
        .args(["-e", "-c", &block("sh")])
        .env_clear()
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("HOME", folder.path())
        .env("POSTRIDER_SOURCE__URL", case.scene.stage.database.address().url())
        .env("POSTRIDER_KAFKA__BROKERS", kafka.bootstrap())
        .env("POSTRIDER_KAFKA__DELIVERY", "exactly_once")
        .env("POSTRIDER_PROGRESS__TOPIC", &topic)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{log}");
    let shown = steady(&block("text"));
    let printed = steady(&printed);
    assert_eq!(printed[..shown.len()], shown[..], "{log}");
    assert_eq!(printed[shown.len() + 1], "  rows deleted: 900", "{printed:?}");
    assert_eq!((case.scene.count("sent"), case.scene.count("waiting")), (0, 100));
}
