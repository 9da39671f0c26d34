//! `postrider setup` by roles with few rights, in the two ways that docs/operations/privileges.md describes, and
//! what it says of rows that the log will not bring.

use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use postrider::sandbox::binaries;
use postrider::sandbox::postgres::{Address, Cluster};

use support::broker::Broker;
use support::postgres::{self, Database};
use support::relay::{Outcome, Relay};
use support::{kafka, topic, unique};

/// A database of an owner, and a role for the relay that owns nothing.
struct Scene {
    database: Database,
    broker: Broker,
    owner: String,
    relay: String,
}

impl Scene {
    fn new(cluster: &Cluster) -> Self {
        let database = Database::create(cluster, "roles");
        let (owner, relay) = (unique("owner"), unique("relay"));
        let name = database.name();
        database.create_role(&owner, "");
        database.create_role(&relay, "REPLICATION");
        database.sql().run(&format!("ALTER DATABASE {name} OWNER TO {owner}"));
        Self { database, broker: Broker::embedded(), owner, relay }
    }

    fn address(&self, role: &str) -> Address {
        Address { user: role.to_owned(), ..self.database.address() }
    }

    fn run_as(&self, role: &str) -> Relay {
        let slot = self.database.name();
        Relay::new(
            env!("CARGO_BIN_EXE_postrider"),
            &self.address(role),
            slot,
            &self.broker.bootstrap(),
            &format!("{slot}."),
        )
    }

    /// `postrider setup` by this role.
    fn setup(&self, role: &str, arguments: &[&str], exit: i32) -> Said {
        let arguments = [&["setup"], arguments].concat();
        let Outcome { status, stdout, log } = self.run_as(role).start(&arguments).outcome();
        let said = Said(format!("{stdout}{}", log.join("\n")));
        assert_eq!(status.code(), Some(exit), "{arguments:?}: {}", said.0);
        said
    }

    /// `postrider setup --print | psql` by this role.
    fn script(&self, role: &str, arguments: &[&str], exit: i32) -> Said {
        let arguments = [&["setup", "--print"], arguments].concat();
        let printed = self.run_as(role).start(&arguments).outcome();
        assert_eq!(printed.status.code(), Some(0), "{:?}", printed.log);
        let Output { status, stdout, stderr } = psql(&self.address(role), &printed.stdout);
        let said = Said(String::from_utf8([stdout, stderr].concat()).unwrap());
        assert_eq!(status.code(), Some(exit), "{}", said.0);
        said
    }

    /// A row that is written now reaches its topic.
    fn assert_delivers(&self) {
        self.insert();
        self.run_as(&self.relay).run_once();
        assert_eq!(self.delivered(), 1);
    }

    fn delivered(&self) -> usize {
        let topic = format!("{}.OrderPaid", self.database.name());
        topic::read(&self.broker.bootstrap(), &[topic]).len()
    }

    fn insert(&self) {
        self.database.sql().run(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
             VALUES ('order', '42', 'OrderPaid', '{}')",
        );
    }

    fn drop_slot(&self) {
        self.database.sql().run("SELECT pg_drop_replication_slot(current_database())");
    }

    fn slots(&self) -> String {
        let sql = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = current_database()";
        self.database.sql().value(sql)
    }
}

fn psql(address: &Address, script: &str) -> Output {
    use std::io::Write as _;
    let mut child = Command::new(binaries::find().unwrap().join("psql"))
        .args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname"])
        .arg(address.unix_url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Everything that a program said.
struct Said(String);

impl Said {
    fn says(&self, words: &[&str]) {
        for words in words {
            assert!(self.0.contains(words), "no `{words}` in: {}", self.0);
        }
    }
}

#[test]
fn an_owner_makes_the_tables_and_the_relay_its_slot() {
    for cluster in postgres::versions() {
        let scene = Scene::new(cluster);
        // The relay's role alone is told what it lacks, and not what it has.
        let refused = scene.setup(&scene.relay, &[], 77);
        refused.says(&["PR-P044", "table public.outbox", "GRANT CREATE ON SCHEMA", "--no-slot"]);
        assert!(!refused.0.contains("ALTER ROLE"), "{}", refused.0);
        // The owner does all but the slot, and is told who does that.
        let rest = scene.setup(&scene.owner, &[], 77);
        rest.says(&["created: table public.outbox", "created: publication `postrider`"]);
        rest.says(&["PR-P031", "may not replicate", "as the relay's role"]);
        scene.setup(&scene.owner, &["--no-slot"], 0).says(&["already exists: table"]);
        assert_eq!(scene.slots(), "0");
        let made = scene.setup(&scene.relay, &[], 0);
        made.says(&["already exists: table public.outbox", "created: replication slot"]);
        // Whoever finds everything needs no right to anything.
        for role in [&scene.relay, &scene.owner] {
            let again = scene.setup(role, &[], 0);
            assert!(!again.0.contains("created:"), "{}", again.0);
        }
        scene.assert_delivers();
    }
}

#[test]
fn a_role_without_rights_is_told_all_of_them_at_once() {
    for cluster in postgres::versions() {
        let scene = Scene::new(cluster);
        let (fresh, database) = (unique("fresh"), scene.database.name());
        scene.database.create_role(&fresh, "");
        let creations = [
            format!("GRANT CREATE ON SCHEMA \"public\" TO \"{fresh}\";"),
            format!("GRANT CREATE ON DATABASE \"{database}\" TO \"{fresh}\";"),
        ];
        let replication = format!("ALTER ROLE \"{fresh}\" REPLICATION;");
        let without_slot = scene.setup(&fresh, &["--no-slot"], 77);
        assert!(!without_slot.0.contains("ALTER ROLE"), "{}", without_slot.0);
        let unescaped = |text: &str| Said(text.replace("\\\"", "\""));
        let refused = unescaped(&scene.setup(&fresh, &[], 77).0);
        let doctor = scene.run_as(&fresh).start(&["doctor"]).outcome();
        let advised = unescaped(&doctor.stdout);
        for grant in creations.iter().chain([&replication]) {
            refused.says(&[grant]);
            advised.says(&[grant]);
            scene.database.sql().run(grant);
        }
        let made = scene.setup(&fresh, &[], 0);
        made.says(&["created: table", "created: publication", "created: replication slot"]);
    }
}

#[test]
fn the_printed_script_makes_its_slot_while_others_change_tables() {
    for cluster in postgres::versions() {
        let scene = Scene::new(cluster);
        let address = scene.address("postgres");
        let printed = scene.run_as("postgres").start(&["setup", "--print"]).outcome().stdout;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..3 {
                let changes = format!(
                    "BEGIN; CREATE TABLE fleeting_{writer} (n int); SELECT pg_sleep(0.02); COMMIT;
                     DROP TABLE fleeting_{writer};"
                );
                let (done, address) = (&done, &address);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        psql(address, &changes.repeat(20));
                    }
                });
            }
            let attempts: Vec<Output> = (0..10)
                .map(|_| {
                    let output = psql(&address, &printed);
                    scene.drop_slot();
                    output
                })
                .collect();
            done.store(true, Ordering::Relaxed);
            for Output { status, stderr, .. } in attempts {
                assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
            }
        });
    }
}

/// Without `ON_ERROR_STOP` psql goes on after an error. A slot that is older than its publication cannot be
/// read.
#[test]
fn the_printed_script_makes_no_slot_for_a_publication_that_failed() {
    for cluster in postgres::versions() {
        let scene = Scene::new(cluster);
        let printed = scene.run_as(&scene.relay).start(&["setup", "--print"]).outcome().stdout;
        let script = format!("\\set ON_ERROR_STOP off\n{printed}");
        let Output { stderr, .. } = psql(&scene.address(&scene.relay), &script);
        let said = Said(String::from_utf8(stderr).unwrap());
        said.says(&["permission denied", "the replication slot was not made", "lacks a table"]);
        assert_eq!(scene.slots(), "0");
        scene.setup(&scene.owner, &["--no-slot"], 0);
        scene.script(&scene.relay, &[], 0);
        scene.assert_delivers();
    }
}

#[test]
fn the_printed_script_does_the_same_for_both_roles() {
    for cluster in postgres::versions() {
        let scene = Scene::new(cluster);
        let said = scene.script(&scene.owner, &[], 0);
        said.says(&[
            "WARNING",
            "may not replicate",
            "run postrider setup as the role of the relay",
        ]);
        scene.script(&scene.owner, &["--no-slot"], 0);
        assert_eq!(scene.slots(), "0");
        for _ in 0..2 {
            scene.script(&scene.relay, &[], 0);
            assert_eq!(scene.slots(), "1");
        }
        scene.assert_delivers();
        // Rows are left behind only on demand here too, also where the role may not count them.
        scene.drop_slot();
        scene.script(&scene.relay, &[], 3).says(&["has rows, which a new slot does not deliver"]);
        assert_eq!(scene.slots(), "0");
        scene.script(&scene.relay, &["--from-now"], 0);
        assert_eq!(scene.slots(), "1");
    }
}

#[test]
fn one_role_with_all_rights_does_it_alone() {
    for cluster in postgres::versions() {
        for script in [false, true] {
            let mut scene = Scene::new(cluster);
            let owner = scene.owner.clone();
            scene.database.sql().run(&format!("ALTER ROLE {owner} REPLICATION"));
            for _ in 0..2 {
                if script {
                    scene.script(&owner, &[], 0);
                } else {
                    scene.setup(&owner, &[], 0);
                }
                assert_eq!(scene.slots(), "1");
            }
            scene.relay = owner;
            scene.assert_delivers();
        }
    }
}

/// A slot that was lost is not quietly replaced: not at start, and by `setup` only on demand.
#[test]
fn g1_rows_that_a_new_slot_does_not_deliver_are_counted_and_left_only_on_demand() {
    for cluster in postgres::versions() {
        let scene = Scene::new(cluster);
        scene.setup(&scene.owner, &["--no-slot"], 0);
        scene.setup(&scene.relay, &[], 0);
        scene.assert_delivers();
        scene.drop_slot();
        scene.insert();
        let lost = scene.run_as(&scene.relay).start(&["run", "--once"]).outcome();
        assert_eq!(lost.status.code(), Some(78), "{:?}", lost.log);
        Said(lost.log.join("\n")).says(&["PR-P039", "setup --from-now", "insert those again"]);
        let owner = &scene.owner;
        scene.database.sql().run(&format!("ALTER ROLE {owner} REPLICATION"));
        let refused = scene.setup(owner, &[], 78);
        refused.says(&[
            "PR-P052",
            "table public.outbox has 2 rows",
            "a new slot does not deliver",
            "--from-now",
        ]);
        scene.setup(&scene.relay, &[], 78).says(&["PR-P052", "may not read it"]);
        assert_eq!(scene.slots(), "0");
        let made = scene.setup(owner, &["--from-now"], 0);
        made.says(&[
            "created: replication slot",
            "note: table public.outbox has 2 rows; rows committed before",
        ]);
        scene.setup(owner, &[], 0).says(&["already exists: replication slot"]);
    }
}

/// Row-level security does not forbid: it shows a role fewer rows, or none.
#[test]
fn g1_rows_that_row_security_hides_are_not_taken_for_none() {
    for cluster in postgres::versions() {
        let scene = Scene::new(cluster);
        scene.setup(&scene.owner, &["--no-slot"], 0);
        scene.insert();
        let relay = &scene.relay;
        scene.database.sql().run(&format!(
            "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; GRANT SELECT ON outbox TO {relay}"
        ));
        scene.setup(relay, &[], 78).says(&["PR-P052", "row-level security may hide them"]);
        scene.script(relay, &[], 3);
        assert_eq!(scene.slots(), "0");
        scene.setup(relay, &["--from-now"], 0).says(&["created: replication slot"]);
        // What is read of the log is none of row-level security's business.
        scene.assert_delivers();
    }
}

#[test]
fn a_table_that_run_would_refuse_is_refused_before_anything_is_made() {
    let scene = Scene::new(postgres::installed());
    let sql = scene.database.sql();
    let superuser = sql.value("SELECT current_user");
    sql.run("CREATE TABLE bare (n int); CREATE UNLOGGED TABLE light (LIKE bare)");
    let refused = scene.setup(&superuser, &["--table", "public.bare"], 78);
    refused.says(&["PR-P034", "has no column id", "name the table's own columns"]);
    scene.setup(&superuser, &["--table", "public.light"], 78).says(&["PR-P033", "unlogged"]);
    let missing = scene.setup(&superuser, &["--table", "public.none"], 78);
    missing.says(&["PR-P032", "public.none", "correct the name"]);
    assert_eq!(sql.value("SELECT count(*) FROM pg_publication"), "0");
    assert_eq!(scene.slots(), "0");
}

/// A backslash in a string is an escape there.
#[test]
fn a_database_that_reads_strings_in_the_old_way_is_set_up_and_delivered_from() {
    let scene = Scene::new(postgres::installed());
    let name = scene.database.name();
    let set = format!("ALTER DATABASE {name} SET standard_conforming_strings = off");
    scene.database.sql().run(&set);
    let superuser = scene.database.sql().value("SELECT current_user");
    // It may have to wait for transactions of other tests.
    scene.setup(&superuser, &["--no-slot"], 0).says(&["created: table"]);
    scene.run_as(&superuser).creates_slot().expect_log("created slot").run_once();
    scene.insert();
    scene.run_as(&superuser).run_once();
}

#[test]
fn topics_are_made_as_rows_name_them_and_once() {
    let Some(kafka) = kafka::strict() else { return };
    let mut scene = Scene::new(postgres::installed());
    scene.broker = Broker::Kafka(kafka);
    let sql = scene.database.sql();
    let superuser = sql.value("SELECT current_user");
    scene.setup(&superuser, &[], 0);
    scene.insert();
    let prefix = format!("{}.", scene.database.name());
    let bootstrap = kafka.bootstrap();
    // Kafka's word is told with what to do about it.
    let many = [format!("--topics={prefix}a"), "--replication=9".to_owned()];
    let refused = scene.setup(&superuser, &many.each_ref().map(String::as_str), 78);
    refused.says(&["PR-K043", "no more replicas than there are brokers", "kafka-topics.sh"]);
    assert_eq!(topic::names(&bootstrap, &prefix), [""; 0]);
    let arguments = ["--topics=a,b", "--partitions", "2", "--replication", "1"];
    let printed = scene.setup(&superuser, &[&["--print"], &arguments[..]].concat(), 0);
    let name = format!(
        "-- kafka-topics.sh --bootstrap-server BROKER --create --if-not-exists --topic '{prefix}OrderPaid' --partitions 2 --replication-factor 1"
    );
    printed.says(&[&name, "--topic 'a'", "retention.ms=-1"]);
    assert_eq!(topic::names(&bootstrap, &prefix), [""; 0], "printing makes nothing");
    // Of the rows' own, one is named besides.
    let named = format!("--topics={prefix}OrderPlaced");
    let arguments = [named.as_str(), "--partitions", "2", "--replication", "1"];
    let exactly_once = scene.run_as(&superuser).set("kafka.delivery", "exactly_once").unprepared();
    let progress = format!("{prefix}progress");
    let exactly_once = exactly_once.set("progress.topic", &progress);
    for created in ["created: topic", "already exists: topic"] {
        let arguments = [&["setup"], &arguments[..]].concat();
        let Outcome { status, stdout, log } = exactly_once.start(&arguments).outcome();
        assert!(status.success(), "{log:?}");
        for name in ["OrderPaid", "OrderPlaced", "dead-letters", "progress"] {
            assert!(stdout.contains(&format!("{created} `{prefix}{name}`")), "{name}: {stdout}");
        }
    }
    // What exists stays as it is; that it is not what was asked for is told.
    let others = [named.as_str(), "--partitions", "3", "--replication", "2"];
    let told = exactly_once.start(&[&["setup"], &others[..]].concat()).outcome();
    let log = told.log.join("\n");
    assert!(told.status.success(), "{log}");
    for (name, of) in [
        ("OrderPaid", "partition count 2, not 3"),
        ("dead-letters", "replication factor 1, not 2"),
        ("progress", "replication factor 1, not 2"),
    ] {
        let line = format!("topic `{prefix}{name}` exists with {of}; it was not changed");
        assert_eq!(log.matches(&line).count(), 1, "no `{line}` in {log}");
    }
    let consumer: rdkafka::consumer::BaseConsumer = topic::client(&bootstrap).create().unwrap();
    for (name, partitions) in [("OrderPaid", 2), ("dead-letters", 2), ("progress", 1)] {
        assert_eq!(topic::ends(&consumer, &format!("{prefix}{name}")).len(), partitions, "{name}");
    }
}

/// Rows are written, and their topics needed, before somebody makes the slot.
#[test]
fn topics_are_made_by_a_role_that_may_not_make_the_slot() {
    let Some(kafka) = kafka::strict() else { return };
    let mut scene = Scene::new(postgres::installed());
    scene.broker = Broker::Kafka(kafka);
    let prefix = format!("{}.", scene.database.name());
    let made = scene.setup(&scene.owner, &[&format!("--topics={prefix}a")], 77);
    made.says(&["PR-P031", &format!("created: topic `{prefix}a`"), "dead-letters`"]);
    let mut topics = topic::names(&kafka.bootstrap(), &prefix);
    topics.sort();
    assert_eq!(topics, [format!("{prefix}a"), format!("{prefix}dead-letters")]);
}

/// One broker has no nine replicas: so many are asked for, before the slot is made.
#[test]
fn the_progress_topic_is_made_with_the_replicas_that_were_asked_for() {
    let Some(kafka) = kafka::strict() else { return };
    let mut scene = Scene::new(postgres::installed());
    scene.broker = Broker::Kafka(kafka);
    let superuser = scene.database.sql().value("SELECT current_user");
    let prefix = format!("{}.", scene.database.name());
    let relay = scene.run_as(&superuser).set("kafka.delivery", "exactly_once").unprepared();
    let relay = relay.set("progress.topic", &format!("{prefix}progress"));
    let topics = format!("--topics={prefix}a");
    let refused = relay.start(&["setup", &topics, "--replication=9"]).outcome();
    assert_eq!(refused.status.code(), Some(78), "{:?}", refused.log);
    assert!(refused.log.join("\n").contains("no more replicas than there are brokers"));
    assert_eq!(
        (topic::names(&kafka.bootstrap(), &prefix), scene.slots()),
        (Vec::new(), "0".into())
    );
    let made = relay.start(&["setup", &topics, "--replication=1"]).outcome();
    assert!(made.status.success(), "{:?}", made.log);
    for name in ["a", "dead-letters", "progress"] {
        let line = format!("created: topic `{prefix}{name}`");
        assert_eq!(made.stdout.matches(&line).count(), 1, "{}", made.stdout);
    }
}

#[test]
fn g1_a_mistyped_table_takes_the_place_of_none_that_the_slot_delivers() {
    for cluster in postgres::versions() {
        let scene = Scene::new(cluster);
        scene.setup(&scene.owner, &["--no-slot"], 0);
        scene.setup(&scene.relay, &[], 0);
        scene.insert();
        let typo = ["--set", "source.tables=public.outbx"];
        let words = ["public.outbox", "source.tables", "acknowledge its rows undelivered"];
        scene.setup(&scene.owner, &typo, 78).says(&["PR-P058"]);
        scene.setup(&scene.owner, &typo, 78).says(&words);
        scene.script(&scene.owner, &typo, 3).says(&["acknowledged undelivered"]);
        // The script has made the table, and the relay does not begin with it none the less.
        let refused = scene.run_as(&scene.relay).start(&[&["run", "--once"], &typo[..]].concat());
        let refused = refused.outcome();
        assert_eq!(refused.status.code(), Some(78), "{:?}", refused.log);
        assert!(refused.log.join("\n").contains("PR-P058"), "{:?}", refused.log);
        // Who names both gets both.
        let both = "public.outbox,public.outbx";
        let arguments = ["--no-slot", "--set", &format!("source.tables={both}")];
        scene.setup(&scene.owner, &arguments, 0);
        scene.insert();
        scene.run_as(&scene.relay).set("source.tables", both).run_once();
        assert_eq!(scene.delivered(), 2);
    }
}
