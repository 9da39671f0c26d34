//! A consumer that has its connection from sqlx, and its messages from standard input.
//!
//! Input: ids of messages, one a line; `DATABASE_URL`. Output: each id, once its effect is committed.
//! Invariant: marker, effect and outbox row are one transaction.

use std::io::Write as _;

use sqlx::{Connection as _, PgConnection, query, query_scalar};
use uuid::Uuid;

type AnyError = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let url = std::env::var("DATABASE_URL")?;
    let mut connection = PgConnection::connect(&url).await?;
    let mut lines = std::io::stdin().lines();
    while let Some(line) = lines.next().transpose()? {
        process(&mut connection, line.parse()?).await?;
        writeln!(std::io::stdout(), "{line}")?;
    }
    Ok(())
}

async fn process(connection: &mut PgConnection, id: Uuid) -> Result<(), AnyError> {
    let mut transaction = connection.begin().await?;
    let is_fresh: bool = query_scalar("SELECT inbox_mark($1, $2)")
        .bind("sqlx")
        .bind(id)
        .fetch_one(&mut *transaction)
        .await?;
    if is_fresh {
        query("INSERT INTO effects (message_id) VALUES ($1)")
            .bind(id)
            .execute(&mut *transaction)
            .await?;
        query("SELECT outbox_append('effect', $1, 'EffectHad', $2)")
            .bind(id.to_string())
            .bind(serde_json::json!({}))
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(())
}
