//! Identity of an idempotent request: scope, key and fingerprint. Invariant: a [`Key`] is 1 to 255
//! visible ASCII characters. `Debug` shows neither key nor scope.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::canonical::canonical;
use super::error::IdempotencyError;

/// As at Stripe. <https://docs.stripe.com/api/idempotent_requests>
const KEY_LENGTH_MAX: usize = 255;
/// Bytes, far below PostgreSQL's limit of a third of a page.
const SCOPE_LENGTH_MAX: usize = 255;

/// The client's key: 1 to 255 visible ASCII characters, taken literally, including quotes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(String);

/// Reason why a key is not valid: respond with a 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyRefusal {
    /// The key is empty.
    #[error("the idempotency key is empty")]
    Empty,
    /// Length of the key in bytes.
    #[error("the idempotency key has {0} characters; at most 255 are allowed")]
    TooLong(usize),
    /// Index, from 0, of a byte that is not a visible ASCII character.
    #[error("byte {0} of the idempotency key is not a visible ASCII character")]
    NotVisible(usize),
}

impl Key {
    /// Parses a header's value.
    pub fn parse(value: impl AsRef<[u8]>) -> Result<Self, KeyRefusal> {
        let bytes = value.as_ref();
        if bytes.is_empty() {
            return Err(KeyRefusal::Empty);
        }
        if bytes.len() > KEY_LENGTH_MAX {
            return Err(KeyRefusal::TooLong(bytes.len()));
        }
        if let Some(at) = bytes.iter().position(|byte| !byte.is_ascii_graphic()) {
            return Err(KeyRefusal::NotVisible(at));
        }
        Ok(Self(bytes.iter().copied().map(char::from).collect()))
    }

    /// Characters of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Key({} characters)", self.0.len())
    }
}

/// SHA-256 of the method, path and body of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; Self::LENGTH]);

impl Fingerprint {
    /// Length in bytes.
    pub const LENGTH: usize = 32;

    /// Computes the fingerprint of method, path with query, and body, which must be identical for
    /// requests with one meaning.
    pub fn of(method: &str, path: &str, canonical_body: &[u8]) -> Self {
        Self::of_parts(&[method.as_bytes(), path.as_bytes(), canonical_body])
    }

    pub(super) fn of_parts(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            // The length comes first, so that `/a` + `b` differs from `/` + `ab`.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// Computes the fingerprint of a JSON body. White space, the order of members, escapes and the
    /// notation of numbers do not matter. Numbers are compared as decimals of any length.
    pub fn of_json(method: &str, path: &str, body: &[u8]) -> Result<Self, NotJson> {
        canonical(body).map(|form| Self::of(method, path, &form)).ok_or(NotJson)
    }

    /// The 32 bytes of the fingerprint.
    pub fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl TryFrom<&[u8]> for Fingerprint {
    type Error = std::array::TryFromSliceError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        bytes.try_into().map(Self)
    }
}

/// The body of a request is not JSON: respond with a 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body is not valid JSON")]
#[non_exhaustive]
pub struct NotJson;

/// Attempt of a client to have an effect once.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    scope: String,
    key: Key,
    fingerprint: Fingerprint,
    former: Option<Fingerprint>,
}

impl Request {
    /// Creates a request. `scope` is the owner of the key, such as an account: 1 to 255 bytes
    /// without control characters. Error: [`IdempotencyError::Scope`].
    pub fn new(
        scope: impl Into<String>,
        key: Key,
        fingerprint: Fingerprint,
    ) -> Result<Self, IdempotencyError> {
        let scope = scope.into();
        let fits = (1..=SCOPE_LENGTH_MAX).contains(&scope.len());
        if !fits || scope.chars().any(char::is_control) {
            return Err(IdempotencyError::Scope);
        }
        Ok(Self { scope, key, fingerprint, former: None })
    }

    /// Also accepts this former fingerprint, which an earlier version of the program computed, so
    /// that retries across the upgrade match.
    #[must_use]
    pub fn with_former_fingerprint(mut self, former: Fingerprint) -> Self {
        self.former = Some(former);
        self
    }

    /// Owner of the key.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Client's key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Fingerprint of the request.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Fingerprint, and the former one if there is one. Either belongs to this request.
    pub fn fingerprints(&self) -> impl Iterator<Item = &Fingerprint> {
        [Some(&self.fingerprint), self.former.as_ref()].into_iter().flatten()
    }

    pub(super) fn former_fingerprint(&self) -> Option<&Fingerprint> {
        self.former.as_ref()
    }

    pub(super) fn accepts(&self, stored: &Fingerprint) -> bool {
        self.fingerprint == *stored || self.former == Some(*stored)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Request").field("key", &self.key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_1_to_255_visible_ascii_characters() {
        let all: String = (0x21..=0x7e_u8).map(char::from).collect();
        for good in ["k", &all, &"k".repeat(255), "\"8e03978e\""] {
            assert_eq!(Key::parse(good).unwrap().as_str(), good);
        }
        assert_eq!(Key::parse(""), Err(KeyRefusal::Empty));
        assert_eq!(Key::parse("k".repeat(256)), Err(KeyRefusal::TooLong(256)));
        for byte in (0..=0x20).chain(0x7f..=0xff_u8) {
            assert_eq!(Key::parse([b'k', byte]), Err(KeyRefusal::NotVisible(1)), "{byte}");
        }
    }

    #[test]
    fn a_scope_is_1_to_255_bytes_without_control_characters() {
        let of = |scope: &str| {
            Request::new(scope, Key::parse("k").unwrap(), Fingerprint::of("POST", "/", b""))
        };
        assert!(of("tenant-7").is_ok() && of(&"é".repeat(127)).is_ok());
        for bad in ["", "a\0b", "a\r\nb", &"é".repeat(128)] {
            assert!(matches!(of(bad), Err(IdempotencyError::Scope)), "{bad:?}");
        }
    }

    #[test]
    fn the_parts_of_a_fingerprint_do_not_run_into_each_other() {
        let all =
            [("POST", "/a", "b"), ("POST", "/", "ab"), ("POST/", "a", "b"), ("PUT", "/a", "b")]
                .map(|(method, path, body)| Fingerprint::of(method, path, body.as_bytes()));
        for (index, one) in all.iter().enumerate() {
            assert!(!all[index + 1..].contains(one), "{index}");
        }
    }

    #[test]
    fn json_that_means_the_same_has_one_fingerprint() {
        let of = |body: &str| Fingerprint::of_json("POST", "/orders", body.as_bytes());
        let one = of(r#"{"a": {"x": 1.0, "y": [1, 2]}, "b": 2}"#).unwrap();
        assert_eq!(of(r#"{"b":2e0,"a":{"y":[1,2],"x":1.00}}"#), Ok(one));
        assert_ne!(of(r#"{"b":2,"a":{"y":[2,1],"x":1}}"#), Ok(one));
        assert_eq!(of("{"), Err(NotJson));
    }

    #[test]
    fn a_request_is_also_the_one_with_its_former_fingerprint() {
        let [new, former, other] =
            [b"1", b"2", b"3"].map(|body| Fingerprint::of("POST", "/", body));
        let request = Request::new("s", Key::parse("k").unwrap(), new).unwrap();
        assert!(request.accepts(&new) && !request.accepts(&former));
        let request = request.with_former_fingerprint(former);
        assert!(request.accepts(&new) && request.accepts(&former) && !request.accepts(&other));
        assert!(request.fingerprints().eq([&new, &former]));
    }

    #[test]
    fn no_key_and_no_scope_shows_in_a_log() {
        let key = Key::parse("s3cret").unwrap();
        let request = Request::new("tenant-7", key, Fingerprint::of("POST", "/", b"")).unwrap();
        let shown = format!("{request:?}");
        assert!(!shown.contains("s3cret") && !shown.contains("tenant"), "{shown}");
    }
}
