//! Streams that are not alike: of several servers, and of tables that are polled.

use postrider::sandbox::postgres::Options;

use super::{ctl, drop_slot, file_of, relay, stages, start};
use crate::operate::Desk;
use crate::poll::Scene;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::relay_http::RelayHttp;
use support::wait::wait_until;

const FAILED: &str = "this stream has failed";

/// The name of a slot is of its server.
#[test]
fn slots_of_one_name_on_two_servers_are_two_streams() {
    let broker = Broker::best();
    let other = postgres::start(&Options::default());
    let one = Stage::new(postgres::installed(), &broker.bootstrap(), "twin");
    let two = Stage::named(&other, &broker.bootstrap(), one.slot());
    two.create_slot();
    let streams = [("one", one), ("two", two)];
    let [(_, one), (_, two)] = &streams;
    let desk = Desk::new();
    desk.write(&file_of("", &streams));
    let mut running = start(&relay(&streams).allow_log(""), &desk.file(), &["run"]);
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    let sent = |topic: &str| {
        let topic = one.topic(topic);
        one.records().into_iter().filter(|record| record.topic == topic).count()
    };
    one.insert("A", 3);
    two.insert("B", 4);
    wait_until("rows of both", || (sent("A"), sent("B")) == (3, 4));
    let slot = one.slot();
    let active = |stream: &str| {
        let labels = format!("stream=\"{stream}\",slot_name=\"{slot}\"");
        face.count(&format!("postrider_slot_active{{{labels}}}"))
    };
    // Slots are looked at every few seconds.
    wait_until("both slots to be seen", || (active("one"), active("two")) == (Some(1), Some(1)));
    drop_slot(two);
    running.wait_for_log(FAILED);
    wait_until("the end of the one", || (active("one"), active("two")) == (Some(1), Some(0)));
    one.insert("A", 3);
    wait_until("rows of the one", || (sent("A"), sent("B")) == (6, 4));
    running.kill();
}

#[test]
fn a_table_is_polled_beside_a_stream_and_fails_alone() {
    let broker = Broker::best();
    let streams = stages(postgres::installed(), &broker.bootstrap(), &["logged"]);
    let [(_, logged)] = &streams[..] else { panic!("one") };
    let scene = Scene::new(&broker.bootstrap(), "polled", &[]);
    let polled = &scene.stage;
    let topic = format!("{}${{routedByValue}}", polled.topic(""));
    let desk = Desk::new();
    desk.write(&format!(
        "{}[[stream]]\nname = \"polled\"\nsource.mode = \"poll\"\nsource.url = \"{}\"\nroute.topic = \"{topic}\"\n\
         dead_letters.topic = \"{}\"\n",
        file_of("", &streams),
        polled.database.address().url(),
        polled.topic("dead-letters")
    ));
    let relay = desk.controlled(relay(&streams).allow_log(""));
    let mut running = start(&relay, &desk.file(), &["run"]);
    let face = RelayHttp::of(&mut running);
    let line: serde_json::Value =
        serde_json::from_str(&running.wait_for_log("\"polling\"")).unwrap();
    assert_eq!(line["stream"], "polled", "{line}");
    face.wait_ready(200);
    logged.insert("A", 3);
    polled.insert("A", 4);
    logged.wait_for_records(3);
    polled.wait_for_records(4);
    polled.sql().run("ALTER TABLE outbox RENAME COLUMN payload TO content");
    running.wait_for_log(FAILED);
    assert_eq!((face.get("/livez").0, face.probe("/readyz?stream=polled").0), (200, 503));
    logged.insert("A", 3);
    logged.wait_for_records(6);
    polled.sql().run("ALTER TABLE outbox RENAME COLUMN content TO payload");
    polled.insert("A", 4);
    assert_eq!(ctl(&relay, &desk.file(), &["resume", "--only", "polled"]).0, 0);
    polled.wait_for_records(8);
    face.wait_ready(200);
    running.stop();
}
