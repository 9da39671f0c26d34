//! The servers of one run, those who write, read and watch, and the relay's configuration.
//!
//! Input: a [`Plan`]. Output: a [`Journal`] of all that was observed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use postrider::sandbox::postgres::{Cluster, Options};

use crate::crash::account::Account;
use crate::crash::disasters::Disaster;
use crate::crash::ends::{Ends, SOCKET_TIMEOUT, Tally};
use crate::crash::judge::{Journal, Kill};
use crate::crash::pair::Pair;
use crate::crash::readers::{Reader, Shelf, now_ms, say_goodbye};
use crate::crash::second_judge::{SecondVerdict, verify};
use crate::crash::settings::{Plan, Victim};
use crate::crash::watch::Watch;
use crate::crash::writers::Writers;
use crate::load::rows::PARTITIONS;
use crate::load::settings::Mode;
use support::fault::cluster;
use support::postgres::{self, Database};
use support::relay::Relay;
use support::sql::Sql;
use support::{kafka, topic};

/// `kafka.max_in_flight`: its least, so that repeats beyond it are noticed.
const IN_FLIGHT_BYTES_MAX: u64 = 1 << 20;

/// `source.status_interval` in ms.
const STATUS_INTERVAL_MS: u32 = 200;

/// How long rows may be confirmed and not acknowledged: a status interval, and as much again for the
/// time in which an update is held and the machine is busy.
const CONFIRMED_MS: u32 = 2 * STATUS_INTERVAL_MS;

/// Each relay may have so much in flight: one that wakes up sends it beside the other.
const RELAYS: usize = 2;

/// How long Postgres keeps the slot for a relay that says nothing. Much less than usual, or a frozen one
/// would hold up each run for a minute; more than the watch holds a status update of one that is well.
const WAL_SENDER_TIMEOUT: &str = "3s";

/// How long the last relay may take for what is left.
const REST_LIMIT: Duration = Duration::from_mins(3);

/// See the module.
pub(crate) struct Arena {
    pub(crate) plan: Plan,
    pub(crate) cluster: Cluster,
    pub(crate) kafka: kafka::Kafka,
    /// What stands before the broker.
    ends: Option<Ends>,
    pub(crate) relay: Relay,
    pub(crate) writers: Writers,
    /// Reads only what is committed.
    pub(crate) reader: Reader,
    pub(crate) shelf: Shelf,
    database: Database,
    uncommitted: Reader,
    watch: Watch,
    account: Account,
    kills: Vec<Kill>,
    disasters: BTreeMap<Disaster, u32>,
}

/// What a run leaves behind.
pub(crate) struct Outcome {
    pub(crate) journal: Journal,
    /// What `postrider verify` makes of it.
    pub(crate) second: SecondVerdict,
    /// What became of disturbed EndTxns, where that was asked for.
    pub(crate) tally: Option<Tally>,
    pub(crate) recoveries: Vec<Duration>,
    /// Rows whose commit Postgres has confirmed.
    pub(crate) confirmed: u64,
    /// Rows that one kill may repeat: what may be in flight, what is confirmed between two status
    /// updates, and the rows of a transaction that is not wholly stored.
    pub(crate) in_flight_cap: usize,
}

impl Arena {
    /// Starts everything but the relay, or says that this machine has no Kafka.
    pub(crate) fn open(plan: Plan) -> Option<Self> {
        let options = kafka::Options { brokers: plan.brokers(), ..kafka::Options::default() };
        let (kafka, bootstrap, ends) = if plan.victim == Victim::EndTxn {
            let cluster = cluster::start(&options)?;
            let bootstrap = cluster.bootstrap();
            (cluster.kafka, bootstrap, Some(Ends::begin(cluster.proxy, cluster.end_txns, &plan)))
        } else {
            let kafka = kafka::start(&options)?;
            let bootstrap = kafka.bootstrap();
            (kafka, bootstrap, None)
        };
        let cluster = postgres::start(&Options::default());
        let database = Database::migrated(&cluster, "crash");
        let prefix = format!("{}.", database.name());
        let shelf = Shelf { bootstrap: kafka.bootstrap(), prefix, opened_ms: now_ms() };
        // The broker's time shows which of the relays stored a record.
        let settings = [("message.timestamp.type", "LogAppendTime")];
        for name in shelf.topics() {
            topic::create(&shelf.bootstrap, &name, i32::try_from(PARTITIONS).unwrap(), &settings);
        }
        let slot = database.name();
        let create = format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
        database.sql().run(&create);
        database
            .sql()
            .run(&format!("ALTER DATABASE {slot} SET wal_sender_timeout = '{WAL_SENDER_TIMEOUT}'"));
        let watch =
            Watch::start(&database.address(), &shelf, transactional_id(&database, plan.mode));
        let account = Account::open(&database);
        Some(Self {
            plan,
            relay: relay(&watch, &bootstrap, &shelf, slot, &plan),
            reader: Reader::start(&shelf, "read_committed"),
            uncommitted: Reader::start(&shelf, "read_uncommitted"),
            writers: Writers::start(&database.address().unix_url(), plan.rows_per_s, plan.seed),
            cluster,
            kafka,
            ends,
            shelf,
            database,
            watch,
            account,
            kills: Vec::new(),
            disasters: BTreeMap::new(),
        })
    }

    /// Says what comes next; the last line of a run that fails is where it did.
    pub(crate) fn note(&mut self, cycle: u32, disaster: Disaster) {
        eprintln!("{} {cycle}: {disaster:?}", self.shelf.now());
        *self.disasters.entry(disaster).or_default() += 1;
    }

    /// Counts a disaster that has just happened; from now on the relays' return is awaited.
    pub(crate) fn count_kill(&mut self) {
        self.count(true);
    }

    /// The same for an outage of brokers. While it lasts, the watch holds status updates, so that more
    /// than usual is confirmed and not acknowledged: what is repeated then is not held against the cap.
    pub(crate) fn count_outage(&mut self) {
        self.count(false);
    }

    /// Counts a relay that wakes up and may repeat what it still has in flight.
    pub(crate) fn count_waking(&mut self) {
        self.kills.push(Kill { moment: self.shelf.now(), is_capped: true });
    }

    fn count(&mut self, is_capped: bool) {
        self.kills.push(Kill { moment: self.shelf.now(), is_capped });
        self.reader.await_row(self.writers.next());
    }

    /// The application name of the relay that has the slot; none if nobody has.
    pub(crate) fn holder(&self) -> Option<String> {
        let holder = format!(
            "SELECT application_name FROM pg_replication_slots JOIN pg_stat_activity \
             ON pid = active_pid WHERE slot_name = '{}'",
            self.database.name()
        );
        let sql = Sql::try_connect(&self.database.address().unix_url()).ok()?;
        sql.try_rows(&holder).ok()?.pop()?.pop()?
    }

    /// Ends the session that has the slot, if there is one.
    pub(crate) fn terminate(&self) {
        self.database.sql().run(&format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
             WHERE slot_name = '{}' AND active_pid IS NOT NULL",
            self.database.name()
        ));
    }

    /// Returns when so many EndTxns were disturbed.
    pub(crate) fn await_injection(&self, number: u32) {
        self.ends.as_ref().unwrap().await_injection(number);
    }

    /// Makes Postgres write down everything.
    pub(crate) fn checkpoint(&self) {
        self.database.sql().run("CHECKPOINT");
    }

    /// A line on how it goes.
    pub(crate) fn tell(&self, cycle: u32) {
        eprintln!(
            "{} of {}: {} rows committed, {} accounted for, {} records visible, {} in all",
            cycle,
            self.plan.cycles,
            self.writers.committed(),
            self.account.rows(),
            self.reader.records(),
            self.uncommitted.records()
        );
    }

    /// Ends the writers, lets the relay deliver what is left, and gathers what was seen.
    pub(crate) fn close(self, mut pair: Pair) -> Outcome {
        let confirmed = self.writers.stop();
        let sql = self.database.sql();
        let end = sql.value("SELECT pg_current_wal_lsn()");
        let deadline = Instant::now() + REST_LIMIT;
        let settled = format!(
            "SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = '{}'",
            self.database.name()
        );
        while sql.value(&settled) != "t" {
            assert!(Instant::now() < deadline, "not all was acknowledged in {REST_LIMIT:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let tally = self.ends.as_ref().map(|ends| ends.tally(pair.first()));
        pair.stop();
        eprintln!("{:?}", self.disasters);
        let second = verify(&self.relay);
        say_goodbye(&self.shelf);
        let recoveries = self.reader.recoveries();
        let in_flight = usize::try_from(IN_FLIGHT_BYTES_MAX / self.reader.smallest()).unwrap();
        let journal = Journal {
            committed: self.reader.finish(),
            uncommitted: self.uncommitted.finish(),
            truth: self.account.close(),
            told: self.watch.told(),
            kills: self.kills,
        };
        let in_flight_cap = in_flight * RELAYS
            + journal.busiest(CONFIRMED_MS)
            + journal.truth.largest_transaction();
        Outcome { journal, second, tally, recoveries, confirmed, in_flight_cap }
    }
}

/// The name of the relay's Kafka transactions: system, database and slot.
fn transactional_id(database: &Database, mode: Mode) -> Option<String> {
    let name = database.name();
    let system = "SELECT system_identifier FROM pg_control_system()";
    let id = || format!("postrider.{}.{name}.{name}", database.sql().value(system));
    (mode == Mode::ExactlyOnce).then(id)
}

/// The command of both, but for their names. What they warn of is counted, not judged: kills have consequences.
fn relay(watch: &Watch, bootstrap: &str, shelf: &Shelf, slot: &str, plan: &Plan) -> Relay {
    // What Postgres forgets about the slot in a crash is for progress to remember.
    let keeps_progress = matches!(plan.victim, Victim::Any | Victim::Postgres);
    let relay = Relay::new(
        env!("CARGO_BIN_EXE_postrider"),
        &watch.address(),
        slot,
        bootstrap,
        &shelf.prefix,
    )
    .set("kafka.delivery", plan.mode.name())
    .set("progress.at_least_once", &keeps_progress.to_string())
    .set("kafka.max_in_flight", &format!("{IN_FLIGHT_BYTES_MAX}B"))
    .set("source.status_interval", &format!("{STATUS_INTERVAL_MS}ms"))
    .set("retry.max", "500ms")
    .allow_log("");
    if plan.victim == Victim::EndTxn {
        relay.property("socket.timeout.ms", &SOCKET_TIMEOUT.as_millis().to_string())
    } else {
        relay
    }
}
