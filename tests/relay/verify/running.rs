//! Beside a relay that runs, is killed, and delivers exactly once.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Verified, found};
use support::wait::wait_until;
use support::{kafka, wait_for};

#[test]
fn a_relay_that_is_killed_repeats_and_loses_nothing() {
    let verified = Verified::new("verify_killed");
    verified.deliver(10);
    for _ in 0..3 {
        let before = verified.stage.records().len();
        verified.insert(400);
        let relay = verified.relay.run();
        wait_until("some records", || verified.stage.records().len() > before);
        relay.kill();
    }
    verified.relay.run_once();
    verified.pass();
    let (status, json) = verified.verify("--all-rows-kept");
    let without = |(name, _): &(&str, u64)| *name != "duplicated";
    let found: Vec<_> = found(&json).into_iter().filter(without).collect();
    assert_eq!((status, found), (0, vec![]), "{json}");
    assert_eq!(json["rows"], json!(1210));
}

#[test]
fn exactly_once_is_verified_while_rows_flow() {
    let Some(kafka) = kafka::shared() else { return };
    let verified = Verified::with(support::broker::Broker::Kafka(kafka), "verify_flow");
    let verified = Verified {
        relay: verified.relay.clone().set("kafka.delivery", "exactly_once"),
        ..verified
    };
    let relay = verified.relay.run();
    let (mut rows, mut looks) = (0, 0);
    while looks < 4 {
        verified.insert(200);
        rows += 200;
        let outcome = verified.outcome("--output json --grace 2m --all-rows-kept");
        let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!((outcome.status.code(), found(&json)), (Some(0), vec![]), "{json}");
        assert_eq!(json["rows"], json!(rows));
        looks += 1;
    }
    relay.stop();
}

#[test]
fn following_prints_a_line_for_each_look_and_ends_on_a_signal() {
    let verified = Verified::new("verify_follow");
    verified.deliver(20);
    let words = ["verify", "--follow", "--every", "100ms", "--grace", "0s", "--output", "json"];
    let following = verified.relay.start(&words);
    let mut lines: Vec<Value> = Vec::new();
    wait_for("three lines", || {
        lines.extend(following.printed().map(|line| serde_json::from_str(&line).unwrap()));
        (lines.len() >= 3).then_some(())
    });
    assert!(lines.iter().all(|line| line["clean"] == json!(true) && line["rows"] == json!(20)));
    following.signal(Signal::TERM);
    assert_eq!(following.wait().code(), Some(0));
}
