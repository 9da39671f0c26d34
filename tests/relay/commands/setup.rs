//! `postrider setup` against a private PostgreSQL: what it makes, and what it says when it cannot.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::process::{Command, Output};

use postrider::sandbox::postgres::{Cluster, Options};
use postrider::shop::connect;

fn setup(url: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_postrider"))
        .env_clear()
        .env("HOME", folder.path())
        .env("PGUSER", "tester")
        .current_dir(folder.path())
        .env("POSTRIDER_SOURCE__URL", url)
        .arg("setup")
        .args(arguments)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs `setup` and checks how it fails.
fn assert_fails(url: &str, arguments: &[&str], exit: i32, words: &[&str]) {
    let output = setup(url, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit), "{stderr}");
    assert!(output.stdout.is_empty());
    for word in words {
        assert!(stderr.contains(word), "{word} in {stderr}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn setup_makes_what_is_missing_and_may_be_repeated() {
    let cluster = Cluster::start(&Options::default()).expect("a private PostgreSQL");
    let url = cluster.unix_url();
    let client = connect(&url).await.unwrap();
    let count = async |sql: &str| client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);

    let script = stdout(&setup(&url, &["--print"]));
    let objects = "SELECT (SELECT count(*) FROM pg_publication) + \
                   (SELECT count(*) FROM pg_replication_slots)";
    assert_eq!(count(objects).await, 0, "--print touches nothing");

    for became in ["created", "already exists"] {
        let lines = stdout(&setup(&url, &[]));
        assert_eq!(lines.lines().count(), 3, "{lines}");
        assert!(lines.contains(&format!("{became}: table public.outbox")), "{lines}");
    }
    assert_eq!(count(objects).await, 2);
    client.batch_execute(&script).await.expect("the printed script runs, and changes nothing");
    assert_eq!(count(objects).await, 2);

    let sql = "CREATE TABLE \"Mine\" (id uuid, aggregate_type text, aggregate_id text, event_type text, payload text)";
    client.batch_execute(sql).await.unwrap();
    // By itself it would take the place of the one that the slot delivers.
    assert_fails(&url, &["--table", "public.\"Mine\""], 78, &["PR-P058", "name all of them"]);
    let arguments = ["--table", "public.outbox", "--table", "public.\"Mine\"", "--output", "json"];
    let made: serde_json::Value = serde_json::from_str(&stdout(&setup(&url, &arguments))).unwrap();
    let added = serde_json::json!(["table public.\"Mine\" to publication `postrider`"]);
    assert_eq!(made["added"], added, "an existing table is only published");
    assert_eq!(made["created"], serde_json::json!([]));
    let published = "SELECT count(*) FROM pg_publication_tables WHERE pubname = 'postrider'";
    assert_eq!(count(published).await, 2);
}

#[tokio::test(flavor = "current_thread")]
async fn a_setup_that_cannot_be_done_says_why_and_what_to_do() {
    let cluster = Cluster::start(&Options::default()).expect("a private PostgreSQL");
    let client = connect(&cluster.unix_url()).await.unwrap();
    client.batch_execute("CREATE ROLE guest LOGIN PASSWORD 'guest'").await.unwrap();
    let address = cluster.address();

    let other = address.clone().database("nowhere").url();
    assert_fails(&other, &[], 78, &["PR-P022", "nowhere"]);
    let guest = address.clone().login_as("guest", Some("guest")).url();
    assert_fails(&guest, &[], 77, &["PR-P044", "help:", "GRANT CREATE ON SCHEMA"]);
    let said = setup(&guest, &[]);
    assert!(!String::from_utf8_lossy(&said.stderr).contains(";;"));
    let wrong = address.login_as("guest", Some("hunter2")).url();
    assert_fails(&wrong, &[], 77, &["PR-P021", "password"]);
    assert!(!String::from_utf8_lossy(&setup(&wrong, &[]).stderr).contains("hunter2"));
    assert_fails("postgres://tester@127.0.0.1:1/shop", &[], 69, &["PR-P001", "help:"]);
    assert_fails(&wrong, &["--table", "Mine"], 78, &["--table", "PR-C005"]);
    let replica = Options::default().with("wal_level", "replica");
    let replica = Cluster::start(&replica).expect("a private PostgreSQL");
    assert_fails(&replica.unix_url(), &[], 78, &["PR-P030", "ALTER SYSTEM SET wal_level"]);
}

#[tokio::test(flavor = "current_thread")]
async fn a_topic_that_no_row_could_go_to_is_refused_before_anything_is_made() {
    let cluster = Cluster::start(&Options::default()).expect("a private PostgreSQL");
    let url = cluster.unix_url();
    for (name, words) in [
        ("bad/name", "has a character other than"),
        ("__consumer_offsets", "as Kafka's own topics do"),
        ("postrider.progress.other", "where relays keep progress"),
        ("postrider_dead-letters", "for its dead letters"),
    ] {
        let topics = format!("--topics=fine,{name}");
        for print in [&[][..], &["--print"]] {
            let arguments = [&[topics.as_str()], print].concat();
            assert_fails(&url, &arguments, 78, &["PR-C005", "--topics", name, words, "help:"]);
        }
    }
    let client = connect(&url).await.unwrap();
    let objects = "SELECT (SELECT count(*) FROM pg_publication) + (SELECT count(*) FROM pg_class \
                   WHERE relname = 'outbox') + (SELECT count(*) FROM pg_replication_slots)";
    assert_eq!(client.query_one(objects, &[]).await.unwrap().get::<_, i64>(0), 0);
}

/// What the statement that `setup` prints keeps out of the table.
#[tokio::test(flavor = "current_thread")]
async fn setup_names_a_table_that_takes_rows_of_any_size_and_what_keeps_them_out() {
    let cluster = Cluster::start(&Options::default()).expect("a private PostgreSQL");
    let url = cluster.unix_url();
    let client = connect(&url).await.unwrap();
    let made = stdout(&setup(&url, &["--output", "json"]));
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["unguarded"], serde_json::json!([]), "its own table measures all it holds");
    let sql = "CREATE TABLE mine (id uuid, aggregate_type varchar(99), aggregate_id varchar, event_type text \
               CHECK (length(event_type) < 200), payload jsonb CHECK (pg_column_size(payload) < 1000000), \
               raw bytea, amount numeric)";
    client.batch_execute(sql).await.unwrap();
    let both = ["--table", "public.outbox", "--table", "public.mine"];
    let text = stdout(&setup(&url, &both));
    assert!(
        text.contains("public.mine has no limit on the size of rows (aggregate_id, payload, raw)"),
        "{text}"
    );
    let arguments = [&both[..], &["--output", "json"]].concat();
    let found: serde_json::Value = serde_json::from_str(&stdout(&setup(&url, &arguments))).unwrap();
    let [table] = found["unguarded"].as_array().unwrap().as_slice() else { panic!("{found}") };
    assert_eq!(table["table"], "public.mine");
    client.batch_execute(table["sql"].as_str().unwrap()).await.unwrap();
    let stored = "CREATE TABLE source AS SELECT to_jsonb(repeat('x', 20000000)) AS j";
    client.batch_execute(stored).await.unwrap();
    let row = "INSERT INTO mine (aggregate_id, event_type, payload, raw)";
    for (values, fits) in [
        ("VALUES ('k', 'A', '{}', '')", true),
        ("SELECT 'k', 'A', j, '' FROM source", false),
        ("VALUES (repeat('k', 17000000), 'A', NULL, NULL)", false),
        // Two digits for each byte.
        ("VALUES (NULL, NULL, NULL, convert_to(repeat('k', 9000000), 'UTF8'))", false),
    ] {
        let written = client.batch_execute(&format!("{row} {values}")).await;
        assert_eq!(written.is_ok(), fits, "{values}");
    }
    let found: serde_json::Value = serde_json::from_str(&stdout(&setup(&url, &arguments))).unwrap();
    assert_eq!(found["unguarded"], serde_json::json!([]));
}
