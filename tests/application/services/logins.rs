//! Errors of logins and missing objects name the server or object, and no secret.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use postrider::kafka::embedded::Broker;

use crate::services::stage::Stage;
use support::http::get;
use support::postgres::{self, Database};
use support::unique;
use support::wait::{let_pass, stays, wait_until};

/// Never to be seen in what a service says.
const CANARY: &str = "canary-in-a-coal-mine";

fn shop(args: &[&str], url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shop"));
    command
        .args(args)
        .env("DATABASE_URL", url)
        .env("KAFKA_BROKERS", "127.0.0.1:1")
        .stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    let stderr = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it)).concat();
    assert!(!stderr.contains(CANARY), "{stderr}");
    stderr
}

#[test]
fn a_login_that_is_refused_ends_every_service_with_one_clear_error() {
    let cluster = postgres::installed();
    let login = |password| cluster.address().login_as("postgres", password).url();
    let (wrong, nobody) = (login(Some(CANARY)), login(None));
    let nowhere = cluster.address().database("nowhere").url();
    let refuse = &|service: &str| {
        for (url, exit, words) in [
            (&wrong, 77, ["password authentication failed for user \"postgres\"", "help:"]),
            (&nobody, 77, ["asks for a password for user `postgres`", "PGPASSWORD"]),
            (&nowhere, 78, ["database \"nowhere\" does not exist", "help:"]),
        ] {
            let mut command = shop(&[service, "--bind", "127.0.0.1:0"], url);
            let output = command.env("HOME", "/nowhere").output().unwrap();
            let stderr = stderr(&output);
            assert_eq!(output.status.code(), Some(exit), "{service}: {stderr}");
            assert!(words.iter().all(|word| stderr.contains(word)), "{service}: {stderr}");
            let errors = stderr.lines().filter(|line| line.starts_with("error: ")).count();
            assert_eq!(errors, 1, "{service}: {stderr}");
        }
    };
    std::thread::scope(|scope| {
        for service in ["orders", "payments", "inventory"] {
            scope.spawn(move || refuse(service));
        }
    });
    let output = shop(&["load", "--count", "1"], &wrong).output().unwrap();
    let stderr = stderr(&output);
    assert_eq!(output.status.code(), Some(77), "{stderr}");
    assert!(
        stderr.contains("password authentication failed") && stderr.contains("help:"),
        "{stderr}"
    );
}

/// It may be allowed in again, so it goes on; but says why it does nothing, once and not twice a second.
#[test]
fn a_login_that_is_withdrawn_is_told_once_and_makes_the_service_unready() {
    let stage = Stage::set();
    let name = unique("seller");
    let seller = stage.database.create_role(&name, "SUPERUSER");
    let service = stage.start_at(&seller.url(), &["orders"]);
    wait_until("a service that is ready", || get(&service.address, "/readyz").status == 200);
    // A refusal of that login ends the service, as it should at a start.
    let_pass(Duration::from_secs(8), "the login that the service tries at its start");
    stage.run(&format!("ALTER ROLE {name} PASSWORD 'other'"));
    let sessions = format!("FROM pg_stat_activity WHERE usename = '{name}'");
    stage.run(&format!("SELECT pg_terminate_backend(pid) {sessions}"));
    // Until then a pooled session may still answer, or break off.
    let sessions = format!("SELECT count(*) {sessions}");
    wait_until("its sessions to end", || stage.count(&sessions) == 0);
    let refused = "the database refuses the login\n";
    wait_until("a service that says so", || get(&service.address, "/readyz").body == refused);
    // For six looks at the deadlines.
    stays("refused", Duration::from_secs(3), || get(&service.address, "/readyz").body == refused);
    let password = seller.password.unwrap();
    stage.run(&format!("ALTER ROLE {name} PASSWORD '{password}'"));
    wait_until("a service that is ready", || get(&service.address, "/readyz").status == 200);
    let log = service.stop();
    let refused: Vec<_> = log.iter().filter(|line| line.contains("28P01")).collect();
    let watching = refused.iter().filter(|line| line.contains("cannot watch deadlines")).count();
    assert_eq!(watching, 1, "{refused:#?}");
    let first = refused.first().unwrap();
    assert!(first.contains("password authentication failed for user"), "{first}");
    assert!(refused.iter().any(|line| line.contains("DATABASE_URL")), "{refused:#?}");
}

#[test]
fn a_missing_topic_is_named() {
    let database = Database::create(postgres::installed(), "missing_topic");
    let topics = ["PaymentProcessed", "PaymentFailed", "shop-orders.dead-letters"];
    let broker = Broker::start(1, &topics.map(|topic| (topic, 1))).unwrap();
    let mut service = shop(&["orders", "--bind", "127.0.0.1:0"], &database.address().unix_url())
        .env("KAFKA_BROKERS", broker.bootstrap())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(service.stderr.take().unwrap()).lines().map_while(Result::ok);
    let line = log.into_iter().find(|line| line.contains("topics are missing")).unwrap();
    assert!(line.contains("InventoryReserved") && line.contains("--create"), "{line}");
    assert!(!line.contains("PaymentProcessed,"), "{line}");
    service.kill().unwrap();
    service.wait().unwrap();
}

#[test]
fn a_mistyped_consumer_is_asked_about_before_a_topic_is_advised() {
    let topics = [("shop-orders.dead-letters", 1), ("OrderCreated", 1)];
    let broker = Broker::start(1, &topics).unwrap();
    let output = shop(&["dead-letters", "list", "shop-order"], "")
        .env("KAFKA_BROKERS", broker.bootstrap())
        .output()
        .unwrap();
    let stderr = stderr(&output);
    assert!(stderr.contains("help: is the name `shop-order` right? there are"), "{stderr}");
    assert!(
        stderr.contains("dead letters of: shop-orders") && !stderr.contains("--create"),
        "{stderr}"
    );
}

#[test]
fn a_secret_in_the_wrong_place_of_the_command_line_is_not_repeated() {
    let url = format!("postgres://u:{CANARY}@db/shop");
    for args in [
        vec!["orders", &url],
        vec!["orders", "--bind", &url],
        vec!["orders", "--kafka-file", &url],
        vec!["orders", "--kafka", &url],
        vec!["load", "--count", &url],
        vec!["dead-letters", "list", "x", &url],
        vec![&url],
    ] {
        let output = shop(&args, "user=u").output().unwrap();
        assert_ne!(output.status.code(), Some(0), "{args:?}");
        let stderr = stderr(&output);
        assert!(stderr.starts_with("error: ") || stderr.contains("\nerror: "), "{stderr}");
    }
    let output = shop(&["orders"], "user=u").env("SHOP_BIND", &url).output().unwrap();
    assert!(stderr(&output).contains("invalid value"), "{output:?}");
}
