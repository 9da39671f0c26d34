//! A configuration that is read again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::process::Signal;

use super::{Desk, ctl, with_file};
use crate::poll::{self, Scene};
use crate::stage::Stage;
use crate::trial::{DELIVERIES, Trial};
use support::relay::{Relay, Running};
use support::relay_http::RelayHttp;
use support::wait::let_pass;
use support::{kafka, postgres, topic, wait_for};

const RELOADS: &str = "postrider_config_reloads_total";

/// All that is routed as it is named, but for rows of `A`, which go where `to` says.
pub(super) fn routes(stage: &Stage, to: &str) -> String {
    let (prefix, to) = (stage.topic(""), stage.topic(to));
    format!(
        "[route]\ntopic = \"{prefix}${{routedByValue}}\"\nrules = [{{ glob = \"A\", topic = \"{to}\" }}]\n"
    )
}

pub(super) fn run(relay: &Relay, desk: &Desk) -> (Running, RelayHttp) {
    let mut running = relay.start(&with_file(&desk.file()));
    let face = RelayHttp::of(&mut running);
    running.wait_for_log("streaming");
    (running, face)
}

pub(super) fn reloads(face: &RelayHttp, outcome: &str) -> u64 {
    face.count(&format!("{RELOADS}{{outcome=\"{outcome}\"}}")).unwrap()
}

/// Records of rows, by topic.
fn counts(stage: &Stage) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for record in stage.records() {
        let name = record.topic.trim_start_matches(&stage.topic("")).to_owned();
        *counts.entry(name).or_default() += 1;
    }
    counts
}

/// While transactions of many rows flow, routes change to and fro: each transaction goes by one of them, none is lost,
/// and with exactly once nothing is repeated.
#[test]
fn g1_g2_g6_routes_change_between_two_transactions() {
    const ROUNDS: usize = 6;
    const ROWS: usize = 400;
    for delivery in DELIVERIES {
        let trial = Trial::new(postgres::installed(), "reload", delivery);
        let stage = &trial.stage;
        trial.create_topics(&["B"]);
        let desk = Desk::new();
        desk.write(&routes(stage, "A"));
        let (mut running, face) = run(&trial.relay().unset("route.topic"), &desk);
        let mut committed = 0;
        for round in 1..=ROUNDS {
            for _ in 0..5 {
                stage.insert("A", ROWS);
                committed += ROWS;
            }
            desk.write(&routes(stage, if round % 2 == 0 { "A" } else { "B" }));
            running.signal(Signal::HUP);
            stage.insert("A", ROWS);
            committed += ROWS;
            running.wait_for_log("the routes of the reloaded configuration are in effect");
            // A session that is to end at once reads nothing, and all rows would go by the last routes.
            stage.wait_for_records(committed);
        }
        stage.wait_acknowledged(stage.log_end());
        assert_eq!(reloads(&face, "applied"), u64::try_from(ROUNDS).unwrap());
        running.stop();
        trial.assert_kept();

        let mut ways: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let records = stage.records();
        assert!(delivery != "exactly_once" || records.len() == committed, "{}", records.len());
        for record in records {
            let position = record.header("postrider-lsn").unwrap().to_owned();
            let (commit, _) = position.split_once('.').unwrap();
            ways.entry(commit.to_owned()).or_default().insert(record.topic);
        }
        assert_eq!(ways.len(), ROUNDS * 6, "{delivery}");
        assert!(ways.values().all(|topics| topics.len() == 1), "{delivery}: {ways:?}");
        assert_eq!(ways.values().flatten().collect::<BTreeSet<_>>().len(), 2, "{delivery}");
    }
}

/// Between two sessions nothing is delivered, and a session does not end for other routes at once.
#[test]
fn g1_g2_routes_that_change_all_the_time_hold_up_no_row() {
    const BATCHES: usize = 10;
    const ROWS: usize = 500;
    const PACE: Duration = Duration::from_millis(100);
    for delivery in DELIVERIES {
        let trial = Trial::new(postgres::installed(), "reloads", delivery);
        let stage = &trial.stage;
        trial.create_topics(&["B"]);
        let desk = Desk::new();
        desk.write(&routes(stage, "A"));
        let (running, face) = run(&trial.relay().unset("route.topic"), &desk);
        std::thread::scope(|scope| {
            let rows = scope.spawn(|| {
                for batch in 1..=BATCHES {
                    stage.insert("A", ROWS);
                    stage.wait_for_records(batch * ROWS);
                }
            });
            for to in ["B", "A"].into_iter().cycle() {
                if rows.is_finished() && reloads(&face, "applied") > 2 {
                    break;
                }
                desk.write(&routes(stage, to));
                running.signal(Signal::HUP);
                let_pass(PACE, "routes change ten times a second");
            }
        });
        running.stop();
        trial.assert_kept();
    }
}

/// The live tail of the dashboard takes a row's id from the header that the new routes name.
#[test]
fn the_live_tail_takes_ids_from_the_headers_of_the_new_routes() {
    let trial = Trial::new(postgres::installed(), "tail", "at_least_once");
    let stage = &trial.stage;
    let desk = Desk::new();
    desk.write(&routes(stage, "A"));
    let (mut running, face) = run(&trial.relay().unset("route.topic"), &desk);
    desk.write(&routes(stage, "A").replace("[route]", "[route]\nid_header = \"event\""));
    running.signal(Signal::HUP);
    running.wait_for_log("the routes of the reloaded configuration are in effect");
    // Whoever looks on sees what is delivered from then on.
    face.get("/api/v1/tail?after=0");
    stage.insert("A", 1);
    let shown = wait_for("the row in the live tail", || {
        let (_, body) = face.get("/api/v1/tail?after=0");
        let tail: serde_json::Value = serde_json::from_str(&body).unwrap();
        tail["records"].get(0).cloned()
    });
    let id = stage.records()[0].header("event").unwrap().to_owned();
    assert_eq!(shown["id"].as_str(), Some(id.as_str()), "{shown}");
    running.stop();
}

/// Where rows are polled, routes change between two batches: none is lost, and the rows of a key keep their order in each topic.
#[test]
fn g1_g2_routes_change_between_two_batches_of_a_relay_that_polls() {
    const ROUNDS: u64 = 4;
    const ROWS: u64 = 1_000;
    let Some(kafka) = kafka::shared() else { return };
    let scene = Scene::new(&kafka.bootstrap(), "reload_poll", &[]);
    let stage = &scene.stage;
    let desk = Desk::new();
    desk.write(&routes(stage, "A"));
    let mut running = scene.relay.clone().unset("route.topic").start(&with_file(&desk.file()));
    let face = RelayHttp::of(&mut running);
    running.wait_for_log("polling");
    for round in 0..ROUNDS {
        let first = round * 2 * ROWS;
        poll::insert(stage, first..first + ROWS);
        desk.write(&routes(stage, if round % 2 == 0 { "B" } else { "A" }));
        running.signal(Signal::HUP);
        poll::insert(stage, first + ROWS..first + 2 * ROWS);
        running.wait_for_log("the routes of the reloaded configuration are in effect");
        // A session that is to end at once reads nothing, and all rows would go by the last routes.
        scene.wait_pending("processed_at IS NULL", 0);
    }
    assert_eq!(reloads(&face, "applied"), ROUNDS);
    running.stop();
    let records = poll::records(stage);
    let ids: BTreeSet<_> = records.iter().map(|record| record.header("id").unwrap()).collect();
    assert_eq!(ids.len(), usize::try_from(ROUNDS * 2 * ROWS).unwrap());
    for name in ["A", "B"] {
        let of_topic = records.iter().filter(|record| record.topic == stage.topic(name));
        let by_key = poll::numbers_by_key(&of_topic.cloned().collect::<Vec<_>>());
        assert!(!by_key.is_empty(), "nothing went to {name}");
        assert!(by_key.values().all(|numbers| numbers.is_sorted()), "{name}: {by_key:?}");
    }
}

/// A mistake, a column that no table has, a database that is away: the relay goes on as before, and says what a start
/// would say. What can be changed is, without a signal; what needs a restart is named.
#[test]
fn a_bad_file_stops_nothing_and_a_good_one_is_found_by_itself() {
    let broker = support::broker::Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "reload_bad");
    for name in ["A", "B", "dead-letters"] {
        topic::create(&broker.bootstrap(), &stage.topic(name), 1, &[]);
    }
    let desk = Desk::new();
    desk.write(&routes(&stage, "A"));
    let relay = desk.controlled(stage.relay().unset("route.topic"));
    let relay = relay
        .expect_log("the configuration is refused, and the one before stays")
        .expect_log("options were changed that need a restart");
    let (mut running, face) = run(&relay, &desk);
    assert_eq!(face.count("postrider_config_last_reload_successful"), Some(1));

    let good = routes(&stage, "A");
    desk.write(&good.replace("[route]", "[route]\ntopik = \"x\""));
    let line = running.wait_for_log("the configuration is refused");
    for part in ["PR-C003", "postrider.toml:2:1", "topik", "did you mean"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    wait_for("the refusal to be counted", || (reloads(&face, "refused") == 1).then_some(()));
    assert_eq!(face.count("postrider_config_last_reload_successful"), Some(0));
    stage.insert("A", 3);
    stage.wait_for_records(3);
    is_controlled_by_its_socket(&relay, &desk);

    desk.write(&good.replace("[route]", "[route]\nheaders = [\"nothing_of_that_name\"]"));
    let (code, report) = ctl(&relay, &["reload"]);
    assert_eq!((code, &report["outcome"]), (1, &"refused".into()), "{report}");
    let what = report["errors"][0]["what"].as_str().unwrap();
    assert!(what.contains("nothing_of_that_name"), "{report}");
    stage.insert("A", 3);
    stage.wait_for_records(6);

    // As Kubernetes brings a ConfigMap: a link to a folder of which there is a new one.
    std::fs::create_dir(desk.path("data-2")).unwrap();
    let text = routes(&stage, "B") + "[kafka]\nlinger = \"3ms\"\n[log]\nlevel = \"debug\"\n";
    std::fs::write(desk.path("data-2/postrider.toml"), text).unwrap();
    std::os::unix::fs::symlink("data-2", desk.path("data")).unwrap();
    std::os::unix::fs::symlink("data/postrider.toml", desk.path("link")).unwrap();
    std::fs::rename(desk.path("link"), desk.file()).unwrap();
    let line = running.wait_for_log("need a restart");
    assert!(line.contains("kafka.linger") && !line.contains("route"), "{line}");
    running.wait_for_log("the routes of the reloaded configuration are in effect");
    stage.insert("A", 4);
    wait_for("records by the new routes", || {
        let counts = counts(&stage);
        (counts.get("B") == Some(&4) && counts["A"] == 6).then_some(())
    });
    let shown: serde_json::Value = serde_json::from_str(&face.get("/api/v1/state").1).unwrap();
    let setting = |key: &str| {
        let all = shown["settings"].as_array().unwrap();
        let found = all.iter().find(|one| one["key"] == key);
        found.map(|one| one["value"].as_str().unwrap().to_owned())
    };
    assert_eq!(setting("route.rules.0.topic"), Some(stage.topic("B")));
    assert_eq!(setting("kafka.linger").as_deref(), Some("0s"), "that is in effect");
    assert_eq!(ctl(&relay, &["log-level"]).1["filter"], "debug");
    let (code, report) = ctl(&relay, &["reload"]);
    assert_eq!((code, &report["outcome"]), (0, &"unchanged".into()), "{report}");
    assert_eq!(report["takes_restart"], serde_json::json!(["kafka.linger"]));
    running.stop();
}

/// The relay goes on while its file is wrong, and so does who controls it.
fn is_controlled_by_its_socket(relay: &Relay, desk: &Desk) {
    let (file, socket) = (desk.file(), desk.path("control"));
    let status = ["-c", file.to_str().unwrap(), "ctl", "status"];
    let outcome = relay.start(&status).outcome();
    let log = outcome.log.concat();
    assert!(outcome.status.code() == Some(78) && log.contains("ctl --socket PATH"), "{log}");
    let by_socket = [&status[..], &["--socket", socket.to_str().unwrap()]].concat();
    let outcome = relay.start(&by_socket).outcome();
    assert!(outcome.status.success() && outcome.stdout.contains("streaming"), "{outcome:?}");
}

/// The topics of new routes are looked at like those of a start: a row whose topic is missing becomes a dead letter, and
/// readiness names it.
#[test]
fn g4_a_reloaded_route_to_a_topic_that_is_missing_is_met_as_at_a_start() {
    let Some(kafka) = kafka::strict() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "reload_missing");
    for name in ["A", "dead-letters"] {
        topic::create(&kafka.bootstrap(), &stage.topic(name), 1, &[]);
    }
    let desk = Desk::new();
    desk.write(&routes(&stage, "A"));
    let relay = stage.relay().unset("route.topic").allow_log("does not exist");
    let (mut running, face) = run(&relay.allow_log("became a dead letter"), &desk);
    stage.insert("A", 1);
    stage.wait_for_records(1);
    desk.write(&routes(&stage, "missing"));
    running.signal(Signal::HUP);
    running.wait_for_log("the routes of the reloaded configuration are in effect");
    stage.insert("A", 2);
    wait_for("dead letters", || (counts(&stage).get("dead-letters") == Some(&2)).then_some(()));
    let (_, health) = face.probe("/readyz");
    assert!(health.to_string().contains(&stage.topic("missing")), "{health}");
    topic::create(&kafka.bootstrap(), &stage.topic("missing"), 1, &[]);
    desk.write(&routes(&stage, "A"));
    running.signal(Signal::HUP);
    running.wait_for_log("the routes of the reloaded configuration are in effect");
    stage.insert("A", 1);
    wait_for("the old route", || (counts(&stage)["A"] == 2).then_some(()));
    running.stop();
}
