//! The servers of a run, the relays, the services, and whether all work is finished.
//!
//! Input: a [`Plan`] and the stock. Output: a running shop. Invariant: everything is stopped with
//! its [`Stage`].

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use postrider::sandbox::account::Account;
use postrider::sandbox::postgres::{Cluster, Options, Stop};
use postrider::sandbox::redis_group::RedisSentinels;
use postrider::sandbox::watchdog::Watchdog;

use crate::shop_chaos::clients::ServiceAddress;
use crate::shop_chaos::consumers::{self, CONSUMERS};
use crate::shop_chaos::databases::{self, Databases, Sessions, Written};
use crate::shop_chaos::duplicates::Duplicator;
use crate::shop_chaos::process::{Service, State};
use crate::shop_chaos::settings::Plan;
use crate::shop_chaos::topics;
use support::kafka::{self, Kafka};
use support::postgres::{self, Database};
use support::relay::{Relay, Running};
use support::wait::{let_pass, within};
use support::{topic, wait_for};

/// Of each of the shop's topics.
pub(crate) const PARTITIONS: i32 = 3;

/// How long an order may take, in a long and in a short run: short enough that some time out when a process is
/// killed.
const GIVE_UP_AFTER: &str = "20s";
const GIVE_UP_AFTER_SHORT: &str = "10s";

/// How long a master of Redis must be silent to be replaced; Redis's default of 30 s would be most of a run.
const REDIS_SILENCE: Duration = Duration::from_secs(2);

/// How long Postgres may take to start again.
const RESTART_LIMIT: Duration = Duration::from_mins(1);

/// Sessions: six services with up to 17 each, and those of killed ones that Postgres has not missed.
const SESSIONS: &str = "300";

/// Without progress for this long, and with no deadline of an order to come, the run is stuck: longer than any
/// pause between attempts (30 s).
const STILL_LIMIT: Duration = Duration::from_secs(45);

/// Counts that grow while there is progress. Deadlines that pass again do not count.
const MARKERS: &str = "processed_messages";
/// Destroyed replies are in a topic that is not read.
const DELIVERED: &str = "outbox WHERE event_type <> 'Lost'";
const BOOKINGS: &str = "gateway_operations";
const HEARD: &str = "saga_history WHERE event <> 'DeadlinePassed'";
const WHAT: &str = "markers, bookings, events heard by sagas";

/// Orders that are not done, but will be given up (again).
const WAITING: &str = "sagas WHERE deadline > now()";

/// See the module.
pub(crate) struct Stage {
    /// Two of each: orders, payments, inventory.
    pub(crate) services: Vec<Service>,
    /// One for each database.
    pub(crate) relays: [Option<Running>; 3],
    pub(crate) redis: RedisSentinels,
    pub(crate) redis_state: State,
    pub(crate) kafka_state: State,
    postgres_state: State,
    pub(crate) watchdog: Watchdog,
    pub(crate) databases: Databases,
    pub(crate) bootstrap: String,
    relay_settings: [Relay; 3],
    cluster: Cluster,
    kafka: Kafka,
}

impl Stage {
    /// Starts everything, or says that this machine has no Kafka.
    pub(crate) fn open(stock: &BTreeMap<String, i64>, plan: &Plan) -> Option<Self> {
        let kafka = kafka::start(&kafka::Options::default())?;
        let bootstrap = kafka.bootstrap();
        for name in consumers::topics() {
            topic::create(&bootstrap, &name, PARTITIONS, &[]);
        }
        for name in CONSUMERS
            .iter()
            .map(consumers::dead_letters_of)
            .chain([topics::UNROUTED, databases::LOST].map(str::to_owned))
        {
            topic::create(&bootstrap, &name, 1, &[]);
        }
        let cluster = postgres::start(&Options::default().with("max_connections", SESSIONS));
        let databases = Databases::create(&cluster, stock);
        if plan.kills > 0 {
            databases.lose_replies(plan.seed);
        }
        let redis = RedisSentinels::start(REDIS_SILENCE).unwrap_or_else(|error| panic!("{error}"));
        let folder = Account::unprivileged().unwrap().make_folder("postrider-shop-").unwrap();
        let mut stage = Self {
            services: services(&databases, &bootstrap, &redis, plan),
            relays: [const { None }; 3],
            redis,
            redis_state: State::Running,
            kafka_state: State::Running,
            postgres_state: State::Running,
            watchdog: Watchdog::new(&folder).unwrap(),
            relay_settings: databases.each().each_ref().map(|database| relay(database, &bootstrap)),
            databases,
            bootstrap,
            cluster,
            kafka,
        };
        for number in 0..stage.relays.len() {
            stage.start_relay(number);
        }
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

    /// Starts a relay that is dead.
    pub(crate) fn start_relay(&mut self, number: usize) {
        self.relays[number] = Some(self.relay_settings[number].run());
    }

    /// kill -9 of the postmaster, if it runs.
    pub(crate) fn kill_postgres(&mut self) -> bool {
        let was = std::mem::replace(&mut self.postgres_state, State::Dead);
        if was == State::Running {
            self.cluster.stop(Stop::Kill).unwrap();
        }
        was == State::Running
    }

    /// Starts it again.
    pub(crate) fn start_postgres(&mut self) {
        // It is refused as long as a backend of before lives, which has to notice first.
        let started = within(RESTART_LIMIT, || self.cluster.start_again().ok());
        assert!(
            started.is_some(),
            "Postgres does not start again: {:?}",
            self.cluster.start_again()
        );
        self.postgres_state = State::Running;
    }

    /// kill -9 of the broker, if it runs.
    pub(crate) fn kill_kafka(&mut self) -> bool {
        let was = std::mem::replace(&mut self.kafka_state, State::Dead);
        if was == State::Running {
            self.kafka.kill_broker(0);
        }
        was == State::Running
    }

    /// Starts it again.
    pub(crate) fn start_kafka(&mut self) {
        self.kafka.start_broker(0);
        self.kafka_state = State::Running;
    }

    /// kill -9 of the master, if there is one with a replica.
    pub(crate) fn kill_redis(&mut self) -> bool {
        let was = std::mem::replace(&mut self.redis_state, State::Dead);
        if was == State::Running {
            self.redis.kill_master();
        }
        was == State::Running
    }

    /// Gives the new master a replica; false while there is no new master.
    pub(crate) fn replace_redis(&mut self) -> bool {
        if !self.redis.has_failed_over().unwrap() {
            return false;
        }
        self.redis.replace_killed().unwrap();
        self.redis_state = State::Running;
        true
    }

    /// Waits until every order has ended and every record is handled, or until there is no progress for a long
    /// time, or the limit is over.
    pub(crate) fn settle(&mut self, echo: &Duplicator, limit: Duration) -> bool {
        let databases = self.databases.connect();
        let begun = Instant::now();
        let (mut last, mut moved, mut told) = (String::new(), Instant::now(), Instant::now());
        loop {
            let rows = databases.count(DELIVERED);
            if is_done(&databases) && echo.heard() == rows && echo.pending() == 0 {
                let is_read =
                    topics::lag(&self.bootstrap, &topics::read(&self.bootstrap)).is_empty();
                // The last records may have produced others.
                if is_read && is_done(&databases) && databases.count(DELIVERED) == rows {
                    return true;
                }
            }
            let counts = [
                databases.count(MARKERS),
                databases::count(&databases.payments, BOOKINGS),
                databases::count(&databases.orders, HEARD),
            ];
            let waiting = databases::count(&databases.orders, WAITING);
            let now = format!("{rows} rows, {counts:?} {WHAT}, {} heard", echo.heard());
            if now != last || waiting > 0 {
                (last, moved) = (now, Instant::now());
            }
            if moved.elapsed() > STILL_LIMIT || begun.elapsed() > limit {
                eprintln!("no progress: {last}, {} duplicates pending", echo.pending());
                let lag = topics::lag(&self.bootstrap, &topics::read(&self.bootstrap));
                eprintln!("behind: {lag:?}; events without a marker: {:?}", unmarked(&databases));
                for service in &self.services {
                    eprintln!("{} logged last:\n{}", service.name, service.last_log_lines());
                }
                return false;
            }
            if told.elapsed() > Duration::from_secs(10) {
                eprintln!("finishing: {last}, {waiting} orders wait for their deadline");
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
        for relay in self.relays.iter_mut().filter_map(Option::take) {
            relay.stop();
        }
        faults
    }
}

fn is_done(databases: &Sessions) -> bool {
    let open = "sagas WHERE status NOT IN ('CONFIRMED', 'CANCELLED')";
    let unsettled = "payments WHERE status IN ('PENDING', 'REFUNDING')";
    databases::count(&databases.orders, open) + databases::count(&databases.payments, unsettled)
        == 0
}

/// Events that were delivered and that not as many consumers have done as read them.
fn unmarked(databases: &Sessions) -> BTreeMap<String, usize> {
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    for [message] in databases
        .each()
        .into_iter()
        .flat_map(|sql| sql.rows("SELECT message_id FROM processed_messages"))
        .map(|row| <[Option<String>; 1]>::try_from(row).unwrap())
    {
        *done.entry(message.unwrap()).or_default() += 1;
    }
    let mut missing = BTreeMap::new();
    for Written { id, event, is_lost, .. } in databases.events() {
        let wanted = if is_lost { 0 } else { consumers::consumers_of(&event).count() };
        let lacking = wanted.saturating_sub(done.get(&id).copied().unwrap_or(0));
        if lacking > 0 {
            *missing.entry(event).or_default() += lacking;
        }
    }
    missing
}

fn services(
    databases: &Databases,
    bootstrap: &str,
    redis: &RedisSentinels,
    plan: &Plan,
) -> Vec<Service> {
    let service = |command: &str, database: &Database, number: u32| {
        let mut arguments = vec![command];
        arguments.extend(["--brokers", bootstrap, "--bind", "127.0.0.1:0"]);
        if command == "orders" {
            let patience = if plan.is_long { GIVE_UP_AFTER } else { GIVE_UP_AFTER_SHORT };
            arguments.extend(["--patience", patience]);
        }
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        // They hold passwords, and a command line can be read by every user of the machine.
        let variables =
            vec![("DATABASE_URL", database.address().url()), ("REDIS_URL", redis.url())];
        Service::new(format!("{command} {number}"), arguments, variables)
    };
    Databases::SERVICES
        .iter()
        .zip(databases.each())
        .flat_map(|(command, database)| [1, 2].map(|number| service(command, database, number)))
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
