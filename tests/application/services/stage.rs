//! The order service and what it needs, for one test.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use postrider::kafka::embedded::Broker;
use postrider::sandbox::postgres::{Address, Cluster};
use postrider::shop::orders::EVENT_TYPES;
use rustix::process::{Pid, Signal, kill_process};

use crate::services::gate::Gate;
use support::http::get;
use support::postgres::{self, Database};
use support::redis_database;
use support::sql::Sql;
use support::wait::wait_until;

/// How long a broker may take.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
const DEAD_LETTERS: &str = "shop-orders.dead-letters";
/// Options of a URL without time limits for locks, whatever the machine's load.
const NO_TIMEOUTS: &str = "options=-c%20lock_timeout%3D60s%20-c%20statement_timeout%3D0\
                       %20-c%20idle_in_transaction_session_timeout%3D0";

/// A database, a part of Redis and a broker of the test's own.
pub(crate) struct Stage {
    pub(crate) database: Database,
    sql: Sql,
    broker: Broker,
    pub(crate) redis_url: String,
}

impl Stage {
    pub(crate) fn set() -> Self {
        Self::on(postgres::installed())
    }

    pub(crate) fn on(cluster: &Cluster) -> Self {
        let topics: Vec<_> =
            EVENT_TYPES.iter().chain(&[DEAD_LETTERS]).map(|topic| (*topic, 1)).collect();
        let broker = Broker::start(1, &topics).unwrap();
        let database = Database::migrated(cluster, "shop");
        let sql = database.sql();
        Self { database, sql, broker, redis_url: redis_database::next() }
    }

    /// A process of the order service.
    pub(crate) fn orders(&self) -> Service {
        self.orders_with(&self.database_url(), &[])
    }

    /// One without a limit for lock waits.
    pub(crate) fn orders_without_timeouts(&self, args: &[&str]) -> Service {
        self.orders_with(&format!("{}&{NO_TIMEOUTS}", self.database_url()), args)
    }

    /// The same behind a gate.
    pub(crate) fn orders_without_timeouts_behind(&self, gate: &Gate, args: &[&str]) -> Service {
        let address = Address { port: gate.port, ..self.database.address() };
        self.orders_with(&format!("{}?{NO_TIMEOUTS}", address.url()), args)
    }

    /// A gate before Postgres that lets everything pass until it sees `needle`.
    pub(crate) fn gate(&self, needle: &'static str) -> Gate {
        Gate::before(self.database.address().port, needle)
    }

    /// One that may have so many descriptors open.
    pub(crate) fn orders_with_descriptors(&self, most: u32) -> Service {
        let mut shell = Command::new("sh");
        let shop = env!("CARGO_BIN_EXE_shop");
        shell.args(["-c", &format!("ulimit -n {most}; exec \"$0\" \"$@\""), shop, "orders"]);
        self.serve(shell, &self.database_url())
    }

    fn orders_with(&self, url: &str, args: &[&str]) -> Service {
        self.start_at(url, &[&["orders"], args].concat())
    }

    /// A process that serves.
    pub(crate) fn start(&self, args: &[&str]) -> Service {
        self.start_at(&self.database_url(), args)
    }

    /// One that serves with this database.
    pub(crate) fn start_at(&self, url: &str, args: &[&str]) -> Service {
        let mut shop = Command::new(env!("CARGO_BIN_EXE_shop"));
        shop.args(args);
        self.serve(shop, url)
    }

    fn serve(&self, mut shop: Command, url: &str) -> Service {
        shop.args(["--bind", "127.0.0.1:0"])
            .env("DATABASE_URL", url)
            .env("KAFKA_BROKERS", self.broker.bootstrap())
            .env("REDIS_URL", &self.redis_url);
        Service::start(&mut shop)
    }

    /// `shop maintain` with the slot that is named as the database: its exit code, stdout and stderr.
    pub(crate) fn maintain(&self, args: &[&str]) -> (i32, String, String) {
        self.command(&[&["maintain", "--slot", self.database.name()], args].concat())
    }

    /// A command of the shop that ends: its exit code, stdout and stderr.
    pub(crate) fn command(&self, args: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_shop"))
            .args(args)
            .env("DATABASE_URL", self.database_url())
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

    /// Where the database is.
    pub(crate) fn database_url(&self) -> String {
        self.database.address().unix_url()
    }

    /// Statements without an answer.
    pub(crate) fn run(&self, sql: &str) {
        self.sql.run(sql);
    }

    /// One number.
    pub(crate) fn count(&self, sql: &str) -> i64 {
        self.sql.value(sql).parse().unwrap()
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
        // Unlike pg_stat_activity this is not remembered for the length of a transaction. A lock on a row has
        // no database, so those of each session's tables tell whose it is.
        let blocked = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND pid IN (
                 SELECT pid FROM pg_locks JOIN pg_database ON pg_database.oid = database
                 WHERE datname = current_database())";
        wait_until("sessions that wait for a lock", || self.count(blocked) >= sessions);
    }

    /// Everything in its part of Redis is gone at once.
    pub(crate) fn flush(&self) {
        redis_database::ask::<()>(&self.redis_url, "FLUSHDB");
    }

    /// Waits until its part of Redis holds nothing: the time of whatever was there is over.
    pub(crate) fn await_empty_redis(&self) {
        let size = || redis_database::ask::<u64>(&self.redis_url, "DBSIZE");
        wait_until("an empty Redis", || size() == 0);
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
    /// Returns when it serves.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut seen = Vec::new();
        let address = lines.find_map(|line| {
            let address = line.split("address=").nth(1).and_then(|rest| rest.split(' ').next());
            let address = address.filter(|_| line.contains("serving")).map(str::to_owned);
            seen.push(line);
            address
        });
        let address = address.unwrap_or_else(|| panic!("it does not serve: {seen:?}"));
        // The pipe must be drained, or the process blocks when it is full.
        let reader = std::thread::spawn(move || seen.into_iter().chain(lines).collect());
        Self { child, address, reader: Some(reader) }
    }

    /// Its command line as `ps` shows it.
    pub(crate) fn command_line(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/cmdline", self.child.id())).unwrap()
    }

    /// Asks for its metrics until all of this is on them.
    pub(crate) fn wait_for(&self, wanted: &[&str]) {
        wait_until(&format!("{wanted:?}"), || {
            let page = get(&self.address, "/metrics").body;
            wanted.iter().all(|line| page.contains(line))
        });
    }

    /// Asks it to end; returns its log.
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
