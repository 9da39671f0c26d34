//! What the containers run, as far as it can be run without an engine.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use postrider::sandbox::binaries;
use postrider::sandbox::postgres::Options;

use support::postgres;
use support::sql::Sql;

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docker").join(name)
}

#[test]
fn the_database_container_is_initialised_for_a_relay_with_few_rights() {
    let cluster = postgres::start(&Options::default());
    let owner = cluster.address();
    // The script names its migrations as the container sees them.
    let text = std::fs::read_to_string(script("postgres/init.sh")).unwrap();
    let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let here = text.replace("/migrations/", &format!("{}/", migrations.display()));
    assert_ne!(here, text);
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("bash")
        .args(["-c", &here])
        .env("PATH", format!("{}:{path}", binaries::find().unwrap().display()))
        .env("PGHOST", &owner.socket_folder)
        .env("PGPORT", owner.port.to_string())
        .env("POSTGRES_USER", "postgres")
        .env("POSTGRES_DB", "postgres")
        .env("RELAY_PASSWORD", "it's a secret")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    for database in ["orders", "payments", "inventory"] {
        let role = owner.clone().login_as("postrider", Some("it's a secret")).database(database);
        let relay = Sql::connect(&role.url());
        assert_eq!(relay.value("SELECT count(*) FROM outbox"), "0");
        let slot = format!("SELECT pg_create_logical_replication_slot('{database}', 'pgoutput')");
        relay.run(&slot);
        Sql::connect(&owner.clone().database(database).url()).run("CREATE TABLE other ()");
        for statement in ["DELETE FROM outbox", "SELECT FROM other"] {
            let refused = relay.try_run(statement).unwrap_err();
            assert_eq!(refused.code().unwrap().code(), "42501", "{statement}");
        }
    }
}

#[test]
fn the_health_check_follows_the_status_line() {
    for (answer, healthy) in
        [("HTTP/1.1 200 OK\r\n\r\n", true), ("HTTP/1.1 503 Service Unavailable\r\n\r\n", false)]
    {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let request: Vec<String> =
                lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
            stream.write_all(answer.as_bytes()).unwrap();
            request
        });
        let status = Command::new(script("ready")).arg(port.to_string()).status().unwrap();
        assert_eq!(status.success(), healthy, "{answer}");
        assert_eq!(answering.join().unwrap(), ["GET /readyz HTTP/1.0", "Host: localhost"]);
    }
    let nobody = Command::new(script("ready")).arg("1").output().unwrap();
    assert!(!nobody.status.success());
}
