//! `postrider demo`: runs the relay on generated orders and checks that none is lost, invented or
//! out of order, even if the relay is killed.
//!
//! An independent judge compares orders with records. The relay is this program as a child process,
//! so that it can be killed as in a crash.

mod consumer;
mod judge;
mod relay;
mod report;
mod shop;
mod stage;

use std::ffi::OsString;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tokio_postgres::Client;

use super::codes::ErrorCode;
use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::marks::columns;
use consumer::DemoConsumer;
use judge::{DeliveryVerdict, Judge};
use postrider_config::{ConfigError, Delivery, Effective, FlagValue, SettingOrigin};
use postrider_kafka::embedded::BrokerError;
use postrider_kafka::{KafkaSpec, ReaderError, TopicsError};
use postrider_postgres::control::{self, ControlError};
use postrider_postgres::libpq::ConnectInfoError;
use postrider_relay::kafka_spec;
use postrider_relay::{Plan, RelayError};
use postrider_sandbox::SandboxError;
use postrider_shop::ShopError;
use postrider_shop::draw::{Fate, event_types};
use postrider_shop::load::{self, LoadPlan, Rate};
use postrider_shop::settings::stop_signal;
use relay::RelayProcess;
use report::LoadReport;
use shop::ShopFigures;
use stage::{SOURCE, Stage};

const DELIVERY: &str = "kafka.delivery";
/// Maximum time until a started relay holds the slot.
const STREAMING_LIMIT: Duration = Duration::from_secs(30);
/// Time without an arrival after which the demo stops waiting.
const QUIET_LIMIT: Duration = Duration::from_secs(30);
/// Additional wait for phantoms and duplicates.
const AFTERMATH: Duration = Duration::from_millis(500);
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

const STAY_RATE: u32 = 100;

/// `demo [--rate N] [--count N] [--kill-every 5s] [--delivery ..] [--stay] [--brokers ..] [--database-url ..]`
#[derive(Debug, Args)]
#[command(
    after_help = "--set, --config and POSTRIDER_* variables configure the relay of the demo, except servers,\nslot, publication and table.\n\nExamples:\n  postrider demo\n  postrider demo --stay\n  postrider demo --kill-every 1s --brokers localhost:9092 --delivery exactly_once\n  postrider demo --rate 2000 --count 20000 --kill-every 2s\n  postrider demo --count 20000 --output json"
)]
pub struct DemoArgs {
    /// Orders per second
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Total number of orders
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// Interval of kills and restarts of the relay, for example 5s
    #[arg(long, value_name = "TIME", value_parser = super::parse_duration)]
    pub kill_every: Option<Duration>,
    /// Delivery guarantee, as kafka.delivery
    #[arg(long, value_name = "HOW", value_parser = ["at_least_once", "exactly_once"])]
    pub delivery: Option<String>,
    /// Keep placing some orders per second after the verdict, until Ctrl-C, so that you can
    /// look at the dashboard
    #[arg(long)]
    pub stay: bool,
    /// Use this Kafka instead of the embedded broker
    #[arg(long, value_name = "HOST:PORT,..")]
    pub brokers: Option<String>,
    /// Use this Postgres instead of a private one
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error(transparent)]
    Topics(#[from] TopicsError),
    #[error(transparent)]
    Address(#[from] ConnectInfoError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Relay(#[from] RelayError),
    #[error("the demo chooses `{0}` itself")]
    Chosen(&'static str),
    #[error(
        "the embedded broker shows records of aborted transactions, so that killed relays would \
         seem to repeat rows"
    )]
    NoTransactions,
    #[error("the demo's SQL failed")]
    Sql(#[from] tokio_postgres::Error),
    #[error(transparent)]
    Load(#[from] ShopError),
    #[error(transparent)]
    Consumer(#[from] ReaderError),
    #[error("the relay's process cannot be started")]
    Process(#[from] std::io::Error),
    #[error("the relay exited unexpectedly: {0}")]
    RelayEnded(ExitStatus),
    #[error("the relay does not stream after {} s", STREAMING_LIMIT.as_secs())]
    NotStreaming,
    #[error("the relay did not end cleanly: {0}")]
    NotDrained(ExitStatus),
    #[error("a service of the shop exited unexpectedly")]
    ShopEnded,
    #[error("the order service refused an order: {0}")]
    OrderRefused(String),
    /// Two orders for an idempotency key.
    #[error("a request that was sent twice made two orders")]
    TwoOrders,
    #[error("the database is in use: replication slot `{slot}` reads it")]
    InUse {
        /// Slot of another program than the demo.
        slot: String,
    },
    #[error("the demo was interrupted")]
    Interrupted,
}

impl DemoError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Sandbox(error) => error.hint(),
            Self::Broker(error) => error.hint(),
            Self::Topics(error) => error.hint(),
            Self::Address(error) => error.hint(),
            Self::Control(error) => error.hint(),
            Self::Config(error) => error.hint(),
            Self::Relay(error) => error.hint(),
            Self::Chosen(_) => {
                Some("leave it out; --database-url and --brokers name servers".into())
            }
            Self::NoTransactions => {
                Some("name a real Kafka: --brokers HOST:PORT; or leave out --kill-every".into())
            }
            Self::Load(error) => error.hint(),
            Self::Consumer(error) => error.hint(),
            Self::InUse { .. } => Some(
                "the demo's orders would reach the reader of that slot: use a separate database, \
                 CREATE DATABASE postrider_demo"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Serialize)]
struct Figures {
    #[serde(flatten)]
    verdict: DeliveryVerdict,
    kills: u32,
    shop: ShopFigures,
}

impl Figures {
    /// With exactly-once delivery, no record may arrive twice.
    fn is_sound(&self, delivery: Delivery) -> bool {
        let may_repeat = delivery == Delivery::AtLeastOnce || self.verdict.duplicated == 0;
        may_repeat && self.verdict.is_sound() && self.shop.is_sound()
    }

    fn print(
        &self,
        context: &Context,
        delivery: Delivery,
        stays: bool,
    ) -> Result<(), CommandFailure> {
        if context.json() {
            return context.print_json(self);
        }
        context.print(&report::to_text(self, delivery, stays, columns(std::io::stdout())))
    }
}

pub(crate) fn run(args: &DemoArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let mut chosen = stage::stand_ins().to_vec();
    chosen.extend(args.delivery.clone().map(|delivery| (DELIVERY, delivery)));
    let is_default = |it: &Effective| it.key == "log.level" && it.origin == SettingOrigin::Default;
    if context.read_named(demo_flags(&chosen))?.effective.iter().any(is_default) {
        // The shop's services log in this process, between lines of the report.
        chosen.push(("log.level", "warn".to_owned()));
    }
    let config = context.load_named(demo_flags(&chosen))?.config;
    let exactly_once = config.kafka.delivery == Delivery::ExactlyOnce;
    let refusal = match context.sets_one_of(&stage::CHOSEN) {
        Some(key) => Some(DemoError::Chosen(key)),
        None if exactly_once && args.kill_every.is_some() && args.brokers.is_none() => {
            Some(DemoError::NoTransactions)
        }
        None => None,
    };
    if let Some(error) = refusal {
        let hint = error.hint();
        return Err(CommandFailure::of(ExitCode::Usage, ErrorCode::X021, &error, hint));
    }
    let figures = super::runtime()?.block_on(show(args, context)).map_err(|error| {
        let hint = error.hint();
        CommandFailure::of(ExitCode::CheckFailed, ErrorCode::X020, &error, hint)
    })?;
    if !args.stay {
        figures.print(context, config.kafka.delivery, false)?;
    }
    Ok(if figures.is_sound(config.kafka.delivery) { ExitCode::Ok } else { ExitCode::CheckFailed })
}

fn demo_flags(settings: &[(&'static str, String)]) -> Vec<FlagValue> {
    let flag = |(key, value): &(&'static str, String)| FlagValue {
        key,
        value: value.clone(),
        flag: "demo",
    };
    settings.iter().map(flag).collect()
}

async fn show(args: &DemoArgs, context: &Context) -> Result<Figures, DemoError> {
    let plan =
        LoadPlan { count: args.count, rate: Rate::PerSecond(args.rate), ..LoadPlan::default() };
    let topics: Vec<String> = event_types(plan.types).into_iter().chain(shop::topics()).collect();
    let mut stage = Stage::set(args.database_url.as_deref(), args.brokers.as_deref(), &topics)?;
    if !context.json() {
        report::introduce(&stage);
    }
    let client = stage.prepare(&topics).await?;
    let mut settings = stage.relay_settings();
    settings.extend(args.delivery.clone().map(|delivery| (DELIVERY, delivery)));
    let config = context.read_named(demo_flags(&settings))?.config;
    let delivery = config.kafka.delivery;
    let relay = Plan::new(kafka_spec(&config), config);
    stage.make_slot(&client, &relay).await?;
    let mut arguments = context.arguments();
    // The address may hold a password, so it is passed in the environment.
    for (key, value) in settings.into_iter().filter(|(key, _)| *key != SOURCE) {
        arguments.extend(["--set".into(), format!("{key}={value}").into()]);
    }
    let cast = Cast { kafka: relay.kafka, arguments, shows_arrivals: !context.json() };
    let stayed = OnceLock::new();
    let tell = |figures: &Figures| {
        if args.stay {
            let _ = stayed.set(figures.clone());
            // A closed stdout is noticed at the end.
            let _ = figures.print(context, delivery, true);
            report::tell_stay(&stage);
        }
    };
    let result = tokio::select! {
        result = play(args, &plan, &stage, &client, (cast, &tell)) => result,
        () = stop_signal() => Err(DemoError::Interrupted),
    };
    // A stop after the verdict is not a failure.
    let result = match (result, stayed.into_inner()) {
        (Err(DemoError::Interrupted), Some(figures)) => Ok(figures),
        (result, _) => result,
    };
    let cleared = stage.clear(&client).await;
    let figures = result?;
    cleared?;
    Ok(figures)
}

struct Cast {
    kafka: KafkaSpec,
    arguments: Vec<OsString>,
    shows_arrivals: bool,
}

async fn play(
    args: &DemoArgs,
    plan: &LoadPlan,
    stage: &Stage,
    client: &control::Client,
    (cast, tell): (Cast, &dyn Fn(&Figures)),
) -> Result<Figures, DemoError> {
    let Cast { kafka, arguments, shows_arrivals } = cast;
    let judge = Arc::new(Mutex::new(Judge::default()));
    let consumer =
        DemoConsumer::start(&kafka, &event_types(plan.types), Arc::clone(&judge), shows_arrivals)?;
    let mut relay = RelayProcess::start(stage.database_url.clone(), arguments, Stage::watchdog()?)?;
    wait_until_streaming(client.sql(), &stage.slot, &mut relay).await?;
    let shop = tokio::select! {
        shop = shop::play(stage, client.sql(), shows_arrivals) => shop?,
        status = end_of(&mut relay) => return Err(DemoError::RelayEnded(status?)),
    };
    let mut progress = LoadReport::begin(args, &shop, shows_arrivals);

    let writer = stage.connect().await?;
    let observe = |written: &load::Written<'_>| {
        if written.row.fate == Fate::Committed {
            lock(&judge).committed(written.row.id, written.commit_sent);
        }
    };
    let load = load::run(writer.sql(), plan, observe);
    tokio::pin!(load);
    let counts = || {
        let judge = lock(&judge);
        [judge.committed_count(), judge.delivered_count()]
    };
    let mut next_kill = args.kill_every.map(|every| Instant::now() + every);
    loop {
        tokio::select! {
            report = &mut load => {
                report?;
                break;
            }
            () = sleep_until(next_kill) => {
                relay.kill_and_restart()?;
                progress.tell_kill(relay.kills(), counts());
                next_kill = args.kill_every.map(|every| Instant::now() + every);
            }
            () = sleep_until(Some(progress.next)) => progress.tell(counts()),
        }
    }
    wait_for_arrivals(&judge, &mut relay).await?;
    progress.tell(counts());
    let kills = relay.kills();
    if args.stay {
        consumer.stop()?;
        tell(&Figures { verdict: lock(&judge).verdict(), kills, shop });
        let rate = Rate::PerSecond(STAY_RATE);
        let more = LoadPlan { count: u64::MAX, rate, seed: plan.seed + 1, ..plan.clone() };
        tokio::select! {
            ended = load::run(writer.sql(), &more, |_: &load::Written<'_>| {}) => ended.map(drop)?,
            status = end_of(&mut relay) => return Err(DemoError::RelayEnded(status?)),
        }
        return Err(DemoError::ShopEnded);
    }
    let status = relay.stop(DRAIN_LIMIT)?;
    consumer.stop()?;
    if !status.success() {
        return Err(DemoError::NotDrained(status));
    }
    let verdict = lock(&judge).verdict();
    Ok(Figures { verdict, kills, shop })
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

/// Without this, the first orders would measure the relay's start.
async fn wait_until_streaming(
    client: &Client,
    slot: &str,
    relay: &mut RelayProcess,
) -> Result<(), DemoError> {
    let sql = "SELECT active FROM pg_replication_slots WHERE slot_name = $1";
    let deadline = Instant::now() + STREAMING_LIMIT;
    while Instant::now() < deadline {
        if client.query_opt(sql, &[&slot]).await?.is_some_and(|row| row.get(0)) {
            return Ok(());
        }
        if let Some(status) = relay.ended()? {
            return Err(DemoError::RelayEnded(status));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(DemoError::NotStreaming)
}

async fn end_of(relay: &mut RelayProcess) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = relay.ended()? {
            return Ok(status);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn wait_for_arrivals(
    judge: &Mutex<Judge>,
    relay: &mut RelayProcess,
) -> Result<(), DemoError> {
    let mut last_arrival = (Instant::now(), 0);
    while last_arrival.0.elapsed() < QUIET_LIMIT {
        let (delivered, committed) = {
            let judge = lock(judge);
            (judge.delivered_count(), judge.committed_count())
        };
        if delivered == committed {
            break;
        }
        if delivered != last_arrival.1 {
            last_arrival = (Instant::now(), delivered);
        }
        if let Some(status) = relay.ended()? {
            return Err(DemoError::RelayEnded(status));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(AFTERMATH).await;
    Ok(())
}

/// A panicked thread has lost a note, not corrupted one.
fn lock(judge: &Mutex<Judge>) -> MutexGuard<'_, Judge> {
    judge.lock().unwrap_or_else(PoisonError::into_inner)
}
