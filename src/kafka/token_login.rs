//! Logs clients in by OAUTHBEARER.
//!
//! Invariant: a client's first token is set before any request. The keeper's thread fetches later
//! ones; librdkafka's request for them never waits.

use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::listener::broke_off;
use super::settings::SettingsError;
use postrider_credentials::{CredentialsError, Token, TokenKeeper};

/// A little longer than a source may take.
const FIRST_TOKEN_LIMIT: Duration = Duration::from_secs(20);
/// Reported part of a token's lifetime. librdkafka requests the next one after 80 % of the reported
/// lifetime, which is 68 % of the real one.
const TOLD_PERCENT: u64 = 85;

/// Blocks while the source is asked.
pub(super) fn log_in<C: ClientContext>(
    client: &Client<C>,
    keeper: Option<&TokenKeeper>,
) -> Result<(), SettingsError> {
    let Some(keeper) = keeper else { return Ok(()) };
    let token = keeper.wait(FIRST_TOKEN_LIMIT)?;
    let expires_ms = expires_ms(&token);
    postrider_librdkafka::set_token(client, &token.text, expires_ms, &token.principal).map_err(
        |reason| CredentialsError::Unusable { whom: keeper.source().describe(), reason },
    )?;
    Ok(())
}

pub(super) fn next_token(keeper: Option<&TokenKeeper>) -> Result<OAuthToken, Box<dyn Error>> {
    let keeper = keeper.ok_or("no source of tokens is configured")?;
    let token = keeper.newest()?;
    Ok(OAuthToken {
        lifetime_ms: expires_ms(&token),
        token: token.text,
        principal_name: token.principal,
    })
}

/// A refused token was revoked, or the brokers' keys changed: the next one is fetched at once.
pub(super) fn note_refusal(keeper: Option<&TokenKeeper>, error: &KafkaError, reason: &str) {
    let is_of_login = matches!(
        error.rdkafka_error_code(),
        Some(Code::Authentication | Code::SaslAuthenticationFailed)
    );
    if let Some(keeper) = keeper.filter(|_| is_of_login && !broke_off(reason)) {
        keeper.refused();
    }
}

/// Unix milliseconds, a little early. librdkafka checks once per second, and renews logins after 90
/// % of the broker's value. A token of seconds would be used for two renewals, and Kafka refuses a
/// second one within a second.
fn expires_ms(token: &Token) -> i64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(unix.as_millis()).unwrap_or(u64::MAX);
    let left_ms = token.expires_ms.saturating_sub(now_ms);
    let told_ms = now_ms.saturating_add(left_ms / 100 * TOLD_PERCENT);
    i64::try_from(told_ms).unwrap_or(i64::MAX)
}
