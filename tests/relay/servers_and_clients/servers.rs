//! The servers themselves: that each starts, does what the other tests need of it, and ends.

use std::process::{Command, Stdio};
use std::time::Duration;

use postrider::sandbox::postgres::{Cluster, Options, Stop};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use support::broker::Broker;
use support::sql::Sql;
use support::wait::let_pass;
use support::{kafka, postgres, retention, topic, unique, wait_for};

#[test]
fn every_postgres_decodes_logically() {
    for cluster in postgres::versions() {
        let database = postgres::Database::create(cluster, "decodes");
        let sql = database.sql();
        let slot = database.name();
        for plugin in ["pgoutput", "test_decoding"] {
            sql.run(&format!(
                "SELECT pg_create_logical_replication_slot('{slot}_{plugin}', '{plugin}');
                 SELECT pg_drop_replication_slot('{slot}_{plugin}')"
            ));
        }
        let version = sql.value("SHOW server_version_num");
        assert_eq!(version[..2], cluster.version().to_string());
        assert_ne!(sql.value("SELECT current_setting('max_prepared_transactions')"), "0");
    }
}

#[test]
fn kill_9_of_postgres_keeps_what_was_committed() {
    let mut cluster = postgres::start(&Options::default());
    Sql::connect(&cluster.url()).run("CREATE TABLE t AS SELECT generate_series(1, 1000) AS n");
    cluster.restart(Stop::Kill).unwrap();
    let sql = Sql::connect(&cluster.url());
    assert_eq!(sql.value("SELECT count(*) FROM t"), "1000");
}

/// Set for the child of the next test, which then starts a server and waits to be killed.
const VICTIM: &str = "POSTRIDER_TEST_VICTIM";

#[test]
fn servers_end_when_their_owner_is_killed() {
    if std::env::var_os(VICTIM).is_some() {
        let cluster = Cluster::start(&Options::default()).unwrap();
        std::fs::write(std::env::var_os(VICTIM).unwrap(), cluster.folder().to_str().unwrap())
            .unwrap();
        let_pass(Duration::from_mins(10), "its parent kills it");
        drop(cluster);
    }
    let note = tempfile::NamedTempFile::new().unwrap();
    let (_, module) = module_path!().split_once("::").unwrap();
    let this = format!("{module}::servers_end_when_their_owner_is_killed");
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &this, "--nocapture"])
        .env(VICTIM, note.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let folder = wait_for("the victim's server", || {
        let folder = std::fs::read_to_string(note.path()).unwrap();
        (!folder.is_empty()).then(|| std::path::PathBuf::from(folder))
    });
    assert!(folder.join("data/postmaster.pid").exists());
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_for("the watchdog", || (!folder.exists()).then_some(()));
}

#[test]
fn every_broker_stores_keys_values_headers_and_times() {
    // In the past, and no older than a topic keeps it.
    let now_ms = retention::now_ms() - 3_600_123;
    for broker in Broker::all() {
        let bootstrap = broker.bootstrap();
        let name = unique("stores");
        let producer: BaseProducer =
            topic::client(&bootstrap).set("allow.auto.create.topics", "true").create().unwrap();
        let record = BaseRecord::to(&name).key("k").payload("v").timestamp(now_ms);
        producer.send(record).unwrap();
        producer.flush(Duration::from_secs(30)).unwrap();
        let records = topic::read(&bootstrap, std::slice::from_ref(&name));
        let [record] = records.as_slice() else { panic!("{}: {records:?}", broker.name()) };
        assert_eq!(record.key.as_deref(), Some(b"k".as_slice()));
        assert_eq!(record.value.as_deref(), Some(b"v".as_slice()));
        assert_eq!(record.timestamp_ms, Some(now_ms));
        assert_eq!(topic::names(&bootstrap, &name), [name]);
    }
}

#[test]
fn three_brokers_outlive_one() {
    let options = kafka::Options { brokers: 3, ..kafka::Options::default() };
    let Some(mut kafka) = kafka::start(&options) else { return };
    let bootstrap = kafka.bootstrap();
    topic::create(&bootstrap, "outlive", 3, &[]);
    kafka.kill_broker(0);
    let producer: BaseProducer = topic::client(&bootstrap).set("acks", "all").create().unwrap();
    for number in 0..30_u8 {
        let (key, value) = ([number], [number]);
        producer.send(BaseRecord::to("outlive").key(&key).payload(&value)).unwrap();
    }
    producer.flush(Duration::from_mins(1)).unwrap();
    assert_eq!(producer.in_flight_count(), 0);
    kafka.start_broker(0);
    assert_eq!(topic::read(&bootstrap, &["outlive".to_owned()]).len(), 30);
}

#[test]
fn logins_and_access_lists_are_enforced() {
    let options = kafka::Options { sasl: true, ..kafka::Options::default() };
    let Some(kafka) = kafka::start(&options) else { return };
    topic::create(&kafka.bootstrap(), "guarded", 1, &[]);
    let send_as = |user: &str| {
        let producer: BaseProducer = topic::client(&kafka.sasl_bootstrap())
            .set("security.protocol", "SASL_PLAINTEXT")
            .set("sasl.mechanism", "PLAIN")
            .set("sasl.username", user)
            .set("sasl.password", kafka::PASSWORD)
            .set("message.timeout.ms", "5000")
            .create()
            .unwrap();
        producer.send(BaseRecord::<str, str>::to("guarded").payload("v")).unwrap();
        producer.flush(Duration::from_secs(20)).unwrap();
    };
    send_as(kafka::DENIED_USER);
    assert_eq!(topic::read(&kafka.bootstrap(), &["guarded".to_owned()]).len(), 0);
    send_as(kafka::ALLOWED_USER);
    assert_eq!(topic::read(&kafka.bootstrap(), &["guarded".to_owned()]).len(), 1);
}
