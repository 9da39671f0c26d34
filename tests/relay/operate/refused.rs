//! Configurations that a running relay refuses, as a start would, and goes on by the one before.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use super::reload::{reloads, routes, run};
use super::{Desk, ctl, with_file};
use crate::poll::{self, Scene};
use crate::stage::Stage;
use support::broker::Broker;
use support::relay_http::RelayHttp;
use support::{postgres, topic, wait_for};

const REFUSED: &str = "the configuration is refused, and the one before stays";

/// A test that was started by nohup(1) ignores SIGHUP, as does what it starts, and the relay lets it be.
const HEED_SIGHUP: &str = "exec env --default-signal=HUP \"$0\" \"$@\"";

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

/// In the place of the file come a pipe that nobody writes to, a file that is far too large, and none. Orders and signals
/// are answered all the while, memory is what it was, and the file is found again.
#[test]
fn g3_whatever_comes_in_the_place_of_the_file_the_relay_goes_on() {
    const LARGE: u64 = 2 << 30;
    let broker = Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "reload_file");
    for name in ["A", "B"] {
        topic::create(&broker.bootstrap(), &stage.topic(name), 1, &[]);
    }
    let desk = Desk::new();
    desk.write(&routes(&stage, "A"));
    let relay = desk.controlled(stage.relay().unset("route.topic")).expect_log(REFUSED);
    let relay = relay.after(HEED_SIGHUP);
    let (mut running, face) = run(&relay, &desk);
    let refused = |desk: &Desk, why: &str| {
        let (exit, report) = ctl(&relay, &["reload"]);
        let error = &report["errors"][0];
        assert_eq!((exit, &error["code"]), (1, &"PR-C001".into()), "{report}");
        assert!(error["what"].as_str().unwrap().contains(why), "{why}: {report}");
        assert_eq!(ctl(&relay, &["log-level"]).0, 0, "{why}");
        assert!(desk.path("control").exists());
    };

    let pipe = desk.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::rename(&pipe, desk.file()).unwrap();
    refused(&desk, "not a file that can be read again");

    let large = desk.path("large");
    fs::File::create(&large).unwrap().set_len(LARGE).unwrap();
    fs::rename(&large, desk.file()).unwrap();
    // It is found without a request, too.
    let before = reloads(&face, "refused");
    wait_for("the large file to be refused", || (reloads(&face, "refused") > before).then_some(()));
    refused(&desk, "more than 1 MiB");
    let resident = face.count("process_resident_memory_bytes").unwrap();
    assert!(resident < LARGE / 4, "{resident}");

    fs::remove_file(desk.file()).unwrap();
    let before = reloads(&face, "refused");
    running.signal(Signal::HUP);
    wait_for("the refusal", || (reloads(&face, "refused") > before).then_some(()));
    refused(&desk, "No such file");
    stage.insert("A", 2);
    stage.wait_for_records(2);

    desk.write(&routes(&stage, "B"));
    running.wait_for_log("the routes of the reloaded configuration are in effect");
    stage.insert("A", 2);
    wait_for("a record by the new route", || {
        let to_b = stage.records().iter().filter(|it| it.topic == stage.topic("B")).count();
        (to_b == 2).then_some(())
    });
    running.stop();
}

/// A file that was found where files are looked for, and is there no longer, is no configuration without one: rows would
/// take other ways.
#[test]
fn g4_a_file_that_is_gone_leaves_the_routes_as_they_are() {
    let broker = Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "reload_gone");
    topic::create(&broker.bootstrap(), &stage.topic("A"), 1, &[]);
    let desk = Desk::new();
    desk.write(&routes(&stage, "A"));
    let folder = desk.path("");
    let shell = format!("cd {}; {HEED_SIGHUP}", folder.display());
    let relay = stage.relay().unset("route.topic").after(&shell);
    let mut running = relay.expect_log(REFUSED).start(&["run"]);
    running.wait_for_log("streaming");
    fs::rename(desk.file(), desk.path("away")).unwrap();
    running.signal(Signal::HUP);
    let line = running.wait_for_log(REFUSED);
    assert!(line.contains("postrider.toml"), "{line}");
    stage.insert("A", 2);
    stage.wait_for_records(2);
    assert!(stage.records().iter().all(|record| record.topic == stage.topic("A")));
    running.stop();
}

/// What is typed into the wrong field may be a secret: the answer to a reload masks what the log masks.
#[test]
fn what_a_reload_refuses_is_answered_without_secrets() {
    const SECRET: &str = "Pl4nted.S3cret";
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "reload_secret");
    let desk = Desk::new();
    desk.write(&routes(&stage, "A"));
    let relay = desk.controlled(stage.relay().unset("route.topic")).expect_log(REFUSED);
    let (running, _face) = run(&relay, &desk);
    for typed in [format!("postgres://app:{SECRET}@db.invalid/shop"), format!("password={SECRET}")]
    {
        for section in ["[route]\nkey", "[outbox]\nid", "[route]\nby"] {
            desk.write(&format!("{section} = \"{typed}\"\n"));
            let (exit, report) = ctl(&relay, &["reload"]);
            assert_eq!(exit, 1, "{report}");
            assert!(!report.to_string().contains(SECRET), "{report}");
        }
    }
    running.signal(Signal::TERM);
    let outcome = running.outcome();
    let line = outcome.log.iter().find(|line| line.contains(SECRET));
    assert!(line.is_none(), "{line:?}");
}
