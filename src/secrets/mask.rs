//! Masks secrets in all printed texts: logs, error messages, lists of settings, `Debug`.
//!
//! A value is secret if its name *or* its form says so; a doubtful value is masked. This module has
//! the only list of secret words.

use std::borrow::Cow;
use std::ops::Range;

pub const MASK: &str = "****";

/// Words, compared without `.`, `_`, `-` and case. Sources: librdkafka (`sasl.password`,
/// `ssl.key.pem`, `sasl.oauthbearer.*`), Java's clients (`sasl.jaas.config`,
/// `basic.auth.user.info`, `bearer.auth.token`), converters and sinks.
const SECRET_WORDS: [&str; 24] = [
    "pass",
    "pwd",
    "secret",
    "token",
    "pem",
    "jaas",
    "oauthbearer",
    "bearer",
    "credential",
    "private",
    "userinfo",
    "basicauth",
    "authorization",
    "authparam",
    "apikey",
    "accesskey",
    "accountkey",
    "sharedkey",
    "signingkey",
    "encryptionkey",
    "keystorekey",
    "cookie",
    "jwt",
    "signature",
];

const PATHS: [&str; 2] = ["passfile", "pgpassfile"];

const SCHEMES: [&str; 2] = ["bearer ", "basic "];
/// Minimum length after `bearer` and `basic`.
const CREDENTIAL_CHARS: usize = 8;

pub fn is_secret_name(name: &str) -> bool {
    let squeezed: String = name
        .chars()
        .filter(|char| !matches!(char, '.' | '_' | '-'))
        .map(|char| char.to_ascii_lowercase())
        .collect();
    // librdkafka's `ssl_key` is a key; `ssl.key.location` is only the path of one.
    let has_word = SECRET_WORDS.iter().any(|word| squeezed.contains(word));
    name.eq_ignore_ascii_case("ssl_key") || has_word && !PATHS.contains(&squeezed.as_str())
}

pub fn shown<'a>(name: &str, value: &'a str) -> Cow<'a, str> {
    if is_secret_name(name) && !value.is_empty() { Cow::Borrowed(MASK) } else { mask_text(value) }
}

/// Masks passwords in URLs, values after a secret name and `=`, private keys, HTTP credentials.
pub fn mask_text(text: &str) -> Cow<'_, str> {
    masked(text, secret_ranges(text, |_| true))
}

/// Masks a sentence of Postrider or of a client library. Text after `credentials: ` is a reason
/// there; only `=` or JSON syntax assigns a secret.
pub fn mask_sentence(text: &str) -> Cow<'_, str> {
    let is_assigned = |range: &Range<usize>| {
        let before = text.get(..range.start).unwrap_or("");
        let name = before.strip_suffix(':');
        // `"name": ..` is JSON, not prose.
        name.is_none_or(|name| name.trim_end().ends_with(['"', '\'', '\\']))
    };
    masked(text, secret_ranges(text, is_assigned))
}

fn masked(text: &str, ranges: Vec<Range<usize>>) -> Cow<'_, str> {
    if ranges.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for range in ranges {
        if range.start >= done {
            out.push_str(text.get(done..range.start).unwrap_or(""));
            out.push_str(MASK);
        }
        done = done.max(range.end);
    }
    out.push_str(text.get(done..).unwrap_or(""));
    Cow::Owned(out)
}

/// Returns the secrets in a value, to remove them from texts that may repeat them.
pub fn secret_parts(name: &str, value: &str) -> Vec<String> {
    let parts: Vec<&str> = if is_secret_name(name) {
        vec![value]
    } else {
        secret_ranges(value, |_| true).into_iter().filter_map(|range| value.get(range)).collect()
    };
    parts.into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

/// Sorts secrets for [`scrub`]. Drops those of fewer than four bytes, which occur in any text.
pub fn for_scrubbing(mut secrets: Vec<String>) -> Vec<String> {
    const FOUND_FROM: usize = 4;
    secrets.retain(|secret| secret.len() >= FOUND_FROM);
    // The longest comes first, because one secret may contain another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets
}

pub fn scrub(text: &str, secrets: &[String]) -> String {
    let replaced = |text: String, secret: &String| text.replace(secret.as_str(), MASK);
    secrets.iter().fold(text.to_owned(), replaced)
}

pub fn mask_connection_string(text: &str) -> String {
    let text = mask_text(text);
    if text.contains("://") { text.into_owned() } else { mask_after_secret(&text) }
}

/// The line may be malformed, so this looks only at words.
pub fn mask_line(line: &str) -> String {
    let name = line.split_once('=').map(|(name, _)| name).filter(|name| is_secret_name(name));
    if let Some(name) = name {
        return format!("{}= {MASK}", mask_text(name));
    }
    // The whole line comes first, because text before a `=` may be part of a password.
    let line = mask_text(line);
    match line.split_once('=') {
        Some((name, value)) => format!("{name}={}", mask_after_secret(value)),
        None => line.into_owned(),
    }
}

/// Quotes, blanks and escapes hide the end of a `key=value` secret.
fn mask_after_secret(text: &str) -> String {
    // Equal length, so that positions in it are positions in the text.
    let lower = text.to_ascii_lowercase().replace("passfile", "........");
    match SECRET_WORDS.iter().filter_map(|word| lower.find(word)).min() {
        Some(at) => format!("{}{MASK}", text.get(..at).unwrap_or("")),
        None => text.to_owned(),
    }
}

/// Ranges in order; they may overlap. `counts`: the text after a secret name is a secret.
fn secret_ranges(text: &str, counts: impl Fn(&Range<usize>) -> bool) -> Vec<Range<usize>> {
    let lower = text.to_ascii_lowercase();
    let found = [
        user_part(text),
        bare_user_part(text),
        assigned(&lower).filter(counts),
        private_key(&lower),
        credential(&lower),
    ];
    let found = found.into_iter().flatten().chain(web_token(text));
    let mut ranges: Vec<_> = found.filter(|range| !range.is_empty()).collect();
    ranges.sort_by_key(|range| (range.start, range.end));
    ranges.dedup();
    ranges
}

/// Password of the first URL, or a user part without colon, which may be a token except in
/// Postgres's URLs. The part ends at the last `@`, because a password may contain `@`, `/` and `?`.
fn user_part(text: &str) -> Option<Range<usize>> {
    let scheme = text.find("://")?;
    let start = scheme + 3;
    let end = start + text.get(start..)?.rfind('@')?;
    let user = text.get(start..end)?;
    match user.find(':') {
        Some(colon) => Some(start + colon + 1..end),
        None if text.get(..scheme)?.to_ascii_lowercase().contains("postgres") => None,
        None if user.contains(['/', ' ']) => None,
        None => Some(start..end),
    }
}

/// Password of a `user:password@host`, up to the last `@`. A colon before a blank ends a word of
/// prose; a colon before two slashes ends a scheme.
fn bare_user_part(text: &str) -> Option<Range<usize>> {
    let end = text.rfind('@')?;
    let mut colons = text.get(..end)?.match_indices(':').map(|(at, _)| at + 1);
    let start = colons.find(|&at| {
        let rest = text.get(at..).unwrap_or("");
        !rest.starts_with(char::is_whitespace) && !rest.starts_with("//")
    })?;
    Some(start..end)
}

/// Text after the first secret name and its `=` or colon, up to the parameter's end in a URL's
/// query.
fn assigned(lower: &str) -> Option<Range<usize>> {
    let is_name = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    let mut at = 0;
    while at < lower.len() {
        let rest = lower.get(at..)?;
        let name = at + rest.find(is_name)?;
        let end =
            lower.get(name..)?.find(|char| !is_name(char)).map_or(lower.len(), |it| name + it);
        let value = value_after(lower, end);
        if let (Some(start), true) = (value, is_secret_name(lower.get(name..end)?)) {
            let in_query = lower.get(..name)?.contains('?') && lower.contains("://");
            let stop = lower.get(start..)?.find('&').filter(|_| in_query);
            return Some(start..stop.map_or(lower.len(), |it| start + it));
        }
        at = end;
    }
    None
}

fn value_after(lower: &str, end: usize) -> Option<usize> {
    let rest = lower.get(end..)?;
    let unquoted = rest.trim_start_matches(['"', '\'', '\\']);
    let assignment = unquoted.trim_start();
    let at = lower.len() - assignment.len() + 1;
    if assignment.starts_with('=') {
        return Some(at);
    }
    let is_quoted = unquoted.len() < rest.len();
    let after = assignment.strip_prefix(':')?;
    (is_quoted || after.starts_with([' ', '\t', '"', '\''])).then_some(at)
}

fn private_key(lower: &str) -> Option<Range<usize>> {
    let start = lower.find("-----begin")?;
    lower.get(start..)?.contains("private key").then_some(start..lower.len())
}

fn credential(lower: &str) -> Option<Range<usize>> {
    SCHEMES.iter().find_map(|scheme| {
        let start = lower.find(scheme)? + scheme.len();
        let rest = lower.get(start..)?;
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        (end >= CREDENTIAL_CHARS).then_some(start..start + end)
    })
}

/// A JSON web token begins with an encoded `{"`.
fn web_token(text: &str) -> Option<Range<usize>> {
    let start = text.find("eyJ")?;
    let rest = text.get(start..)?;
    let is_part = |char: char| char.is_ascii_alphanumeric() || "._-=".contains(char);
    let end = rest.find(|char| !is_part(char)).unwrap_or(rest.len());
    rest.get(..end)?.contains('.').then_some(start..start + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_keeps_its_reason_and_loses_its_secrets() {
        for (text, expected) in [
            (
                "the brokers refused our credentials: bad password",
                "the brokers refused our credentials: bad password",
            ),
            (
                "no token: see postgres://app:hunter2@db/shop",
                "no token: see postgres://app:****@db/shop",
            ),
            ("refused: sasl.password=hunter2", "refused: sasl.password=****"),
            ("got {\"password\": \"hunter2\"}", "got {\"password\":****"),
        ] {
            assert_eq!(mask_sentence(text), expected);
        }
    }

    #[test]
    fn names_say_what_is_secret() {
        for name in [
            "sasl.password",
            "ssl.key.password",
            "ssl.key.pem",
            "sasl.jaas.config",
            "value.converter.basic.auth.user.info",
            "key.converter.schema.registry.basic.auth.user.info",
            "user_info",
            "apiKey",
            "aws.access-key",
            "ssl_key",
            "PGPASSWORD",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in
            ["sasl.username", "ssl.key.location", "key.converter", "compression.type", "passfile"]
        {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn values_say_what_is_secret() {
        for text in [
            "http://u:hunter2@registry:8081,http://v:hunter2@other",
            "https://hunter2@registry",
            "redis://:hunter2@cache",
            "postgres://app:hun?hunter2@db/shop",
            "jdbc:postgresql://db/shop?user=a&password=hunter2",
            "x.PlainLoginModule required username=\"u\" password=\"hunter2\";",
            "{\"api.key\": \"hunter2\"}",
            "{\\\"password\\\":\\\"hunter2\\\"}",
            "Authorization: Bearer hunter2hunter2",
            "x-header: Basic aHVudGVyMg-hunter2",
            "AccountName=a;AccountKey=hunter2==",
            "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----",
            "eyJhbGciOiJIUzI1NiJ9.hunter2.sig",
            "app:hunter2@db/shop",
            "app:/hunter2@db:5432/shop",
            "a:1,app:hun@hunter2 x@db",
            "`app:hunter2@db:9092` is not a broker's address",
            "app:hunter2@db http://x",
        ] {
            let shown = mask_text(text);
            assert!(!shown.contains("hunter2") && shown.contains(MASK), "{shown}");
        }
        for text in [
            "",
            "outbox.event.${routedByValue}",
            "type:header:eventType,auth:header",
            "http://registry:8081",
            "postgres://app@db/shop?sslmode=require",
            "io.confluent.connect.avro.AvroConverter",
            "(?<token>.*)",
            "basic auth",
            "app@db:5432/shop",
            "file a.toml:3: somebody wrote this",
            "written: by me@home",
        ] {
            assert_eq!(mask_text(text), text);
        }
        assert_eq!(
            mask_text("http://db/?password=a&sslmode=b"),
            format!("http://db/?password={MASK}&sslmode=b")
        );
    }

    #[test]
    fn no_shape_of_connection_string_shows_its_password() {
        for text in [
            "postgres://app:hunter2@db:5432/shop?sslmode=require",
            "postgres://app:hun@ter2:hunter2@db/shop",
            "postgres://app:hun/ter2@db/shop",
            "postgres://app:hun?ter2@db/shop",
            "postgres://app:hun@x?ter2@db/shop",
            "postgres://app@db/shop?password=hunter2&sslmode=require",
            "postgres://db/shop?sslpassword=hunter2",
            "host=db user=app password=hunter2 dbname=shop",
            "host=db password='x hunter2' dbname=shop",
            "password = hunter2",
            "password hunter2",
            "app:hunter2@db/shop",
            "app:hun=hunter2@db/shop",
            "app:x hunter2@db/shop?sslmode=require",
        ] {
            let shown = mask_connection_string(text);
            assert!(!shown.contains("hunter2") && !shown.contains("ter2"), "{shown}");
        }
        for text in ["postgres://app@db/shop?passfile=/run/pw", "host=db passfile=/run/pw user=app"]
        {
            assert_eq!(mask_connection_string(text), text);
        }
        assert_eq!(
            mask_connection_string("host=db passfile=/run/pw password=hunter2"),
            "host=db passfile=/run/pw ****"
        );
        assert_eq!(
            mask_connection_string("postgres://app:pw@db:5432/shop?sslmode=require"),
            "postgres://app:****@db:5432/shop?sslmode=require"
        );
    }

    #[test]
    fn source_lines_lose_their_secrets() {
        for line in [
            "url = postgres://app:hunter2@db/shop",
            "url = \"postgres://app:hunter2@db/shop",
            "\"sasl.password\" = \"hunter2\"",
            "url = \"host=db password=hunter2\"",
            "properties = { \"sasl.username\" = \"x\", \"sasl.password\" = \"hunter2\" }",
            "postgres://app:hunter2@db",
            "url = app:hunter2@db/shop",
            "  \"app:hunter2=x@db:9092\",",
            "  \"postgres://app:hunter2=x@db\",",
        ] {
            assert!(!mask_line(line).contains("hunter2"), "{}", mask_line(line));
        }
        assert_eq!(mask_line("slot = 5"), "slot = 5");
    }

    #[test]
    fn the_parts_that_are_secret_can_be_looked_for() {
        assert_eq!(secret_parts("x", "http://a:hunter2@b"), ["hunter2"]);
        assert_eq!(secret_parts("sasl.password", " hunter2"), ["hunter2"]);
        assert!(secret_parts("x", "plain").is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_masked(text in "(?s).{0,60}") {
            let _ = (mask_text(&text), mask_line(&text), mask_connection_string(&text));
        }
    }
}
