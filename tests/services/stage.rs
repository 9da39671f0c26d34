//! The order service and what it needs, for one test.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postrider::kafka::embedded::Broker;
use postrider::sandbox::postgres::{Cluster, Options};
use postrider::sandbox::redis::Redis;
use postrider::shop::orders::EVENT_TYPES;
use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::client::get;

const MIGRATIONS: [&str; 4] = [
    include_str!("../../migrations/0001_outbox.sql"),
    include_str!("../../migrations/0002_shop.sql"),
    include_str!("../../migrations/0003_application.sql"),
    include_str!("../../migrations/0004_services.sql"),
];
const DEAD_LETTERS: &str = "shop-orders.dead-letters";

pub(crate) struct Stage {
    cluster: Cluster,
    broker: Broker,
    pub(crate) redis: Redis,
    runtime: Runtime,
    client: Client,
}

impl Stage {
    pub(crate) fn set() -> Self {
        let cluster = Cluster::start(&Options::default()).unwrap();
        let topics: Vec<_> =
            EVENT_TYPES.iter().chain(&[DEAD_LETTERS]).map(|topic| (*topic, 1)).collect();
        let broker = Broker::start(1, &topics).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let client = runtime.block_on(async {
            let client = postrider::shop::connect(&cluster.unix_url()).await.unwrap();
            for migration in MIGRATIONS {
                client.batch_execute(migration).await.unwrap();
            }
            client
        });
        Self { cluster, broker, redis: Redis::start().unwrap(), runtime, client }
    }

    /// A process of the order service.
    pub(crate) fn orders(&self) -> Service {
        self.start(&["orders"])
    }

    /// A process that serves.
    pub(crate) fn start(&self, args: &[&str]) -> Service {
        let mut child = Command::new(env!("CARGO_BIN_EXE_shop"))
            .args(args)
            .args(["--bind", "127.0.0.1:0"])
            .env("DATABASE_URL", self.cluster.unix_url())
            .env("KAFKA_BROKERS", self.broker.bootstrap())
            .env("REDIS_URL", self.redis.url())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = log
            .find_map(|line| {
                let line = line.unwrap();
                let address = line.split("address=").nth(1)?.split(' ').next()?;
                line.contains("serving").then(|| address.to_owned())
            })
            .expect("the service serves");
        // Whoever writes into a pipe that nobody reads waits for ever.
        let reader = std::thread::spawn(move || log.map_while(Result::ok).collect());
        Service { child, address, reader: Some(reader) }
    }

    /// `shop maintain`: its exit code, its output, what it said besides.
    pub(crate) fn maintain(&self, args: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_shop"))
            .arg("maintain")
            .args(args)
            .env("DATABASE_URL", self.cluster.unix_url())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// The brokers' address.
    pub(crate) fn bootstrap(&self) -> String {
        self.broker.bootstrap()
    }

    /// What `shop dead-letters` prints.
    pub(crate) fn letters(&self, args: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_shop"))
            .arg("dead-letters")
            .args(args)
            .env("KAFKA_BROKERS", self.bootstrap())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Another session.
    pub(crate) fn connect(&self) -> Client {
        self.runtime.block_on(postrider::shop::connect(&self.cluster.unix_url())).unwrap()
    }

    /// Statements without an answer, in another session.
    pub(crate) fn run_in(&self, session: &Client, sql: &str) {
        self.runtime.block_on(session.batch_execute(sql)).unwrap();
    }

    /// Where the database is.
    pub(crate) fn database_url(&self) -> String {
        self.cluster.unix_url()
    }

    /// Statements without an answer.
    pub(crate) fn run(&self, sql: &str) {
        self.runtime.block_on(self.client.batch_execute(sql)).unwrap();
    }

    /// One number.
    pub(crate) fn count(&self, sql: &str) -> i64 {
        self.runtime.block_on(self.client.query_one(sql, &[])).unwrap().get(0)
    }

    /// Orders, sagas, keys and outbox rows.
    pub(crate) fn written(&self) -> [i64; 4] {
        ["orders", "sagas", "idempotency_keys", "outbox"]
            .map(|table| self.count(&format!("SELECT count(*) FROM {table}")))
    }
}

/// # Panics
/// When it is not so within half a minute.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends SIGTERM.
pub(crate) fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

pub(crate) struct Service {
    child: Child,
    pub(crate) address: String,
    reader: Option<std::thread::JoinHandle<Vec<String>>>,
}

impl Service {
    /// Asks for its metrics until all of this is on them.
    pub(crate) fn wait_for(&self, wanted: &[&str]) {
        wait_until(&format!("{wanted:?}"), || {
            let page = get(&self.address, "/metrics").body;
            wanted.iter().all(|line| page.contains(line))
        });
    }

    /// Asks it to end; returns the rest of its log.
    ///
    /// # Panics
    /// When it ends with an error.
    pub(crate) fn stop(mut self) -> Vec<String> {
        terminate(&self.child);
        let status = self.child.wait().unwrap();
        let log = self.reader.take().unwrap().join().unwrap();
        assert!(status.success(), "{status}\n{}", log.join("\n"));
        log
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
