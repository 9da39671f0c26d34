//! The shop's session with Postgres.
//!
//! Enters: a database URL or key=value pairs. Leaves: a connected client whose socket is served by
//! a task of the current runtime. Called by `cli`.

use tokio_postgres::{Client, Config, NoTls};

use super::error::ShopError;

/// How the session names itself in `pg_stat_activity`.
const APPLICATION_NAME: &str = "postrider-shop";

/// Opens a session; must be called inside a tokio runtime.
pub async fn connect(url: &str) -> Result<Client, ShopError> {
    let mut config: Config = url.parse().map_err(ShopError::Url)?;
    if config.get_application_name().is_none() {
        config.application_name(APPLICATION_NAME);
    }
    let (client, connection) = config.connect(NoTls).await.map_err(ShopError::Connect)?;
    tokio::spawn(async move {
        // The client's next statement reports the same failure to someone who can act on it.
        let _ = connection.await;
    });
    Ok(client)
}
