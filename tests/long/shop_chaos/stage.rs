//! The servers of a run, the relay, the services, and whether all work is finished.
//!
//! Input: a [`Plan`] and the stock. Output: a running shop. Invariant: everything is stopped with
//! its [`Stage`].

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use postrider::sandbox::account::Account;
use postrider::sandbox::postgres::{Cluster, Options};
use postrider::sandbox::redis::Redis;
use postrider::sandbox::watchdog::Watchdog;

use crate::shop_chaos::clients::ServiceAddress;
use crate::shop_chaos::consumers::{self, CONSUMERS};
use crate::shop_chaos::duplicates::Duplicator;
use crate::shop_chaos::process::{Service, State};
use crate::shop_chaos::topics;
use support::kafka::{self, Kafka};
use support::postgres::{self, Database};
use support::relay::{Relay, Running};
use support::sql::Sql;
use support::wait::let_pass;
use support::{topic, wait_for};

/// Of each of the shop's topics.
pub(crate) const PARTITIONS: i32 = 3;

/// Short enough that some orders time out when a process is killed.
const GIVE_UP_AFTER: &str = "20s";

/// Sessions: six services with up to 17 each, and those of killed ones that Postgres has not missed.
const SESSIONS: &str = "300";

/// Without progress for this long the run is stuck: longer than any pause between attempts (30 s).
const STILL_LIMIT: Duration = Duration::from_secs(45);

/// Counts that grow while there is progress. Deadlines that pass again do not count.
const MARKERS: &str = "processed_messages";
const BOOKINGS: &str = "gateway_operations";
const HEARD: &str = "saga_history WHERE event <> 'DeadlinePassed'";
const WHAT: &str = "markers, bookings, events heard by sagas";

/// Events that not as many consumers have done as read them: two read these topics, none those.
const UNMARKED: &str = "\
    SELECT event_type, wanted - done AS missing, count(*) FROM (SELECT event_type, \
        CASE WHEN event_type IN ('OrderConfirmed', 'OrderCancelled') THEN 0 \
            WHEN event_type IN ('PaymentProcessed', 'OrderTimedOut', 'InventoryUnavailable') THEN 2 \
            ELSE 1 END AS wanted, \
        (SELECT count(*) FROM processed_messages WHERE message_id = outbox.id) AS done \
        FROM outbox) AS events \
    WHERE wanted > done GROUP BY 1, 2";

/// See the module.
pub(crate) struct Stage {
    /// Two of each: orders, payments, inventory.
    pub(crate) services: Vec<Service>,
    pub(crate) relay: Option<Running>,
    pub(crate) redis: Redis,
    pub(crate) redis_state: State,
    pub(crate) watchdog: Watchdog,
    pub(crate) database: Database,
    pub(crate) bootstrap: String,
    relay_settings: Relay,
    _cluster: Cluster,
    _kafka: Kafka,
}

impl Stage {
    /// Starts everything, or says that this machine has no Kafka.
    pub(crate) fn open(stock: &BTreeMap<String, i64>) -> Option<Self> {
        let kafka = kafka::start(&kafka::Options::default())?;
        let bootstrap = kafka.bootstrap();
        for name in consumers::topics() {
            topic::create(&bootstrap, &name, PARTITIONS, &[]);
        }
        for name in
            CONSUMERS.iter().map(consumers::dead_letters_of).chain([topics::UNROUTED.to_owned()])
        {
            topic::create(&bootstrap, &name, 1, &[]);
        }
        let cluster = postgres::start(&Options::default().with("max_connections", SESSIONS));
        let database = Database::migrated(&cluster, "shop");
        fill_store(&database.sql(), stock);
        let slot = database.name();
        let create = format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
        database.sql().run(&create);
        let redis = Redis::start().unwrap_or_else(|error| panic!("{error}"));
        let folder = Account::unprivileged().unwrap().make_folder("postrider-shop-").unwrap();
        let mut stage = Self {
            services: services(&database, &bootstrap, &redis),
            relay: None,
            redis,
            redis_state: State::Running,
            watchdog: Watchdog::new(&folder).unwrap(),
            relay_settings: relay(&database, &bootstrap),
            database,
            bootstrap,
            _cluster: cluster,
            _kafka: kafka,
        };
        stage.start_relay();
        for number in 0..stage.services.len() {
            stage.start_service(number);
        }
        wait_for("the services", || stage.services.iter().all(Service::is_ready).then_some(()));
        Some(stage)
    }

    /// Where orders are taken.
    pub(crate) fn doors(&self) -> [ServiceAddress; 2] {
        [0, 1].map(|number| ServiceAddress::clone(&self.services[number].door))
    }

    /// Starts a service that is dead.
    pub(crate) fn start_service(&mut self, number: usize) {
        self.services[number].start(&mut self.watchdog);
    }

    /// Starts the relay, which must be dead.
    pub(crate) fn start_relay(&mut self) {
        self.relay = Some(self.relay_settings.run());
    }

    /// Waits until every order has ended and every record is handled, or until there is no progress for a long
    /// time, or the limit is over.
    pub(crate) fn settle(&mut self, echo: &Duplicator, limit: Duration) -> bool {
        let sql = self.database.sql();
        let begun = Instant::now();
        let (mut last, mut moved, mut told) = (String::new(), Instant::now(), Instant::now());
        loop {
            let rows = count(&sql, "outbox");
            if is_done(&sql) && echo.heard() == rows && echo.pending() == 0 {
                let is_read =
                    topics::lag(&self.bootstrap, &topics::read(&self.bootstrap)).is_empty();
                // The last records may have produced others.
                if is_read && is_done(&sql) && count(&sql, "outbox") == rows {
                    return true;
                }
            }
            let counts = [MARKERS, BOOKINGS, HEARD].map(|what| count(&sql, what));
            let now = format!("{rows} rows, {counts:?} {WHAT}, {} heard", echo.heard());
            if now != last {
                (last, moved) = (now, Instant::now());
            }
            if moved.elapsed() > STILL_LIMIT || begun.elapsed() > limit {
                eprintln!("no progress: {last}, {} duplicates pending", echo.pending());
                let unread = sql.rows(UNMARKED);
                let lag = topics::lag(&self.bootstrap, &topics::read(&self.bootstrap));
                eprintln!("behind: {lag:?}; events without a marker: {unread:?}");
                for service in &self.services {
                    eprintln!("{} logged last:\n{}", service.name, service.last_log_lines());
                }
                return false;
            }
            if told.elapsed() > Duration::from_secs(10) {
                eprintln!("finishing: {last}");
                told = Instant::now();
            }
            let_pass(Duration::from_millis(300), "until the next look");
        }
    }

    /// Stops the services with SIGTERM. Output: those that failed.
    pub(crate) fn close(&mut self) -> Vec<String> {
        let mut faults = Vec::new();
        for service in &mut self.services {
            service.request_stop();
        }
        for service in &mut self.services {
            let status = service.wait_stopped(&mut self.watchdog);
            if !status.is_some_and(|status| status.success()) {
                let (name, words) = (&service.name, service.last_log_lines());
                faults.push(format!("{name} did not stop well ({status:?}):\n{words}"));
            }
        }
        if let Some(relay) = self.relay.take() {
            relay.stop();
        }
        faults
    }
}

fn is_done(sql: &Sql) -> bool {
    let open = "SELECT (SELECT count(*) FROM sagas WHERE status NOT IN ('CONFIRMED', 'CANCELLED')) \
                + (SELECT count(*) FROM payments WHERE status IN ('PENDING', 'REFUNDING'))";
    sql.value(open) == "0"
}

fn count(sql: &Sql, table_and_condition: &str) -> usize {
    sql.value(&format!("SELECT count(*) FROM {table_and_condition}")).parse().unwrap()
}

fn fill_store(sql: &Sql, stock: &BTreeMap<String, i64>) {
    for (sku, available) in stock {
        sql.run(&format!("INSERT INTO stock VALUES ('{sku}', {available})"));
    }
}

fn services(database: &Database, bootstrap: &str, redis: &Redis) -> Vec<Service> {
    let (database, redis) = (database.address().url(), redis.url());
    let service = |command: &str, number: u32| {
        let mut arguments = vec![command];
        arguments.extend(["--brokers", bootstrap, "--bind", "127.0.0.1:0"]);
        if command == "orders" {
            arguments.extend(["--patience", GIVE_UP_AFTER]);
        }
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        // They hold passwords, and a command line can be read by every user of the machine.
        let variables = vec![("DATABASE_URL", database.clone()), ("REDIS_URL", redis.clone())];
        Service::new(format!("{command} {number}"), arguments, variables)
    };
    ["orders", "payments", "inventory"]
        .into_iter()
        .flat_map(|command| [1, 2].map(|number| service(command, number)))
        .collect()
}

/// Its warnings are allowed: kills cause some.
fn relay(database: &Database, bootstrap: &str) -> Relay {
    assert!(Path::new(env!("CARGO_BIN_EXE_postrider")).exists());
    Relay::new(env!("CARGO_BIN_EXE_postrider"), &database.address(), database.name(), bootstrap, "")
        .set("kafka.delivery", "exactly_once")
        .set("dead_letters.topic", topics::UNROUTED)
        .set("route.headers", "event_type,aggregate_type,sequence")
        .set("retry.max", "500ms")
        .allow_log("")
}
