//! Several writers at a time, each a shop that rolls back some transactions and savepoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use postrider::shop::draw::event_types;
use postrider::shop::load::{LoadPlan, Rate, run};

use crate::stage::Stage;
use support::broker::Broker;
use support::topic;
use support::wait::{let_pass, wait_until};

/// Writers that go on until told to stop, also over restarts of Postgres.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    writers: Vec<JoinHandle<()>>,
}

/// Makes the topics of a load beforehand, as they are in earnest; on real Kafka, because the embedded
/// broker has no such request.
pub(crate) fn prepare(stage: &Stage, broker: &Broker) {
    if let Broker::Kafka(kafka) = broker {
        prepare_at(stage, &kafka.bootstrap());
    }
}

/// The same on Kafka of a test's own.
pub(crate) fn prepare_at(stage: &Stage, bootstrap: &str) {
    let types = event_types(LoadPlan::default().types);
    for name in types.iter().map(String::as_str).chain(["dead-letters"]) {
        topic::create(bootstrap, &stage.topic(name), 3, &[]);
    }
}

/// Commits so many rows, `rate` a second, and some that are rolled back.
pub(crate) fn commit(stage: &Stage, count: u64, rate: u32) {
    let plan = LoadPlan { count, ..plan(rate, u64::from(rate), 1) };
    let url = stage.database.address().unix_url();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = postrider::shop::connect(&url).await.unwrap();
        assert_eq!(run(&client, &plan, |_| ()).await.unwrap().committed, count);
    });
}

fn plan(rate: u32, seed: u64, tx_rows: u32) -> LoadPlan {
    LoadPlan {
        count: rate.div_ceil(ROUNDS_PER_SECOND).into(),
        rate: Rate::PerSecond(rate),
        seed,
        rollback_percent: 10,
        savepoint_percent: 20,
        customers: 50,
        tx_rows,
        ..LoadPlan::default()
    }
}

/// A writer looks this often per second whether to stop.
const ROUNDS_PER_SECOND: u32 = 10;

impl Load {
    /// One writer for each pair of rows per second and rows per transaction.
    pub(crate) fn start(stage: &Stage, writers: &[(u32, u32)]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let committed = Arc::new(AtomicU64::new(0));
        let spawn = |(seed, &(rate, tx_rows)): (u64, &(u32, u32))| {
            let url = stage.database.address().unix_url();
            let plan = plan(rate, seed, tx_rows);
            let (stop, committed) = (Arc::clone(&stop), Arc::clone(&committed));
            std::thread::spawn(move || write(&url, plan, &stop, &committed))
        };
        let writers = (1..).zip(writers).map(spawn).collect();
        Self { stop, committed, writers }
    }

    /// Rows that Postgres has confirmed so far.
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::SeqCst)
    }

    /// Waits until so many more rows are committed.
    pub(crate) fn wait_committed(&self, more: u64) {
        let enough = self.committed() + more;
        wait_until("rows to be committed", || self.committed() >= enough);
    }

    /// Ends it, and tells how many rows Postgres has confirmed.
    pub(crate) fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        for writer in self.writers.drain(..) {
            writer.join().unwrap();
        }
        self.committed()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn write(url: &str, mut plan: LoadPlan, stop: &AtomicBool, committed: &AtomicU64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        while !stop.load(Ordering::SeqCst) {
            let Ok(client) = postrider::shop::connect(url).await else {
                let_pass(Duration::from_millis(20), "Postgres is down, and comes back");
                continue;
            };
            while !stop.load(Ordering::SeqCst) {
                plan.seed += 1_000;
                // Postgres may be stopped under our feet; the oracle knows what became of the rest.
                let Ok(report) = run(&client, &plan, |_| ()).await else { break };
                committed.fetch_add(report.committed, Ordering::SeqCst);
            }
        }
    });
}
