//! Connects to Postgres by libpq's rules: URL, environment, service file, password file.

use tokio_postgres::Client;
use tracing::warn;

use super::error::ShopError;
use postrider_postgres::control::SqlAddress;
use postrider_postgres::libpq::ConnectInfo;

const APPLICATION_NAME: &str = "postrider-shop";

/// Precedence: `url`, the environment, the service file, the password file, then `ours` (values of
/// libpq's variables).
pub(super) fn resolve(url: &str, ours: &[(&str, &str)]) -> Result<ConnectInfo, ShopError> {
    let ours = |name: &str| {
        let found = ours.iter().chain(&[("PGAPPNAME", APPLICATION_NAME)]).find(|of| of.0 == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let environment = |name: &str| std::env::var(name).ok().or_else(|| ours(name));
    let (info, warnings) = ConnectInfo::resolve(url, &environment).map_err(ShopError::Url)?;
    for warning in warnings {
        warn!("{warning}");
    }
    Ok(info)
}

/// Must be called inside a tokio runtime.
pub async fn connect(url: &str) -> Result<Client, ShopError> {
    let SqlAddress { config, tls } =
        SqlAddress::of(&resolve(url, &[])?).map_err(ShopError::Address)?;
    let (client, connection) = config.connect(tls).await.map_err(ShopError::Connect)?;
    tokio::spawn(async move {
        // The client's next statement reports this failure.
        let _ = connection.await;
    });
    Ok(client)
}
