//! Tests of the resolution of settings, and of refused ones.

use proptest::prelude::*;

use super::*;
use crate::libpq::PasswordCommand;

fn nothing(_: &str) -> Option<String> {
    None
}

fn resolved(text: &str) -> ConnectInfo {
    ConnectInfo::resolve(text, &nothing).unwrap().0
}

fn refused(text: &str) -> ConnectInfoError {
    ConnectInfo::resolve(text, &nothing).unwrap_err()
}

fn names(info: &ConnectInfo) -> Vec<String> {
    info.endpoints.iter().map(ToString::to_string).collect()
}

#[test]
fn nothing_means_the_local_socket() {
    let info = resolved("user=u");
    assert_eq!(names(&info), ["/var/run/postgresql/.s.PGSQL.5432", "/tmp/.s.PGSQL.5432"]);
    assert_eq!(info.database, "u");
    assert_eq!(info.tls.mode, SslMode::Prefer);
    assert_eq!(info.connect_timeout, Some(CONNECT_TIMEOUT));
    assert_eq!(resolved("user=u connect_timeout=0").connect_timeout, None);
}

#[test]
fn hosts_ports_and_addresses_pair_up() {
    let info = resolved("host=a,b,/run/x port=1,2,3 user=u");
    assert_eq!(names(&info), ["a:1", "b:2", "/run/x/.s.PGSQL.3"]);
    assert_eq!(names(&resolved("host=a,::1 port=7 user=u")), ["a:7", "[::1]:7"]);
    let info = resolved("host=db hostaddr=10.0.0.1 user=u");
    let ip = Some("10.0.0.1".parse().unwrap());
    assert_eq!(info.endpoints[0].address, HostAddress::Tcp { host: "db".to_owned(), ip });
    assert_eq!(
        refused("host=a,b port=1,2,3 user=u"),
        ConnectInfoError::ListLength { parameter: "port", given: 3, hosts: 2 }
    );
    assert!(matches!(refused("host=a port=0 user=u"), ConnectInfoError::InvalidValue { .. }));
    assert!(matches!(refused("host=@abstract"), ConnectInfoError::InvalidValue { .. }));
}

#[test]
fn the_string_beats_the_service_and_the_service_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("service");
    std::fs::write(&file, "[shop]\nhost=service\nport=6000\nuser=u\n").unwrap();
    let env = |name: &str| match name {
        "PGSERVICE" => Some("shop".to_owned()),
        "PGSERVICEFILE" => Some(file.display().to_string()),
        "PGHOST" | "PGPORT" => Some("7000".to_owned()),
        "PGDATABASE" => Some("env".to_owned()),
        _ => None,
    };
    let (info, _) = ConnectInfo::resolve("host=string", &env).unwrap();
    assert_eq!(names(&info), ["string:6000"]);
    assert_eq!(info.database, "env");
    let env = |name: &str| (name == "PGSERVICEFILE").then(|| file.display().to_string());
    let error = ConnectInfo::resolve("service=other", &env).unwrap_err();
    assert!(matches!(error, ConnectInfoError::UnknownService { .. }), "{error}");
}

#[test]
fn a_connection_string_in_place_of_a_name_is_refused_and_not_repeated() {
    const URL: &str = "postgres://u:hunter2@host/db";
    let check = |error: ConnectInfoError, variable: &str, case: &str| {
        let hint = error.hint().unwrap_or_default();
        let said = format!("{error} {error:?} {hint}");
        assert!(matches!(error, ConnectInfoError::NotAName { .. }), "{case}: {said}");
        assert!(!said.contains("hunter2") && hint.contains(variable), "{case}: {said}");
    };
    for (parameter, variable) in [
        ("dbname", "PGDATABASE"),
        ("host", "PGHOST"),
        ("user", "PGUSER"),
        ("service", "PGSERVICE"),
        ("passfile", "PGPASSFILE"),
        ("sslrootcert", "PGSSLROOTCERT"),
    ] {
        for value in [URL, "postgres://localhost/db", "u:hunter2@host/db"] {
            let text = format!("{parameter}={value}");
            check(refused(&text), variable, &text);
            let env = |name: &str| (name == variable).then(|| value.to_owned());
            check(ConnectInfo::resolve("", &env).unwrap_err(), variable, variable);
            // The stronger source counts.
            if parameter == "dbname" {
                let (info, _) = ConnectInfo::resolve("user=u dbname=shop", &env).unwrap();
                assert_eq!(info.database, "shop");
            }
        }
    }
    check(refused("dbname='host=db password=hunter2'"), "PGDATABASE", "keywords");
    check(refused("postgres://h/postgres%3A%2F%2Fu%3Ahunter2%40h%2Fd"), "PGDATABASE", "URL");
    let env = |name: &str| match name {
        "PGSERVICE" => Some("shop".to_owned()),
        "PGSERVICEFILE" => Some(URL.to_owned()),
        _ => None,
    };
    check(ConnectInfo::resolve("", &env).unwrap_err(), "PGSERVICEFILE", "PGSERVICEFILE");
    assert_eq!(resolved("user=u@tenant dbname=a=b").user, "u@tenant");
}

#[test]
fn the_password_file_is_asked_per_host() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(".pgpass");
    std::fs::write(&path, "a:*:*:*:one\nlocalhost:*:*:*:two\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let env = |name: &str| (name == "HOME").then(|| dir.path().display().to_string());
    let (info, warnings) = ConnectInfo::resolve("host=a,b,/tmp user=u", &env).unwrap();
    let found: Vec<_> =
        info.endpoints.iter().map(|e| e.password.as_ref().map(Password::reveal)).collect();
    assert_eq!(found, [Some("one"), None, Some("two")]);
    assert!(warnings.is_empty());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (info, warnings) = ConnectInfo::resolve("host=a user=u", &env).unwrap();
    assert_eq!((info.endpoints[0].password.clone(), warnings.len()), (None, 1));
}

#[test]
fn the_place_that_a_password_came_from_is_named_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let service = dir.path().join("services");
    std::fs::write(&service, "[x]\npassword=hunter2\n").unwrap();
    let (service, own) = (service.display().to_string(), dir.path().join(".pgpass"));
    let env = |wanted: &[(&str, &str)], name: &str| {
        let home = (name == "HOME").then(|| dir.path().display().to_string());
        home.or_else(|| wanted.iter().find(|(it, _)| *it == name).map(|(_, v)| (*v).to_owned()))
    };
    let own = own.display().to_string();
    for (text, variables, place) in [
        ("user=u password=hunter2", &[("PGPASSWORD", "x")][..], "the connection string"),
        ("user=u", &[("PGPASSWORD", "hunter2"), ("PGPASSFILE", "/p")], "PGPASSWORD"),
        ("user=u service=x", &[("PGPASSWORD", "x"), ("PGSERVICEFILE", &service)], "service file"),
        ("user=u", &[], &own),
        ("user=u", &[("PGPASSFILE", "/elsewhere/pgpass")], "/elsewhere/pgpass"),
        ("user=u passfile=/third", &[("PGPASSFILE", "/elsewhere/pgpass")], "/third"),
    ] {
        let (info, _) = ConnectInfo::resolve(text, &|name| env(variables, name)).unwrap();
        let hint = info.wrong_password_hint();
        assert!(hint.ends_with(place) && !hint.contains("hunter2"), "{text}: {hint}");
        let missing = info.missing_password_hint();
        assert_eq!(
            missing.contains(place),
            place.contains('/') || place == "PGPASSWORD",
            "{missing}"
        );
    }
    let words = ["pw-helper".to_owned(), "hunter2".to_owned()].to_vec();
    let command = PasswordCommand::new(words).unwrap();
    let (info, _) = ConnectInfo::resolve("user=u", &nothing).unwrap();
    assert!(info.clone().ask(command).wrong_password_hint().ends_with("`pw-helper` prints"));
    let filed = ConnectInfo::resolve("user=u password=x", &nothing).unwrap().0;
    let hint = filed.read_from("/run/url".into()).wrong_password_hint();
    assert!(hint.ends_with("the connection string in /run/url"), "{hint}");
}

#[test]
fn every_sslmode_is_understood() {
    for (word, mode) in [
        ("disable", SslMode::Disable),
        ("allow", SslMode::Prefer),
        ("prefer", SslMode::Prefer),
        ("require", SslMode::Require),
        ("verify-ca", SslMode::VerifyCa),
        ("verify-full", SslMode::VerifyFull),
    ] {
        assert_eq!(resolved(&format!("user=u sslmode={word}")).tls.mode, mode);
    }
    let error = refused("user=u sslmode=verify_full");
    assert_eq!(error.hint().unwrap(), "did you mean `verify-full`?");
    assert_eq!(resolved("user=u sslrootcert=system").tls.mode, SslMode::VerifyFull);
    assert!(matches!(
        refused("user=u sslrootcert=system sslmode=require"),
        ConnectInfoError::Unsupported { parameter: "sslmode", .. }
    ));
    assert!(matches!(
        refused("user=u sslnegotiation=direct"),
        ConnectInfoError::Unsupported { parameter: "sslnegotiation", .. }
    ));
    assert!(matches!(
        refused("user=u sslcert=/x"),
        ConnectInfoError::InvalidValue { parameter: "sslkey", .. }
    ));
    assert!(matches!(
        refused("user=u gssencmode=require"),
        ConnectInfoError::Unsupported { parameter: "gssencmode", .. }
    ));
}

#[test]
fn keepalives_and_the_rest_are_read() {
    let info = resolved(
        "user=u keepalives_idle=30 keepalives_count=3 tcp_user_timeout=1500 sslsni=0 \
         target_session_attrs=primary channel_binding=require application_name=x",
    );
    assert_eq!(info.keepalives.idle, Some(Duration::from_secs(30)));
    assert_eq!(info.keepalives.count, Some(3));
    assert_eq!(info.keepalives.user_timeout, Some(Duration::from_millis(1500)));
    assert!(info.keepalives.enabled && !info.tls.sni);
    let user_timeout = |text: &str| resolved(text).keepalives.user_timeout;
    assert_eq!(user_timeout("user=u"), Some(TCP_USER_TIMEOUT));
    assert_eq!(user_timeout("user=u tcp_user_timeout=0"), None);
    assert_eq!(info.target_session_attrs, TargetSessionAttrs::Primary);
    assert_eq!(info.channel_binding, ChannelBinding::Require);
    assert_eq!(info.application_name, "x");
}

fn everything_printed(text: &str) -> String {
    match ConnectInfo::resolve(text, &nothing) {
        Ok((info, warnings)) => format!("{info:?} {warnings:?}"),
        Err(error) => format!("{error} {error:?} {:?}", error.hint()),
    }
}

proptest! {
    #[test]
    fn any_text_is_understood_or_refused(text in "(postgres://)?[ -~é\\n]{0,60}") {
        let _ = everything_printed(&text);
    }

    #[test]
    fn a_password_is_never_printed(
        password in "Q[a-z0-9/@:?# %'\\\\-]{7,20}Z",
        tail in "[ -~]{0,12}",
    ) {
        let quoted = password.replace('\\', "\\\\").replace('\'', "\\'");
        let encoded: Vec<_> = password.bytes().map(|b| format!("%{b:02X}")).collect();
        let encoded = encoded.concat();
        for text in [
            format!("host=h user=u password='{quoted}' {tail}"),
            format!("password='{quoted}{tail}"),
            format!("postgres://u:{encoded}@h/{tail}"),
            format!("postgres://u:{password}@h/d{tail}"),
        ] {
            prop_assert!(!everything_printed(&text).contains(&password), "{}", text);
        }
    }
}
