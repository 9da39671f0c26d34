//! The examples of docs/lifecycle.md, run as they stand there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use postrider::sandbox::binaries;
use support::postgres::Database;
use support::{kafka, postgres, topic};

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/lifecycle.md")
}

/// The blocks of shell on the page, in their order.
fn blocks() -> Vec<String> {
    let text = std::fs::read_to_string(page()).unwrap();
    let blocks = text.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_examples_of_the_page_do_what_it_says() {
    let options = kafka::Options { auto_create: false, ..kafka::Options::default() };
    let Some(kafka) = kafka::start(&options) else { return };
    let database = Database::migrated(postgres::installed(), "page");
    database.sql().run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'order', n, 'OrderPlaced', jsonb_build_object('n', n) FROM generate_series(41, 43) AS n",
    );
    topic::create(&kafka.bootstrap(), "orders.replayed", 1, &[]);
    let blocks = blocks();
    assert_eq!(blocks.len(), 3, "{blocks:?}");
    let own = Path::new(env!("CARGO_BIN_EXE_postrider")).parent().unwrap();
    let programs = [own.to_path_buf(), binaries::find().unwrap()];
    let path = std::env::var_os("PATH").unwrap();
    let path = programs.into_iter().chain(std::env::split_paths(&path));
    let output = Command::new("bash")
        .args(["-e", "-u", "-o", "pipefail", "-c", &blocks.concat()])
        .env_clear()
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("POSTRIDER_SOURCE__URL", database.address().url())
        .env("POSTRIDER_SOURCE__SLOT", database.name())
        .env("POSTRIDER_KAFKA__BROKERS", kafka.bootstrap())
        .env("POSTRIDER_HTTP__BIND", "127.0.0.1:0")
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{log}", output.status);
    for words in [
        "public.outbox: 3 rows",
        "3 records confirmed",
        "1 record confirmed",
        "{\"n\": 4",
        "{\"n\": 44",
    ] {
        assert!(said.contains(words), "no `{words}` in {said}\n{log}");
    }
    let bootstrap = kafka.bootstrap();
    let count = |name: &str| topic::read(&bootstrap, &[name.to_owned()]).len();
    assert_eq!((count("OrderPlaced"), count("orders.replayed")), (8, 1));
    let text = std::fs::read_to_string(page()).unwrap();
    let (_, plan) = text.split_once("The plan of this example:\n\n```\n").unwrap();
    let (plan, _) = plan.split_once("```").unwrap();
    let shown = plan.replace("`postrider`", &format!("`{}`", database.name()));
    assert!(said.contains(&shown), "the page shows {shown}, not {said}");
    database.sql().run(&format!("SELECT pg_drop_replication_slot('{}')", database.name()));
}
