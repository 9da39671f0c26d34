//! An HTTP response that a repeated request gets again, and its encoding for Redis. Invariant: a
//! response is valid HTTP. Decoding never panics, and no length in the bytes reserves memory.

use std::fmt;

use bytes::{BufMut as _, Bytes};

use super::error::IdempotencyError;

/// Continuation bit. A number has seven bits per byte, the lowest first.
const MORE: u8 = 0x80;
const NUMBER_BYTES_MAX: u32 = 9;

/// The response to a request, to be replayed.
///
/// Store headers that describe the content (`content-type`, `location`), not headers of one
/// exchange (`date`, `set-cookie`).
#[derive(Clone, PartialEq, Eq)]
pub struct StoredResponse {
    status: u16,
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl StoredResponse {
    /// Creates a response. Errors: [`IdempotencyError::Status`], [`IdempotencyError::Header`].
    pub fn new(
        status: u16,
        headers: Vec<(String, String)>,
        body: impl Into<Bytes>,
    ) -> Result<Self, IdempotencyError> {
        if !(200..=599).contains(&status) {
            return Err(IdempotencyError::Status(status));
        }
        let is_bad = |(name, value): &(String, String)| !is_name(name) || !is_value(value);
        match headers.iter().position(is_bad) {
            Some(place) => Err(IdempotencyError::Header(place)),
            None => Ok(Self { status, headers, body: body.into() }),
        }
    }

    /// Creates a JSON response. Error: [`IdempotencyError::Status`].
    pub fn json(status: u16, body: &serde_json::Value) -> Result<Self, IdempotencyError> {
        let kind = ("content-type".to_owned(), "application/json".to_owned());
        Self::new(status, vec![kind], body.to_string())
    }

    /// Adds a header. Error: [`IdempotencyError::Header`].
    pub fn with_header(
        self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, IdempotencyError> {
        let Self { status, mut headers, body } = self;
        headers.push((name.into(), value.into()));
        Self::new(status, headers, body)
    }

    /// Status, 200 to 599.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Names and values of the headers, in order.
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// Body. Cloning it copies no data.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Status, number of headers, each name and value with its length, then the body to the end.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.status);
        put_number(out, self.headers.len());
        for (name, value) in &self.headers {
            for text in [name, value] {
                put_number(out, text.len());
                out.put_slice(text.as_bytes());
            }
        }
        out.put_slice(&self.body);
    }

    pub(super) fn decode(mut bytes: Bytes) -> Option<Self> {
        let status = bytes.split_off_front(2)?;
        let status = u16::from_be_bytes(<[u8; 2]>::try_from(&*status).ok()?);
        let count = take_number(&mut bytes)?;
        let mut headers = Vec::new();
        for _ in 0..count {
            headers.push((take_text(&mut bytes)?, take_text(&mut bytes)?));
        }
        Self::new(status, headers, bytes).ok()
    }
}

impl fmt::Debug for StoredResponse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (headers, body) = (self.headers.len(), self.body.len());
        write!(out, "StoredResponse({}, {headers} headers, {body} bytes)", self.status)
    }
}

/// A token of RFC 9110, section 5.6.2.
fn is_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

/// A field value of RFC 9110, section 5.5, in ASCII.
fn is_value(value: &str) -> bool {
    value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
}

/// `Bytes::split_to` that returns `None` instead of panicking.
trait SplitFront: Sized {
    fn split_off_front(&mut self, length: usize) -> Option<Self>;
}

impl SplitFront for Bytes {
    fn split_off_front(&mut self, length: usize) -> Option<Self> {
        (length <= self.len()).then(|| self.split_to(length))
    }
}

fn put_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= usize::from(MORE) {
        out.push(number.to_le_bytes()[0] | MORE);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn take_number(bytes: &mut Bytes) -> Option<usize> {
    let mut number = 0;
    for place in 0..NUMBER_BYTES_MAX {
        let byte = *bytes.split_off_front(1)?.first()?;
        number |= usize::from(byte & !MORE) << (7 * place);
        if byte & MORE == 0 {
            return Some(number);
        }
    }
    None
}

fn take_text(bytes: &mut Bytes) -> Option<String> {
    let length = take_number(bytes)?;
    String::from_utf8(bytes.split_off_front(length)?.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Result<StoredResponse, IdempotencyError> {
        StoredResponse::new(201, vec![("ok".into(), "ok".into()), (name.into(), value.into())], "")
    }

    #[test]
    fn a_response_that_is_not_valid_http_is_refused() {
        assert!(with("location", "/orders/1?a=b\tc").is_ok());
        for value in ["a\r\nset-cookie: b", "a\nb", "a\0b", "\u{7f}", "é", "\u{1b}[2J"] {
            assert!(matches!(with("x", value), Err(IdempotencyError::Header(1))), "{value:?}");
        }
        for name in ["", "a b", "a:", "é", "a\n", "a\0"] {
            assert!(matches!(with(name, "x"), Err(IdempotencyError::Header(1))), "{name:?}");
        }
        for status in [0, 100, 199, 600, u16::MAX] {
            let refused = StoredResponse::new(status, Vec::new(), "");
            assert!(matches!(refused, Err(IdempotencyError::Status(_))), "{status}");
        }
    }

    #[test]
    fn a_json_response_has_its_content_type_and_what_is_added() {
        let response = StoredResponse::json(201, &serde_json::json!({"id": 1})).unwrap();
        let response = response.with_header("location", "/orders/1").unwrap();
        let parts = (response.status(), response.headers().len(), response.body().as_ref());
        assert_eq!(parts, (201, 2, br#"{"id":1}"#.as_slice()));
        assert!(matches!(response.with_header("x", "a\nb"), Err(IdempotencyError::Header(2))));
    }

    #[test]
    fn numbers_of_any_size_decode_to_themselves() {
        for number in [0, 1, 127, 128, 16_383, 16_384, 5_000_000_000, usize::MAX >> 1] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            let mut bytes = Bytes::from(out);
            assert_eq!((take_number(&mut bytes), bytes.len()), (Some(number), 0));
        }
        assert_eq!(take_number(&mut Bytes::from_static(&[0xff; 20])), None);
    }

    #[test]
    fn debug_output_shows_nothing_of_a_response() {
        let response =
            StoredResponse::new(201, vec![("x-token".into(), "s3cret".into())], "payload").unwrap();
        assert_eq!(format!("{response:?}"), "StoredResponse(201, 1 headers, 7 bytes)");
    }
}
