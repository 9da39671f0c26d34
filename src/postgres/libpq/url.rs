//! Parses `postgres://user:password@host:port,host:port/database?parameter=value` connection
//! strings.
//!
//! Errors contain none of the text. Stricter than libpq: an unescaped `/`, `?` or `@` in a password
//! would make part of it a host or database name, and put it into a log.

use super::error::ConnectInfoError;
use super::parameters::Settings;

const SCHEMES: [&str; 2] = ["postgresql://", "postgres://"];

/// The text after the scheme, if it is a URL.
pub(super) fn strip_scheme(text: &str) -> Option<&str> {
    SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme))
}

pub(super) fn check_scheme(text: &str) -> Result<(), ConnectInfoError> {
    if text.to_ascii_lowercase().starts_with("jdbc:") {
        return Err(ConnectInfoError::ForeignUrl {
            what: "a URL of Java's JDBC, which begins with `jdbc:`",
            help: "remove `jdbc:` from its beginning, and the parameters of Java's driver from its end: \
                   postgresql://HOST:5432/DATABASE?user=USER",
        });
    }
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    if scheme.is_some_and(|scheme| {
        !scheme.contains(['=', '\'']) && !scheme.contains(char::is_whitespace)
    }) && strip_scheme(text).is_none()
    {
        return Err(ConnectInfoError::ForeignUrl {
            what: "a URL that does not begin with postgresql:// or postgres://",
            help: "write postgresql://USER@HOST:5432/DATABASE",
        });
    }
    Ok(())
}

/// `offset`: the scheme's length in characters.
pub(super) fn parse(rest: &str, offset: usize) -> Result<Settings, ConnectInfoError> {
    let mut settings = Settings::default();
    let syntax = |problem, part: &str| ConnectInfoError::Syntax {
        problem,
        at: offset + 1 + position(rest, part),
    };
    if let Some((_, later)) = rest.split_once(['\r', '\n']) {
        return Err(syntax("the URL must be one line without other text", later));
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    if path.contains('@') || path.contains('#') || query.contains('#') {
        return Err(syntax("`@` and `#` are not allowed here unless percent-encoded", path));
    }
    // The last `@`: a password may contain one, a host may not.
    let (credentials, hosts) = match authority.rsplit_once('@') {
        Some((credentials, hosts)) => (Some(credentials), hosts),
        None => (None, authority),
    };
    if let Some(credentials) = credentials {
        let (user, password) = match credentials.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (credentials, None),
        };
        put(&mut settings, "user", user, &syntax)?;
        if let Some(password) = password {
            put(&mut settings, "password", password, &syntax)?;
        }
    }
    put_hosts(&mut settings, hosts, &syntax)?;
    put(&mut settings, "dbname", path.strip_prefix('/').unwrap_or(path), &syntax)?;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(syntax("a parameter must be written name=value", pair));
        };
        if (name, value) == ("ssl", "true") {
            // Java's spelling, which libpq accepts too.
            settings.put("sslmode", "require".to_owned())?;
            continue;
        }
        let name = decode(name).ok_or_else(|| syntax(ENCODING, name))?;
        let value = decode(value).ok_or_else(|| syntax(ENCODING, value))?;
        settings.put(&name, value)?;
    }
    Ok(settings)
}

const ENCODING: &str = "`%` must be followed by two hexadecimal digits of UTF-8, other than 00";

fn put(
    settings: &mut Settings,
    name: &str,
    encoded: &str,
    syntax: &impl Fn(&'static str, &str) -> ConnectInfoError,
) -> Result<(), ConnectInfoError> {
    if encoded.is_empty() {
        return Ok(());
    }
    settings.put(name, decode(encoded).ok_or_else(|| syntax(ENCODING, encoded))?)
}

fn put_hosts(
    settings: &mut Settings,
    hosts: &str,
    syntax: &impl Fn(&'static str, &str) -> ConnectInfoError,
) -> Result<(), ConnectInfoError> {
    if hosts.is_empty() {
        return Ok(());
    }
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for item in hosts.split(',') {
        let (name, port) = if let Some(bracketed) = item.strip_prefix('[') {
            let (name, after) = bracketed
                .split_once(']')
                .ok_or_else(|| syntax("an address in brackets lacks its `]`", item))?;
            let port = after.strip_prefix(':').unwrap_or(after);
            if !after.is_empty() && port.len() == after.len() {
                return Err(syntax("only `:port` may follow `]`", item));
            }
            (name, port)
        } else {
            item.split_once(':').unwrap_or((item, ""))
        };
        if !port.is_empty() && port.parse::<u16>().is_err() {
            return Err(syntax("the port is not a number below 65536", item));
        }
        names.push(decode(name).ok_or_else(|| syntax(ENCODING, item))?);
        ports.push(port);
    }
    settings.put("host", names.join(","))?;
    if ports.iter().any(|port| !port.is_empty()) {
        settings.put("port", ports.join(","))?;
    }
    Ok(())
}

/// Position of `part` (a slice of `text`) in characters; the end of `text` for other strings.
fn position(text: &str, part: &str) -> usize {
    let start = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
    text.get(..start).unwrap_or(text).chars().count()
}

/// `None` for a malformed escape, a NUL, or bytes that are not UTF-8.
fn decode(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let high = char::from(bytes.next()?).to_digit(16)?;
        let low = char::from(bytes.next()?).to_digit(16)?;
        let byte = u8::try_from(high * 16 + low).ok().filter(|byte| *byte != 0)?;
        decoded.push(byte);
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<Settings, ConnectInfoError> {
        let rest = strip_scheme(url).unwrap();
        parse(rest, url.len() - rest.len())
    }

    #[test]
    fn every_part_is_found() {
        let settings = parsed(
            "postgres://al%20ice:p%40ss@db1:5433,[::1]:6000,db3/shop?sslmode=verify-full&options=-c%20a%3Db",
        )
        .unwrap();
        assert_eq!(settings.get("user"), Some("al ice"));
        assert_eq!(settings.get("password"), Some("p@ss"));
        assert_eq!(settings.get("host"), Some("db1,::1,db3"));
        assert_eq!(settings.get("port"), Some("5433,6000,"));
        assert_eq!(settings.get("dbname"), Some("shop"));
        assert_eq!(settings.get("sslmode"), Some("verify-full"));
        assert_eq!(settings.get("options"), Some("-c a=b"));
    }

    #[test]
    fn short_forms_and_sockets() {
        assert_eq!(parsed("postgres://").unwrap(), Settings::default());
        assert_eq!(parsed("postgresql:///shop").unwrap().get("dbname"), Some("shop"));
        let settings = parsed("postgres://%2Frun%2Fpg/shop?ssl=true").unwrap();
        assert_eq!(settings.get("host"), Some("/run/pg"));
        assert_eq!(settings.get("sslmode"), Some("require"));
        let settings = parsed("postgres:///shop?host=/run/pg&port=6000").unwrap();
        assert_eq!(settings.get("host"), Some("/run/pg"));
    }

    #[test]
    fn a_bare_at_in_a_password_is_understood_and_a_bare_slash_refused_without_repeating_it() {
        assert_eq!(parsed("postgres://u:p@ss@h/d").unwrap().get("password"), Some("p@ss"));
        for url in
            ["postgres://u:se/cret@h/d", "postgres://u:12/cret@h/d", "postgres://u:x#y?z@h/d"]
        {
            let error = parsed(url).unwrap_err();
            assert!(!format!("{error} {error:?} {:?}", error.hint()).contains("cret"), "{error}");
        }
    }

    #[test]
    fn malformed_urls_are_refused() {
        for url in [
            "postgres://u:%zz@h/d",
            "postgres://h:port/d",
            "postgres://[::1/d",
            "postgres://[::1]x/d",
            "postgres://h/d?novalue",
            "postgres://h/d?user=%00",
            "postgres://u:p@h/d\n# of the shop",
            "postgres://u:p@h/d?sslmode=require\r\npostgres://u:p@h2/d",
        ] {
            assert!(parsed(url).is_err(), "{url}");
        }
        let Err(ConnectInfoError::Syntax { at, .. }) = parsed("postgres://h:port/d") else {
            panic!("refused as malformed")
        };
        assert_eq!(at, 12);
    }
}
