//! A consumer that has its connection from diesel, without async, and its messages from standard input.
//!
//! Input: ids of messages, one a line; `DATABASE_URL`. Output: each id, once its effect is committed.
//! Invariant: marker, effect and outbox row are one transaction.

use std::io::Write as _;

use diesel::prelude::*;
use diesel::sql_types::{Bool, Jsonb, Text, Uuid as SqlUuid};
use uuid::Uuid;

type AnyError = Box<dyn std::error::Error>;

#[derive(QueryableByName)]
struct Marked {
    #[diesel(sql_type = Bool)]
    is_fresh: bool,
}

fn main() -> Result<(), AnyError> {
    let url = std::env::var("DATABASE_URL")?;
    let mut connection = PgConnection::establish(&url)?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let id = line.parse()?;
        connection.transaction(|connection| process(connection, id))?;
        writeln!(std::io::stdout(), "{line}")?;
    }
    Ok(())
}

fn process(connection: &mut PgConnection, id: Uuid) -> QueryResult<()> {
    let marked: Marked = diesel::sql_query("SELECT inbox_mark($1, $2) AS is_fresh")
        .bind::<Text, _>("diesel")
        .bind::<SqlUuid, _>(id)
        .get_result(connection)?;
    if marked.is_fresh {
        diesel::sql_query("INSERT INTO effects (message_id) VALUES ($1)")
            .bind::<SqlUuid, _>(id)
            .execute(connection)?;
        diesel::sql_query("SELECT outbox_append('effect', $1, 'EffectHad', $2)")
            .bind::<Text, _>(id.to_string())
            .bind::<Jsonb, _>(serde_json::json!({}))
            .execute(connection)?;
    }
    Ok(())
}
