//! The order service and what it needs, for one test.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use postrider::kafka::embedded::Broker;
use postrider::sandbox::postgres::{Address, Cluster, Options};
use postrider::sandbox::redis::Redis;
use postrider::shop::orders::EVENT_TYPES;
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::services::gate::Gate;
use support::http::get;
use support::wait::wait_until;

const MIGRATIONS: [&str; 4] = [
    include_str!("../../../migrations/0001_outbox.sql"),
    include_str!("../../../migrations/0002_shop.sql"),
    include_str!("../../../migrations/0003_application.sql"),
    include_str!("../../../migrations/0004_services.sql"),
];
/// How long a broker may take.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
const DEAD_LETTERS: &str = "shop-orders.dead-letters";
/// Options of a URL without time limits for locks, whatever the machine's load.
const NO_TIMEOUTS: &str = "options=-c%20lock_timeout%3D60s%20-c%20statement_timeout%3D0\
                       %20-c%20idle_in_transaction_session_timeout%3D0";

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
        self.orders_with(&self.cluster.unix_url(), &[])
    }

    /// One without a limit for lock waits.
    pub(crate) fn orders_without_timeouts(&self, args: &[&str]) -> Service {
        self.orders_with(&format!("{}&{NO_TIMEOUTS}", self.cluster.unix_url()), args)
    }

    /// The same behind a gate.
    pub(crate) fn orders_without_timeouts_behind(&self, gate: &Gate, args: &[&str]) -> Service {
        let address = Address { port: gate.port, ..self.cluster.address() };
        self.orders_with(&format!("{}?{NO_TIMEOUTS}", address.url()), args)
    }

    /// A gate before Postgres that lets everything pass until it sees `needle`.
    pub(crate) fn gate(&self, needle: &'static str) -> Gate {
        Gate::before(self.cluster.address().port, needle)
    }

    /// A process of the order service that logs in over TCP, with this role and password.
    pub(crate) fn orders_as(&self, role: &str, password: &str) -> Service {
        let address = self.cluster.address().login_as(role, Some(password));
        self.orders_with(&address.url(), &[])
    }

    /// One that may have so many descriptors open.
    pub(crate) fn orders_with_descriptors(&self, most: u32) -> Service {
        let mut shell = Command::new("sh");
        let shop = env!("CARGO_BIN_EXE_shop");
        shell.args(["-c", &format!("ulimit -n {most}; exec \"$0\" \"$@\""), shop, "orders"]);
        self.serve(shell, &self.cluster.unix_url())
    }

    fn orders_with(&self, url: &str, args: &[&str]) -> Service {
        self.start_at(url, &[&["orders"], args].concat())
    }

    /// A process that serves.
    pub(crate) fn start(&self, args: &[&str]) -> Service {
        self.start_at(&self.cluster.unix_url(), args)
    }

    /// One that serves with this database.
    pub(crate) fn start_at(&self, url: &str, args: &[&str]) -> Service {
        let mut shop = Command::new(env!("CARGO_BIN_EXE_shop"));
        shop.args(args);
        self.serve(shop, url)
    }

    fn serve(&self, mut shop: Command, url: &str) -> Service {
        let mut child = shop
            .args(["--bind", "127.0.0.1:0"])
            .env("DATABASE_URL", url)
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
        // The pipe must be drained, or the process blocks when it is full.
        let reader = std::thread::spawn(move || log.map_while(Result::ok).collect());
        Service { child, address, reader: Some(reader) }
    }

    /// `shop maintain`: its exit code, stdout and stderr.
    pub(crate) fn maintain(&self, args: &[&str]) -> (i32, String, String) {
        self.command(&[&["maintain"], args].concat())
    }

    /// A command of the shop that ends: its exit code, stdout and stderr.
    pub(crate) fn command(&self, args: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_shop"))
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
    pub(crate) fn dead_letters(&self, args: &[&str]) -> String {
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

    /// Where another database of the cluster is.
    pub(crate) fn url_of(&self, database: &str) -> String {
        self.cluster.address().database(database).unix_url()
    }

    /// The tables there, by name.
    pub(crate) fn tables_of(&self, database: &str) -> Vec<String> {
        let sql = "SELECT relname::text FROM pg_class \
             WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY relname";
        self.runtime.block_on(async {
            let client = postrider::shop::connect(&self.url_of(database)).await.unwrap();
            client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
        })
    }

    /// Statements without an answer.
    pub(crate) fn run(&self, sql: &str) {
        self.runtime.block_on(self.client.batch_execute(sql)).unwrap();
    }

    /// One number.
    pub(crate) fn count(&self, sql: &str) -> i64 {
        self.runtime.block_on(self.client.query_one(sql, &[])).unwrap().get(0)
    }

    /// Blocks writers of orders at their INSERT, with the key already claimed; until `unlock_orders`.
    pub(crate) fn lock_orders(&self) {
        self.run("BEGIN; LOCK TABLE orders IN SHARE MODE");
    }

    /// Lets them go on.
    pub(crate) fn unlock_orders(&self) {
        self.run("COMMIT");
    }

    /// Waits until so many sessions wait for a lock.
    pub(crate) fn await_blocked(&self, sessions: i64) {
        // Unlike pg_stat_activity this is not remembered for the length of a transaction.
        let blocked = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted";
        wait_until("sessions that wait for a lock", || self.count(blocked) >= sessions);
    }

    /// Everything in Redis is gone at once.
    pub(crate) fn flush(&self) {
        redis::cmd("FLUSHALL").exec(&mut self.redis_session()).unwrap();
    }

    /// Waits until Redis holds nothing: the time of whatever was there is over.
    pub(crate) fn await_empty_redis(&self) {
        let mut session = self.redis_session();
        wait_until("an empty Redis", || {
            redis::cmd("DBSIZE").query::<u64>(&mut session).unwrap() == 0
        });
    }

    fn redis_session(&self) -> redis::Connection {
        redis::Client::open(self.redis.url()).unwrap().get_connection().unwrap()
    }

    /// Orders, sagas, keys and outbox rows.
    pub(crate) fn written(&self) -> [i64; 4] {
        ["orders", "sagas", "idempotency_keys", "outbox"]
            .map(|table| self.count(&format!("SELECT count(*) FROM {table}")))
    }
}

/// Sends SIGTERM.
pub(crate) fn terminate(child: &Child) {
    signal(child, Signal::TERM);
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
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

    /// Stops it in the middle of whatever it does.
    pub(crate) fn freeze(&self) {
        signal(&self.child, Signal::STOP);
    }

    /// Lets it go on, as if nothing had happened.
    pub(crate) fn thaw(&self) {
        signal(&self.child, Signal::CONT);
    }

    /// A number of its metrics page.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = get(&self.address, "/metrics").body;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{name}: {page}")).parse().unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
