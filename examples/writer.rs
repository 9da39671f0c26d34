//! Writes an event in the transaction that changes the business row.
//!
//! ```toml
//! postrider-patterns = { version = "0.1", features = ["outbox-writer"] }
//! serde_json = "1"
//! tokio = { version = "1", features = ["macros", "rt"] }
//! tokio-postgres = "0.7"
//! ```
//!
//! Input: `DATABASE_URL`, and an amount in cents as argument. Output: the order's row, and its event with the
//! number among the events of that order. Invariant: both are there or neither is.

use std::io::Write as _;

use postrider_patterns::migrations::{Piece, migrate};
use postrider_patterns::outbox_writer::{Event, append};
use tokio_postgres::{Client, NoTls};

type AnyError = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let (mut client, connection) =
        tokio_postgres::connect(&std::env::var("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connection);
    migrate(&mut client, "public", &[Piece::Outbox]).await?;
    client
        .batch_execute("CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, cents bigint)")
        .await?;
    let cents: i64 = std::env::args().nth(1).ok_or("usage: writer CENTS")?.parse()?;
    let order = place(&mut client, cents).await?;
    writeln!(std::io::stdout(), "order {order}")?;
    Ok(())
}

async fn place(client: &mut Client, cents: i64) -> Result<i64, AnyError> {
    let transaction = client.transaction().await?;
    let order = transaction
        .query_one("INSERT INTO orders (cents) VALUES ($1) RETURNING id", &[&cents])
        .await?;
    let order: i64 = order.try_get(0)?;
    let payload = serde_json::json!({ "order": order, "cents": cents });
    append(&transaction, &Event::new("order", order.to_string(), "OrderPlaced", payload)).await?;
    // What fails before this line leaves neither of the two.
    transaction.commit().await?;
    Ok(order)
}
