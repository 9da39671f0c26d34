//! Databases in single-byte encodings, of which some have characters that UTF8 lacks.

use postrider::control;
use postrider::libpq::ConnectInfo;
use postrider::lsn::Lsn;
use postrider::sandbox::postgres::Cluster;
use postrider::wal::{Class, Connection, SessionParams, StreamEncoding};

use crate::trial::{DELIVERIES, TOPIC, Trial};
use support::postgres::{self, Database};
use support::topic::Stored;

/// All that Postgres has, but for SQL_ASCII.
const SINGLE_BYTE: [&str; 26] = [
    "LATIN1",
    "LATIN2",
    "LATIN3",
    "LATIN4",
    "LATIN5",
    "LATIN6",
    "LATIN7",
    "LATIN8",
    "LATIN9",
    "LATIN10",
    "ISO_8859_5",
    "ISO_8859_6",
    "ISO_8859_7",
    "ISO_8859_8",
    "KOI8R",
    "KOI8U",
    "WIN866",
    "WIN874",
    "WIN1250",
    "WIN1251",
    "WIN1252",
    "WIN1253",
    "WIN1254",
    "WIN1255",
    "WIN1256",
    "WIN1257",
];

fn info(database: &Database) -> ConnectInfo {
    ConnectInfo::resolve(&database.address().unix_url(), &|_| None).unwrap().0
}

/// What the relay would ask for.
fn asked(database: &Database, encoding: &str) -> StreamEncoding {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = control::connect(&info(database)).await.unwrap();
        control::stream_encoding(&client, encoding).await.unwrap()
    })
}

/// The bytes that have no equivalent.
fn lacking(encoding: &StreamEncoding) -> Vec<u8> {
    let StreamEncoding::Own(charset) = encoding else { panic!("{encoding:?}") };
    (0x80..=0xFF).filter(|byte| charset.text(&[*byte]) == "\u{FFFD}").collect()
}

#[test]
fn every_single_byte_encoding_is_read_as_the_server_itself_converts_it() {
    for cluster in postgres::versions() {
        for encoding in SINGLE_BYTE {
            let database = Database::encoded(cluster, "asked", encoding);
            let found = asked(&database, encoding);
            let StreamEncoding::Own(charset) = &found else { unreachable!() };
            let there: Vec<u8> =
                (0xA1..=0xFF).filter(|byte| !lacking(&found).contains(byte)).collect();
            let hex: Vec<_> = there.iter().map(|byte| format!("{byte:02x}")).collect();
            let sql = format!("SELECT convert_from('\\x{}', '{encoding}')", hex.concat());
            assert_eq!(charset.text(&there), database.sql().value(&sql), "{encoding}");
            // Without the language that catches errors they are asked for one by one.
            database.sql().run("DROP EXTENSION plpgsql CASCADE");
            assert_eq!(asked(&database, encoding), found, "{encoding}");
        }
        let several = Database::encoded(cluster, "asked", "EUC_JP");
        assert_eq!(asked(&several, "EUC_JP"), StreamEncoding::Utf8);
    }
}

#[test]
fn a_connection_whose_slot_is_held_speaks_utf8_again() {
    let database = Database::encoded(postgres::installed(), "speaks", "WIN1252");
    let (sql, slot) = (database.sql(), database.name());
    sql.run("ALTER PUBLICATION postrider RENAME TO \"à €\"");
    sql.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
    let encoding = asked(&database, "WIN1252");
    assert_eq!(lacking(&encoding), [0x81, 0x8D, 0x8F, 0x90, 0x9D]);
    let params = SessionParams { encoding, ..SessionParams::default() };
    let open = || Connection::open(&info(&database), &params).unwrap();
    let held = open().start(slot, "à €", Lsn::ZERO).unwrap();
    let refused = open().start(slot, "à €", Lsn::ZERO).unwrap_err();
    assert_eq!(refused.error.class(), Class::Held, "{}", refused.error);
    let mut connection = refused.connection.unwrap();
    let answer = connection.simple_query("SELECT 'é€', current_setting('client_encoding')");
    let wanted = ["é€", "UTF8"].map(|text| Some(text.to_owned()));
    assert_eq!(answer.unwrap(), [wanted.to_vec()]);
    let nowhere = connection.start(slot, "ж", Lsn::ZERO).unwrap_err();
    assert_eq!(nowhere.error.class(), Class::Position, "{}", nowhere.error);
    drop(held);
}

/// Good rows around those with a byte that UTF8 lacks: in the payload, in a key that passes for UTF-8 by
/// chance, in a column that nobody reads.
fn write(trial: &Trial) {
    let sql = trial.stage.sql();
    trial.stage.insert(TOPIC, 5);
    sql.run(
        "BEGIN; \
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, \"é\", unread) VALUES \
            ('t', 'clé', 'A', to_jsonb('café €'::text), 'prix €', 'à'), \
            ('t', 'payload', 'A', to_jsonb('a' || chr(129)), 'à', NULL), \
            ('t', chr(195) || chr(129), 'A', '1', NULL, NULL), \
            ('t', chr(195) || chr(169), 'A', '2', NULL, NULL), \
            ('t', 'unread', 'A', '3', NULL, chr(141)); \
         COMMIT",
    );
    trial.stage.insert(TOPIC, 5);
    // One that is too large as it comes, and one that would be in UTF8.
    sql.run(
        "ALTER TABLE outbox DROP CONSTRAINT outbox_row_size; \
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, unread) VALUES \
            ('t', 'lärge', 'A', to_jsonb(repeat('é', 1500000)), chr(129)), \
            ('t', 'lärger', 'A', to_jsonb(repeat('€', 700000)), NULL)",
    );
    trial.stage.insert(TOPIC, 5);
}

fn by_key<'a>(records: &'a [Stored], key: &[u8]) -> &'a Stored {
    let mut found = records.iter().filter(|record| record.key.as_deref() == Some(key));
    let Some(record) = found.next() else { panic!("no record of key {key:?}") };
    assert!(found.next().is_none(), "two records of key {key:?}");
    record
}

fn code(record: &Stored) -> Option<&str> {
    record.header("postrider-error-code")
}

fn assert_delivered(trial: &Trial) {
    let records = trial.stage.records();
    let good = by_key(&records, "clé".as_bytes());
    assert_eq!(good.topic, trial.stage.topic(TOPIC));
    assert_eq!(good.value.as_deref(), Some("\"café €\"".as_bytes()));
    assert_eq!(good.header("é"), Some("prix €"));
    for key in ["unread", "Ã©"] {
        assert_eq!(code(by_key(&records, key.as_bytes())), None, "{key}");
    }
    let bad = by_key(&records, b"payload");
    assert_eq!(bad.topic, trial.stage.topic("dead-letters"));
    assert_eq!(code(bad), Some("untranslatable_character"));
    assert_eq!(bad.value.as_deref(), Some(&b"\"a\x81\""[..]));
    assert_eq!(bad.header("é"), Some("à"), "the others are in UTF-8");
    let reason = bad.header("postrider-error").unwrap();
    assert!(reason.starts_with("column `payload` has a character"), "{reason}");
    let chance = by_key(&records, b"\xC3\x81");
    assert_eq!(code(chance), Some("untranslatable_character"), "{chance:?}");
    for (key, size) in [("lärge", 3_000_002_u64), ("lärger", 2_100_002)] {
        let large = by_key(&records, key.as_bytes());
        assert_eq!(code(large), Some("too_large"));
        let note: serde_json::Value =
            serde_json::from_slice(large.value.as_deref().unwrap()).unwrap();
        assert_eq!(note["size"], size, "{note}");
    }
}

fn rows_of_win1252(cluster: &Cluster, delivery: &'static str) {
    let database = Database::encoded(cluster, "win", "WIN1252");
    database.sql().run("ALTER TABLE outbox ADD COLUMN \"é\" text, ADD COLUMN unread text");
    let trial = Trial::of(database, delivery);
    trial.stage.create_slot();
    write(&trial);
    let relay = trial.relay().set("source.frame_max", "1MiB").set("route.headers", "é");
    let relay = relay.allow_log("has no constraint").expect_log("became a dead letter");
    relay.run_once();
    let verdict = trial.assert_once();
    assert_eq!((verdict.committed, verdict.delivered), (22, 22));
    assert_delivered(&trial);

    let rehearsal = trial.relay().start(&["route", "--from-database", "--limit=100"]).outcome();
    let log = rehearsal.log.join("\n");
    assert!(rehearsal.status.success() && log.contains("\"rows\":4"), "{log}");
    assert!(rehearsal.stdout.contains("café €"), "{}", rehearsal.stdout);

    let retry = ["dead-letters", "retry", "--code", "untranslatable_character"];
    let plan = trial.relay().start(&retry).outcome().stdout;
    assert!(plan.contains("to send again: 0") && plan.contains("insert the row again"), "{plan}");
}

#[test]
fn g4_g6_a_character_that_utf8_lacks_makes_a_dead_letter_of_its_row_alone() {
    for cluster in postgres::versions() {
        for delivery in DELIVERIES {
            rows_of_win1252(cluster, delivery);
        }
    }
}

#[test]
fn names_in_a_single_byte_encoding_are_found() {
    for cluster in postgres::versions() {
        let database = Database::encoded(cluster, "koi", "KOI8R");
        database.sql().run(
            "ALTER TABLE outbox RENAME payload TO \"тело\"; \
             ALTER TABLE outbox RENAME TO \"исходящие\"; \
             ALTER PUBLICATION postrider RENAME TO \"публикация\"",
        );
        let trial = Trial::of(database, "at_least_once");
        trial.stage.create_slot();
        trial.stage.sql().run(
            "INSERT INTO \"исходящие\" (aggregate_type, aggregate_id, event_type, \"тело\") \
             VALUES ('t', 'ключ', 'A', to_jsonb('Привет, ░▒▓'::text))",
        );
        let relay = trial.relay().set("source.tables", "public.\"исходящие\"");
        let relay = relay.set("source.publication", "публикация").set("outbox.payload", "тело");
        relay.allow_log("has no constraint").run_once();
        let records = trial.stage.records();
        let [record] = records.as_slice() else { panic!("{records:?}") };
        assert_eq!(record.key.as_deref(), Some("ключ".as_bytes()));
        assert_eq!(record.value.as_deref(), Some("\"Привет, ░▒▓\"".as_bytes()));
    }
}
