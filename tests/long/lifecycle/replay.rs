//! `postrider replay` with filters that are drawn by chance: each sends as many rows as SQL counts.
//!
//! Output: how many filters there were, how many rows were sent, and for how many filters plan, summary and topic
//! agreed with SQL. `FULL=1 REPLAY_ROWS=1000000` is something in between.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

use rdkafka::consumer::BaseConsumer;
use serde_json::{Value, json};
use support::chance::Chance;
use support::postgres::Database;
use support::relay::Relay;
use support::{kafka, postgres, topic};

const PREFIX: &str = "replay.";
const TYPES: [&str; 3] = ["A", "B", "it's"];
const FILTERS: usize = 20;
const SEED: u64 = 14;
const KEYS: usize = 50;
/// Rows are a second apart from here on.
const FIRST: &str = "2026-03-01T00:00:00Z";

/// One filter, and what SQL makes of it.
struct Filter {
    arguments: Vec<String>,
    conditions: Vec<String>,
}

/// Whether each filter sent what SQL counts.
pub(super) fn run(is_full: bool) -> bool {
    let Some(kafka) = kafka::shared() else { return true };
    let rows = std::env::var("REPLAY_ROWS").ok().and_then(|rows| rows.parse().ok());
    let rows: usize = rows.unwrap_or(if is_full { 2_000_000 } else { 5_000 });
    let bootstrap = kafka.bootstrap();
    let database = Database::migrated(postgres::installed(), "replay");
    let again = format!("{PREFIX}again");
    topic::create(&bootstrap, &again, 3, &[]);
    let slot = database.name().to_owned();
    let binary = env!("CARGO_BIN_EXE_postrider");
    let relay = Relay::new(binary, &database.address(), &slot, &bootstrap, PREFIX);
    let relay = relay.unprepared();
    database.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
         SELECT 't', n % {KEYS}, (ARRAY['A', 'B', 'it''s'])[1 + n % 3], to_jsonb(n), \
             '{FIRST}'::timestamptz + n * interval '1 second' \
         FROM generate_series(1, {rows}) AS n"
    ));
    let consumer: BaseConsumer = topic::client(&bootstrap).create().unwrap();
    let stored = || topic::ends(&consumer, &again).iter().map(|(_, end)| *end).sum::<i64>();
    let (mut chance, mut equal, mut sent) = (Chance::new(SEED), 0, 0);
    for _ in 0..FILTERS {
        let filter = draw(&mut chance, rows, &database);
        let wanted = database.sql().value(&filter.count()).parse::<i64>().unwrap();
        let (plan, done) = (filter.run(&relay, &[]), filter.run(&relay, &["--to", &again]));
        let counts = [
            plan.pointer("/rows").and_then(Value::as_i64),
            done.pointer("/summary/confirmed").and_then(Value::as_i64),
            Some(stored() - sent),
        ];
        sent += wanted;
        if counts == [Some(wanted); 3] {
            equal += 1;
        } else {
            eprintln!("{:?}: SQL counts {wanted}; {counts:?}", filter.arguments);
        }
    }
    println!(
        "{}",
        json!({ "what": "replay", "rows": rows, "filters": FILTERS, "equal": equal, "sent": sent })
    );
    equal == FILTERS && sent > 0
}

/// Some kinds of filter at once, as chance has it; at least one.
fn draw(chance: &mut Chance, rows: usize, database: &Database) -> Filter {
    loop {
        let mut filter = Filter { arguments: Vec::new(), conditions: Vec::new() };
        for (option, sign) in [("--since", ">="), ("--until", "<")] {
            if chance.percent(40) {
                let seconds = chance.below(rows);
                let moment = format!("'{FIRST}'::timestamptz + interval '{seconds} seconds'");
                let text = database.sql().value(&format!("SELECT {moment}"));
                filter.conditions.push(format!("created_at {sign} {moment}"));
                filter.arguments.extend([option.to_owned(), text]);
            }
        }
        let types: Vec<&str> = TYPES.into_iter().filter(|_| chance.percent(25)).collect();
        filter.any_of("--type", "event_type", &types);
        let keys: Vec<String> =
            (0..chance.below(4)).map(|_| chance.below(KEYS).to_string()).collect();
        filter.any_of("--key", "aggregate_id", &keys);
        if chance.percent(15) {
            let some = format!(
                "SELECT string_agg(id::text, ' ') FROM \
                 (SELECT id FROM outbox ORDER BY created_at OFFSET {} LIMIT 5) AS part",
                chance.below(rows - 5)
            );
            let ids = database.sql().value(&some);
            filter.any_of("--id", "id", &ids.split(' ').collect::<Vec<_>>());
        }
        if !filter.arguments.is_empty() {
            return filter;
        }
    }
}

impl Filter {
    fn any_of(&mut self, option: &str, column: &str, values: &[impl AsRef<str>]) {
        if values.is_empty() {
            return;
        }
        let literal = |value: &str| format!("'{}'", value.replace('\'', "''"));
        let all: Vec<String> = values.iter().map(|value| literal(value.as_ref())).collect();
        self.conditions.push(format!("{column} IN ({})", all.join(", ")));
        for value in values {
            self.arguments.extend([option.to_owned(), value.as_ref().to_owned()]);
        }
    }

    fn count(&self) -> String {
        format!("SELECT count(*) FROM outbox WHERE {}", self.conditions.join(" AND "))
    }

    /// The plan; with more arguments it is carried out.
    fn run(&self, relay: &Relay, more: &[&str]) -> Value {
        let mut arguments = vec!["replay", "--output", "json"];
        if !more.is_empty() {
            arguments.push("--execute");
        }
        arguments.extend(more);
        arguments.extend(self.arguments.iter().map(String::as_str));
        let outcome = relay.start(&arguments).outcome();
        assert!(outcome.status.success(), "{arguments:?}: {} {:?}", outcome.status, outcome.log);
        serde_json::from_str(&outcome.stdout).unwrap()
    }
}
