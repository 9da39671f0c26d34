//! A consumer whose effects happen once for each message, and append an event of their own.
//!
//! ```toml
//! postrider-patterns = { version = "0.1", features = ["inbox", "outbox-writer"] }
//! serde = { version = "1", features = ["derive"] }
//! serde_json = "1"
//! tokio = { version = "1", features = ["macros", "rt", "signal"] }
//! tokio-postgres = "0.7"
//! ```
//!
//! Input: `DATABASE_URL`, `KAFKA_BROKERS`; the topic `OrderPlaced`, and `payments.dead-letters` for what cannot be
//! processed. Output: a row in `payments` and an event for each message, until Ctrl-C. Invariant: marker, row and
//! event are one transaction.

use postrider_patterns::inbox::{Consumer, ConsumerSpec, Effects, Failure, Interest, Message};
use postrider_patterns::migrations::{Piece, migrate};
use postrider_patterns::outbox_writer::{Event, append};
use serde_json::json;
use tokio_postgres::{NoTls, Transaction};

type AnyError = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let url = std::env::var("DATABASE_URL")?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    migrate(&mut client, "public", &[Piece::Outbox, Piece::Inbox]).await?;
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS payments (order_id text, cents bigint, status text)",
        )
        .await?;
    let brokers = std::env::var("KAFKA_BROKERS")?;
    let spec = ConsumerSpec::new("payments", ["OrderPlaced"], &brokers, url.parse()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    Consumer::new(spec, Payments)?.run(stop).await?;
    Ok(())
}

#[derive(serde::Deserialize)]
struct OrderPlaced {
    cents: i64,
}

struct Payments;

impl Effects for Payments {
    fn interest(&self, event_type: &str) -> Interest {
        // What is neither handled nor ignored by name is a dead letter: a new type must not be lost.
        if event_type == "OrderPlaced" { Interest::Handle } else { Interest::Unknown }
    }

    async fn apply(&self, tx: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        // A payload that is something else is a dead letter at once.
        let OrderPlaced { cents } = message.parse()?;
        // A refusal is a result: it is written like any other, and is no failure.
        let status = if cents > 80_000 { "PaymentRefused" } else { "PaymentTaken" };
        let order = &message.aggregate_id;
        tx.execute("INSERT INTO payments VALUES ($1, $2, $3)", &[order, &cents, &status]).await?;
        let event = Event::new("payment", order, status, json!({ "cents": cents }));
        // Tried again, five times by default; then a dead letter.
        append(tx, &event.with_traceparent(message.traceparent())).await?;
        Ok(())
    }
}
