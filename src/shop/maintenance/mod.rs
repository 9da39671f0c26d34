//! `shop maintain`: deletes old rows, once or at an interval.
//!
//! Invariant: no row younger than its table's safe age is deleted, and no outbox row that the slot
//! has not passed. Transactions are small, so locks are short. An interrupted run keeps its
//! commits.

mod dead_letters;
mod horizon;
mod slot;
mod sweep;
mod table;

use std::io::Write;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use clap::Args;
use deadpool_postgres::Pool;
use serde::Serialize;
use tokio::sync::watch;
use tokio_postgres::Client;
use tracing::{info, warn};

use super::error::ShopError;
use super::kafka::KafkaClientArgs;
use super::probes::Probes;
use super::settings::{database, pool, stop_signal};
use super::{inventory, orders, payments};
use dead_letters::DeadLetterGauges;
use horizon::Horizons;
use postrider_patterns::inbox::topic_retention;
use postrider_service::units::parse_duration;
use sweep::{CleanupCounts, MaintenanceTotals, Sweep, pause};
use table::CleanupTable;

/// Arguments of `shop maintain`.
#[derive(Debug, Clone, Args)]
pub(super) struct MaintenanceArgs {
    /// The database: a URL or key=value pairs
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// How old a row must be, such as 42d; ages that are unsafe for its table are refused
    #[arg(long, default_value = "42d", value_name = "TIME", value_parser = parse_duration)]
    older_than: Duration,
    /// Clean up only these tables; without it, those that the database has
    #[arg(long = "table", value_enum, value_name = "TABLE")]
    tables: Vec<CleanupTable>,
    #[command(flatten)]
    horizons: Horizons,
    /// Kafka's bootstrap servers, which are asked how long the topics keep messages
    #[arg(long, env = "KAFKA_BROKERS", value_name = "HOST:PORT,..")]
    brokers: Option<String>,
    #[command(flatten)]
    kafka: KafkaClientArgs,
    /// The topics that it is asked about; without it, those of this shop's services
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,
    /// The replication slot that says which outbox rows were delivered
    #[arg(long, default_value = "postrider", value_name = "NAME")]
    slot: String,
    /// Rows in one transaction
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,
    /// Pause after each transaction, to limit the load
    #[arg(long, default_value = "20ms", value_name = "TIME",
        value_parser = parse_duration)]
    pause: Duration,
    /// Count what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
    /// Run repeatedly at this interval, until SIGTERM; without it, run once
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    every: Option<Duration>,
    /// With --every: where health and metrics are served
    #[arg(long, requires = "every", value_name = "ADDRESS")]
    bind: Option<SocketAddr>,
}

#[derive(Debug, Serialize)]
struct Cleaned<'a> {
    table: &'static str,
    #[serde(flatten)]
    swept: &'a CleanupCounts,
    dry_run: bool,
}

struct MaintenanceRun<'a> {
    args: &'a MaintenanceArgs,
    pool: Pool,
    totals: Arc<MaintenanceTotals>,
    dead_letters: Arc<DeadLetterGauges>,
    stop: watch::Receiver<bool>,
}

impl MaintenanceArgs {
    /// SIGTERM ends a run with success after the current transaction. A single run fails after all
    /// tables if one could not be cleaned.
    pub(super) async fn run(&self, stdout: &mut dyn Write) -> Result<(), ShopError> {
        for table in self.tables() {
            self.horizons.check(*table, self.older_than)?;
        }
        let pool = pool(&database(&self.database_url)?)?;
        let (stopping, stop) = watch::channel(false);
        let (totals, dead_letters) = Default::default();
        let run = MaintenanceRun { args: self, pool, totals, dead_letters, stop };
        let mut work = pin!(async {
            let Some(every) = self.every else { return run.clean(stdout).await };
            tokio::select! {
                () = run.clean_repeatedly(every) => Ok(()),
                served = run.serve() => served,
                watched = run.watch_dead_letters() => watched,
            }
        });
        tokio::select! {
            done = &mut work => return done,
            () = stop_signal() => info!("stopping"),
        }
        stopping.send_replace(true);
        work.await
    }

    /// An operator may change a topic's retention at any time.
    async fn check_topics(&self) -> Result<(), ShopError> {
        if !self.tables().iter().any(|table| table.outlives_topics()) {
            return Ok(());
        }
        let Some(brokers) = &self.brokers else {
            warn!(
                help = "--brokers (KAFKA_BROKERS) has it asked of Kafka",
                "how long the topics keep messages is taken from --topic-retention"
            );
            return Ok(());
        };
        let of_shop = [&inventory::TOPICS[..], &orders::TOPICS, &payments::TOPICS].concat();
        let topics = if self.topics.is_empty() {
            of_shop
        } else {
            self.topics.iter().map(String::as_str).collect()
        };
        let retention = topic_retention(&self.kafka.settings(brokers)?, &topics).await?;
        self.horizons.check_topics(&retention)
    }

    fn tables(&self) -> &[CleanupTable] {
        if self.tables.is_empty() { &CleanupTable::ALL } else { &self.tables }
    }

    async fn present(&self, client: &Client) -> Result<Vec<CleanupTable>, ShopError> {
        if !self.tables.is_empty() {
            return Ok(self.tables.clone());
        }
        let names = CleanupTable::ALL.map(CleanupTable::name);
        let sql = "SELECT name FROM unnest($1::text[]) AS name WHERE to_regclass(name) IS NOT NULL";
        let rows = client.query(sql, &[&&names[..]]).await?;
        let found: Vec<&str> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        info!(tables = found.join(", "), "cleaning the tables that this database has");
        if found.is_empty() {
            return Err(ShopError::NothingToClean);
        }
        Ok(CleanupTable::ALL.into_iter().filter(|table| found.contains(&table.name())).collect())
    }
}

impl MaintenanceRun<'_> {
    /// Skips tables that outlive the topics if Kafka keeps messages too long or its retention is
    /// unknown.
    async fn clean(&self, output: &mut dyn Write) -> Result<(), ShopError> {
        let mut failure = self.args.check_topics().await.err();
        let unsafe_topics = failure.as_ref().map(ToString::to_string);
        let client = self.pool.get().await?;
        let (args, totals, stop) = (self.args, &*self.totals, self.stop.clone());
        let sweep = Sweep { client: &client, args, totals, stop };
        for table in &args.present(&client).await? {
            if *self.stop.borrow() {
                break;
            }
            let left_alone = unsafe_topics.clone().filter(|_| table.outlives_topics());
            let swept = if left_alone.is_some() {
                CleanupCounts { left_alone, ..CleanupCounts::default() }
            } else {
                let Some(swept) = self.sweep(&sweep, *table, &mut failure).await else { continue };
                swept
            };
            let cleaned = Cleaned { table: table.name(), swept: &swept, dry_run: args.dry_run };
            let line = serde_json::to_string(&cleaned).map_err(std::io::Error::other);
            line.and_then(|line| writeln!(output, "{line}")).map_err(ShopError::Output)?;
        }
        failure.map_or(Ok(()), Err)
    }

    /// `None` on failure, so that the others are still cleaned.
    async fn sweep(
        &self,
        sweep: &Sweep<'_>,
        table: CleanupTable,
        failure: &mut Option<ShopError>,
    ) -> Option<CleanupCounts> {
        match sweep.table(table).await {
            Err(refusal @ (ShopError::NoSlot(_) | ShopError::SlotLost { .. })) => {
                self.totals.left_alone.fetch_add(1, Ordering::Relaxed);
                let left_alone = Some(refusal.to_string());
                failure.get_or_insert(refusal);
                Some(CleanupCounts { left_alone, ..CleanupCounts::default() })
            }
            Err(error) => {
                let error = ShopError::NotCleaned(table.name(), Box::new(error));
                let (error_text, help) = (error.with_causes(), error.hint());
                warn!(error = error_text, help, "continuing with the next table");
                failure.get_or_insert(error);
                None
            }
            Ok(swept) => {
                let CleanupCounts { deleted, held_back, .. } = swept;
                let dry_run = self.args.dry_run;
                info!(table = table.name(), deleted, held_back, dry_run, "cleaned");
                Some(swept)
            }
        }
    }

    async fn clean_repeatedly(&self, every: Duration) {
        while !*self.stop.borrow() {
            if let Err(error) = self.clean(&mut std::io::sink()).await {
                self.totals.failed.fetch_add(1, Ordering::Relaxed);
                let (error, help) = (error.with_causes(), error.hint());
                warn!(error, help, "cleaning up failed; retrying at the next interval");
            }
            pause(every, &self.stop).await;
        }
    }

    /// Returns only on error.
    async fn watch_dead_letters(&self) -> Result<(), ShopError> {
        if let (Some(brokers), Some(every)) = (&self.args.brokers, self.args.every) {
            let kafka = self.args.kafka.settings(brokers)?;
            self.dead_letters.watch(&kafka, every, &self.stop).await;
        }
        std::future::pending().await
    }

    async fn serve(&self) -> Result<(), ShopError> {
        let Some(bind) = self.args.bind else { return std::future::pending().await };
        let failed = |source| ShopError::Bind(bind, source);
        let listener = tokio::net::TcpListener::bind(bind).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        info!(%address, "serving");
        let totals = Arc::clone(&self.totals);
        let dead_letters = Arc::clone(&self.dead_letters);
        let metrics = move || [totals.counts(), dead_letters.metrics()].concat();
        let router: Router = Probes::new(self.pool.clone(), metrics).router();
        axum::serve(listener, router).await.map_err(ShopError::Http)
    }
}
