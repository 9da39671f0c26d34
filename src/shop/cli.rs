//! The command line of `shop`. Logs go to stderr, so stdout has only results.

use std::io::Write;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use super::connect::connect;
use super::dead_letters::DeadLettersArgs;
use super::error::ShopError;
use super::load::{LoadPlan, LoadReport, Rate, run};
use super::maintenance::MaintenanceArgs;
use super::migrations::MigrateArgs;
use super::notifications::{self, MailSettings};
use super::orders::{OrderLimits, SagasArgs};
use super::settings::{ServiceListener, ServiceSettings, stop_signal};
use super::{inventory, orders, payments};
use postrider_service::units::parse_duration;

/// A reference shop whose services communicate through the outbox
#[derive(Debug, Parser)]
#[command(name = "shop", version)]
pub struct Shop {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the tables of a service in its database; may be run again
    Migrate(MigrateArgs),
    /// Write orders at a steady rate, some of which are rolled back on purpose
    Load(LoadArgs),
    /// Serve orders over HTTP, each placed once, and run their sagas
    Orders(OrdersArgs),
    /// Charge and refund each order at most once, through a simulated gateway
    Payments(ServiceSettings),
    /// Reserve and release stock, once for each order
    Inventory(ServiceSettings),
    /// Mail customers when their orders are confirmed or cancelled
    Notifications(NotificationsArgs),
    /// Delete old markers, idempotency keys, ended sagas and outbox rows
    Maintain(MaintenanceArgs),
    /// List and redrive the dead letters of a consumer
    DeadLetters(DeadLettersArgs),
    /// List orders that are stuck, show one, fire its deadline now, or have it undone
    Sagas(SagasArgs),
}

#[derive(Debug, Args)]
struct OrdersArgs {
    #[command(flatten)]
    settings: ServiceSettings,
    /// How long an order may take before it is cancelled and undone, such as 30s
    #[arg(long, env = "ORDER_PATIENCE", default_value = "60s", value_name = "TIME",
        value_parser = parse_duration)]
    patience: Duration,
    /// How long the lease of an Idempotency-Key lasts without renewal before another request may execute;
    /// longer than usual pauses of a process, shorter than clients wait
    #[arg(long, env = "ORDER_OWNER_SILENCE", default_value = "30s", value_name = "TIME",
        value_parser = parse_duration)]
    owner_silence: Duration,
}

impl OrdersArgs {
    fn limits(&self) -> OrderLimits {
        OrderLimits { order_timeout: self.patience, owner_silence: self.owner_silence }
    }
}

#[derive(Debug, Args)]
struct NotificationsArgs {
    #[command(flatten)]
    settings: ServiceSettings,
    #[command(flatten)]
    mail: MailSettings,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Human,
    Json,
}

#[derive(Debug, Args)]
struct LoadArgs {
    /// Where to write: a URL or key=value pairs
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// Outbox rows to commit
    #[arg(long, default_value_t = 1_000)]
    count: u64,
    /// Committed rows per second; without it, as fast as the database takes them
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Seed for customers, event types, amounts and failures
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Of 100 transactions, how many roll back
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=99))]
    rollback_percent: u8,
    /// Of 100 committing transactions, how many roll a row back to a savepoint
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=100))]
    savepoint_percent: u8,
    /// Customers: the record keys
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    customers: u32,
    /// Event types: the topics
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    types: u32,
    /// Bytes of JSON text per payload
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(..=10_000_000))]
    payload_bytes: u32,
    /// Rows per transaction
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tx_rows: u32,
    /// How to print the summary
    #[arg(long, value_enum, default_value_t = Output::Human)]
    output: Output,
}

impl Shop {
    pub fn run(self, stdout: &mut dyn Write) -> Result<(), ShopError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ShopError::Runtime)?;
        runtime.block_on(async {
            match self.command {
                Command::Load(args) => {
                    let client = connect(&args.database_url).await?;
                    let report = run(&client, &args.plan(), |_| ()).await?;
                    args.output.write(&report, stdout).map_err(ShopError::Output)
                }
                Command::Migrate(args) => args.run().await,
                Command::Orders(args) => {
                    start_logs();
                    let endpoint =
                        ServiceListener::listen(args.settings.bind, stop_signal()).await?;
                    orders::run(&args.settings, args.limits(), endpoint).await
                }
                Command::Payments(settings) => {
                    start_logs();
                    let endpoint = ServiceListener::listen(settings.bind, stop_signal()).await?;
                    payments::run(&settings, endpoint).await
                }
                Command::Inventory(settings) => {
                    start_logs();
                    let endpoint = ServiceListener::listen(settings.bind, stop_signal()).await?;
                    inventory::run(&settings, endpoint).await
                }
                Command::Notifications(NotificationsArgs { settings, mail }) => {
                    start_logs();
                    let endpoint = ServiceListener::listen(settings.bind, stop_signal()).await?;
                    notifications::run(&settings, &mail, endpoint).await
                }
                Command::DeadLetters(args) => args.run(stdout),
                Command::Sagas(args) => args.run(stdout).await,
                Command::Maintain(args) => {
                    start_logs();
                    args.run(stdout).await
                }
            }
        })
    }
}

fn start_logs() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // A subscriber that is already set stays.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
}

impl LoadArgs {
    fn plan(&self) -> LoadPlan {
        LoadPlan {
            count: self.count,
            rate: self.rate.map_or(Rate::Unlimited, Rate::PerSecond),
            seed: self.seed,
            rollback_percent: self.rollback_percent,
            savepoint_percent: self.savepoint_percent,
            customers: self.customers,
            types: self.types,
            payload_bytes: self.payload_bytes,
            tx_rows: self.tx_rows,
        }
    }
}

impl Output {
    fn write(self, report: &LoadReport, stdout: &mut dyn Write) -> std::io::Result<()> {
        match self {
            Self::Json => writeln!(stdout, "{}", serde_json::to_string(report)?),
            Self::Human => writeln!(
                stdout,
                "committed {} rows in {:.1} s; rolled back on purpose: {} with their transaction, \
                 {} to a savepoint",
                report.committed, report.seconds, report.rolled_back, report.savepoints_rolled_back,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: LoadReport =
        LoadReport { committed: 20, rolled_back: 1, savepoints_rolled_back: 2, seconds: 0.5 };

    fn parse(line: &str) -> Result<LoadArgs, clap::Error> {
        match Shop::try_parse_from(line.split_whitespace())?.command {
            Command::Load(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_json_summary_is_one_line() {
        let mut out = Vec::new();
        Output::Json.write(&REPORT, &mut out).unwrap();
        let expected =
            r#"{"committed":20,"rolled_back":1,"savepoints_rolled_back":2,"seconds":0.5}"#;
        assert_eq!(String::from_utf8(out).unwrap(), format!("{expected}\n"));
    }

    #[test]
    fn flags_become_the_plan() {
        let plan = parse("shop load --database-url x --rate 50 --count 7 --tx-rows 3 --types 9")
            .unwrap()
            .plan();
        let expected = LoadPlan {
            count: 7,
            rate: Rate::PerSecond(50),
            tx_rows: 3,
            types: 9,
            ..LoadPlan::default()
        };
        assert_eq!(plan, expected);
        assert_eq!(
            parse("shop load --database-url x").unwrap().plan(),
            LoadPlan::default(),
            "the command line and the library have the same defaults"
        );
    }

    #[test]
    fn nonsense_is_refused_before_connecting() {
        assert!(parse("shop load --database-url x --rate 0").is_err());
        assert!(parse("shop load --database-url x --rollback-percent 100").is_err());
        assert!(parse("shop load --database-url x --tx-rows 0").is_err());
    }
}
