//! Configurations that a running relay refuses, as a start would, and goes on by the one before.

use super::reload::{reloads, routes, run};
use super::{Desk, ctl, with_file};
use crate::poll::{self, Scene};
use crate::stage::Stage;
use support::broker::Broker;
use support::relay_http::RelayHttp;
use support::{postgres, topic};

const REFUSED: &str = "the configuration is refused, and the one before stays";

/// What the statement that takes rows needs of their table: columns that are there, an order, and a time.
#[test]
fn g4_what_a_relay_that_polls_could_not_begin_with_ends_it_neither() {
    let broker = Broker::best();
    let scene = Scene::new(&broker.bootstrap(), "reload_poll", &[]);
    let stage = &scene.stage;
    stage.sql().run("ALTER TABLE outbox ADD spot point");
    let desk = Desk::new();
    desk.write("");
    let relay = desk.controlled(scene.relay.clone()).expect_log(REFUSED);
    let mut running = relay.start(&with_file(&desk.file()));
    let face = RelayHttp::of(&mut running);
    running.wait_for_log("polling");
    for (text, code) in [
        ("[outbox]\norder_by = [\"nothing\"]\n", "PR-P114"),
        ("[outbox]\norder_by = [\"spot\"]\n", "PR-P112"),
        ("[outbox]\nid = \"spot\"\n", "PR-P112"),
        (
            "[outbox]\ncreated_at = \"spot\"\n[format]\nvalue = \"cloudevents_binary\"\n\
             cloudevents_source = \"x\"\n",
            "PR-P116",
        ),
    ] {
        desk.write(text);
        let (exit, report) = ctl(&relay, &["reload"]);
        assert_eq!((exit, &report["outcome"]), (1, &"refused".into()), "{text}: {report}");
        assert_eq!(report["errors"][0]["code"], code, "{text}: {report}");
    }
    poll::insert(stage, 0..20);
    stage.wait_for_records(20);
    desk.write("[outbox]\norder_by = [\"created_at\"]\n");
    let (exit, report) = ctl(&relay, &["reload"]);
    assert_eq!((exit, &report["outcome"]), (0, &"applied".into()), "{report}");
    running.wait_for_log("the routes of the reloaded configuration are in effect");
    poll::insert(stage, 20..40);
    stage.wait_for_records(40);
    assert!(reloads(&face, "refused") >= 4);
    running.stop();
}

/// A column that the publication leaves out comes with no row.
#[test]
fn g4_a_column_that_the_publication_hides_is_refused_as_at_a_start() {
    let broker = Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "reload_hidden");
    topic::create(&broker.bootstrap(), &stage.topic("A"), 1, &[]);
    let desk = Desk::new();
    desk.write(&routes(&stage, "A"));
    let relay = desk.controlled(stage.relay().unset("route.topic")).expect_log(REFUSED);
    stage.sql().run("ALTER TABLE outbox ADD extra bigint GENERATED ALWAYS AS (1) STORED");
    let (running, _face) = run(&relay, &desk);
    desk.write(&routes(&stage, "A").replace("[route]", "[route]\nheaders = [\"extra\"]"));
    let (exit, report) = ctl(&relay, &["reload"]);
    assert_eq!((exit, &report["errors"][0]["code"]), (1, &"PR-P038".into()), "{report}");
    stage.insert("A", 3);
    stage.wait_for_records(3);
    running.stop();
}
