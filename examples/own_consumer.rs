//! A consumer of a service's own, here with rdkafka: only the marker is the library's.
//!
//! ```toml
//! postrider-patterns = { version = "0.1", features = ["marker"] }
//! rdkafka = "0.39"
//! tokio = { version = "1", features = ["macros", "rt"] }
//! tokio-postgres = "0.7"
//! uuid = "1"
//! ```
//!
//! Input: `DATABASE_URL`, `KAFKA_BROKERS`; the topic `OrderPlaced`, whose records have the header `id`. Output: a row
//! in `shipments` for each message. Invariant: marker and row are one transaction; the offset is committed after
//! it.

use std::time::Duration;

use postrider_patterns::marker::{Mark, mark};
use postrider_patterns::migrations::{Piece, migrate};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

type AnyError = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let (mut client, connection) =
        tokio_postgres::connect(&std::env::var("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connection);
    migrate(&mut client, "public", &[Piece::Inbox]).await?;
    client.batch_execute("CREATE TABLE IF NOT EXISTS shipments (order_id text)").await?;
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", std::env::var("KAFKA_BROKERS")?)
        .set("group.id", "shipping")
        .set("auto.offset.reset", "earliest")
        // Or offsets pass messages whose effects are not committed.
        .set("enable.auto.commit", "false")
        .create()?;
    consumer.subscribe(&["OrderPlaced"])?;
    loop {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let message = message?;
        // An error ends this process; the message comes again after its restart.
        process(&mut client, &message).await?;
        consumer.commit_message(&message, CommitMode::Sync)?;
    }
}

async fn process(client: &mut Client, message: &BorrowedMessage<'_>) -> Result<(), AnyError> {
    let headers = message.headers().ok_or("a record without headers")?;
    let id = headers.iter().find(|header| header.key == "id").and_then(|header| header.value);
    let id = Uuid::parse_str(std::str::from_utf8(id.ok_or("a record without an id")?)?)?;
    let order = std::str::from_utf8(message.key().ok_or("a record without a key")?)?;
    let transaction = client.transaction().await?;
    if mark(&transaction, "shipping", id).await? == Mark::Fresh {
        transaction.execute("INSERT INTO shipments VALUES ($1)", &[&order]).await?;
    }
    transaction.commit().await?;
    Ok(())
}
