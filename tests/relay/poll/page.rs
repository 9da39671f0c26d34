//! The example of docs/sources.md, run as it stands there.

use std::path::Path;
use std::process::{Command, Stdio};

use postrider::sandbox::binaries;
use postrider::sandbox::postgres::Options;
use support::postgres::{self, Database};
use support::{kafka, topic};

/// The first block of this language on the page.
fn block(language: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/sources.md");
    let text = std::fs::read_to_string(page).unwrap();
    let (_, rest) = text.split_once(&format!("```{language}\n")).unwrap();
    rest.split("```").next().unwrap().to_owned()
}

#[test]
fn the_example_of_the_page_delivers_a_row_for_a_role_that_may_not_replicate() {
    let options = kafka::Options { auto_create: false, ..kafka::Options::default() };
    let Some(kafka) = kafka::start(&options) else { return };
    // Its roles have the names that the page has.
    let cluster = postgres::start(&Options::default());
    let database = Database::create(&cluster, "page");
    database.create_role("owner", "SUPERUSER");
    let address = database.create_role("postrider", "");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("postrider.toml");
    std::fs::write(&config, block("toml")).unwrap();
    let own = Path::new(env!("CARGO_BIN_EXE_postrider")).parent().unwrap();
    let programs = [own.to_path_buf(), binaries::find().unwrap()];
    let path = std::env::var_os("PATH").unwrap();
    let path = programs.into_iter().chain(std::env::split_paths(&path));
    let output = Command::new("bash")
        .args(["-e", "-u", "-o", "pipefail", "-c", &block("sh")])
        .env_clear()
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("PGHOST", "127.0.0.1")
        .env("PGPORT", address.port.to_string())
        .env("PGUSER", "postrider")
        .env("PGDATABASE", &address.database)
        .env("PGPASSWORD", address.password.unwrap_or_default())
        .env("POSTRIDER_CONFIG", &config)
        .env("POSTRIDER_KAFKA__BROKERS", kafka.bootstrap())
        .env("POSTRIDER_HTTP__BIND", "127.0.0.1:0")
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{log}", output.status);
    for words in ["created: trigger", "1 record confirmed", "{\"amount\": 1.50}"] {
        assert!(said.contains(words), "no `{words}` in {said}\n{log}");
    }
    assert_eq!(topic::read(&kafka.bootstrap(), &["OrderPaid".to_owned()]).len(), 1);
    assert_eq!(database.sql().value("SELECT count(*) FROM outbox WHERE processed_at IS NULL"), "0");
}
