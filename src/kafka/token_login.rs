//! Logs clients in by OAUTHBEARER.
//!
//! Input: a client just created, and the keeper of its tokens. Output: the client with a token, or why there is none.
//! Invariant: a client's first token is set before anything is asked of it; the later ones are fetched ahead of their
//! expiry by the keeper's thread, or when the brokers refuse one, and handed over when librdkafka asks, which never waits.

use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::listener::broke_off;
use super::settings::SettingsError;
use postrider_credentials::{CredentialsError, Token, TokenKeeper};

/// How long a new client waits for a source that has given no token yet: a little longer than a source may take.
const FIRST_TOKEN_LIMIT: Duration = Duration::from_secs(20);
/// How much of a token's life librdkafka is told of; it asks for the next one at 68 %, when the keeper has it.
const TOLD_PERCENT: u64 = 85;

/// Gives a new client its first token, if it logs in by tokens. Blocks while the source is asked.
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

/// What librdkafka gets when it asks for the next token.
pub(super) fn next_token(keeper: Option<&TokenKeeper>) -> Result<OAuthToken, Box<dyn Error>> {
    let keeper = keeper.ok_or("no source of tokens is configured")?;
    let token = keeper.newest()?;
    Ok(OAuthToken {
        lifetime_ms: expires_ms(&token),
        token: token.text,
        principal_name: token.principal,
    })
}

/// Has the next token fetched at once where the brokers refuse the present one, which its expiry does not tell of: they
/// have other keys now, or it was revoked.
pub(super) fn note_refusal(keeper: Option<&TokenKeeper>, error: &KafkaError, reason: &str) {
    let is_of_login = matches!(
        error.rdkafka_error_code(),
        Some(Code::Authentication | Code::SaslAuthenticationFailed)
    );
    if let Some(keeper) = keeper.filter(|_| is_of_login && !broke_off(reason)) {
        keeper.refused();
    }
}

/// When librdkafka is told that the token expires, in Unix milliseconds: a little early. It asks for the next one when
/// 80 % of a token's life are over, looks once a second whether they are, and renews the logins of its connections at
/// 90 % of what the broker says. A token of some seconds would be used for two renewals, and Kafka refuses a second
/// one within a second.
fn expires_ms(token: &Token) -> i64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(unix.as_millis()).unwrap_or(u64::MAX);
    let left_ms = token.expires_ms.saturating_sub(now_ms);
    let told_ms = now_ms.saturating_add(left_ms / 100 * TOLD_PERCENT);
    i64::try_from(told_ms).unwrap_or(i64::MAX)
}
