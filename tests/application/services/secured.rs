//! The shop's services towards servers that are picky: PostgreSQL with TLS and SCRAM, Kafka with logins
//! and access lists, Redis with TLS. What must be secret stays so.

use std::fs::write;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Output, Stdio};

use postrider::sandbox::account::Account;
use postrider::sandbox::password::RandomPassword;
use postrider::sandbox::port;
use postrider::sandbox::watchdog::{LastSignal, Watchdog};
use postrider::shop::orders::EVENT_TYPES;

use crate::services::dead_letters::produce;
use crate::services::orders::BODY;
use crate::services::stage::Service;
use support::kafka::{self, ALLOWED_USER, Kafka, PASSWORD};
use support::postgres::Database;
use support::secured::{self, SecuredServer, secured_server};
use support::{http, topic, wait_for};

const CHECKED: &str = "sslmode=verify-full sslrootcert=$root.crt";
/// A database behind TLS, brokers behind a login, and the file that holds the password for these.
struct Stage {
    secured: &'static SecuredServer,
    kafka: &'static Kafka,
    database: Database,
    folder: tempfile::TempDir,
}

impl Stage {
    fn set() -> Option<Self> {
        let kafka = kafka::strict()?;
        let secured = secured_server();
        let database = Database::migrated(&secured.cluster, "shop");
        let sql = database.sql();
        sql.run("GRANT ALL ON ALL TABLES IN SCHEMA public TO scram_role");
        sql.run("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO scram_role");
        for topic in EVENT_TYPES.iter().chain(&["shop-orders.dead-letters"]) {
            topic::create(&kafka.bootstrap(), topic, 1, &[]);
        }
        let folder = tempfile::tempdir().unwrap();
        write(folder.path().join("kafka"), format!("# login\nsasl.password={PASSWORD}\n")).unwrap();
        Some(Self { secured, kafka, database, folder })
    }

    /// A command of `shop` with every login it needs; `tls` is part of the connection string.
    fn shop(&self, args: &[&str], tls: &str) -> Command {
        let url = self.secured.address("scram", tls);
        let url = url.replace("dbname=postgres", &format!("dbname={}", self.database.name()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_shop"));
        command
            .args(args)
            .env("DATABASE_URL", url)
            .env("KAFKA_BROKERS", self.kafka.sasl_bootstrap())
            .env("KAFKA_FILE", self.folder.path().join("kafka"))
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        command
    }
}

/// How the brokers want to be spoken to; the password is in the file.
fn login() -> Vec<String> {
    let user = format!("sasl.username={ALLOWED_USER}");
    ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", &user]
        .into_iter()
        .flat_map(|setting| ["--kafka".to_owned(), setting.to_owned()])
        .collect()
}

/// A private Redis that is reached by TLS alone.
struct SecretRedis {
    child: Child,
    port: u16,
    password: RandomPassword,
    authority: std::path::PathBuf,
    _tether: Watchdog,
}

impl SecretRedis {
    fn start() -> Self {
        let account = Account::unprivileged().unwrap();
        let folder = account.make_folder("postrider-redis-").unwrap();
        let mut watchdog = Watchdog::new(&folder).unwrap();
        let authority = secured::authority("whom Redis trusts");
        let (certificate, key) = secured::issue(&authority, "redis", &["localhost"]);
        let place = |name: &str, text: &str| {
            let path = folder.join(name);
            write(&path, text).unwrap();
            account.own(&path).unwrap();
            path
        };
        let (certificate, key) = (place("cert", &certificate), place("key", &key));
        let authority = place("ca", &authority.pem());
        let port = port::free().unwrap();
        let password = RandomPassword::draw().unwrap();
        let configuration = format!(
            "requirepass {}\nbind 127.0.0.1\nport 0\ntls-port {port}\ntls-auth-clients no\n\
             tls-cert-file {}\ntls-key-file {}\nsave \"\"\nappendonly no\n",
            password.as_str(),
            certificate.display(),
            key.display()
        );
        let mut command = Command::new("redis-server");
        command.arg("-").current_dir(&folder).stdin(Stdio::piped()).stdout(Stdio::null());
        account.apply(&mut command);
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(configuration.as_bytes()).unwrap();
        watchdog.hold(child.id(), LastSignal::Kill).unwrap();
        wait_for("Redis", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        Self { child, port, password, authority, _tether: watchdog }
    }
}

impl Drop for SecretRedis {
    fn drop(&mut self) {
        // It has ended already where this fails, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_service_reaches_all_it_needs_by_tls_and_logins_and_shows_no_secret() {
    let Some(stage) = Stage::set() else { return };
    let redis = SecretRedis::start();
    let login = login();
    let login: Vec<&str> = login.iter().map(String::as_str).collect();
    let service = Service::start(
        stage
            .shop(&[&["orders", "--bind", "127.0.0.1:0"], login.as_slice()].concat(), CHECKED)
            .env(
                "REDIS_URL",
                format!("rediss://:{}@localhost:{}", redis.password.as_str(), redis.port),
            )
            .env("RUST_LOG", "debug")
            .env("SSL_CERT_FILE", &redis.authority)
            .env_remove("SSL_CERT_DIR"),
    );
    let placed = http::place(&service.address, "k", BODY).unwrap();
    assert_eq!(placed.status, 201, "{placed:?}");
    let order = placed.json()["id"].as_str().unwrap().to_owned();
    let status = format!("{}/status", placed.header("location").unwrap());
    let mut keys = 0..;
    wait_for("an answer of Redis", || {
        let key = format!("again-{}", keys.next()?);
        assert_eq!(http::place(&service.address, &key, BODY).unwrap().status, 201);
        let page = http::get(&service.address, "/metrics").body;
        (!page.contains("\nshop_requests_new_total 0\n")).then_some(())
    });
    produce(&stage.kafka.bootstrap(), "PaymentProcessed", &order);
    wait_for("the consumer", || {
        let status = http::get(&service.address, &status).json()["status"].clone();
        (status == "PAID").then_some(())
    });
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE datname = current_database() AND usename = 'scram_role'";
    assert_eq!(stage.database.sql().value(encrypted), "t");
    let said = [service.command_line(), service.stop().join("\n")].concat();
    for secret in [PASSWORD, secured::PASSWORD, redis.password.as_str()] {
        assert!(!said.contains(secret), "{said}");
    }

    let list = [&["dead-letters", "list", "shop-orders"], login.as_slice()].concat();
    let output = stage.shop(&list, CHECKED).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    // No relay, so no slot that could say which outbox rows are needed.
    let clean = ["maintain", "--dry-run", "--table", "idempotency_keys"];
    let output = stage.shop(&clean, CHECKED).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
}

#[test]
fn a_server_that_is_not_whom_the_url_trusts_is_not_spoken_to() {
    let secured = secured_server();
    for (tls, exit, reason) in [
        ("sslmode=verify-full sslrootcert=$stranger.crt", 69, "UnknownIssuer"),
        ("sslmode=verify-full sslrootcert=$missing.crt", 78, "sslrootcert"),
        ("sslmode=verify-full", 78, "no root certificate"),
        ("sslmode=ever", 2, "sslmode"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_shop"))
            .args(["load", "--count", "1"])
            .env("DATABASE_URL", secured.address("scram", tls))
            .env("HOME", "/nowhere")
            .output()
            .unwrap();
        let said = words(&output);
        assert_eq!(output.status.code(), Some(exit), "{tls}: {said}");
        assert!(said.contains(reason) && !said.contains(secured::PASSWORD), "{tls}: {said}");
    }
}

fn words(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}
