//! A consumer that has its connection from tokio-postgres, and its messages from standard input.
//!
//! Input: ids of messages, one a line; `DATABASE_URL`. Output: each id, once its effect is committed.
//! Invariant: marker, effect and outbox row are one transaction.

use std::io::Write as _;

use postrider_patterns::marker::{Mark, mark};
use postrider_patterns::outbox_writer::{Event, append};
use tokio_postgres::NoTls;
use uuid::Uuid;

type AnyError = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let url = std::env::var("DATABASE_URL")?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let mut lines = std::io::stdin().lines();
    while let Some(line) = lines.next().transpose()? {
        process(&mut client, line.parse()?).await?;
        writeln!(std::io::stdout(), "{line}")?;
    }
    Ok(())
}

async fn process(client: &mut tokio_postgres::Client, id: Uuid) -> Result<(), AnyError> {
    let transaction = client.transaction().await?;
    if mark(&transaction, "tokio-postgres", id).await? == Mark::Fresh {
        transaction.execute("INSERT INTO effects (message_id) VALUES ($1)", &[&id]).await?;
        let event = Event::new("effect", id.to_string(), "EffectHad", serde_json::json!({}));
        append(&transaction, &event).await?;
    }
    transaction.commit().await?;
    Ok(())
}
