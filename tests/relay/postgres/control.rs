//! The gate, the set-up and the watch, against real servers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postrider::control::{
    self, Client, ControlError, Inspection, NewSlot, Requirements, SetupChoices, SetupPlan,
    preflight, sample,
};
use postrider::libpq::ConnectInfo;
use postrider::outbox::{TableName, Wanted};
use postrider::sandbox::postgres::{Cluster, Options, Stop};
use postrider::wal::{Connection, Frame, SessionParams};

use support::postgres::{self, Database};
use support::sql::Sql;
use support::wait_for;

const LIMIT: Duration = Duration::from_mins(1);

fn resolve(url: &str) -> ConnectInfo {
    ConnectInfo::resolve(url, &|_| None).unwrap().0
}

/// Runs with a client on a runtime like the relay's.
fn with_client<T>(url: &str, task: impl AsyncFnOnce(Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let info = resolve(url);
    runtime.block_on(async { task(control::connect(&info).await.unwrap()).await })
}

fn wanted(slot: &str, create: bool) -> Requirements {
    Requirements {
        slot: slot.to_owned(),
        publication: "postrider".to_owned(),
        tables: vec![TableName::new("public", "outbox")],
        columns: ["id", "aggregate_id", "event_type", "payload"].map(Wanted::required).to_vec(),
        messages: false,
        create,
        new_slot: NewSlot::Failover,
    }
}

fn check_at(url: &str, wanted: &Requirements) -> Result<Inspection, ControlError> {
    with_client(url, async |client| preflight(&client, wanted, None).await)
}

/// Preflight as the superuser.
fn check(database: &Database, create: bool) -> Result<Inspection, ControlError> {
    check_at(&database.address().unix_url(), &wanted(database.name(), create))
}

fn create_slot(database: &Database) {
    let slot = database.name();
    database.sql().run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
}

/// Migrated, with a slot of the database's name.
fn ready(cluster: &Cluster, stem: &str) -> Database {
    let database = Database::migrated(cluster, stem);
    create_slot(&database);
    database
}

#[test]
fn what_is_missing_is_created_publication_first() {
    for cluster in postgres::versions() {
        let database = Database::migrated(cluster, "gate");
        database.sql().run("DROP PUBLICATION postrider");
        let refused = check(&database, false).unwrap_err();
        assert!(
            matches!(refused, ControlError::PublicationMissing { slot_exists: false, .. }),
            "{refused}"
        );
        let created = check(&database, true).unwrap();
        assert_eq!(created.warnings(&wanted("x", false)), []);
        let slot = created.slot.unwrap();
        assert!(slot.confirmed_flush.is_some() && slot.active_pid.is_none());
        assert_eq!(slot.wal_status.as_deref(), Some("reserved"));
        let server = &created.server;
        assert_eq!(u32::try_from(server.version_num / 10_000).unwrap(), cluster.version());
        assert_eq!((server.encoding.as_str(), server.may_replicate), ("UTF8", true));
        assert_eq!(server.wal_sender_timeout, Duration::from_mins(1));
        let mut connection =
            Connection::open(&resolve(&cluster.unix_url()), &SessionParams::default()).unwrap();
        let identity = connection.identify_system().unwrap();
        assert_eq!(server.system, Some((identity.system_id, identity.timeline)));
        check(&database, false).unwrap();
        let again = check(&database, true).unwrap();
        assert_eq!(again.slot.unwrap().confirmed_flush, slot.confirmed_flush);
    }
}

/// Several statements of ours look at one table, and DDL falls between any two of them.
#[test]
fn a_look_that_ddl_falls_into_shows_one_moment() {
    for cluster in postgres::versions() {
        let database = ready(cluster, "moment");
        let done = AtomicBool::new(false);
        let (sql, wanted) = (|| database.sql(), wanted(database.name(), false));
        let looks = std::thread::scope(|scope| {
            scope.spawn(|| {
                let sql = sql();
                while !done.load(Ordering::Relaxed) {
                    sql.run("ALTER TABLE outbox RENAME payload TO body");
                    sql.run("ALTER TABLE outbox RENAME body TO payload");
                    sql.run("SELECT pg_sleep(0.05)");
                }
            });
            let looks = with_client(&database.address().unix_url(), async |client| {
                let mut looks = Vec::new();
                for _ in 0..200 {
                    looks.push(control::inspect(&client, &wanted).await);
                }
                looks
            });
            done.store(true, Ordering::Relaxed);
            looks
        });
        let hides =
            |one: &ControlError| matches!(one, ControlError::PublicationHidesColumns { .. });
        for look in &looks {
            match look {
                Ok(found) => {
                    let refusals = found.refusals(&wanted);
                    assert!(!refusals.iter().any(hides), "{refusals:?}");
                }
                Err(error) => assert!(error.class().is_transient(), "{error}"),
            }
        }
        assert!(looks.iter().filter(|look| look.is_ok()).count() >= looks.len() / 2);
    }
}

#[test]
fn an_open_transaction_that_holds_up_the_slot_is_named() {
    let cluster = postgres::start(&Options::default());
    let database = Database::migrated(&cluster, "blocked");
    let blocker = database.sql();
    blocker.run("SET application_name = 'monthly report'; CREATE TABLE t (n int)");
    blocker.run("BEGIN; INSERT INTO t VALUES (1)");
    let pid: i32 = blocker.value("SELECT pg_backend_pid()").parse().unwrap();
    let begun = Instant::now();
    let refused = check(&database, true).unwrap_err();
    assert!(begun.elapsed() < Duration::from_mins(1));
    let ControlError::SlotBlocked { blockers, pid: named, .. } = &refused else {
        panic!("{refused}")
    };
    assert_eq!((blockers.len(), *named), (1, Some(pid)));
    assert!(blockers[0].contains("monthly report"), "{refused}");
    assert!(refused.hint().unwrap().contains(&format!("pg_terminate_backend({pid})")));
    blocker.run("PREPARE TRANSACTION 'forgotten'");
    let refused = check(&database, true).unwrap_err();
    assert!(refused.to_string().contains("forgotten"), "{refused}");
    blocker.run("ROLLBACK PREPARED 'forgotten'");
    check(&database, true).unwrap();
}

#[test]
fn two_relays_may_create_at_the_same_time() {
    let database = Database::migrated(postgres::installed(), "race");
    database.sql().run("DROP PUBLICATION postrider");
    // A slot that another relay is still creating is transient: the relay looks again.
    let look_until_ready = || {
        wait_for("the slot", || match check(&database, true) {
            Err(ControlError::SlotUnfinished { .. }) => None,
            end => Some(end),
        })
    };
    std::thread::scope(|scope| {
        let looks: Vec<_> = (0..4).map(|_| scope.spawn(look_until_ready)).collect();
        for look in looks {
            look.join().unwrap().unwrap();
        }
    });
}

#[test]
fn the_canary_sings_when_the_server_goes() {
    let mut cluster = postgres::start(&Options::default());
    for how in [Stop::Fast, Stop::Kill] {
        let url = cluster.url();
        with_client(&url, async |client| {
            let ended = client.ended();
            tokio::time::timeout(Duration::from_millis(200), client.ended()).await.unwrap_err();
            cluster.begin_stop(how).unwrap();
            tokio::time::timeout(LIMIT, ended).await.unwrap();
            assert!(client.is_closed());
        });
        cluster.wait_stopped(LIMIT).unwrap();
        cluster.start_again().unwrap();
    }
}

#[test]
fn samples_show_lag_and_holder() {
    for cluster in postgres::versions() {
        let database = ready(cluster, "sample");
        let url = database.address().unix_url();
        let slot = database.name();
        let look =
            || with_client(&url, async |client| sample(&client, slot).await.unwrap().unwrap());
        let before = look();
        database.sql().run("CREATE TABLE noise AS SELECT generate_series(1, 10000) AS n");
        let after = look();
        assert!(after.lag_bytes() > before.lag_bytes() + 100_000, "{before:?} {after:?}");
        assert!(after.retained_bytes() >= after.lag_bytes());
        assert_eq!((after.wal_status.as_str(), after.active_pid), ("reserved", None));
        let connection = Connection::open(&resolve(&url), &SessionParams::default()).unwrap();
        let pid = connection.backend_pid();
        let stream = connection.start(slot, "postrider", postrider::lsn::Lsn::ZERO).unwrap();
        assert_eq!(look().active_pid, Some(pid));
        let held = check(&database, false).unwrap().held(&wanted(slot, false)).unwrap();
        assert!(held.to_string().contains("postrider"), "{held}");
        stream.finish(LIMIT).unwrap();
        let none = with_client(&url, async |client| sample(&client, "none").await);
        assert_eq!(none.unwrap(), None);
    }
}

fn set_up(url: &str, plan: &SetupPlan) -> Result<(), ControlError> {
    with_client(url, async |client| {
        plan.make_tables(&client).await?;
        plan.make_slot(&client).await.map(drop)
    })
}

#[test]
fn setting_up_twice_is_setting_up_once() {
    for cluster in postgres::versions() {
        let database = Database::create(cluster, "setup");
        let slot = database.name();
        let tables = [TableName::new("public", "outbox"), TableName::new("Sales", "out'box")];
        database.sql().run("CREATE SCHEMA \"Sales\"");
        let mut wanted = wanted(slot, false);
        wanted.tables = tables.to_vec();
        let plan = SetupPlan::new(wanted.clone(), SetupChoices::default());
        let url = database.address().unix_url();
        for _ in 0..2 {
            set_up(&url, &plan).unwrap();
            check_at(&url, &wanted).unwrap();
        }
        // The script says the same to psql.
        for step in &plan.steps {
            database.sql().run(&step.sql);
        }
        let other = Database::create(cluster, "script");
        other.sql().run("CREATE SCHEMA \"Sales\"");
        other.name().clone_into(&mut wanted.slot);
        let plan = SetupPlan::new(wanted.clone(), SetupChoices::default());
        for step in &plan.steps {
            other.sql().run(&step.sql);
        }
        check_at(&other.address().unix_url(), &wanted).unwrap();
    }
}

/// By the migration, by `setup`, and by its script: an outbox that is partitioned later is delivered.
#[test]
fn a_publication_is_the_same_whoever_makes_it() {
    const FACTS: &str = "SELECT concat_ws(' ', pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot) \
        FROM pg_publication WHERE pubname = 'postrider'";
    for cluster in postgres::versions() {
        let migrated = Database::migrated(cluster, "made_by_sql");
        let made = Database::create(cluster, "made_by_setup");
        let printed = Database::create(cluster, "made_by_script");
        let plan = |database: &Database| {
            SetupPlan::new(wanted(database.name(), false), SetupChoices::default())
        };
        set_up(&made.address().unix_url(), &plan(&made)).unwrap();
        for step in &plan(&printed).steps {
            printed.sql().run(&step.sql);
        }
        for database in [migrated, made, printed] {
            assert_eq!(database.sql().value(FACTS), "t f f f t", "{}", database.name());
        }
    }
}

#[test]
fn a_table_of_the_applications_own_is_only_published() {
    let database = Database::create(postgres::installed(), "own");
    let sql = database.sql();
    sql.run("CREATE TABLE events (id uuid, aggregateid text, type text, payload text)");
    sql.run("CREATE TABLE other (n int); CREATE PUBLICATION postrider FOR TABLE other");
    let tables = [TableName::new("public", "events")];
    let mut wanted = wanted(database.name(), false);
    wanted.tables = tables.to_vec();
    let choices = SetupChoices { existing_tables: true, ..SetupChoices::default() };
    let plan = SetupPlan::new(wanted.clone(), choices);
    let url = database.address().unix_url();
    set_up(&url, &plan).unwrap();
    let inspection = check_at(&url, &wanted).unwrap();
    assert_eq!(inspection.warnings(&wanted).len(), 2, "{:?}", inspection.warnings(&wanted));
}

#[test]
fn the_end_of_the_log_covers_commits_that_did_not_wait_for_the_disk() {
    for cluster in postgres::versions() {
        let database = ready(cluster, "end");
        let url = database.address().unix_url();
        // The relay's own sessions have it, too.
        let name = database.name();
        database.sql().run(&format!("ALTER DATABASE {name} SET synchronous_commit = off"));
        let writer: Sql = database.sql();
        assert_eq!(writer.value("SHOW synchronous_commit"), "off");
        for n in 0..20 {
            writer.run(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('a', '{n}', 'e')"
            ));
        }
        let committed = writer.value("SELECT pg_current_wal_insert_lsn()");
        let target =
            with_client(&url, async |client| control::current_flush_lsn(&client).await.unwrap());
        let covers = format!("SELECT '{target}'::pg_lsn >= '{committed}'::pg_lsn");
        assert_eq!(writer.value(&covers), "t", "{target} does not cover {committed}");
        let connection = Connection::open(&resolve(&url), &SessionParams::default()).unwrap();
        let start = postrider::lsn::Lsn::ZERO;
        let mut stream = connection.start(database.name(), "postrider", start).unwrap();
        let (deadline, mut inserts) = (Instant::now() + LIMIT, 0);
        while stream.received() < target {
            assert!(Instant::now() < deadline, "{} < {target}", stream.received());
            match stream.peek().unwrap() {
                None => {
                    stream.fill(Duration::from_millis(20)).unwrap();
                    continue;
                }
                Some(Frame::Wal { data, .. }) => inserts += usize::from(data[0] == b'I'),
                Some(_) => {}
            }
            stream.consume();
        }
        assert_eq!(inserts, 20);
    }
}
