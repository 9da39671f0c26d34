//! Tests of these errors' classes and hints.

use super::*;

#[test]
fn sqlstates_fall_into_their_classes() {
    for (codes, class) in [
        (&["57P01", "57P02", "57P03", "53300", "08006", "XX000", ""][..], Class::Transient),
        (&["55006"], Class::Held),
        (&["28P01", "28000", "42501"], Class::Permission),
        (&["42704", "0A000", "22023", "3D000", "42601"], Class::Configuration),
        (&["55000"], Class::Position),
    ] {
        for code in codes {
            assert_eq!(Class::of_sqlstate(code), class, "{code}");
        }
    }
}

#[test]
fn logins_are_refused_for_one_of_several_reasons() {
    for (code, routine, hint) in [
        ("28000", "InitializeSessionUserId", "LOGIN;"),
        ("28000", "ClientAuthentication", "pg_hba.conf"),
        ("28P01", "auth_failed", "or there is no such role"),
        ("3D000", "InitPostgres", "PGDATABASE"),
        ("3F000", "get_namespace_oid", "create the schema"),
        ("53300", "InitializeSessionUserId", "ALTER ROLE"),
        ("53300", "CheckMyDatabase", "ALTER DATABASE"),
        ("53300", "InitProcess", "max_connections"),
    ] {
        let (code, routine) = (code.to_owned(), routine.to_owned());
        let error = ServerMessage { code, routine, ..ServerMessage::default() };
        let given = WalError::Server(Box::new(error)).hint().unwrap();
        assert!(given.contains(hint), "{given}");
    }
}

/// Messages of PostgreSQL 15 and 18, and a translation.
#[test]
fn walsenders_that_are_used_up_are_raised_by_one_statement() {
    for message in [
        "number of requested standby connections exceeds max_wal_senders (currently 10)",
        "number of requested standby connections exceeds \"max_wal_senders\" (currently 10)",
        "Anzahl angeforderter Standby-Verbindungen überschreitet max_wal_senders (aktuell 10)",
    ] {
        let (code, message) = ("53300".to_owned(), message.to_owned());
        let error = ServerMessage { code, message, ..ServerMessage::default() };
        let hint = WalError::Server(Box::new(error)).hint().unwrap();
        assert_eq!(hint, "ALTER SYSTEM SET max_wal_senders = 14; then restart the server");
    }
}

#[test]
fn a_row_that_postgres_cannot_send_is_named_as_such() {
    for (code, message) in
        [("54000", "out of memory"), ("XX000", "invalid memory alloc request size 1080000003")]
    {
        let (code, message) = (code.to_owned(), message.to_owned());
        let error = ServerMessage { code, message, ..ServerMessage::default() };
        let error = WalError::Server(Box::new(error));
        assert!(error.class().is_transient());
        assert!(error.hint().unwrap().contains("1 GiB"), "{error}");
    }
}

#[test]
fn a_database_that_is_closed_for_maintenance_is_waited_for() {
    let error = WalError::Server(Box::new(ServerMessage {
        code: "55000".to_owned(),
        message: "database \"shop\" is not currently accepting connections".to_owned(),
        routine: "CheckMyDatabase".to_owned(),
        ..ServerMessage::default()
    }));
    assert_eq!(error.class(), Class::Transient);
    assert!(error.hint().unwrap().contains("ALLOW_CONNECTIONS true"), "{error}");
}

#[test]
fn a_slot_that_a_standby_copies_is_waited_for() {
    let of = |routine: &str, message: &str| {
        WalError::Server(Box::new(ServerMessage {
            code: "55000".to_owned(),
            message: message.to_owned(),
            hint: "Specify another replication slot.".to_owned(),
            routine: routine.to_owned(),
            ..ServerMessage::default()
        }))
    };
    let words = "cannot use replication slot \"postrider\" for logical decoding";
    let copied = of("CreateDecodingContext", words);
    assert_eq!(copied.class(), Class::Transient);
    assert!(copied.hint().unwrap().contains("target_session_attrs=read-write"), "{copied}");
    for (routine, words) in [
        ("CreateDecodingContext", "can no longer get changes from replication slot \"postrider\""),
        ("ReplicationSlotAcquire", words),
    ] {
        assert_eq!(of(routine, words).class(), Class::Position, "{routine}");
    }
}

#[test]
fn what_the_server_cannot_send_has_its_remedy() {
    for code in ["54000", "22P05", "22021"] {
        let error = WalError::Server(Box::new(ServerMessage {
            code: code.to_owned(),
            ..ServerMessage::default()
        }));
        let hint = error.hint().unwrap();
        assert!(hint.contains("A row that Postgres itself cannot send"), "{code}: {hint}");
    }
}

#[test]
fn a_wrong_wal_level_is_a_matter_of_configuration() {
    let error = WalError::Server(Box::new(ServerMessage {
        code: "55000".to_owned(),
        message: "logical decoding requires wal_level >= logical".to_owned(),
        ..ServerMessage::default()
    }));
    assert_eq!(error.class(), Class::Configuration);
}

#[test]
fn a_login_that_nobody_answers_names_host_and_port() {
    let info = ConnectInfo::resolve("user=u host=db port=9092", &|_| None).unwrap().0;
    let error = WalError::TimedOut { doing: "logging in" }.at_login(&info.endpoints[0]);
    assert_eq!(error.to_string(), "Postgres at db:9092 did not answer in time while logging in");
    assert!(error.hint().unwrap().contains("may not be Postgres") && error.class().is_transient());
}

#[test]
fn a_pooler_is_recognised_by_its_errors() {
    let of = |code: &str, message: &str| {
        let (code, message) = (code.to_owned(), message.to_owned());
        WalError::of_server(ServerMessage { code, message, ..ServerMessage::default() })
    };
    for (code, message, fix) in [
        ("08P01", "unsupported startup parameter: replication", "source.mode = \"poll\""),
        ("08P01", "unsupported startup parameter: options", "ignore_startup_parameters"),
        ("42P05", "prepared statement \"s0\" already exists", "pool_mode = session"),
        ("26000", "prepared statement \"s1\" does not exist", "pool_mode = session"),
        ("08P01", "no such database: shop", "[databases]"),
        ("08P01", "no such user", "auth_file"),
        ("08P01", "SASL authentication failed", "password"),
    ] {
        let error = of(code, message);
        assert_eq!(error.class(), Class::Configuration, "{error}");
        let said = format!("{error}; {}", error.hint().unwrap());
        for part in ["PgBouncer", message, fix, "Postgres itself"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    // PgBouncer also returns these while its server restarts.
    for words in ["server login failed: wait", "bouncer config error"] {
        let other = of("08P01", words);
        assert!(other.class().is_transient(), "{other}");
        assert!(other.hint().unwrap().contains("PgBouncer"), "{other}");
    }
}
