//! A database with the application's tables.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use postrider::sandbox::postgres::{Cluster, Options};
use tokio_postgres::Client;

/// Keep it: the server ends with it.
pub(crate) struct Stage(Cluster);

impl Stage {
    pub(crate) async fn set() -> (Self, Client) {
        let stage = Self(Cluster::start(&Options::default()).unwrap());
        let client = stage.connect().await;
        for migration in [
            include_str!("../../migrations/0001_outbox.sql"),
            include_str!("../../migrations/0003_application.sql"),
            // Migrations can be repeated.
            include_str!("../../migrations/0003_application.sql"),
        ] {
            client.batch_execute(migration).await.unwrap();
        }
        (stage, client)
    }

    pub(crate) async fn connect(&self) -> Client {
        postrider::shop::connect(&self.0.unix_url()).await.unwrap()
    }
}

/// One number.
pub(crate) async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}
