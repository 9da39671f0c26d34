//! An outbox, a relay that delivers its rows exactly once, and an account of them by a reader of the topic who knows
//! nothing of the relay.

use std::time::{Duration, Instant};

use postrider::sandbox::postgres::Address;
use serde_json::{Value, json};
use support::postgres::Database;
use support::relay::Relay;
use support::relay_http::RelayHttp;
use support::sql::Sql;
use support::token_provider::{CLIENT, SECRET, TokenProvider};
use support::wait::let_pass;
use support::{postgres, topic, wait_for};

use crate::lifecycle::backfill::{account, insert};

const PARTITIONS: i32 = 6;

/// See the module.
pub(super) struct Streamed {
    pub(super) database: Database,
    pub(super) sql: Sql,
    /// Without a login.
    bootstrap: String,
    prefix: String,
    written: usize,
}

impl Streamed {
    pub(super) fn new(stem: &str, bootstrap: &str) -> Self {
        let database = Database::migrated(postgres::installed(), stem);
        let sql = database.sql();
        sql.run("CREATE SEQUENCE numbers");
        sql.run("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')");
        let prefix = format!("{}.", database.name());
        topic::create(bootstrap, &format!("{prefix}A"), PARTITIONS, &[]);
        topic::create(bootstrap, &format!("{prefix}dead-letters"), 1, &[]);
        Self { database, sql, bootstrap: bootstrap.to_owned(), prefix, written: 0 }
    }

    /// From this address of the database to these brokers.
    pub(super) fn relay(&self, source: &Address, brokers: &str) -> Relay {
        let binary = env!("CARGO_BIN_EXE_postrider");
        Relay::new(binary, source, self.database.name(), brokers, &self.prefix)
            .set("kafka.delivery", "exactly_once")
    }

    /// To brokers that take the provider's tokens.
    pub(super) fn relay_by_token(&self, brokers: &str, provider: &TokenProvider) -> Relay {
        self.relay(&self.database.address(), brokers)
            .set("kafka.oauth.method", "oidc")
            .set("kafka.oauth.endpoint", &provider.token_endpoint())
            .set("kafka.oauth.client_id", CLIENT)
            .set("kafka.oauth.client_secret", SECRET)
            .property("security.protocol", "SASL_PLAINTEXT")
    }

    /// Rows so far.
    pub(super) fn written(&self) -> usize {
        self.written
    }

    /// Commits transactions of `batch` rows at this rate until it is enough.
    pub(super) fn write_while(
        &mut self,
        (batch, rows_per_s): (usize, usize),
        mut goes_on: impl FnMut(&Self) -> bool,
    ) {
        let (begun, before) = (Instant::now(), self.written);
        while goes_on(self) {
            self.sql.run(&insert(batch));
            self.written += batch;
            let due_ms = (self.written - before) * 1_000 / rows_per_s;
            let due = Duration::from_millis(u64::try_from(due_ms).unwrap());
            let_pass(due.saturating_sub(begun.elapsed()), "the rate at which rows are written");
        }
    }

    /// Waits until all that is written is acknowledged.
    pub(super) fn wait_acknowledged(&self) {
        let end = self.sql.value("SELECT pg_current_wal_lsn()");
        let is_done = format!(
            "SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots
             WHERE slot_name = current_database()"
        );
        wait_for("the acknowledgement", || (self.sql.value(&is_done) == "t").then_some(()));
    }

    /// What became of the rows, and whether each of them is there once and in order.
    pub(super) fn account(&self) -> (Value, bool) {
        let found = account(&self.bootstrap, &format!("{}A", self.prefix));
        self.sql.run("SELECT pg_drop_replication_slot(current_database())");
        let lost = self.written - found.seen;
        let figures = json!({
            "rows": self.written, "lost": lost, "repeated": found.repeated,
            "reordered": found.reordered,
        });
        (figures, lost == 0 && found.repeated == 0 && found.reordered == 0)
    }
}

/// Sessions that ended and were followed by another one, for whatever reason.
pub(super) fn restarts(http: &RelayHttp) -> u64 {
    let (_, page) = http.get("/metrics");
    let samples = page.lines().filter(|line| line.starts_with("postrider_restarts_total{"));
    samples.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}
