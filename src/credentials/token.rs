//! A token for SASL/OAUTHBEARER, its source, and its validation.
//!
//! Invariant: an expired token, or a token that an HTTP header cannot carry (RFC 6750, section
//! 2.1), is an error.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postrider_secrets::PasswordCommand;
use serde_json::Value;

use crate::CredentialsError;
#[cfg(feature = "providers")]
use crate::aws::MskIam;
#[cfg(feature = "providers")]
use crate::oidc::ClientCredentials;
use crate::time::now_ms;

/// librdkafka counts microseconds in 64 bits, and treats a token without an expiry as expired.
const LIFE_MS_MAX: u64 = 24 * 3_600 * 1_000;

#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    /// Unix time.
    pub expires_ms: u64,
    /// Unix time.
    pub fetched_ms: u64,
    /// Shown in the client library's log.
    pub principal: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("text", &"***")
            .field("expires_ms", &self.expires_ms)
            .field("principal", &self.principal)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// Grant `client_credentials`.
    #[cfg(feature = "providers")]
    Oidc(ClientCredentials),
    /// Prints a JWT, or the JSON of a token endpoint.
    Command(PasswordCommand),
    #[cfg(feature = "providers")]
    MskIam(MskIam),
}

impl TokenSource {
    /// Name for logs and errors, without secrets.
    pub fn describe(&self) -> String {
        match self {
            #[cfg(feature = "providers")]
            Self::Oidc(client) => client.describe(),
            Self::Command(command) => format!("the token command `{}`", command.program()),
            #[cfg(feature = "providers")]
            Self::MskIam(msk) => format!("AWS IAM in {}", msk.region),
        }
    }

    /// Blocks for up to about fifteen seconds.
    pub fn fetch(&self) -> Result<Token, CredentialsError> {
        let fetched_ms = now_ms();
        match self {
            #[cfg(feature = "providers")]
            Self::Oidc(client) => Token::of_answer(&self.describe(), &client.ask()?, fetched_ms),
            Self::Command(command) => {
                Token::of_answer(&self.describe(), command.run()?.reveal().trim(), fetched_ms)
            }
            #[cfg(feature = "providers")]
            Self::MskIam(msk) => msk.token(fetched_ms),
        }
    }
}

impl Token {
    /// A JWT, or a JSON object with `access_token` and `expires_in` (RFC 6749, section 5.1).
    pub(crate) fn of_answer(
        whom: &str,
        answer: &str,
        now_ms: u64,
    ) -> Result<Self, CredentialsError> {
        let unusable = |reason: &str| CredentialsError::Unusable {
            whom: whom.to_owned(),
            reason: reason.to_owned(),
        };
        let (text, expires_in) = if answer.starts_with('{') {
            let answer: Value =
                serde_json::from_str(answer).map_err(|_| unusable("it is no JSON"))?;
            let text = answer
                .get("access_token")
                .and_then(Value::as_str)
                .ok_or_else(|| unusable("it has no access_token"))?;
            (text.to_owned(), answer.get("expires_in").and_then(seconds))
        } else {
            (answer.to_owned(), None)
        };
        if text.is_empty() || !text.chars().all(is_token_char) {
            return Err(unusable("it has other characters than a token"));
        }
        let claims = claims(&text);
        let expires = claims.as_ref().and_then(|claims| claims.get("exp")).and_then(seconds);
        let at_ms = expires.map(|at| at.saturating_mul(1_000));
        let after_ms = expires_in.map(|after| now_ms.saturating_add(after.saturating_mul(1_000)));
        let expires_ms = match (at_ms, after_ms) {
            // If this clock is behind the issuer's, the token's own expiry is too late.
            (Some(at), Some(after)) if after > now_ms => at.min(after),
            (Some(one), _) | (None, Some(one)) => one,
            (None, None) => return Err(unusable("nothing says when the token expires")),
        };
        let expires_ms = expires_ms.min(now_ms.saturating_add(LIFE_MS_MAX));
        if expires_ms <= now_ms {
            return Err(unusable("the token has expired already"));
        }
        let claim = |name: &str| claims.as_ref()?.get(name)?.as_str().map(str::to_owned);
        // The client library refuses an empty principal.
        let principal = claim("sub").or_else(|| claim("azp")).filter(|name| !name.is_empty());
        Ok(Self {
            text,
            expires_ms,
            fetched_ms: now_ms,
            principal: principal.unwrap_or_else(|| "postrider".to_owned()),
        })
    }
}

/// Some endpoints write numbers in quotes.
fn seconds(value: &Value) -> Option<u64> {
    let text = value.as_str().and_then(|text| text.parse().ok());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast saturates")]
    value.as_u64().or(text).or_else(|| value.as_f64().map(|seconds| seconds as u64))
}

/// Reads claims without verification, which is the broker's task.
fn claims(text: &str) -> Option<Value> {
    let mut parts = text.split('.');
    let (_, payload) = (parts.next()?, parts.next()?);
    let payload = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    serde_json::from_slice(&payload).ok().filter(Value::is_object)
}

fn is_token_char(char: char) -> bool {
    char.is_ascii_alphanumeric() || "-._~+/=".contains(char)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_700_000_000_000;

    fn jwt(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_jwt_says_itself_when_it_expires_and_whom_it_names() {
        let text = jwt(r#"{"sub":"relay","exp":1700000020}"#);
        let token = Token::of_answer("x", &text, NOW_MS).unwrap();
        assert_eq!((token.expires_ms, token.principal.as_str()), (NOW_MS + 20_000, "relay"));
        assert!(!format!("{token:?}").contains(&text));
        let answer = format!(r#"{{"access_token":"{text}","expires_in":3600}}"#);
        assert_eq!(
            Token::of_answer("x", &answer, NOW_MS).unwrap(),
            token,
            "the token knows better"
        );
    }

    #[test]
    fn a_token_without_claims_expires_as_the_answer_says() {
        for expires_in in ["60", "\"60\"", "60.0"] {
            let answer = format!(r#"{{"access_token":"opaque-1","expires_in":{expires_in}}}"#);
            let token = Token::of_answer("x", &answer, NOW_MS).unwrap();
            assert_eq!(
                (token.expires_ms, token.principal.as_str()),
                (NOW_MS + 60_000, "postrider")
            );
        }
    }

    #[test]
    fn a_token_that_never_expires_is_fetched_again_after_a_day() {
        for expires_in in ["1e18", "9223372036854775807", "99999999999"] {
            let answer = format!(r#"{{"access_token":"opaque-1","expires_in":{expires_in}}}"#);
            let token = Token::of_answer("x", &answer, NOW_MS).unwrap();
            assert_eq!(token.expires_ms, NOW_MS + LIFE_MS_MAX, "{expires_in}");
        }
        // The expiry is in milliseconds by mistake.
        let token = Token::of_answer("x", &jwt(r#"{"exp":1700000020000}"#), NOW_MS).unwrap();
        assert_eq!(token.expires_ms, NOW_MS + LIFE_MS_MAX);
    }

    #[test]
    fn a_clock_that_is_behind_does_not_prolong_a_token() {
        let text = jwt(r#"{"sub":"relay","exp":1700003900}"#);
        for (expires_in, life_s) in [("300", 300), ("0", 3_900), ("7200", 3_900)] {
            let answer = format!(r#"{{"access_token":"{text}","expires_in":{expires_in}}}"#);
            let token = Token::of_answer("x", &answer, NOW_MS).unwrap();
            assert_eq!(token.expires_ms, NOW_MS + life_s * 1_000, "{expires_in}");
        }
    }

    #[test]
    fn what_no_broker_would_take_is_an_error_that_shows_none_of_it() {
        let expired = jwt(r#"{"sub":"hunter2","exp":1699999999}"#);
        let cases = [
            (expired.as_str(), "expired already"),
            ("hunter2", "nothing says when"),
            ("{\"access_token\":\"hunter2\"}", "nothing says when"),
            ("{\"token\":\"hunter2\"}", "no access_token"),
            ("{hunter2", "no JSON"),
            ("<html>hunter2</html>", "other characters"),
            ("hunter2\nhunter2", "other characters"),
            ("", "other characters"),
        ];
        for (answer, words) in cases {
            let error = Token::of_answer("the endpoint", answer, NOW_MS).unwrap_err();
            let said = format!("{error} {error:?}");
            assert!(said.contains(words) && !said.contains("hunter2"), "{answer}: {said}");
        }
    }
}
