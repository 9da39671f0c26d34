//! `postrider repair` beside a writer, killed again and again, after the server has given up the slot
//! (`max_slot_wal_keep_size`): exactly once, every row that was missing arrives, none comes twice, and those of a
//! key in their order across the seam.
//!
//! Output: how many are missing, repeated or reordered, and the most memory that the command took.
//! `FULL=1 REPAIR_ROWS=300000` is something in between.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

use std::time::{Duration, Instant};

use postrider::sandbox::postgres::Options;
use serde_json::json;
use support::chance::Chance;
use support::postgres::Database;
use support::relay::Relay;
use support::wait::let_pass;
use support::{kafka, postgres, topic, wait_for};

use super::backfill::{Writer, account, insert, peak_kib_of};

const PREFIX: &str = "repair.";
const PARTITIONS: i32 = 6;
/// Rows of one transaction of those that are there before.
const TRANSACTION: usize = 100_000;
/// So many attempts would send all rows, if none were killed before its last second.
const ATTEMPTS: usize = 20;

struct Scale {
    rows: usize,
    undelivered: usize,
    kills: usize,
    /// How long each attempt lives at most.
    life: Duration,
}

/// Whether nothing is missing, repeated or reordered.
pub(super) fn run(is_full: bool) -> bool {
    let Some(kafka) = kafka::shared() else { return true };
    let rows = std::env::var("REPAIR_ROWS").ok().and_then(|rows| rows.parse().ok());
    let scale = if is_full {
        let rows = rows.unwrap_or(1_000_000);
        Scale { rows, undelivered: rows / 5, kills: 50, life: Duration::from_secs(40) }
    } else {
        Scale { rows: 20_000, undelivered: 4_000, kills: 6, life: Duration::from_secs(3) }
    };
    let bootstrap = kafka.bootstrap();
    let cluster = postgres::start(&Options::default());
    let database = Database::migrated(&cluster, "repair");
    let name = format!("{PREFIX}A");
    topic::create(&bootstrap, &name, PARTITIONS, &[]);
    topic::create(&bootstrap, &format!("{PREFIX}dead-letters"), 1, &[]);
    let binary = env!("CARGO_BIN_EXE_postrider");
    let relay = Relay::new(binary, &database.address(), database.name(), &bootstrap, PREFIX);
    let relay = relay.set("kafka.delivery", "exactly_once").unprepared();
    database.sql().run("CREATE SEQUENCE numbers");
    let begun = relay.start(&["backfill", "--execute"]).outcome();
    assert!(begun.status.success(), "{:?}", begun.log);
    write(&database, &relay, scale.rows - scale.undelivered, true);
    lose_slot(&database, &relay, scale.undelivered);
    let writer = Writer::start(&database);
    let mut peak_kib = kill_again_and_again(&relay, &scale);
    let mut last = relay.start(&["repair", "--execute", "--output", "json"]);
    while !last.has_ended() {
        peak_kib = peak_kib.max(peak_kib_of(last.id()));
        let_pass(Duration::from_millis(20), "it goes on to its end");
    }
    let last = last.outcome();
    assert!(last.status.success(), "{} {:?}", last.status, last.log);
    let running = relay.run();
    let written = writer.stop();
    wait_delivered(&database);
    running.stop();
    let account = account(&bootstrap, &name);
    let missing = scale.rows + written - account.seen;
    println!(
        "{}",
        json!({
            "what": "repair", "rows": scale.rows, "undelivered": scale.undelivered,
            "written_meanwhile": written, "missing": missing, "repeated": account.repeated,
            "reordered": account.reordered, "kills": scale.kills, "peak_rss_mib": peak_kib / 1024,
        })
    );
    missing == 0 && account.repeated == 0 && account.reordered == 0
}

/// Writes rows, and delivers them if they are to be delivered.
fn write(database: &Database, relay: &Relay, rows: usize, delivers: bool) {
    let mut left = rows;
    while left > 0 {
        let some = TRANSACTION.min(left);
        database.sql().run(&insert(some));
        left -= some;
        if delivers {
            relay.run_once();
            free(database);
        }
    }
}

/// Rows that nobody delivers, until the server gives up the slot.
fn lose_slot(database: &Database, relay: &Relay, rows: usize) {
    free(database);
    write(database, relay, rows, false);
    let sql = database.sql();
    sql.run("CREATE TABLE filler (text text)");
    sql.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'");
    sql.run("SELECT pg_reload_conf()");
    let status = format!(
        "SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{}'",
        database.name()
    );
    wait_for("the slot to be lost", || {
        sql.run("INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 20000)");
        sql.run("SELECT pg_switch_wal()");
        sql.run("CHECKPOINT");
        (sql.value(&status) == "lost").then_some(())
    });
    // Or the next one would be lost too, in the middle of its repair.
    sql.run("ALTER SYSTEM RESET max_slot_wal_keep_size");
    sql.run("SELECT pg_reload_conf()");
}

fn free(database: &Database) {
    let active = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}' AND active",
        database.name()
    );
    wait_for("the slot to be free", || (database.sql().value(&active) == "0").then_some(()));
}

fn wait_delivered(database: &Database) {
    let end = database.sql().value("SELECT pg_current_wal_lsn() - '0/0'");
    let is_done = format!(
        "SELECT confirmed_flush_lsn - '0/0' >= {end} FROM pg_replication_slots WHERE slot_name = '{}'",
        database.name()
    );
    wait_for("the acknowledgement", || (database.sql().value(&is_done) == "t").then_some(()));
}

/// Begins it, and kills it, as often as that is asked for; the most memory that it took.
fn kill_again_and_again(relay: &Relay, scale: &Scale) -> u64 {
    let (mut chance, mut peak_kib) = (Chance::new(5), 0);
    for _ in 0..scale.kills {
        // So slow that rows are left for the next attempt.
        let rate = (scale.undelivered / ATTEMPTS).max(1).to_string();
        let running = relay.start(&["repair", "--execute", "--rate", &rate]);
        let life = chance.below(usize::try_from(scale.life.as_millis()).unwrap());
        let until = Instant::now() + Duration::from_millis(u64::try_from(life).unwrap());
        while Instant::now() < until {
            peak_kib = peak_kib.max(peak_kib_of(running.id()));
            let_pass(Duration::from_millis(20), "each dies at another moment");
        }
        running.kill();
    }
    peak_kib
}
