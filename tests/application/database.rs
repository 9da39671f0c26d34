//! Sessions in a database with the application's tables.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use postrider::sandbox::postgres::Cluster;
use support::postgres::{self, Database};
use tokio_postgres::Client;

/// A database of the test's own, on the cluster that the tests share.
pub(crate) struct Stage(Database);

impl Stage {
    pub(crate) async fn set() -> (Self, Client) {
        Self::with(Database::migrated).await
    }

    /// The same without a table.
    pub(crate) async fn empty() -> (Self, Client) {
        Self::with(Database::create).await
    }

    async fn with(create: fn(&Cluster, &str) -> Database) -> (Self, Client) {
        // It has a runtime of its own.
        let create = move || create(postgres::installed(), "application");
        let stage = Self(tokio::task::spawn_blocking(create).await.unwrap());
        let client = stage.connect().await;
        (stage, client)
    }

    /// The name of the database, which no role of another test has.
    pub(crate) fn name(&self) -> &str {
        self.0.name()
    }

    pub(crate) async fn connect(&self) -> Client {
        postrider::shop::connect(&self.0.address().unix_url()).await.unwrap()
    }
}

/// A session in a database that nobody else uses, and what keeps that database.
pub(crate) async fn client() -> (Stage, Client) {
    Stage::set().await
}

/// One number.
pub(crate) async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}
