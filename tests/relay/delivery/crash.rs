//! kill -9 of the relay, again and again, while rows flow.

use std::time::Duration;

use crate::load::{Load, prepare};
use crate::stage::Stage;
use support::broker::Broker;
use support::wait::let_pass;
use support::{postgres, wait_for};

const KILLS: u32 = 8;
/// Rows per second and rows per transaction of each writer.
const WRITERS: [(u32, u32); 3] = [(300, 1), (600, 7), (900, 60)];

#[test]
fn g1_g2_eight_kills_lose_nothing_and_reorder_nothing() {
    for broker in Broker::all() {
        kill_again_and_again(&broker);
    }
}

fn kill_again_and_again(broker: &Broker) {
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "crash");
    prepare(&stage, broker);
    let oracle = stage.oracle();
    let tap = stage.tap();
    let relay = stage.relay_at(&tap.address()).set("source.status_interval", "200ms");
    let load = Load::start(&stage, &WRITERS);
    // What a kill may repeat: the rows behind what was acknowledged, before the end of the log.
    let mut open = Vec::new();
    for kill in 0..KILLS {
        let mut running = relay.run();
        // Some die before they have done much, the others in the middle of it.
        running.wait_for_log("streaming");
        if kill % 4 != 3 {
            let enough = tap.statuses().len() + 2;
            wait_for("status updates", || (tap.statuses().len() >= enough).then_some(()));
        }
        let_pass(Duration::from_millis(u64::from(kill) * 37), "each dies at another moment");
        running.kill();
        open.push((stage.acknowledged(), stage.log_end()));
    }
    let committed = load.stop();
    let running = relay.run();
    stage.wait_acknowledged(stage.log_end());
    running.stop();

    let (statuses, verdict) = (tap.statuses(), stage.verdict(&oracle, &tap.statuses()));
    eprintln!(
        "{committed} rows, {} repeated over {KILLS} kills, {} status updates",
        verdict.duplicated.len(),
        statuses.len()
    );
    verdict.assert_at_least_once();
    assert!(verdict.committed as u64 >= committed);
    assert!(statuses.len() > KILLS as usize, "{} status updates", statuses.len());
    let committed = oracle.committed();
    let within = |(acknowledged, end): &(u64, u64)| {
        let transactions = committed.iter();
        let is_open = |end_lsn: u64| *acknowledged < end_lsn && end_lsn <= *end;
        transactions.filter(|it| is_open(it.end_lsn)).map(|it| it.ids.len()).sum::<usize>()
    };
    let repeats_max: usize = open.iter().map(within).sum();
    assert!(
        verdict.duplicated.len() <= repeats_max,
        "{} repeated, at most {repeats_max} were open",
        verdict.duplicated.len()
    );
}
