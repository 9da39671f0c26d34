//! Translates the connection options `database.*` to one URL, `source.url`.
//!
//! Invariant: parts that the file omits or leaves to a placeholder are omitted, so that libpq's
//! `PG*` variables and files provide them.

use std::fmt::Write as _;

use super::draft::{Draft, Taken, text};

const PASSWORD_HELP: &str = "it is stored unencrypted in source.url, as in this file: remove it there and \
                             set PGPASSWORD, or set POSTRIDER_SOURCE__URL_FILE";

pub(super) fn map(draft: &mut Draft) {
    let mut url = Url::default();
    let mut used: Vec<Taken> = Vec::new();
    for (option, part, variable) in PARTS {
        let Some(taken) = draft.take(option) else { continue };
        if taken.is_placeholder(draft.flavour) {
            let note = "is a placeholder, which is not resolved: left out of source.url";
            let help = format!("set {variable}, or POSTRIDER_SOURCE__URL");
            draft.changed(taken, note, Some(&help));
        } else if taken.verbatim().is_empty() {
            draft.not_needed(taken, "is empty");
        } else {
            put(draft, &mut url, &mut used, (taken, part));
        }
    }
    refuse_what_weakens(draft);
    if used.is_empty() {
        return;
    }
    let comment = if url.password.is_some() {
        "without a password in it, PGPASSWORD or a password file is asked"
    } else {
        ""
    };
    draft.set_from("source.url", text(&url.render()), comment, &used.iter().collect::<Vec<_>>());
    if url.password.is_some() {
        let without = Url { password: None, ..url };
        draft.set_without_secrets("source.url", text(&without.render()));
    }
    for taken in used {
        if taken.name().ends_with("database.password") {
            draft.mapped_with(taken, "source.url", PASSWORD_HELP);
        } else {
            draft.mapped(taken, "source.url");
        }
    }
}

#[derive(Clone, Copy)]
enum UrlPart {
    Hosts,
    Port,
    User,
    Password,
    Database,
    SslMode,
    /// pgjdbc and libpq need different formats.
    Key,
    /// Required kind of server, in pgjdbc's words.
    Target,
    KeepAlive,
    Query(&'static str),
}

const PARTS: [(&str, UrlPart, &str); 13] = [
    ("database.hostname", UrlPart::Hosts, "PGHOST"),
    ("database.port", UrlPart::Port, "PGPORT"),
    ("database.user", UrlPart::User, "PGUSER"),
    ("database.password", UrlPart::Password, "PGPASSWORD"),
    ("database.dbname", UrlPart::Database, "PGDATABASE"),
    ("database.sslmode", UrlPart::SslMode, "PGSSLMODE"),
    ("database.sslcert", UrlPart::Query("sslcert"), "PGSSLCERT"),
    ("database.sslkey", UrlPart::Key, "PGSSLKEY"),
    ("database.sslrootcert", UrlPart::Query("sslrootcert"), "PGSSLROOTCERT"),
    ("database.ApplicationName", UrlPart::Query("application_name"), "PGAPPNAME"),
    ("database.connectTimeout", UrlPart::Query("connect_timeout"), "PGCONNECT_TIMEOUT"),
    ("database.targetServerType", UrlPart::Target, "PGTARGETSESSIONATTRS"),
    ("database.tcpKeepAlive", UrlPart::KeepAlive, "`keepalives` in source.url"),
];

fn put(draft: &mut Draft, url: &mut Url, used: &mut Vec<Taken>, (taken, part): (Taken, UrlPart)) {
    let value = taken.text().to_owned();
    let lower = value.to_ascii_lowercase();
    match part {
        UrlPart::Hosts => url.hosts = Some(value),
        UrlPart::Port if value.parse::<u16>().is_ok_and(|port| port > 0) => url.port = Some(value),
        UrlPart::Port => {
            return draft.refuse(taken, "is not a port", "write a number from 1 to 65535");
        }
        UrlPart::User => url.user = Some(value),
        UrlPart::Password => url.password = Some(taken.verbatim().to_owned()),
        UrlPart::Database => url.database = Some(value),
        UrlPart::SslMode => url.query.push(("sslmode", lower.replace('_', "-"))),
        UrlPart::Key if [".pk8", ".der", ".p12", ".pfx"].iter().any(|end| lower.ends_with(end)) => {
            let note = "is a key in the form pgjdbc wants; Postrider, like libpq, wants PEM";
            let help = "`openssl pkcs8 -inform DER -in KEY.pk8 -nocrypt -out KEY.pem` (of a .p12: \
                        `openssl pkcs12 -nodes -nocerts`), and name that file";
            return draft.refuse(taken, note, help);
        }
        UrlPart::Key => url.query.push(("sslkey", value)),
        UrlPart::Target => match lower.as_str() {
            "any" | "primary" => url.query.push(("target_session_attrs", lower)),
            "master" => url.query.push(("target_session_attrs", "primary".to_owned())),
            _ => return draft.refuse(taken, "is not a server to stream from", "write primary"),
        },
        UrlPart::KeepAlive if lower == "false" => url.query.push(("keepalives", "0".to_owned())),
        UrlPart::KeepAlive => return draft.not_needed(taken, "TCP keepalive is on by default"),
        UrlPart::Query(name) => url.query.push((name, value)),
    }
    used.push(taken);
}

fn refuse_what_weakens(draft: &mut Draft) {
    if let Some(taken) = draft.take("database.sslpassword") {
        if taken.text().is_empty() {
            draft.not_needed(taken, "is empty");
        } else {
            let note = "the client's key has a passphrase, and Postrider takes keys without one";
            let help =
                "`openssl pkey -in KEY -out KEY.pem` writes it without; give that file mode 0600";
            draft.refuse(taken, note, help);
        }
    }
    for option in ["database.sslfactory", "database.ssl.factory"] {
        if let Some(taken) = draft.take(option) {
            let note = "names a Java class that decides whom to trust";
            draft.refuse(taken, note, "set `database.sslmode` and `database.sslrootcert` instead");
        }
    }
}

#[derive(Default)]
struct Url {
    hosts: Option<String>,
    port: Option<String>,
    user: Option<String>,
    password: Option<String>,
    database: Option<String>,
    query: Vec<(&'static str, String)>,
}

impl Url {
    fn render(&self) -> String {
        let mut url = String::from("postgres://");
        if self.user.is_some() || self.password.is_some() {
            url.push_str(&encoded(self.user.as_deref().unwrap_or("")));
            if let Some(password) = &self.password {
                let _ = write!(url, ":{}", encoded(password));
            }
            url.push('@');
        }
        let mut query: Vec<(&str, &str)> = Vec::new();
        match (&self.hosts, &self.port) {
            (Some(hosts), port) => {
                let hosts: Vec<String> = hosts
                    .split(',')
                    .map(|host| host_and_port(host.trim(), port.as_deref()))
                    .collect();
                url.push_str(&hosts.join(","));
            }
            (None, Some(port)) => query.push(("port", port)),
            (None, None) => {}
        }
        if let Some(database) = &self.database {
            let _ = write!(url, "/{}", encoded(database));
        }
        query.extend(self.query.iter().map(|(name, value)| (*name, value.as_str())));
        for (index, (name, value)) in query.into_iter().enumerate() {
            let separator = if index == 0 { '?' } else { '&' };
            let _ = write!(url, "{separator}{name}={}", encoded(value));
        }
        url
    }
}

/// pgjdbc's form, which may contain a port.
fn host_and_port(host: &str, port: Option<&str>) -> String {
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    if plain.parse::<std::net::Ipv6Addr>().is_ok() {
        return format!("[{plain}]:{}", port.unwrap_or("5432"));
    }
    match host.rsplit_once(':') {
        Some((name, own)) if own.parse::<u16>().is_ok() => format!("{}:{own}", encoded(name)),
        _ => match port {
            Some(port) => format!("{}:{port}", encoded(host)),
            None => encoded(host),
        },
    }
}

/// Keeps RFC 3986's unreserved characters.
fn encoded(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_postgres::libpq::ConnectInfo;
    use proptest::prelude::*;

    #[test]
    fn urls() {
        let some = |text: &str| Some(text.to_owned());
        let url = Url {
            hosts: some("db1,db2:5433,::1"),
            port: some("6000"),
            user: some("re lay"),
            password: some("p@ss/w:rd"),
            database: some("shop"),
            query: vec![("sslmode", "require".to_owned()), ("sslcert", "/a b".to_owned())],
        };
        let expected = "postgres://re%20lay:p%40ss%2Fw%3Ard@db1:6000,db2:5433,[::1]:6000/shop\
                        ?sslmode=require&sslcert=%2Fa%20b";
        assert_eq!(url.render(), expected);
        let port_only = Url { port: some("6000"), ..Url::default() };
        assert_eq!(port_only.render(), "postgres://?port=6000");
    }

    proptest! {
        #[test]
        fn any_parts_come_back(
            // A name that contains a password is refused.
            user in "[^\0:=]{1,12}", password in "[^\0]{1,12}", database in "[^\0:=]{1,12}",
        ) {
            let url = Url {
                hosts: Some("db".to_owned()),
                user: Some(user.clone()),
                password: Some(password.clone()),
                database: Some(database.clone()),
                ..Url::default()
            };
            let (info, _) = ConnectInfo::resolve(&url.render(), &|_| None).unwrap();
            let found = info.endpoints[0].password.as_ref().unwrap();
            prop_assert_eq!((&info.user, &info.database), (&user, &database));
            prop_assert_eq!(found.reveal(), password.as_str());
        }
    }
}
