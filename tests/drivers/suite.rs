//! The same consumer through four drivers: what it marks has its effect once, however often it is killed.
//!
//! Input: 10,000 messages, 30 % of them delivered twice, and 20 kill -9; after each, deliveries begin again some
//! way back, as Kafka's do. Output: rows of effects and of the outbox. Invariant: one of each for every message.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use postrider_patterns::migrations::{Piece, migrate};
use postrider_sandbox::postgres::{Cluster, Options};
use tokio_postgres::NoTls;
use uuid::Uuid;

use chance::Chance;

#[path = "../support/src/chance.rs"]
mod chance;
#[path = "../support/src/skip.rs"]
mod skip;

const MESSAGES: usize = 10_000;
const TWICE_PERCENT: u64 = 30;
const KILLS: usize = 20;
/// Deliveries that a consumer has before it has acknowledged them.
const IN_FLIGHT: usize = 50;
/// Deliveries that a restart repeats at most: those whose offsets were not committed yet.
const REPEATED_MAX: u64 = 100;

#[test]
fn through_tokio_postgres_each_message_has_its_effect_once() {
    check(Command::new(env!("CARGO_BIN_EXE_through-tokio-postgres")), 1);
}

#[test]
fn through_sqlx_each_message_has_its_effect_once() {
    check(Command::new(env!("CARGO_BIN_EXE_through-sqlx")), 2);
}

#[test]
fn through_diesel_each_message_has_its_effect_once() {
    check(Command::new(env!("CARGO_BIN_EXE_through-diesel")), 3);
}

#[test]
fn through_psycopg_each_message_has_its_effect_once() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python: PathBuf = here.join("../../.servers/psycopg/bin/python");
    if !python.exists() {
        return skip::skip("drivers", "psycopg is not installed: tests/drivers/fetch-psycopg");
    }
    let mut command = Command::new(python);
    command.arg(here.join("through_psycopg.py"));
    check(command, 4);
}

fn check(command: Command, seed: u64) {
    let cluster = Cluster::start(&Options::default()).unwrap();
    make_tables(&cluster.unix_url());
    let mut chance = Chance::new(seed);
    let deliveries = deliveries(&mut chance);
    let mut kills: Vec<usize> =
        (0..KILLS).map(|_| chance.below(deliveries.len() - IN_FLIGHT)).collect();
    kills.sort_unstable();
    let mut consumer = Consumer { command, url: cluster.url(), done: 0, repeated: 0 };
    for until in kills.into_iter().map(Some).chain([None]) {
        consumer.run(&deliveries, until);
        let repeated = usize::try_from(chance.between(0, REPEATED_MAX)).unwrap().min(consumer.done);
        consumer.repeated += repeated;
        consumer.done -= repeated;
    }
    assert!(consumer.repeated > KILLS, "no restart repeated a delivery");
    assert_eq!(counts(&cluster.unix_url()), [i64::try_from(MESSAGES).unwrap(); 4]);
}

/// Each message once, and some of them once more, later.
fn deliveries(chance: &mut Chance) -> Vec<Uuid> {
    let mut deliveries: Vec<Uuid> = (0..MESSAGES).map(|_| Uuid::now_v7()).collect();
    for index in 0..MESSAGES {
        if chance.percent(TWICE_PERCENT) {
            let id = deliveries[index];
            let place = index + 1 + chance.below(deliveries.len() - index);
            deliveries.insert(place, id);
        }
    }
    deliveries
}

struct Consumer {
    command: Command,
    url: String,
    /// Deliveries that are acknowledged, and need not come again.
    done: usize,
    repeated: usize,
}

impl Consumer {
    /// Starts it, and kills it when this many deliveries are acknowledged; without a number, when all are.
    fn run(&mut self, deliveries: &[Uuid], until: Option<usize>) {
        let command = self.command.env("DATABASE_URL", &self.url);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = process.stdin.take().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
        let end = until.unwrap_or(deliveries.len());
        let mut sent = self.done;
        while self.done < end {
            while sent < deliveries.len() && sent < self.done + IN_FLIGHT {
                writeln!(input, "{}", deliveries[sent]).unwrap();
                sent += 1;
            }
            let acknowledged = output.next().expect("the consumer ended").unwrap();
            assert_eq!(acknowledged, deliveries[self.done].to_string());
            self.done += 1;
        }
        self.done += end_of(process, input, output, until.is_some());
    }
}

/// Kills it in the midst of what it was sent, or lets it end; how many it still acknowledged.
fn end_of(
    mut process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    is_killed: bool,
) -> usize {
    if is_killed {
        process.kill().unwrap();
    }
    drop(input);
    let acknowledged = output.map_while(Result::ok).count();
    assert_eq!(process.wait().unwrap().success(), !is_killed);
    acknowledged
}

#[tokio::main(flavor = "current_thread")]
async fn make_tables(url: &str) {
    let mut client = connect(url).await;
    // In a schema of their own, and twice, as a service does that starts again.
    for _ in 0..2 {
        migrate(&mut client, "messaging", &[Piece::Outbox, Piece::Inbox]).await.unwrap();
    }
    client
        .batch_execute(
            "ALTER DATABASE postgres SET search_path TO public, messaging; \
             CREATE TABLE effects (message_id uuid NOT NULL)",
        )
        .await
        .unwrap();
}

/// Effects, messages with an effect, events, messages with an event.
#[tokio::main(flavor = "current_thread")]
async fn counts(url: &str) -> [i64; 4] {
    let sql = "SELECT (SELECT count(*) FROM effects), (SELECT count(DISTINCT message_id) FROM effects), \
               (SELECT count(*) FROM outbox), (SELECT count(DISTINCT aggregate_id) FROM outbox)";
    let row = connect(url).await.query_one(sql, &[]).await.unwrap();
    [row.get(0), row.get(1), row.get(2), row.get(3)]
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
