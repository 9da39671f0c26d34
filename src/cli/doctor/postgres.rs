//! Checks of `postrider doctor` that ask Postgres. All share one time limit, and no statement waits
//! for a lock: a locked table is a finding, and hides no other.

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::time::timeout;

use super::check::{Check, bytes};
use super::fix::Fix;
use super::relay::SlotReader;
use super::selection::Selection;
use super::{LIMIT, failover, pruning, server, source};
use crate::failure::CommandFailure;
use crate::route;
use postrider_config::SourceMode;
use postrider_postgres::control::{
    self, Client, ControlError, FAILOVER_SLOTS_SINCE, Inspection, LeftCopy,
};
use postrider_postgres::libpq::{ConnectInfo, HostAddress};
use postrider_postgres::wal::{Connection, Readability, SessionParams};
use postrider_relay::{Plan, RelayError, slot_readability};

pub(super) struct FromPostgres {
    pub(super) client: Option<Client>,
    /// Topics of the newest rows, or why they are unknown.
    pub(super) topics: Result<Vec<String>, String>,
    pub(super) slot: Option<SlotReader>,
}

impl FromPostgres {
    pub(super) fn nothing(why: &str) -> Self {
        Self { client: None, topics: Err(why.to_owned()), slot: None }
    }
}

/// Maximum time to decode the slot's backlog.
const READ_LIMIT: Duration = Duration::from_secs(2);

struct Deadline(Instant);

impl Deadline {
    fn left(&self) -> Duration {
        LIMIT.saturating_sub(self.0.elapsed())
    }
}

fn no_answer() -> String {
    format!("no answer within {} s", LIMIT.as_secs())
}

pub(super) async fn checks(plan: &Plan, selection: Selection<'_>) -> (Vec<Check>, FromPostgres) {
    const OTHERS: &str = "server, publication, tables and slot were not looked at";
    let deadline = Deadline(Instant::now());
    let connect = &plan.config.source.connect;
    let is_polled = plan.config.source.mode == SourceMode::Poll;
    let opened = timeout(deadline.left(), async {
        let client = control::connect(connect).await?;
        control::limit_waits(&client).await?;
        if is_polled {
            client.keeps_its_process().await?;
        }
        Ok::<_, ControlError>(client)
    });
    let client = match opened.await {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => {
            let mut checks: Vec<_> = Check::failed("postgres.reachable", error).collect();
            checks.push(Check::unknown("postgres.others", OTHERS));
            return (checks, FromPostgres::nothing("Postgres was not reached"));
        }
        Err(_) => {
            let fix = "check host and port of source.url, and firewalls between";
            let checks = vec![
                Check::fail("postgres.reachable", no_answer(), fix),
                Check::unknown("postgres.others", OTHERS),
            ];
            return (checks, FromPostgres::nothing("Postgres was not reached"));
        }
    };
    let whom = format!("`{}` is let into database `{}`", connect.user, connect.database);
    let mut checks = vec![Check::pass("postgres.reachable", whom)];
    checks.push(locks(plan, &client, &deadline).await);
    let mut slot = None;
    match timeout(deadline.left(), inspected(plan, &client, selection)).await {
        Ok(Ok((found, reader))) => {
            checks.extend(found);
            slot = reader.filter(|_| !is_polled);
        }
        Ok(Err(failure)) => checks.extend(Check::failed("postgres.source", failure)),
        Err(_) => checks.push(Check::unknown("postgres.others", no_answer())),
    }
    if !is_polled && selection.has_failover() {
        checks.extend(failovers(plan, &client, &deadline).await);
    }
    // This must follow the checks that count connections.
    if !is_polled && selection.has("postgres.replication") {
        checks.push(replication(&client, &deadline).await);
    }
    match timeout(deadline.left(), pruning::checks(plan, &client)).await {
        Ok(found) => checks.extend(found),
        Err(_) => checks.push(Check::unknown("table.prune", no_answer())),
    }
    // Polling does not need these.
    checks.retain(|check| !is_polled || !of_stream(check.id));
    let rows = timeout(deadline.left(), newest_rows(plan, &client, &mut checks)).await;
    let topics = rows.unwrap_or_else(|_| {
        checks.push(Check::unknown("rows.deliverable", no_answer()));
        Err("rows were not read, so their topics are not known".to_owned())
    });
    (checks, FromPostgres { client: Some(client), topics, slot })
}

fn of_stream(id: &str) -> bool {
    const OTHERS: [&str; 8] = [
        "table.prune",
        "postgres.wal_level",
        "postgres.messages",
        "postgres.role",
        "postgres.streams",
        "postgres.slots_free",
        "postgres.senders_free",
        "postgres.wal_sender_timeout",
    ];
    const GROUPS: [&str; 3] = ["publication.", "slot.", "failover."];
    GROUPS.iter().any(|group| id.starts_with(group)) || OTHERS.contains(&id)
}

/// Tries a replication connection, which pg_hba.conf and poolers treat differently.
async fn replication(client: &Client, deadline: &Deadline) -> Check {
    const ID: &str = "postgres.replication";
    let server = client.server().clone();
    let opened = tokio::task::spawn_blocking(move || {
        let mut connection = Connection::open(&server, &SessionParams::default())?;
        connection.identify_system()
    });
    match timeout(deadline.left(), opened).await {
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
            format!("{} to a replication connection", no_answer()),
            "connect to Postgres itself: poolers such as PgBouncer in front of it do not replicate",
        ),
    }
}

/// Asks every host of source.url.
async fn failovers(plan: &Plan, client: &Client, deadline: &Deadline) -> Vec<Check> {
    let source = &plan.config.source;
    let looked = async {
        let server = control::server(client).await?;
        if server.version_num < FAILOVER_SLOTS_SINCE && !server.in_recovery {
            return Ok(Vec::new());
        }
        let facts = control::failover(client, &source.connect, &source.slot).await?;
        Ok::<_, ControlError>(failover::checks(&facts, source.failover))
    };
    match timeout(deadline.left(), looked).await {
        Ok(Ok(checks)) => checks,
        Ok(Err(error)) => vec![Check::unknown("failover.awaited", error.to_string())],
        Err(_) => vec![Check::unknown("failover.awaited", no_answer())],
    }
}

async fn locks(plan: &Plan, client: &Client, deadline: &Deadline) -> Check {
    const ID: &str = "table.locked";
    let looked = control::table_locks(client, &plan.config.source.tables);
    match timeout(deadline.left(), looked).await {
        Err(_) => Check::unknown(ID, no_answer()),
        Ok(Err(error)) => Check::unknown(ID, error.to_string()),
        Ok(Ok(locks)) => match locks.first() {
            None => Check::pass(ID, "nobody locks an outbox table against others"),
            Some(first) => {
                let named: Vec<_> = locks.iter().map(|lock| lock.name.as_str()).collect();
                Check::warn(
                    ID,
                    format!("{}: sessions that read or write it wait", named.join("; ")),
                    Fix::sql(first.end_sql.clone()),
                )
            }
        },
    }
}

async fn inspected(
    plan: &Plan,
    client: &Client,
    selection: Selection<'_>,
) -> Result<(Vec<Check>, Option<SlotReader>), CommandFailure> {
    let wanted = plan.requirements().map_err(RelayError::from)?;
    let inspection = match control::inspect(client, &wanted).await {
        Err(error) if error.is_waited_out() => {
            let why = "an outbox table is locked (table.locked): the rest was not looked at";
            return Ok((vec![Check::unknown("postgres.others", why)], None));
        }
        found => found?,
    };
    let mut checks = source::checks(&inspection, &wanted);
    let facts = control::health(client, &wanted).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let around = server::Around {
        tables: &wanted.tables,
        is_remote: is_remote(client.server()),
        now_us: i64::try_from(now.as_micros()).unwrap_or(i64::MAX),
    };
    checks.extend(server::checks(&facts, &inspection, &around));
    checks.extend(match control::unguarded(client, &wanted.tables).await {
        Err(error) if error.is_waited_out() => {
            vec![Check::unknown("table.row_size", "an outbox table is locked (table.locked)")]
        }
        found => size_guards(&found?, inspection.tables.iter().any(Option::is_some)),
    });
    checks.push(left_copies(&control::left_copies(client).await?));
    if plan.config.source.mode == SourceMode::Stream && selection.has("slot.readable") {
        let is_refused = !inspection.refusals(&wanted).is_empty();
        checks.push(readable(plan, client, &inspection, is_refused).await);
    }
    let slot = inspection.slot.as_ref().filter(|slot| !slot.is_unfinished());
    let slot = slot.zip(facts.slot.as_ref());
    let reader = slot.map(|(slot, health)| SlotReader {
        pid: slot.active_pid,
        holder: slot.holder.clone(),
        lag_bytes: health.lag_bytes,
        is_lost: slot.is_lost(),
    });
    Ok((checks, reader))
}

/// The present catalogs do not show if the slot's log can be decoded.
async fn readable(
    plan: &Plan,
    client: &Client,
    inspection: &Inspection,
    is_refused: bool,
) -> Check {
    const ID: &str = "slot.readable";
    match &inspection.slot {
        _ if is_refused => return Check::unknown(ID, "the relay is refused for another reason"),
        Some(slot) if slot.active_pid.is_some() => {
            return Check::pass(ID, "a process reads the slot");
        }
        _ => {}
    }
    match slot_readability(plan, client, inspection, READ_LIMIT).await {
        Ok(Readability::Readable) => Check::pass(ID, "the next changes of the slot can be read"),
        Ok(Readability::Unknown(why)) => Check::unknown(ID, why),
        Ok(Readability::Unreadable(error)) => {
            let failed = Check::failed(ID, RelayError::from(error)).next();
            failed.map_or_else(
                || Check::unknown(ID, "the server did not say why"),
                |check| check.with_steps(Fix::postrider("postrider repair")),
            )
        }
        Err(error) => Check::unknown(ID, error.to_string()),
    }
}

/// Temporary copies of slots, removed only when their server process ends.
fn left_copies(left: &[LeftCopy]) -> Check {
    const ID: &str = "slot.copies";
    let Some(first) = left.first() else {
        return Check::pass(ID, "no relay has left a temporary copy of a slot");
    };
    let named: Vec<_> = left
        .iter()
        .map(|copy| format!("`{}` ({} of WAL)", copy.name, bytes(copy.retained_bytes)))
        .collect();
    Check::warn(
        ID,
        format!(
            "a relay that has stopped left temporary slots, which keep WAL and hold VACUUM back: {}",
            named.join(", ")
        ),
        Fix::sql(format!("SELECT pg_terminate_backend({});", first.pid)),
    )
}

fn size_guards(unguarded: &[control::UnboundedTable], has_table: bool) -> Vec<Check> {
    const ID: &str = "table.row_size";
    if !has_table {
        return vec![Check::unknown(ID, "there is no table to look at")];
    }
    if unguarded.is_empty() {
        return vec![Check::pass(ID, "no row can be too large for the server to send")];
    }
    let found = unguarded.iter().map(|table| {
        let columns = table.columns.join(", ");
        let what = format!(
            "{} takes values of any size in {columns}: a row of 1 GiB stops its slot for good",
            table.table
        );
        Check::warn(ID, what, Fix::sql(table.sql.clone()))
    });
    found.collect()
}

async fn newest_rows(
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
                    format!(
                        "{} of the newest {rows} rows would become dead letters: {first}",
                        rehearsed.rejected.len()
                    ),
                    Fix::postrider("postrider route --from-database")
                        .say(" shows each; then change [route], or the writer of the rows"),
                ),
            });
            Ok(rehearsed.topics.into_iter().collect())
        }
        Err(failure) => {
            let first = failure.findings.first();
            let why = first.map_or_else(String::new, |one| {
                let why = one.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                format!("{}{why}", one.what)
            });
            checks.push(Check::unknown(ID, format!("rows cannot be read: {why}")));
            Err("rows cannot be read, so their topics are not known".to_owned())
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
