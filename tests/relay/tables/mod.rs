//! Rows that come from their tables, not from the log: those of before the slot, and those that are sent again.

mod backfill;
mod changed;
mod interrupted;
mod pages;
mod repair;
mod replay;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::stage::Stage;
use support::relay::Relay;
use support::wait::let_pass;
use support::{postgres, topic};

/// Tests that run at the same time have open transactions on the same server, which a slot waits for.
pub(crate) const OTHERS_WRITE: &str = "cannot be created while a write transaction is open";

/// Commits `count` rows whose `created_at` is that of the row, keys in turn `0` to `9`.
pub(crate) fn insert_in_time(stage: &Stage, topic: &str, count: usize) {
    stage.sql().run(&insert(topic, count));
}

fn insert(topic: &str, count: usize) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
         SELECT 't', n % 10, '{topic}', jsonb_build_object('n', n), clock_timestamp() \
         FROM generate_series(1, {count}) AS n"
    )
}

/// One session that commits small transactions until it is stopped.
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Writer {
    pub(crate) fn start(stage: &Stage, topic: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, sql, insert) = (Arc::clone(&stop), stage.sql(), insert(topic, 20));
        let thread = std::thread::spawn(move || {
            let mut committed = 0;
            while !told.load(Ordering::SeqCst) {
                sql.run(&insert);
                committed += 20;
                let_pass(Duration::from_millis(5), "rows come all the time");
            }
            committed
        });
        Self { stop, thread }
    }

    /// Ends it, and tells how many rows it has committed.
    pub(crate) fn stop(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

/// Runs a command to its end, and returns what it printed as JSON.
pub(crate) fn json(relay: &Relay, arguments: &[&str]) -> serde_json::Value {
    let arguments = [arguments, &["--output", "json"]].concat();
    let (status, printed) = relay.clone().allow_log(OTHERS_WRITE).start(&arguments).wait_printed();
    assert!(status.success(), "{arguments:?}: {status}");
    serde_json::from_str(&printed.concat()).unwrap()
}

/// A stage with topics, without rows and without a slot.
pub(crate) fn empty_stage(bootstrap: &str, stem: &str) -> Stage {
    let stage = Stage::migrated(postgres::installed(), bootstrap, stem);
    for name in ["A", "dead-letters"] {
        topic::create(bootstrap, &stage.topic(name), 3, &[]);
    }
    stage
}
