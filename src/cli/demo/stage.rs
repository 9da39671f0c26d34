//! Sets up and removes the demo's servers, topics, tables, publication and slot.
//!
//! Invariant: servers that the user did not name end with the demo. A database that another slot
//! reads is refused. On the user's database the demo's slot and publication are dropped at the end;
//! tables and topics stay.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;

use postrider_config::Delivery;
use postrider_kafka::embedded::Broker;
use postrider_kafka::{KafkaSpec, create_missing};
use postrider_postgres::control::{self, Client, SetupChoices, SetupPlan};
use postrider_postgres::libpq::ConnectInfo;
use postrider_relay::{Plan, RelayError, begin_stream};
use postrider_sandbox::account::Account;
use postrider_sandbox::postgres::{Cluster, Options};
use postrider_sandbox::watchdog::Watchdog;

use super::DemoError;

/// Publication of the demo only, so that a user's publication is never changed.
const PUBLICATION: &str = "postrider_demo";
const SLOT_LIMIT: Duration = Duration::from_secs(10);
const PARTITIONS: i32 = 3;
const BROKERS: u32 = 1;

pub(super) const SOURCE: &str = "source.url";

/// Options that [`Stage::relay_settings`] decides.
pub(super) const CHOSEN: [&str; 7] = [
    SOURCE,
    "source.slot",
    "source.publication",
    "source.tables",
    "kafka.brokers",
    "progress.topic",
    "http.bind",
];

/// Placeholders that allow a check of the other settings before the servers are known.
pub(super) fn stand_ins() -> [(&'static str, String); 2] {
    [
        (SOURCE, "postgres://nobody@localhost/nowhere".to_owned()),
        ("kafka.brokers", "localhost:9092".to_owned()),
    ]
}

pub(super) struct Stage {
    cluster: Option<Cluster>,
    broker: Option<Broker>,
    pub(super) database_url: String,
    pub(super) brokers: String,
    /// Slots belong to the cluster, so the database's OID keeps two demos apart.
    pub(super) slot: String,
    pub(super) http: SocketAddr,
}

impl Stage {
    pub(super) fn set(
        database_url: Option<&str>,
        brokers: Option<&str>,
        topics: &[String],
    ) -> Result<Self, DemoError> {
        let mut broker = None;
        if brokers.is_none() {
            let topics: Vec<_> = topics.iter().map(|t| (t.as_str(), PARTITIONS)).collect();
            broker = Some(Broker::start(BROKERS, &topics)?);
        }
        let mut cluster = None;
        if database_url.is_none() {
            cluster = Some(Cluster::start(&Options::default())?);
        }
        let own_database = cluster.as_ref().map(Cluster::unix_url);
        let own_brokers = broker.as_ref().map(Broker::bootstrap);
        Ok(Self {
            database_url: own_database.or(database_url.map(str::to_owned)).unwrap_or_default(),
            brokers: own_brokers.or(brokers.map(str::to_owned)).unwrap_or_default(),
            slot: String::new(),
            http: free_port()?,
            cluster,
            broker,
        })
    }

    pub(super) fn describe(&self) -> String {
        let postgres = match &self.cluster {
            Some(cluster) => format!("private PostgreSQL {} (fsync off)", cluster.version()),
            None => "your PostgreSQL".to_owned(),
        };
        let kafka = match &self.broker {
            Some(_) => "embedded broker (librdkafka's mock cluster, in memory)",
            None => "your Kafka",
        };
        format!("{postgres} -> postrider -> {kafka}")
    }

    pub(super) async fn prepare(&mut self, topics: &[String]) -> Result<Client, DemoError> {
        if self.broker.is_none() {
            let kafka = KafkaSpec::of_brokers(&self.brokers);
            create_missing(&kafka, topics, PARTITIONS).await?;
        }
        let client = self.connect().await?;
        let sql = "SELECT oid FROM pg_database WHERE datname = current_database()";
        let database: u32 = client.sql().query_one(sql, &[]).await?.try_get(0)?;
        self.slot = format!("postrider_demo_{database}");
        self.refuse_a_database_in_use(&client).await?;
        for migration in [
            include_str!("../migrations/0001_outbox.sql"),
            include_str!("../migrations/0002_shop.sql"),
            include_str!("../migrations/0003_application.sql"),
            include_str!("../migrations/0004_services.sql"),
        ] {
            client.sql().batch_execute(migration).await?;
        }
        Ok(client)
    }

    pub(super) async fn connect(&self) -> Result<Client, DemoError> {
        let info = ConnectInfo::resolve(&self.database_url, &|name| std::env::var(name).ok())?.0;
        Ok(control::connect(&info).await?)
    }

    /// Settings that override all others of the relay.
    pub(super) fn relay_settings(&self) -> Vec<(&'static str, String)> {
        // Progress of an earlier demo must not match this demo's slot.
        let progress = format!("postrider.progress.{}.{}", self.slot, std::process::id());
        vec![
            (SOURCE, self.database_url.clone()),
            ("source.slot", self.slot.clone()),
            ("source.publication", PUBLICATION.to_owned()),
            ("source.tables", "public.outbox".to_owned()),
            ("kafka.brokers", self.brokers.clone()),
            ("progress.topic", progress),
            ("http.bind", self.http.to_string()),
        ]
    }

    /// Creates publication and slot. Rows of an earlier demo are not delivered.
    pub(super) async fn make_slot(&self, client: &Client, relay: &Plan) -> Result<(), DemoError> {
        let wanted = relay.requirements().map_err(RelayError::from)?;
        let choices = SetupChoices { from_now: true, ..SetupChoices::default() };
        let plan = SetupPlan::new(wanted, choices);
        plan.make_tables(client).await?;
        if relay.config.kafka.delivery == Delivery::ExactlyOnce {
            begin_stream(relay, client, &plan.ready_for_slot(client).await?).await?;
        }
        plan.make_slot(client).await?;
        Ok(())
    }

    /// Another reader of the database would receive the demo's rows.
    async fn refuse_a_database_in_use(&self, client: &Client) -> Result<(), DemoError> {
        let sql = "SELECT slot_name::text FROM pg_replication_slots \
                   WHERE database = current_database() AND (slot_name <> $1 OR active)";
        match client.sql().query_opt(&format!("{sql} LIMIT 1"), &[&self.slot]).await? {
            Some(row) => Err(DemoError::InUse { slot: row.get(0) }),
            None => Ok(()),
        }
    }

    /// A killed relay may still hold the slot.
    pub(super) async fn clear(&self, client: &Client) -> Result<(), DemoError> {
        if self.cluster.is_some() {
            return Ok(());
        }
        let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                   WHERE slot_name = $1";
        let deadline = Instant::now() + SLOT_LIMIT;
        while let Err(error) = client.sql().execute(sql, &[&self.slot]).await {
            if error.code() != Some(&SqlState::OBJECT_IN_USE) || Instant::now() > deadline {
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        client.sql().batch_execute(&format!("DROP PUBLICATION IF EXISTS {PUBLICATION}")).await?;
        Ok(())
    }

    pub(super) fn watchdog() -> Result<Watchdog, DemoError> {
        Ok(Watchdog::new(&Account::Own.make_folder("postrider-demo-")?)?)
    }
}

fn free_port() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
