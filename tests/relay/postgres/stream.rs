//! The replication stream against real servers.

use std::time::{Duration, Instant};

use postrider::libpq::ConnectInfo;
use postrider::lsn::Lsn;
use postrider::pgoutput::{self, Column, Cut, Digest, Excerpt, Message, VALUE_BYTES_KEPT};
use postrider::sandbox::postgres::{Cluster, Options, Stop};
use postrider::wal::{Class, Connection, Frame, SessionParams, Stream, StreamEncoding, WalError};

use support::postgres::{self, Database};
use support::unique;
use support::wait::{let_pass, wait_for, wait_until};

/// How long a test waits for something that the server should do at once.
const LIMIT: Duration = Duration::from_mins(1);

const WAIT: Duration = Duration::from_millis(50);

fn resolve(url: &str) -> ConnectInfo {
    ConnectInfo::resolve(url, &|_| None).unwrap().0
}

fn open(url: &str, params: &SessionParams) -> Connection {
    Connection::open(&resolve(url), params).unwrap()
}

/// Migrated, with a slot of the database's name.
fn outbox(cluster: &Cluster, stem: &str) -> Database {
    let database = Database::migrated(cluster, stem);
    create_slot(&database);
    database
}

fn create_slot(database: &Database) {
    let sql = database.sql();
    let slot = database.name();
    sql.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
}

fn begin(database: &Database) -> Stream {
    begin_at(&database.address().unix_url(), database.name(), Lsn::ZERO)
}

fn begin_at(url: &str, slot: &str, start: Lsn) -> Stream {
    let mut connection = Some(open(url, &SessionParams::default()));
    wait_for("the slot", || match connection.take().unwrap().start(slot, "postrider", start) {
        Ok(stream) => Some(stream),
        // The session before may still be ending.
        Err(refused) if refused.error.class() == Class::Held => {
            connection = refused.connection;
            None
        }
        Err(refused) => panic!("{}", refused.error),
    })
}

fn insert(database: &Database, keys: &[&str], payload_bytes: usize) {
    let rows: Vec<_> = keys
        .iter()
        .map(|key| format!("('order', '{key}', 'placed', to_jsonb(repeat('x', {payload_bytes})))"))
        .collect();
    database.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES {}",
        rows.join(", ")
    ));
}

/// What a reader saw: keys of inserted rows, ends of transactions, the last keepalive.
#[derive(Debug, Default)]
struct Seen {
    keys: Vec<String>,
    ends: Vec<Lsn>,
    keepalive: Lsn,
    payload_bytes: usize,
    excerpts: Vec<Excerpt>,
}

/// Reads until `enough`, acknowledging nothing.
fn read(stream: &mut Stream, enough: impl Fn(&Seen) -> bool) -> Result<Seen, WalError> {
    let deadline = Instant::now() + LIMIT;
    let mut seen = Seen::default();
    while !enough(&seen) {
        assert!(Instant::now() < deadline, "waited too long with {seen:?}");
        match stream.peek()? {
            None => {
                stream.fill(WAIT)?;
                continue;
            }
            Some(Frame::Keepalive { end, .. }) => seen.keepalive = end,
            Some(Frame::Wal { data, .. }) => note(&mut seen, data),
            Some(Frame::Excerpt { excerpt, .. }) => {
                note(&mut seen, excerpt.message());
                seen.excerpts.push(excerpt.clone());
            }
            Some(Frame::Untranslatable { .. }) => unreachable!("a stream converts nothing"),
        }
        stream.consume();
    }
    Ok(seen)
}

fn note(seen: &mut Seen, data: &[u8]) {
    match pgoutput::decode(data).unwrap() {
        Message::Commit(commit) => seen.ends.push(commit.end_lsn),
        Message::Insert(insert) => {
            let columns: Vec<_> = insert.tuple.columns().collect();
            let text = |index: usize| match columns[index] {
                Column::Text(text) => text,
                other => panic!("{other:?}"),
            };
            seen.keys.push(String::from_utf8_lossy(text(2)).into_owned());
            seen.payload_bytes += text(4).len();
        }
        _ => {}
    }
}

fn confirmed(database: &Database) -> Lsn {
    let slot = database.name();
    let sql =
        format!("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'");
    database.sql().value(&sql).parse().unwrap()
}

/// Waits for the slot to be confirmed up to a position.
fn wait_confirmed(database: &Database, position: Lsn) {
    wait_until("the slot to be confirmed", || confirmed(database) >= position);
}

#[test]
fn what_is_acknowledged_does_not_come_again_and_the_rest_does() {
    for cluster in postgres::versions() {
        let database = outbox(cluster, "stream");
        for key in ["a", "b", "c"] {
            insert(&database, &[key, "same transaction"], 10);
        }
        for url in [database.address().unix_url(), database.address().url()] {
            let mut stream = begin_at(&url, database.name(), Lsn::ZERO);
            let seen = read(&mut stream, |seen| seen.ends.len() == 3).unwrap();
            assert_eq!(seen.keys.len(), 6);
            stream.finish(LIMIT).unwrap();
        }
        let mut stream = begin(&database);
        let seen = read(&mut stream, |seen| seen.ends.len() == 3).unwrap();
        assert_eq!(stream.acknowledge(seen.ends[1], false).unwrap(), seen.ends[1], "not clamped");
        stream.finish(LIMIT).unwrap();
        assert_eq!(confirmed(&database), seen.ends[1]);
        let mut stream = begin(&database);
        let again = read(&mut stream, |seen| !seen.ends.is_empty()).unwrap();
        assert_eq!((again.keys[0].as_str(), again.ends[0]), ("c", seen.ends[2]));
        stream.acknowledge(again.ends[0], false).unwrap();
        wait_confirmed(&database, again.ends[0]);
    }
}

#[test]
fn g1_a_position_of_the_future_is_never_sent() {
    let database = outbox(postgres::installed(), "future");
    insert(&database, &["a"], 10);
    let mut stream = begin(&database);
    let seen = read(&mut stream, |seen| seen.ends.len() == 1).unwrap();
    let told = stream.acknowledge(Lsn::new(u64::MAX / 2), true).unwrap();
    assert!(told >= seen.ends[0] && told == stream.received(), "{told}");
    stream.finish(LIMIT).unwrap();
    assert_eq!(confirmed(&database), told);
    insert(&database, &["b"], 10);
    let again = read(&mut begin(&database), |seen| !seen.keys.is_empty()).unwrap();
    assert_eq!(again.keys, ["b"]);
}

#[test]
fn g5_keepalives_carry_the_slot_past_the_traffic_of_other_tables() {
    let database = outbox(postgres::installed(), "idle");
    let mut stream = begin(&database);
    database.sql().run("CREATE TABLE noise AS SELECT generate_series(1, 10000) AS n");
    let target: Lsn = database.sql().value("SELECT pg_current_wal_flush_lsn()").parse().unwrap();
    let seen = read(&mut stream, |seen| seen.keepalive >= target).unwrap();
    assert_eq!(seen.keys.len(), 0);
    assert_eq!(stream.acknowledge(seen.keepalive, false).unwrap(), seen.keepalive);
    wait_confirmed(&database, target);
}

#[test]
fn limits_of_the_role_end_neither_an_idle_session_nor_the_stream_of_a_long_transaction() {
    for cluster in postgres::versions() {
        let database = outbox(cluster, "limits");
        let (role, sql) = (unique("limited"), database.sql());
        let address = database.create_role(&role, "SUPERUSER");
        for row in sql.rows(
            "SELECT name FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout', \
             'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')",
        ) {
            let name = row[0].as_deref().unwrap();
            sql.run(&format!("ALTER ROLE {role} SET {name} = '200ms'"));
        }
        let connection = open(&address.url(), &SessionParams::default());
        let_pass(Duration::from_millis(500), "longer than an idle session may last");
        let mut stream = connection.start(database.name(), "postrider", Lsn::ZERO).unwrap();
        // More than sockets hold, so that the server is in the middle of it.
        insert(&database, &["k"; 40], 1 << 20);
        read(&mut stream, |seen| !seen.keys.is_empty()).unwrap();
        let_pass(Duration::from_millis(500), "longer than a transaction may last");
        read(&mut stream, |seen| !seen.ends.is_empty()).unwrap();
    }
}

#[test]
fn a_held_slot_is_waited_for_on_the_same_connection() {
    let database = outbox(postgres::installed(), "held");
    let holder = begin(&database);
    let url = database.address().unix_url();
    let refused = open(&url, &SessionParams::default())
        .start(database.name(), "postrider", Lsn::ZERO)
        .unwrap_err();
    assert_eq!(refused.error.class(), Class::Held);
    assert!(refused.error.to_string().contains(database.name()), "{}", refused.error);
    holder.finish(LIMIT).unwrap();
    let begun = Instant::now();
    let connection = refused.connection.unwrap();
    drop(connection.start(database.name(), "postrider", Lsn::ZERO).unwrap());
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn what_is_missing_is_definite() {
    for cluster in postgres::versions() {
        let database = Database::create(cluster, "missing");
        let connection = open(&database.address().unix_url(), &SessionParams::default());
        let refused = connection.start("no_such_slot", "postrider", Lsn::ZERO).unwrap_err();
        assert_eq!(refused.error.class(), Class::Configuration, "{}", refused.error);
        assert!(refused.error.hint().unwrap().contains("postrider setup"));
        let sql = database.sql();
        sql.run("CREATE TABLE outbox (n int)");
        create_slot(&database);
        sql.run("INSERT INTO outbox VALUES (1)");
        let error = read(&mut begin(&database), |_| false).unwrap_err();
        assert!(matches!(error, WalError::PublicationMissing { .. }), "{error:?}");
        assert!(error.hint().unwrap().contains("`postrider repair --execute --drop-slot`"));
    }
}

#[test]
fn names_need_no_care() {
    let database = Database::create(postgres::installed(), "names");
    let sql = database.sql();
    sql.run(
        "CREATE TABLE outbox (id int, a text, b text, c text, d text);
             CREATE PUBLICATION \"It's a \"\"Name\"\", or two\" FOR TABLE outbox",
    );
    create_slot(&database);
    sql.run("INSERT INTO outbox VALUES (1, '', 'k', '', '')");
    let connection = open(&database.address().unix_url(), &SessionParams::default());
    let name = "It's a \"Name\", or two";
    let mut stream = connection.start(database.name(), name, Lsn::ZERO).unwrap();
    assert_eq!(read(&mut stream, |seen| seen.ends.len() == 1).unwrap().keys, ["k"]);
}

#[test]
fn the_ways_a_server_goes_away_are_transient() {
    for cluster in postgres::versions() {
        let options = Options {
            binaries: Some(cluster.binaries().to_path_buf()),
            ..if cluster.version() >= 18 {
                postgres::eighteen_options().unwrap()
            } else {
                Options::default()
            }
        };
        let mut own = postgres::start(&options);
        for how in [Stop::Fast, Stop::Immediate, Stop::Kill] {
            let database = outbox(&own, &unique("away"));
            insert(&database, &["a"], 10);
            let mut stream = begin(&database);
            read(&mut stream, |seen| seen.ends.len() == 1).unwrap();
            own.begin_stop(how).unwrap();
            let error = read_and_acknowledge(&mut stream);
            assert!(error.class().is_transient(), "{how:?}: {error:?}");
            own.wait_stopped(LIMIT).unwrap();
            own.start_again().unwrap();
        }
        let database = outbox(&own, "ended");
        let mut stream = begin(&database);
        database
            .sql()
            .run("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active");
        let error = read_and_acknowledge(&mut stream);
        assert!(matches!(&error, WalError::Server(server) if server.code == "57P01"), "{error:?}");
    }
}

/// Reads as the relay does until the stream ends: all that is there, then an acknowledgement. So
/// what the server said last is read between two writes that it does not hear.
fn read_and_acknowledge(stream: &mut Stream) -> WalError {
    let deadline = Instant::now() + LIMIT;
    let mut turn = || {
        while stream.peek()?.is_some() {
            stream.consume();
        }
        if stream.fill(WAIT)? == 0 {
            stream.acknowledge(stream.received(), true)?;
        }
        Ok(())
    };
    loop {
        assert!(Instant::now() < deadline, "the stream does not end");
        if let Err(error) = turn() {
            return error;
        }
    }
}

#[test]
fn g3_a_reader_that_stands_still_but_acknowledges_is_not_dropped() {
    let database = outbox(postgres::installed(), "still");
    let url = format!("{}&options=-c%20wal_sender_timeout%3D3s", database.address().unix_url());
    let mut stream = begin_at(&url, database.name(), Lsn::ZERO);
    let keys: Vec<String> = (0..2000).map(|n| n.to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    insert(&database, &keys, 2000);
    let deadline = Instant::now() + Duration::from_secs(8);
    while Instant::now() < deadline {
        // Reads what fits, and no more: nothing is consumed.
        stream.fill(Duration::from_millis(1)).unwrap();
        stream.acknowledge(Lsn::ZERO, false).unwrap();
        assert!(stream.buffered() <= 2 * 1024 * 1024);
        let_pass(Duration::from_millis(100), "it stands still, for several timeouts in all");
    }
    let seen = read(&mut stream, |seen| seen.ends.len() == 1).unwrap();
    assert_eq!(seen.keys, keys);
}

#[test]
fn g3_g7_of_a_frame_over_the_limit_an_excerpt_is_made_and_one_below_it_is_whole() {
    let database = outbox(postgres::installed(), "large");
    insert(&database, &["small", "large"], 3_000_000);
    let url = database.address().unix_url();
    let params = SessionParams { frame_bytes_max: 1_000_000, ..SessionParams::default() };
    let mut stream = open(&url, &params).start(database.name(), "postrider", Lsn::ZERO).unwrap();
    let seen = read(&mut stream, |seen| seen.ends.len() == 1).unwrap();
    assert_eq!(seen.keys, ["small", "large"]);
    let payload = format!("\"{}\"", "x".repeat(3_000_000));
    let payload = Digest::of(payload.as_bytes());
    for excerpt in &seen.excerpts {
        assert_eq!(excerpt.cuts(), [Cut { column: 4, sent: payload, bytea: None }]);
    }
    assert_eq!((seen.excerpts.len(), seen.payload_bytes), (2, 2 * VALUE_BYTES_KEPT));
    drop(stream);
    let mut stream = begin_at(&url, database.name(), Lsn::ZERO);
    let seen = read(&mut stream, |seen| seen.ends.len() == 1).unwrap();
    assert_eq!(seen.payload_bytes, 2 * 3_000_002);
}

#[test]
fn an_sql_ascii_database_keeps_its_bytes() {
    let options = Options { encoding: "SQL_ASCII".to_owned(), ..Options::default() };
    let cluster = postgres::start(&options);
    let database = Database::create(&cluster, "bytes");
    let sql = database.sql();
    sql.run(
        "SET client_encoding = 'SQL_ASCII';
             CREATE TABLE outbox (id int, a text, b text, c text, d text);
             CREATE PUBLICATION postrider FOR TABLE outbox",
    );
    create_slot(&database);
    sql.run("INSERT INTO outbox VALUES (1, '', convert_from('\\xff80', 'SQL_ASCII'), '', '')");
    let params = SessionParams { encoding: StreamEncoding::Unknown, ..SessionParams::default() };
    let connection = open(&database.address().unix_url(), &params);
    let mut stream = connection.start(database.name(), "postrider", Lsn::ZERO).unwrap();
    let seen = read(&mut stream, |seen| seen.ends.len() == 1).unwrap();
    assert_eq!(seen.keys, [String::from_utf8_lossy(&[0xFF, 0x80])]);
}

#[test]
fn identify_system_agrees_with_the_catalog() {
    for cluster in postgres::versions() {
        let mut connection = open(&cluster.url(), &SessionParams::default());
        let identity = connection.identify_system().unwrap();
        let sql = "SELECT system_identifier::text FROM pg_control_system()";
        assert_eq!(connection.simple_query(sql).unwrap(), [[Some(identity.system_id)]]);
        assert_eq!(identity.timeline, 1);
        assert!(identity.flushed > Lsn::ZERO);
    }
}

#[test]
fn a_promoted_server_names_the_timelines_it_descends_from() {
    let mut cluster = postgres::start(&Options::default());
    let mut switches = Vec::new();
    for timeline in 1..=3 {
        let mut connection = open(&cluster.url(), &SessionParams::default());
        let identity = connection.identify_system().unwrap();
        assert_eq!(identity.timeline, timeline);
        let history = connection.timeline_history(timeline).unwrap();
        let numbers: Vec<u32> = history.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (1..timeline).collect::<Vec<u32>>());
        for ((_, switch), (before, after)) in history.iter().zip(&switches) {
            assert!((before..=after).contains(&switch), "{switch} in {before}..{after}");
        }
        let before = identity.flushed;
        postgres::promote(&mut cluster);
        let mut connection = open(&cluster.url(), &SessionParams::default());
        switches.push((before, connection.identify_system().unwrap().flushed));
    }
}
