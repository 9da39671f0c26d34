//! `postrider doctor`: checks everything that would stop or harm a run, and says how each is fixed.
//!
//! Input: the configuration; Postgres, Kafka and this machine as they are. Output: one line for each check, PASS, WARN,
//! FAIL or SKIP, with the command, SQL or setting that fixes it; exit code 1 if any fails. Invariant: nothing is written
//! anywhere, no relay that runs is disturbed, and the answer comes within some 10 s though nothing answers.

pub(super) mod check;
mod config;
mod kafka;
mod report;
mod server;
mod source;

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use tokio::time::timeout;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::{prune, route};
use check::{Check, Outcome};
use postrider_config::{Config, SourceMode};
use postrider_kafka::KafkaSpec;
use postrider_postgres::control::{self, Client};
use postrider_postgres::libpq::{ConnectInfo, HostAddress};
use postrider_postgres::wal::{Connection, SessionParams};
use postrider_relay::{Plan, RelayError, kafka_spec};
use report::Report;

/// For each of Postgres and Kafka; they are asked at the same time.
const LIMIT: Duration = Duration::from_secs(9);

/// `doctor [--only ID ..] [--deny-warnings]`
#[derive(Debug, Args)]
#[command(after_help = "\
Asks Postgres, Kafka and this machine, and writes nothing. A relay may run meanwhile.

Exit code: 0 nothing fails, 1 something does (with --deny-warnings also if something warns).

Examples:
  postrider doctor
  postrider doctor --output json | jq -r '.checks[] | select(.status == \"fail\") | .fix'
  postrider doctor --only slot --only kafka.listeners")]
pub struct DoctorArgs {
    /// Show only checks whose id begins so, such as slot or slot.limit; may be repeated
    #[arg(long, value_name = "ID")]
    pub only: Vec<String>,
    /// Exit with 1 if anything warns
    #[arg(long)]
    pub deny_warnings: bool,
}

/// Runs it.
pub(crate) fn run(args: &DoctorArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let mut checks = match context.load(Vec::new()) {
        Ok(loaded) => {
            let mut checks = config::checks(&loaded);
            checks.extend(of_servers(&loaded.config)?);
            checks
        }
        Err(failure) => {
            let mut checks: Vec<_> = Check::failed("config.valid", failure).collect();
            checks
                .push(Check::unknown("config.others", "nothing was asked without a configuration"));
            checks
        }
    };
    let is_shown = |check: &Check| {
        args.only.is_empty() || args.only.iter().any(|only| check.id.starts_with(only.as_str()))
    };
    checks.retain(is_shown);
    let report = Report { checks };
    if context.json() {
        context.print_json(&report.to_json())?;
    } else {
        context.print(&report.to_text(context.color_stdout()))?;
    }
    let worst = report.worst();
    let is_wrong = worst == Outcome::Fail || args.deny_warnings && worst == Outcome::Warn;
    Ok(if is_wrong { ExitCode::CheckFailed } else { ExitCode::Ok })
}

/// Postgres first, as its rows tell the topics; the brokers are asked meanwhile whether they answer at all.
fn of_servers(config: &Config) -> Result<Vec<Check>, CommandFailure> {
    let plan = Plan::of(config.clone());
    let runtime = super::runtime()?;
    let reached = std::thread::spawn({
        let kafka = kafka_spec(config);
        move || postrider_kafka::topic_names(&kafka).map(drop)
    });
    let (mut checks, topics) = runtime.block_on(of_postgres(&plan));
    if let Ok(connected) = &topics.client {
        checks.push(position(&plan, &runtime, connected));
    }
    runtime.shutdown_background();
    let kafka = KafkaSpec { topics: plan.kafka.topics.clone(), ..kafka_spec(config) };
    if let Ok(Err(error)) = reached.join() {
        checks.extend(kafka::out_of_reach(error));
        return Ok(checks);
    }
    let names = topics.names.as_deref().map_err(String::as_str);
    checks.extend(kafka::checks(config, &kafka, names));
    Ok(checks)
}

/// What Postgres told for the checks of Kafka.
struct FromPostgres {
    client: Result<Client, ()>,
    /// The topics of the newest rows, or why they are not known.
    names: Result<Vec<String>, String>,
}

async fn of_postgres(plan: &Plan) -> (Vec<Check>, FromPostgres) {
    let source = &plan.config.source;
    let nothing = |why: &str| FromPostgres { client: Err(()), names: Err(why.to_owned()) };
    let client = match timeout(LIMIT, control::connect(&source.connect)).await {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => {
            let mut checks: Vec<_> = Check::failed("postgres.reachable", error).collect();
            checks.push(Check::unknown(
                "postgres.others",
                "server, publication, tables and slot were not looked at",
            ));
            return (checks, nothing("Postgres was not reached"));
        }
        Err(_) => {
            let what = format!("no answer within {} s", LIMIT.as_secs());
            let fix = "check host and port of source.url, and firewalls between";
            return (
                vec![Check::fail("postgres.reachable", what, fix)],
                nothing("Postgres was not reached"),
            );
        }
    };
    let whom =
        format!("`{}` is let into database `{}`", source.connect.user, source.connect.database);
    let mut checks = vec![Check::pass("postgres.reachable", whom)];
    let is_polled = source.mode == SourceMode::Poll;
    if !is_polled {
        checks.push(replication(&client).await);
    }
    match looked(plan, &client).await {
        Ok(found) => checks.extend(found),
        Err(failure) => checks.extend(Check::failed("postgres.source", failure)),
    }
    // What only a stream needs.
    checks.retain(|check| !is_polled || !of_stream(check.id));
    let names = rows(plan, &client, &mut checks).await;
    (checks, FromPostgres { client: Ok(client), names })
}

/// Whether a check is about replication.
fn of_stream(id: &str) -> bool {
    const OTHERS: [&str; 7] = [
        "postgres.wal_level",
        "postgres.messages",
        "postgres.role",
        "postgres.streams",
        "postgres.slots_free",
        "postgres.senders_free",
        "postgres.wal_sender_timeout",
    ];
    id.starts_with("publication.") || id.starts_with("slot.") || OTHERS.contains(&id)
}

/// Whether a replication connection is let in, which pg_hba.conf and poolers decide apart from others.
async fn replication(client: &Client) -> Check {
    const ID: &str = "postgres.replication";
    let server = client.server().clone();
    let opened = tokio::task::spawn_blocking(move || {
        let mut connection = Connection::open(&server, &SessionParams::default())?;
        connection.identify_system()
    });
    match timeout(LIMIT, opened).await {
        Ok(Ok(Ok(identity))) => Check::pass(
            ID,
            format!(
                "a replication connection is let in (cluster {}, timeline {})",
                identity.system_id, identity.timeline
            ),
        ),
        Ok(Ok(Err(error))) => {
            let failed = Check::failed(ID, error).next();
            failed.unwrap_or_else(|| Check::unknown(ID, "the server did not say why"))
        }
        Ok(Err(_)) | Err(_) => Check::fail(
            ID,
            format!("no answer to a replication connection within {} s", LIMIT.as_secs()),
            "connect to Postgres itself: poolers such as PgBouncer in front of it do not replicate",
        ),
    }
}

/// What a relay demands, and what limits and others do to it.
async fn looked(plan: &Plan, client: &Client) -> Result<Vec<Check>, CommandFailure> {
    let wanted = plan.requirements().map_err(RelayError::from)?;
    let inspection = control::inspect(client, &wanted).await?;
    let mut checks = source::checks(&inspection, &wanted);
    let facts = control::health(client, &wanted).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_us = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    let about = (wanted.tables.as_slice(), is_remote(client.server()), now_us);
    checks.extend(server::checks(&facts, &inspection, about));
    let unguarded = control::unguarded(client, &wanted.tables).await?;
    checks.extend(size_guards(&unguarded));
    Ok(checks)
}

fn size_guards(unguarded: &[control::UnboundedTable]) -> Vec<Check> {
    const ID: &str = "table.row_size";
    if unguarded.is_empty() {
        return vec![Check::pass(ID, "no row can be too large for the server to send")];
    }
    let told = unguarded.iter().map(|table| {
        let columns = table.columns.join(", ");
        let what = format!(
            "{} takes values of any size in {columns}: a row of 1 GiB stops its slot for good",
            table.table
        );
        Check::warn(ID, what, table.sql.clone())
    });
    told.collect()
}

/// How the newest rows would be delivered, and to which topics.
async fn rows(
    plan: &Plan,
    client: &Client,
    checks: &mut Vec<Check>,
) -> Result<Vec<String>, String> {
    const ID: &str = "rows.deliverable";
    match route::rehearse_newest(client, &plan.config).await {
        Ok(rehearsed) => {
            checks.push(match (rehearsed.rows, rehearsed.rejected.first()) {
                (0, _) => Check::unknown(ID, "there is no row to try"),
                (rows, None) => Check::pass(ID, format!("the newest {rows} rows can be delivered")),
                (rows, Some(first)) => Check::warn(
                    ID,
                    format!("{} of the newest {rows} rows would become dead letters: {first}", rehearsed.rejected.len()),
                    "postrider route --from-database shows each; then change [route], or what writes the rows",
                ),
            });
            Ok(rehearsed.topics.into_iter().collect())
        }
        Err(failure) => {
            let why = failure.findings.first().map_or_else(String::new, |one| one.what.clone());
            checks.push(Check::unknown(ID, format!("rows cannot be read: {why}")));
            Err("rows cannot be read, so their topics are not known".to_owned())
        }
    }
}

/// Whether a run would go on where the slot is, by the progress that is kept in Kafka.
fn position(plan: &Plan, runtime: &tokio::runtime::Runtime, client: &Client) -> Check {
    const ID: &str = "progress.position";
    if !plan.keeps_progress() {
        return Check::pass(ID, "the slot alone says where delivery goes on");
    }
    let slot = runtime.block_on(control::prune::slot_position(client, &plan.config.source.slot));
    let Ok(position) = slot else {
        return Check::unknown(ID, "there is no slot to look at");
    };
    match prune::beginning_of(plan, runtime, client, &position) {
        Ok(Ok(_)) => Check::pass(ID, "slot and progress in Kafka agree"),
        Ok(Err(why)) => Check::pass(ID, format!("nothing speaks against the slot ({why})")),
        Err(failure) => {
            let failed = Check::failed(ID, failure).next();
            failed.unwrap_or_else(|| Check::unknown(ID, "no answer"))
        }
    }
}

fn is_remote(server: &ConnectInfo) -> bool {
    server.endpoints.iter().any(|endpoint| match &endpoint.address {
        HostAddress::Unix(_) => false,
        HostAddress::Tcp { host, ip } => {
            let ip = ip.or_else(|| host.parse::<IpAddr>().ok());
            ip.map_or(host != "localhost", |ip| !ip.is_loopback())
        }
    })
}
