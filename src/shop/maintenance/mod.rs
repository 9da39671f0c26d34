//! Deletes what nobody needs any more: markers, idempotency keys, outbox rows.
//!
//! Enters: how old rows may become. Leaves: fewer rows, and how many. What always holds: no row younger
//! than its table's safe horizon is deleted, whatever is asked for; rows go in small transactions, so
//! nobody waits for them; a run that is broken off has done what it has done. Called by `cli`.

mod horizon;
mod sweep;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use clap::Args;
use deadpool_postgres::Pool;
use serde::Serialize;
use tracing::{info, warn};

use super::error::ShopError;
use super::face::{Count, Face};
use super::settings::{database, interrupted, pool};
use horizon::{Horizons, Table};
use sweep::{Swept, sweep};

/// Which rows, and how.
#[derive(Debug, Clone, Args)]
pub(super) struct MaintenanceArgs {
    /// The database: a URL or key=value pairs
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// How old a row must be, such as 42d; not below what is safe for its table
    #[arg(long, default_value = "42d", value_name = "TIME", value_parser = super::cli::parse_duration)]
    older_than: Duration,
    /// Clean these tables alone
    #[arg(long = "table", value_enum, value_name = "TABLE")]
    tables: Vec<Table>,
    #[command(flatten)]
    horizons: Horizons,
    /// Rows in one transaction
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,
    /// Pause after each transaction, for the sake of others
    #[arg(long, default_value = "20ms", value_name = "TIME",
        value_parser = super::cli::parse_duration)]
    pause: Duration,
    /// Count what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
    /// Run again and again, this often, until SIGTERM; without it, once
    #[arg(long, value_name = "TIME", value_parser = super::cli::parse_duration)]
    every: Option<Duration>,
    /// With --every: where health and metrics are served
    #[arg(long, requires = "every", value_name = "ADDRESS")]
    bind: Option<SocketAddr>,
}

/// What a run did to one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Cleaned {
    /// Its name.
    pub(super) table: &'static str,
    /// Rows that are gone, or would be.
    pub(super) deleted: u64,
    /// Whether nothing was deleted.
    pub(super) dry_run: bool,
}

impl MaintenanceArgs {
    /// Runs once and returns what it did, or runs until it is told to stop.
    pub(super) async fn run(&self) -> Result<Vec<Cleaned>, ShopError> {
        let tables = if self.tables.is_empty() { Table::ALL.to_vec() } else { self.tables.clone() };
        for table in &tables {
            self.horizons.check(*table, self.older_than)?;
        }
        let pool = pool(&database(&self.database_url)?)?;
        let swept = Arc::new(Swept::default());
        let Some(every) = self.every else {
            return self.clean(&pool, &tables, &swept).await;
        };
        tokio::select! {
            () = self.clean_again_and_again(&pool, &tables, &swept, every) => {}
            served = self.serve(&pool, &swept) => served?,
            () = interrupted() => info!("stopping"),
        }
        Ok(Vec::new())
    }

    async fn clean(
        &self,
        pool: &Pool,
        tables: &[Table],
        swept: &Swept,
    ) -> Result<Vec<Cleaned>, ShopError> {
        let mut cleaned = Vec::new();
        for table in tables {
            let client = pool.get().await?;
            let deleted = if self.dry_run {
                sweep::count(&client, *table, self.older_than).await?
            } else {
                sweep(&client, *table, self, swept).await?
            };
            info!(table = table.name(), deleted, dry_run = self.dry_run, "cleaned");
            cleaned.push(Cleaned { table: table.name(), deleted, dry_run: self.dry_run });
        }
        Ok(cleaned)
    }

    async fn clean_again_and_again(
        &self,
        pool: &Pool,
        tables: &[Table],
        swept: &Swept,
        every: Duration,
    ) {
        loop {
            if let Err(error) = self.clean(pool, tables, swept).await {
                swept.failed();
                warn!(error = %error.in_full(), "not all was cleaned; trying again later");
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Never ends without an error; without an address it does nothing.
    async fn serve(&self, pool: &Pool, swept: &Arc<Swept>) -> Result<(), ShopError> {
        let Some(bind) = self.bind else { return std::future::pending().await };
        let taken = |source| ShopError::Bind(bind, source);
        let listener = tokio::net::TcpListener::bind(bind).await.map_err(taken)?;
        let counting = Arc::clone(swept);
        let router: Router = Face::new(pool.clone(), move || counts(&counting)).router();
        axum::serve(listener, router).await.map_err(ShopError::Http)
    }
}

fn counts(swept: &Swept) -> Vec<Count> {
    let (rows, failures) = swept.totals();
    vec![
        ("shop_maintenance_rows_deleted_total", "rows deleted", rows),
        ("shop_maintenance_failures_total", "runs that failed", failures),
    ]
}
