//! Set-ups that are really broken, on real servers: each has its own finding, and passes once the literal steps of the
//! fix that is printed were done.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use postrider::sandbox::postgres::{Cluster, Options};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::Report;
use super::steps::World;
use crate::stage::Stage;
use support::acl::{May, On, grant};
use support::broker::Broker;
use support::kafka::{self, DENIED_USER, PASSWORD, READING_USER};
use support::wait::wait_until;
use support::{postgres, topic, unique};

/// The servers of a set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Servers {
    /// A Postgres that others use too, and an embedded broker.
    Shared,
    /// A Postgres of its own.
    Own(&'static [(&'static str, &'static str)]),
    /// PostgreSQL 18 of its own.
    Eighteen(&'static [(&'static str, &'static str)]),
    /// Kafka with access lists, which creates no topic.
    Kafka,
}

/// One set-up.
struct Setup {
    id: &'static str,
    status: &'static str,
    servers: Servers,
    breaks: fn(&mut World<'_>),
}

const fn broken(id: &'static str, status: &'static str, breaks: fn(&mut World<'_>)) -> Setup {
    Setup { id, status, servers: Servers::Shared, breaks }
}

impl Setup {
    const fn on(self, servers: Servers) -> Self {
        Self { servers, ..self }
    }
}

/// What is claimed of `doctor`.
const SETUPS_MIN: usize = 25;

const SETUPS: &[Setup] = &[
    broken("publication.inserts", "fail", |world| {
        sql(world, "ALTER PUBLICATION postrider SET (publish = 'update')");
    }),
    broken("publication.only_inserts", "warn", |world| {
        sql(world, "ALTER PUBLICATION postrider SET (publish = 'insert, delete')");
    }),
    broken("publication.tables", "fail", |world| {
        sql(world, "ALTER PUBLICATION postrider DROP TABLE outbox");
    }),
    broken("publication.rows", "fail", |world| {
        sql(world, "ALTER PUBLICATION postrider SET TABLE outbox WHERE (event_type <> 'x')");
    }),
    broken("publication.columns", "fail", |world| {
        sql(world, "ALTER PUBLICATION postrider SET TABLE outbox (id, payload)");
    }),
    broken("publication.no_other_tables", "warn", |world| {
        sql(world, "CREATE TABLE other (id int); ALTER PUBLICATION postrider ADD TABLE other");
    }),
    // A partitioned table whose partitions are published under their own names.
    broken("publication.tables", "fail", |world| {
        partition(world);
        sql(world, "ALTER PUBLICATION postrider SET (publish_via_partition_root = false)");
    }),
    broken("publication.exists", "fail", |world| {
        drop_slot(world);
        sql(world, "DROP PUBLICATION postrider");
    }),
    broken("table.exists", "fail", |world| sql(world, "ALTER TABLE outbox RENAME TO events")),
    broken("table.exists", "fail", |world| {
        drop_slot(world);
        sql(world, "DROP TABLE outbox");
    }),
    broken("table.kind", "fail", |world| sql(world, "CREATE TABLE child () INHERITS (outbox)")),
    broken("table.kind", "fail", |world| {
        partition(world);
        sql(world, "ALTER TABLE outbox_default SET UNLOGGED");
    }),
    broken("table.days", "warn", partition),
    broken("table.row_size", "warn", |world| sql(world, "ALTER TABLE outbox ADD COLUMN note text")),
    broken("table.locked", "warn", |world| {
        let holder = world.stage.sql();
        holder.run("BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE");
        world.sessions.push(holder);
    }),
    broken("table.readable", "warn", |world| relay_as_role(world, "REPLICATION")),
    // Row security, with the right to read.
    broken("table.readable", "warn", |world| {
        relay_as_role(world, "REPLICATION");
        sql(
            world,
            "GRANT SELECT ON outbox TO PUBLIC; ALTER TABLE outbox ENABLE ROW LEVEL SECURITY",
        );
    }),
    broken("table.prune", "warn", |world| {
        world.stage.insert("A", 1);
        world.relay.clone().set("progress.at_least_once", "true").run_once();
        relay_as_role(world, "REPLICATION");
        world.relay = world.relay.clone().set("progress.at_least_once", "true");
        sql(world, "GRANT SELECT ON outbox TO PUBLIC");
    }),
    broken("postgres.role", "fail", |world| relay_as_role(world, "")),
    broken("slot.exists", "fail", drop_slot),
    broken("slot.kind", "fail", |world| make_slot(world, "'test_decoding'")),
    broken("slot.two_phase", "fail", |world| make_slot(world, "'pgoutput', false, true")),
    broken("slot.reader", "warn", |world| world.stage.insert("A", 10)),
    broken("relay.ready", "warn", |world| {
        http_port(world);
        world.stage.insert("A", 10);
    }),
    broken("http.port", "warn", |world| {
        let taken = http_port(world);
        world.ports.push(TcpListener::bind(taken).unwrap());
    }),
    broken("config.grace", "warn", |world| {
        world.relay = world.relay.clone().set("shutdown.grace", "5m");
    }),
    broken("config.file_mode", "warn", |world| {
        let file = world.folder.path().join("postrider.toml");
        fs::write(&file, "[source]\nurl = \"postgres://app:hunter2@127.0.0.1/shop\"\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        world.arguments = vec!["--config".to_owned(), file.to_str().unwrap().to_owned()];
    }),
    broken("host.descriptors", "warn", |world| {
        world.relay = world.relay.clone().after("ulimit -S -n 256");
    }),
    broken("postgres.wal_level", "fail", |_| {}).on(Servers::Own(&[("wal_level", "replica")])),
    broken("postgres.slots_free", "fail", |world| {
        sql(world, "SELECT pg_create_physical_replication_slot('other')");
    })
    .on(Servers::Own(&[("max_replication_slots", "1")])),
    broken("postgres.wal_sender_timeout", "warn", |world| {
        sql(world, "ALTER SYSTEM SET wal_sender_timeout = '1s'");
        sql(world, "SELECT pg_reload_conf()");
    })
    .on(Servers::Own(&[])),
    broken("slot.limit", "warn", |_| {}).on(Servers::Own(&[])),
    broken("slot.idle_timeout", "warn", |_| {})
        .on(Servers::Eighteen(&[("idle_replication_slot_timeout", "1h")])),
    broken("slot.alive", "fail", |world| {
        world.stage.create_slot();
        wait_until("the slot to be lost", || {
            sql(world, "SELECT pg_logical_emit_message(false, '', 'x')");
            sql(world, "SELECT pg_switch_wal()");
            sql(world, "CHECKPOINT");
            world.stage.slot_value("wal_status") == "lost"
        });
    })
    .on(Servers::Own(&[("max_slot_wal_keep_size", "1MB")])),
    broken("topic.exists", "fail", |world| world.stage.insert("A", 3)).on(Servers::Kafka),
    broken("dead_letters.topic", "warn", |_| {}).on(Servers::Kafka),
    broken("topic.settings", "warn", |world| {
        with_topic(world, &[("max.message.bytes", "1000")]);
    })
    .on(Servers::Kafka),
    broken("topic.settings", "warn", |world| {
        with_topic(world, &[("unclean.leader.election.enable", "true")]);
    })
    .on(Servers::Kafka),
    broken("progress.topic", "fail", |world| {
        let progress = world.stage.topic("progress");
        topic::create(world.stage.bootstrap(), &progress, 3, &[]);
        world.relay = world
            .relay
            .clone()
            .set("kafka.delivery", "exactly_once")
            .set("progress.topic", &progress);
    })
    .on(Servers::Kafka),
    broken("topic.rights", "fail", |world| {
        with_topic(world, &[]);
        let brokers = world.kafka.unwrap().sasl_bootstrap();
        world.relay = world.relay.clone().log_in(&brokers, DENIED_USER, PASSWORD);
    })
    .on(Servers::Kafka),
    // It may see the topic and its settings, and not write.
    broken("topic.rights", "fail", |world| {
        with_topic(world, &[]);
        let (bootstrap, topic) = (world.stage.bootstrap(), world.stage.topic("A"));
        grant(bootstrap, DENIED_USER, On::Topic, &topic, &[May::Describe, May::DescribeConfigs]);
        let brokers = world.kafka.unwrap().sasl_bootstrap();
        world.relay = world.relay.clone().log_in(&brokers, DENIED_USER, PASSWORD);
    })
    .on(Servers::Kafka),
    broken("kafka.transactional_id", "fail", |world| {
        let bootstrap = world.stage.bootstrap();
        grant(bootstrap, READING_USER, On::Cluster, "kafka-cluster", &[May::DescribeConfigs]);
        let brokers = world.kafka.unwrap().sasl_bootstrap();
        let relay = world.relay.clone().set("kafka.delivery", "exactly_once");
        world.relay = relay.log_in(&brokers, READING_USER, PASSWORD);
    })
    .on(Servers::Kafka),
    // Another writer has placed records as librdkafka does by default.
    broken("topic.partitioner", "warn", |world| {
        let name = world.stage.topic("A");
        topic::create(world.stage.bootstrap(), &name, 3, &[]);
        let mut client = topic::client(world.stage.bootstrap());
        let client: BaseProducer = client.set("partitioner", "consistent_random").create().unwrap();
        for key in 0..20 {
            let key = key.to_string();
            client.send(BaseRecord::to(&name).key(&key).payload("{}")).unwrap();
        }
        client.flush(Duration::from_mins(1)).unwrap();
        world.stage.insert("A", 3);
    })
    .on(Servers::Kafka),
];

fn sql(world: &World<'_>, text: &str) {
    world.stage.sql().run(text);
}

fn drop_slot(world: &mut World<'_>) {
    sql(world, &format!("SELECT pg_drop_replication_slot('{}')", world.stage.slot()));
}

fn make_slot(world: &mut World<'_>, options: &str) {
    drop_slot(world);
    let slot = world.stage.slot();
    sql(world, &format!("SELECT pg_create_logical_replication_slot('{slot}', {options})"));
}

/// The outbox with a default partition and none of the days.
fn partition(world: &mut World<'_>) {
    sql(
        world,
        "DROP TABLE outbox; \
         CREATE TABLE outbox (id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, \
             aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, \
             created_at timestamptz NOT NULL DEFAULT now()) PARTITION BY RANGE (created_at); \
         CREATE TABLE outbox_default PARTITION OF outbox DEFAULT; \
         ALTER PUBLICATION postrider SET (publish_via_partition_root = true); \
         ALTER PUBLICATION postrider ADD TABLE outbox",
    );
}

fn relay_as_role(world: &mut World<'_>, attributes: &str) {
    let address = world.stage.database.create_role(&unique("doctor"), attributes);
    world.relay = world.stage.relay_at(&address);
}

/// A port for metrics that is known, and free.
fn http_port(world: &mut World<'_>) -> std::net::SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    world.relay = world.relay.clone().set("http.bind", &free.to_string());
    free
}

/// The topic of rows that are there.
fn with_topic(world: &mut World<'_>, settings: &[(&str, &str)]) {
    let name = world.stage.topic("A");
    topic::create(world.stage.bootstrap(), &name, 1, &[]);
    if !settings.is_empty() {
        topic::alter(world.stage.bootstrap(), &name, settings);
    }
    world.stage.insert("A", 3);
}

/// Breaks it, has it told, does what is told, and asks again.
fn hold(setup: &Setup, mut world: World<'_>) {
    (setup.breaks)(&mut world);
    let ask = |world: &World<'_>| {
        let arguments: Vec<&str> = world.arguments.iter().map(String::as_str).collect();
        Report::asked(&world.relay, &[&arguments, &["--only", setup.id][..]].concat())
    };
    // Not every broker knows at once of what was altered.
    let mut told = ask(&world);
    if told.status_or_none(setup.id) != Some(setup.status) {
        wait_until("the finding", || {
            told = ask(&world);
            told.status_or_none(setup.id) == Some(setup.status)
        });
    }
    world.fix(&told, setup.id);
    wait_until("the check to pass", || ask(&world).all_pass(setup.id));
    world.end();
}

fn of_servers(wanted: fn(Servers) -> bool) -> impl Iterator<Item = &'static Setup> {
    SETUPS.iter().filter(move |setup| wanted(setup.servers))
}

#[test]
fn there_are_more_than_are_claimed() {
    assert!(SETUPS.len() >= SETUPS_MIN, "{} set-ups", SETUPS.len());
    println!("{} broken set-ups, of {} checks", SETUPS.len(), {
        let mut ids: Vec<_> = SETUPS.iter().map(|setup| setup.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.len()
    });
}

#[test]
fn each_broken_source_and_machine_passes_after_its_literal_steps() {
    let broker = Broker::embedded();
    for setup in of_servers(|servers| servers == Servers::Shared) {
        eprintln!("{}", setup.id);
        hold(setup, World::new(Stage::new(postgres::installed(), &broker.bootstrap(), "setup")));
    }
}

#[test]
fn each_broken_server_passes_after_its_literal_steps() {
    let broker = Broker::embedded();
    for setup in of_servers(|servers| !matches!(servers, Servers::Shared | Servers::Kafka)) {
        let (options, settings) = match setup.servers {
            Servers::Eighteen(settings) => match postgres::eighteen_options() {
                Some(options) => (options, settings),
                None => continue,
            },
            Servers::Own(settings) => (Options::default(), settings),
            _ => unreachable!("they were left out"),
        };
        eprintln!("{}", setup.id);
        let with = |options: Options, (name, value): &(&str, &str)| options.with(name, value);
        let mut cluster = Cluster::start(&settings.iter().fold(options, with)).unwrap();
        let stage = Stage::migrated(&cluster, &broker.bootstrap(), "setup");
        hold(setup, World { cluster: Some(&mut cluster), ..World::new(stage) });
    }
}

#[test]
fn each_broken_topic_passes_after_its_literal_steps() {
    let Some(kafka) = kafka::strict() else { return };
    for setup in of_servers(|servers| servers == Servers::Kafka) {
        eprintln!("{}", setup.id);
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "setup");
        hold(setup, World { kafka: Some(kafka), ..World::new(stage) });
    }
}
