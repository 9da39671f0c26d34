//! What must not be shown, and how it is shown instead.
//!
//! Enters: names and texts that may hold passwords. Leaves: the same with the secret parts
//! replaced by [`MASK`]. What always holds: when in doubt, it is masked. Called wherever the
//! configuration is printed, source lines of mistakes included.

/// What stands in a secret's place.
pub const MASK: &str = "****";

/// Words that make a setting's name a secret's name. librdkafka's secrets are `sasl.password`,
/// `ssl.key.password`, `ssl.keystore.password`, `ssl.key.pem`, `sasl.oauthbearer.client.secret`,
/// `sasl.oauthbearer.config`, `sasl.jaas.config` of Java configurations, and their kin.
const SECRET_WORDS: [&str; 10] = [
    "pass",
    "secret",
    "token",
    "pem",
    "jaas",
    "oauthbearer",
    "credential",
    "private",
    "pwd",
    "ssl_key",
];

/// Whether the value behind this name is never shown.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// A connection URL or `key=value` string without its secrets.
pub fn mask_connection_string(text: &str) -> String {
    if let Some((scheme, rest)) = text.split_once("://") {
        let (before_query, query) = match rest.split_once('?') {
            Some((before, query)) => (before, Some(query)),
            None => (rest, None),
        };
        // The last `@` ends the user part: a password may hold unescaped ones.
        let (user, host) = match before_query.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, before_query),
        };
        let user = user.map_or(String::new(), |user| match user.split_once(':') {
            Some((name, _)) => format!("{name}:{MASK}@"),
            None => format!("{user}@"),
        });
        let query = query.map_or(String::new(), |query| format!("?{}", mask_query(query)));
        format!("{scheme}://{user}{host}{query}")
    } else {
        mask_after_secret(text)
    }
}

/// A source line fit for an error message: a value behind a secret name, or a password inside a
/// URL or connection string, is masked. The line may be malformed, so this looks at words only.
pub(super) fn mask_line(line: &str) -> String {
    let Some((key, value)) = line.split_once('=') else {
        return mask_url_in(line);
    };
    if is_secret_name(key) {
        return format!("{key}= {MASK}");
    }
    format!("{key}={}", mask_url_in(&mask_after_secret(value)))
}

/// Quotes, blanks around `=` and escapes make the end of a `key=value` secret hard to tell, so
/// everything behind the first secret name goes.
fn mask_after_secret(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    match SECRET_WORDS.iter().filter_map(|word| lower.find(word)).min() {
        Some(at) => format!("{}{MASK}", text.get(..at).unwrap_or("")),
        None => text.to_owned(),
    }
}

fn mask_query(query: &str) -> String {
    let mask = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if is_secret_name(name) => format!("{name}={MASK}"),
        _ => pair.to_owned(),
    };
    query.split('&').map(mask).collect::<Vec<_>>().join("&")
}

fn mask_url_in(text: &str) -> String {
    let Some((before, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    match rest.rsplit_once('@') {
        Some((user, after)) => {
            let name = user.split(':').next().unwrap_or("");
            let secret = if user.contains(':') { format!(":{MASK}") } else { String::new() };
            format!("{before}://{name}{secret}@{after}")
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_shape_of_connection_string_shows_its_password() {
        for text in [
            "postgres://app:hunter2@db:5432/shop?sslmode=require",
            "postgres://app:hun@ter2:hunter2@db/shop",
            "postgres://app@db/shop?password=hunter2&sslmode=require",
            "postgres://db/shop?sslpassword=hunter2",
            "host=db user=app password=hunter2 dbname=shop",
            "host=db password='x hunter2' dbname=shop",
            "password = hunter2",
        ] {
            let shown = mask_connection_string(text);
            assert!(!shown.contains("hunter2") && !shown.contains("ter2"), "{shown}");
        }
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
        ] {
            assert!(!mask_line(line).contains("hunter2"), "{}", mask_line(line));
        }
        assert_eq!(mask_line("slot = 5"), "slot = 5");
    }
}
