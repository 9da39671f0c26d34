//! Getting in: every authentication method, `sslmode` and refusal, on both of the relay's
//! connections. Each case runs against a real server, and both connections must agree.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::time::Duration;

use postrider::control::{self, ControlError};
use postrider::libpq::ConnectInfo;
use postrider::lsn::Lsn;
use postrider::sandbox::postgres::{Options, Tls};
use postrider::wal::{Class, Connection, Frame, SessionParams, WalError};

use support::postgres;
use support::secured::{PASSWORD, SecuredServer, authority, issue, secured_server};

/// What a connection string says, as the relay reads it.
trait Resolved {
    fn info(&self, role: &str, extra: &str) -> ConnectInfo;
}

impl Resolved for SecuredServer {
    fn info(&self, role: &str, extra: &str) -> ConnectInfo {
        resolve(&self.address(role, extra))
    }
}

pub(super) fn resolve(text: &str) -> ConnectInfo {
    ConnectInfo::resolve(text, &|_| None).unwrap().0
}

/// Logs in on both connections, which must agree; true if encrypted.
pub(super) fn log_in(info: &ConnectInfo) -> Result<bool, WalError> {
    let streaming = Connection::open(info, &SessionParams::default()).map(|mut connection| {
        assert_eq!(connection.simple_query("SELECT 1").unwrap(), [[Some("1".to_owned())]]);
        assert_ne!(connection.backend_pid(), 0);
        connection.is_encrypted()
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let sql = runtime.block_on(async {
        let client = control::connect(info).await?;
        let encrypted =
            "SELECT coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)";
        Ok::<bool, ControlError>(client.sql().query_one(encrypted, &[]).await.unwrap().get(0))
    });
    let printed = format!("{info:?} {streaming:?} {sql:?}");
    assert!(!printed.contains(PASSWORD), "{printed}");
    match (streaming, sql) {
        (Ok(streaming), Ok(sql)) => {
            assert_eq!(streaming, sql, "encryption differs");
            Ok(sql)
        }
        (Err(streaming), Err(ControlError::Connection { source: sql, .. })) => {
            let kind = |error: &WalError| std::mem::discriminant(error);
            assert_eq!(kind(&streaming), kind(&sql), "{streaming:?} / {sql:?}");
            assert_eq!(streaming.class(), sql.class());
            assert!(streaming.hint().is_some() || streaming.class().is_transient(), "{streaming}");
            Err(streaming)
        }
        differing => panic!("the two connections disagree: {differing:?}"),
    }
}

#[test]
fn every_method_lets_the_right_password_in() {
    let secured = secured_server();
    for role in ["scram", "md5", "password"] {
        assert_eq!(log_in(&secured.info(role, "")), Ok(true), "{role}");
        let mut wrong = secured.info(role, "");
        let ConnectInfo { endpoints, .. } = &mut wrong;
        endpoints[0].password = Some(postrider::libpq::Password::new("guess"));
        let error = log_in(&wrong).unwrap_err();
        assert!(matches!(&error, WalError::Server(server) if server.code == "28P01"), "{error:?}");
        assert_eq!(error.class(), Class::Permission);
        endpoints_without_password(&mut wrong);
        let error = log_in(&wrong).unwrap_err();
        assert!(matches!(error, WalError::PasswordMissing { .. }), "{error:?}");
    }
}

fn endpoints_without_password(info: &mut ConnectInfo) {
    info.endpoints[0].password = None;
}

#[test]
fn scram_binds_itself_to_tls() {
    let secured = secured_server();
    for binding in ["disable", "prefer", "require"] {
        let info = secured.info("scram", &format!("channel_binding={binding}"));
        assert_eq!(log_in(&info), Ok(true), "{binding}");
    }
    let info = secured.info("md5", "channel_binding=require");
    assert!(matches!(log_in(&info), Err(WalError::Authentication { .. })));
    let info = secured.info("plain", "sslmode=disable channel_binding=require");
    assert!(matches!(log_in(&info), Err(WalError::Authentication { .. })));
}

/// In the connection string or by `PGREQUIREAUTH`: a server that asks otherwise, or not at all, is
/// refused by both connections.
#[test]
fn a_server_must_authenticate_as_require_auth_says() {
    let secured = secured_server();
    for (role, word) in
        [("scram", "scram-sha-256"), ("md5", "md5"), ("password", "password"), ("trust", "none")]
    {
        for (required, permitted) in [
            (word.to_owned(), true),
            (format!("gss,{word}"), true),
            (format!("!{word}"), false),
            ("scram-sha-256".to_owned(), role == "scram"),
            ("!none".to_owned(), role != "trust"),
            ("none,md5".to_owned(), ["trust", "md5"].contains(&role)),
            ("!password,!md5".to_owned(), ["trust", "scram"].contains(&role)),
        ] {
            let typed = secured.info(role, &format!("require_auth={required}"));
            let env = |name: &str| (name == "PGREQUIREAUTH").then(|| required.clone());
            let (taken, _) = ConnectInfo::resolve(&secured.address(role, ""), &env).unwrap();
            for info in [typed, taken] {
                match log_in(&info) {
                    Ok(_) => assert!(permitted, "{role} {required}"),
                    Err(error) => {
                        assert!(!permitted, "{role} {required}: {error}");
                        assert!(matches!(error, WalError::Authentication { .. }), "{error}");
                        assert!(error.to_string().contains(&required), "{error}");
                        assert_eq!(error.class(), Class::Permission);
                    }
                }
            }
        }
    }
}

/// A certificate is checked by TLS: to the protocol it is no authentication, as libpq sees it too.
#[test]
fn require_auth_holds_with_certificates_sockets_and_without_tls() {
    let secured = secured_server();
    let files = "sslmode=require sslcert=$client.crt sslkey=$client.key require_auth";
    assert_eq!(log_in(&secured.info("cert", &format!("{files}=none"))), Ok(true));
    let refused = |info: &ConnectInfo| {
        let error = log_in(info).unwrap_err();
        assert!(error.to_string().contains("which require_auth"), "{error:?}");
    };
    refused(&secured.info("cert", &format!("{files}=!none")));
    for mode in ["disable", "prefer"] {
        let info = |word| secured.info("plain", &format!("sslmode={mode} require_auth={word}"));
        assert_eq!(log_in(&info("scram-sha-256")), Ok(false));
        refused(&info("md5"));
    }
    let socket = secured.cluster.unix_url();
    assert_eq!(log_in(&resolve(&format!("{socket}&require_auth=none"))), Ok(false));
    refused(&resolve(&format!("{socket}&require_auth=scram-sha-256")));
    // A server without TLS, which says so when it is asked.
    let bare = postgres::installed().url();
    refused(&resolve(&format!("{bare}?sslmode=prefer&require_auth=gss,md5")));
}

/// Whoever answers in the server's place and asks for the password in clear text gets no answer.
#[test]
fn an_impostor_hears_no_password_that_require_auth_keeps() {
    use std::io::{Read as _, Write as _};
    let impostor = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = impostor.local_addr().unwrap().port();
    let heard = std::thread::spawn(move || {
        let connections = [(); 2].map(|()| {
            let mut client = impostor.accept().unwrap().0;
            let mut startup = [0; 4096];
            assert!(client.read(&mut startup).unwrap() > 8);
            client.write_all(b"R\0\0\0\x08\0\0\0\x03").unwrap();
            let mut answer = Vec::new();
            // A client that closes before it has read all is heard as a reset.
            let _ = client.read_to_end(&mut answer);
            answer
        });
        connections.concat()
    });
    let text = format!(
        "host=127.0.0.1 port={port} user=u password=hush sslmode=disable require_auth=scram-sha-256"
    );
    let error = log_in(&resolve(&text)).unwrap_err();
    assert!(error.to_string().contains("asks for the password in clear text"), "{error}");
    assert_eq!(heard.join().unwrap(), b"", "not even an end that is said");
}

#[test]
fn every_sslmode_trusts_whom_it_should() {
    let secured = secured_server();
    for (extra, encrypted) in [
        ("sslmode=prefer", true),
        ("sslmode=allow", true),
        ("sslmode=require", true),
        ("sslmode=require sslrootcert=$root.crt", true),
        ("sslmode=verify-ca sslrootcert=$root.crt", true),
        ("sslmode=verify-full sslrootcert=$root.crt", true),
        ("sslmode=verify-full sslrootcert=$root.crt ssl_min_protocol_version=TLSv1.3", true),
        ("sslmode=verify-full sslrootcert=$root.crt ssl_max_protocol_version=TLSv1.2", true),
        ("sslmode=verify-ca sslrootcert=$root.crt host=other.example", true),
        ("sslmode=verify-full sslrootcert=$root.crt host=127.0.0.1", true),
        ("sslmode=verify-full sslrootcert=$root.crt sslsni=0", true),
    ] {
        assert_eq!(log_in(&secured.info("scram", extra)), Ok(encrypted), "{extra}");
    }
    for extra in [
        "sslmode=require sslrootcert=$stranger.crt",
        "sslmode=verify-ca sslrootcert=$stranger.crt",
        "sslmode=verify-full sslrootcert=$root.crt host=other.example",
        "sslmode=verify-full sslrootcert=$root.crt host=db.example",
    ] {
        let error = log_in(&secured.info("scram", extra)).unwrap_err();
        assert!(matches!(error, WalError::TlsHandshake { .. }), "{extra}: {error:?}");
        assert_eq!(error.class().exit_code(), 78);
    }
    let error = log_in(&secured.info("scram", "sslmode=verify-full")).unwrap_err();
    assert!(matches!(error, WalError::TlsFiles(_)), "{error:?}");
}

#[test]
fn prefer_falls_back_and_require_does_not() {
    let secured = secured_server();
    assert_eq!(log_in(&secured.info("plain", "sslmode=prefer")), Ok(false));
    assert_eq!(log_in(&secured.info("plain", "sslmode=disable")), Ok(false));
    let error = log_in(&secured.info("plain", "sslmode=require")).unwrap_err();
    assert!(matches!(&error, WalError::Server(server) if server.code == "28000"), "{error:?}");
    let error = log_in(&secured.info("reject", "")).unwrap_err();
    assert!(matches!(&error, WalError::Server(server) if server.code == "28000"), "{error:?}");
    let bare = postgres::installed();
    assert_eq!(log_in(&resolve(&bare.url())), Ok(false));
    let error = log_in(&resolve(&format!("{}?sslmode=require", bare.url()))).unwrap_err();
    assert!(matches!(error, WalError::TlsNotOffered { .. }), "{error:?}");
}

#[test]
fn a_client_certificate_lets_in_without_a_password() {
    let secured = secured_server();
    let with = "sslmode=require sslcert=$client.crt sslkey=$client.key";
    assert_eq!(log_in(&secured.info("cert", with)), Ok(true));
    assert!(log_in(&secured.info("cert", "sslmode=require")).is_err());
    assert!(log_in(&secured.info("cert", &format!("{with} sslcertmode=disable"))).is_err());
    let exposed = secured.file("exposed.key");
    fs::copy(secured.file("client.key"), &exposed).unwrap();
    fs::set_permissions(&exposed, fs::Permissions::from_mode(0o644)).unwrap();
    let info = secured.info("cert", "sslcert=$client.crt sslkey=$exposed.key");
    let error = log_in(&info).unwrap_err();
    assert!(error.hint().unwrap().starts_with("chmod 0600"), "{error:?}");
}

#[test]
fn hosts_are_tried_in_turn() {
    let cluster = postgres::installed();
    let dead = postrider::sandbox::port::free().unwrap();
    let password = cluster.address().password.unwrap();
    let login = format!("user=postgres password={password} dbname=postgres");
    let info = |hosts: &str, ports: &str, extra: &str| {
        resolve(&format!("host={hosts} port={ports} {login} {extra}"))
    };
    let port = cluster.port();
    let folder = cluster.folder().display();
    for (hosts, ports) in [
        ("127.0.0.1,127.0.0.1".to_owned(), format!("{dead},{port}")),
        (format!("/nonexistent,{folder}"), port.to_string()),
        (format!("{folder}"), port.to_string()),
    ] {
        assert_eq!(log_in(&info(&hosts, &ports, "")), Ok(false), "{hosts}");
    }
    let error = log_in(&info("127.0.0.1", &dead.to_string(), "")).unwrap_err();
    assert!(matches!(error, WalError::Unreachable { .. }), "{error:?}");
    assert_eq!(error.class(), Class::Transient);
    let port = port.to_string();
    for (wanted, fits) in [
        ("any", true),
        ("read-write", true),
        ("primary", true),
        ("prefer-standby", true),
        ("standby", false),
        ("read-only", false),
    ] {
        let info = info("127.0.0.1", &port, &format!("target_session_attrs={wanted}"));
        match log_in(&info) {
            Ok(_) => assert!(fits, "{wanted}"),
            Err(error) => {
                assert!(!fits && matches!(error, WalError::WrongSession { .. }), "{error:?}");
            }
        }
    }
    let error = log_in(&info("127.0.0.1", &port, "dbname=nonexistent")).unwrap_err();
    assert_eq!(error.class(), Class::Configuration, "{error:?}");
}

#[test]
fn a_silent_server_is_given_up_on() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for sslmode in ["disable", "require"] {
        let text = format!("host=127.0.0.1 port={port} user=u connect_timeout=1 sslmode={sslmode}");
        let begun = std::time::Instant::now();
        let error = log_in(&resolve(&text)).unwrap_err();
        assert!(matches!(error, WalError::LoginTimedOut { .. }), "{error:?}");
        assert!(begun.elapsed().as_secs() < 30);
    }
}

#[test]
fn postgres_18_speaks_tls_from_the_first_byte() {
    let Some(options) = postgres::eighteen_options() else { return };
    let authority = authority("direct");
    let (certificate, key) = issue(&authority, "direct", &["localhost"]);
    let tls = Some(Tls { certificate, key, client_authority: None });
    let cluster = postgres::start(&Options { tls, ..options });
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.crt");
    fs::write(&root, authority.pem()).unwrap();
    let password = cluster.address().password.unwrap();
    for negotiation in ["postgres", "direct"] {
        let text = format!(
            "host=localhost hostaddr=127.0.0.1 port={} user=postgres password={password} \
             sslmode=verify-full sslrootcert={} sslnegotiation={negotiation}",
            cluster.port(),
            root.display()
        );
        assert_eq!(log_in(&resolve(&text)), Ok(true), "{negotiation}");
    }
}

#[test]
fn a_key_of_roots_may_be_readable_for_its_group() {
    let secured = secured_server();
    let shared = secured.file("shared.key");
    fs::copy(secured.file("client.key"), &shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o640)).unwrap();
    let owned_by_root = is_root(&shared) || chown(&shared, Some(0), None).is_ok();
    let info = secured.info("cert", "sslcert=$client.crt sslkey=$shared.key");
    assert_eq!(log_in(&info).is_ok(), owned_by_root);
}

fn is_root(file: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(file).unwrap().uid() == 0
}

#[test]
fn a_large_transaction_comes_whole_through_tls() {
    let secured = secured_server();
    let database = postgres::Database::migrated(&secured.cluster, "bulk");
    let (sql, slot) = (database.sql(), database.name());
    sql.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
    sql.run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'order', n::text, 'placed', to_jsonb(repeat('x', n)) FROM generate_series(1, 5000) n",
    );
    for version in ["TLSv1.2", "TLSv1.3"] {
        let mut info = secured.info("scram", &format!("ssl_max_protocol_version={version}"));
        slot.clone_into(&mut info.database);
        let connection = Connection::open(&info, &SessionParams::default()).unwrap();
        assert!(connection.is_encrypted());
        let mut stream = connection.start(slot, "postrider", Lsn::ZERO).unwrap();
        let (mut bytes, mut frames) = (0, 0);
        while frames < 5003 {
            match stream.peek().unwrap() {
                None => {
                    stream.fill(Duration::from_secs(1)).unwrap();
                    continue;
                }
                Some(Frame::Wal { data, .. }) => (frames, bytes) = (frames + 1, bytes + data.len()),
                Some(_) => {}
            }
            stream.consume();
        }
        assert!(bytes > 5000 * 5001 / 2);
        stream.finish(Duration::from_secs(30)).unwrap();
    }
}
