//! AWS Signature Version 4 in a URL's query, which MSK and RDS accept as a password.
//!
//! Invariant: botocore's `SigV4QueryAuth` gives the same result, byte for byte; 1,000 drawn tokens
//! in `fixtures/aws/tokens.jsonl` check this. Source: "Create a signed AWS API request" in
//! the IAM User Guide.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use crate::aws::AwsCredentials;
use crate::time::{basic_date, basic_time};

/// Validity of a signed URL in seconds: the maximum of MSK and RDS.
pub(crate) const EXPIRES_S: u64 = 900;

/// A request that is signed and never sent.
pub(crate) struct SignedQuery<'a> {
    /// AWS's name of the service: `rds-db`, `kafka-cluster`.
    pub(crate) service: &'a str,
    pub(crate) region: &'a str,
    pub(crate) host: &'a str,
    pub(crate) parameters: &'a [(&'a str, &'a str)],
}

impl SignedQuery<'_> {
    /// Returns `host/?query`, valid for [`EXPIRES_S`] seconds from `now_s` (Unix time).
    pub(crate) fn sign(&self, credentials: &AwsCredentials, now_s: u64) -> String {
        let time = basic_time(now_s);
        let scope = format!("{}/{}/{}/aws4_request", basic_date(now_s), self.region, self.service);
        let credential = format!("{}/{scope}", credentials.access_key_id);
        let expires = EXPIRES_S.to_string();
        let mut parameters = self.parameters.to_vec();
        parameters.extend([
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            ("X-Amz-Credential", &credential),
            ("X-Amz-Date", &time),
            ("X-Amz-Expires", &expires),
            ("X-Amz-SignedHeaders", "host"),
        ]);
        if let Some(token) = &credentials.session_token {
            parameters.push(("X-Amz-Security-Token", token.reveal()));
        }
        let pairs: Vec<String> = parameters
            .iter()
            .map(|(name, value)| format!("{}={}", percent_encoded(name), percent_encoded(value)))
            .collect();
        let mut sorted = pairs.clone();
        sorted.sort();
        let canonical = format!(
            "GET\n/\n{}\nhost:{}\n\nhost\n{}",
            sorted.join("&"),
            // A `Host` header omits the default port.
            self.host.strip_suffix(":443").unwrap_or(self.host),
            hex(&Sha256::digest(b""))
        );
        let digest = hex(&Sha256::digest(canonical.as_bytes()));
        let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}");
        let signature = self.signature(credentials, now_s, &to_sign);
        format!("{}/?{}&X-Amz-Signature={signature}", self.host, pairs.join("&"))
    }

    fn signature(&self, credentials: &AwsCredentials, now_s: u64, to_sign: &str) -> String {
        let secret = format!("AWS4{}", credentials.secret_access_key.reveal());
        let date = basic_date(now_s);
        let parts = [date.as_str(), self.region, self.service, "aws4_request"];
        let key = parts.iter().fold(secret.into_bytes(), |key, part| mac(&key, part));
        hex(&mac(&key, to_sign))
    }
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of any length")
    };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// Encodes all characters except RFC 3986's unreserved ones as `%XX`.
pub(crate) fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.extend(digits(byte).map(|digit| digit.to_ascii_uppercase()));
        }
    }
    out
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| digits(*byte)).collect()
}

fn digits(byte: u8) -> [char; 2] {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    [digit(byte >> 4), digit(byte & 15)]
}
