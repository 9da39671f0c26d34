//! A primary and a standby that take turns: while rows flow, the primary is killed, the standby promoted, the relay follows
//! by a URL that names both, and the old primary is rebuilt as the next standby; then an account of every row.
//!
//! Truth is the table of the last primary and what the writers know of their commits ([`judge`]). `make failover` prints one
//! line of JSON for each run and fails when a guarantee does not hold: with a synchronous standby nothing is lost, and
//! nothing is delivered that a failover then takes back; with an asynchronous one, what it takes back is counted apart
//! (`tail_lost`), and the relay must say so. Plain `cargo test` runs a few promotions.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod judge;
mod servers;
mod settings;
mod writers;

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::crash::readers::{Reader, Shelf, now_ms, say_goodbye};
use crate::load::rows::PARTITIONS;
use crate::load::settings::Mode;
use judge::{Verdict, judge};
use servers::Servers;
use settings::{Plan, Standby};
use support::chance::Chance;
use support::postgres::Database;
use support::relay::{Outcome, Relay, Running};
use support::wait::wait_until;
use support::{kafka, postgres, topic};
use writers::Writers;

/// Rows that are written before each kill.
const ROWS_BETWEEN: u32 = 600;

/// How long an asynchronous standby falls behind before the primary is killed, in ms, at most.
const LAG_MS_MAX: u64 = 250;

/// What the relay says of a slot that nothing is missing before.
const PROVEN: &str = "delivery resumes there";

/// What the relay says of rows that a failover has taken back.
const TOLD: &str = "is in Kafka and no longer in Postgres";

/// Whether all is as it should be.
pub(crate) fn all() -> bool {
    judge::assert_sees_each_fault();
    // Nothing where this machine has no PostgreSQL 18, or no Kafka, which is said already.
    let runs: Vec<_> = Plan::all().into_iter().filter_map(run).collect();
    let is_sound = runs.iter().all(|(_, is_sound)| *is_sound);
    let figures: Vec<_> = runs.into_iter().map(|(figures, _)| figures).collect();
    println!("{}", json!({ "what": "failover", "runs": figures }));
    is_sound
}

/// Its figures, and whether the guarantee held.
fn run(plan: Plan) -> Option<(Value, bool)> {
    let (options, kafka) = (postgres::eighteen_options()?, kafka::shared()?);
    eprintln!("{} promotions, {plan:?}", plan.promotions);
    let mut servers = Servers::start(&options);
    let database = Database::migrated(servers.primary(), "failover");
    let bootstrap = kafka.bootstrap();
    let prefix = format!("{}.", database.name());
    let shelf = Shelf { bootstrap, prefix, opened_ms: now_ms() };
    for name in shelf.topics() {
        topic::create(&shelf.bootstrap, &name, i32::try_from(PARTITIONS).unwrap(), &[]);
    }
    database.sql().run(&format!(
        "SELECT pg_create_logical_replication_slot('{}', 'pgoutput', failover => true)",
        database.name()
    ));
    let reader = Reader::start(&shelf, "read_committed");
    let writers = Writers::start(&servers.unix_urls(database.name()), plan.rows_per_s, plan.seed);
    let mut running = relay(&plan, &servers, &database, &shelf).run();
    let mut chance = Chance::new(plan.seed);
    for promotion in 1..=plan.promotions {
        servers.rebuild();
        servers.await_standby(plan.standby, database.name());
        let until = writers.next() + ROWS_BETWEEN;
        wait_until("rows", || writers.next() >= until);
        let lag = match plan.standby {
            Standby::Synchronous => Duration::ZERO,
            Standby::Asynchronous => Duration::from_millis(chance.between(0, LAG_MS_MAX)),
        };
        servers.fail_over(lag);
        reader.await_row(writers.next());
        wait_until("the relay to follow", || {
            assert!(!running.has_ended(), "the relay ended by itself");
            reader.has_recovered()
        });
        eprintln!("{promotion}: {} rows, {} records", writers.next(), reader.records());
    }
    let written = writers.stop();
    let kept = finish(&servers, &database, running_of(&mut running));
    running.signal(Signal::TERM);
    let outcome = running.outcome();
    say_goodbye(&shelf);
    let recoveries = reader.recoveries();
    let verdict = judge(&written, &kept, &reader.finish());
    Some(report(&plan, &verdict, &outcome, recoveries))
}

/// The relay must be there to the end.
fn running_of(running: &mut Running) -> impl FnMut() {
    || assert!(!running.has_ended(), "the relay ended by itself")
}

/// A relay that knows both servers.
fn relay(plan: &Plan, servers: &Servers, database: &Database, shelf: &Shelf) -> Relay {
    let slot = database.name();
    let address = database.address();
    let url = servers.url_of_both(&address);
    Relay::new(env!("CARGO_BIN_EXE_postrider"), &address, slot, &shelf.bootstrap, &shelf.prefix)
        .set("source.url", &format!("{url}?target_session_attrs=read-write"))
        .set("kafka.delivery", plan.delivery.name())
        // The copy of a slot is behind the slot, by as long as the standby does not look.
        .set("progress.at_least_once", "true")
        .set("source.status_interval", "200ms")
        .set("retry.max", "500ms")
        .allow_log("")
}

/// Waits until all is acknowledged; the numbers of the rows that the last primary has.
fn finish(servers: &Servers, database: &Database, mut alive: impl FnMut()) -> Vec<u32> {
    let sql = database.at(servers.primary()).sql();
    let end = sql.value("SELECT pg_current_wal_lsn()");
    let settled = format!(
        "SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = '{}'",
        database.name()
    );
    wait_until("the rest to be acknowledged", || {
        alive();
        sql.value(&settled) == "t"
    });
    let rows = sql.rows("SELECT id FROM outbox");
    let id = |row: Vec<Option<String>>| row.into_iter().next().flatten().unwrap();
    rows.into_iter().map(|row| crate::load::rows::number(&id(row)).unwrap()).collect()
}

fn report(
    plan: &Plan,
    verdict: &Verdict,
    relay: &Outcome,
    mut recoveries: Vec<Duration>,
) -> (Value, bool) {
    let count = |part: &str| relay.log.iter().filter(|line| line.contains(part)).count();
    let (proven, told) = (count(PROVEN), count(TOLD));
    recoveries.sort_unstable();
    let percentile = |percent: usize| {
        let rank = (recoveries.len() * percent).div_ceil(100).saturating_sub(1);
        recoveries.get(rank).map_or(0, Duration::as_millis)
    };
    let line = json!({
        "promotions": plan.promotions,
        "delivery": plan.delivery.name(),
        "standby": plan.standby.name(),
        "seed": plan.seed,
        "rows": verdict.rows,
        "lost": verdict.lost.len(),
        "reordered": verdict.reordered.len(),
        "duplicated": verdict.duplicated.len(),
        "tail_lost": verdict.tail_lost.len(),
        "phantom": verdict.phantom.len(),
        "confirmed_and_gone": verdict.gone.len(),
        "proven": proven,
        "tails_told": told,
        "recovery_p50_ms": u64::try_from(percentile(50)).unwrap(),
        "recovery_p99_ms": u64::try_from(percentile(99)).unwrap(),
    });
    eprintln!("{line}");
    let said = proven + told >= plan.promotions as usize;
    // What is in flight when the primary dies is told exactly once alone.
    let is_exact = plan.delivery == Mode::ExactlyOnce;
    let is_told = said && (!is_exact || verdict.tail_lost.is_empty() || told > 0);
    let is_sound = verdict.is_sound(plan) && is_told && relay.status.success();
    if !is_sound {
        eprintln!("{verdict:?}\n{}\n{}", relay.status, relay.log.join("\n"));
    }
    (line, is_sound)
}
