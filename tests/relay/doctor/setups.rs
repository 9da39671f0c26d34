//! Machines, topics and relays that are really broken, on real servers: each has its own finding, and passes once the
//! literal steps of the fix that is printed were done. Broken sources are in `fixtures/unfit.toml`.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::Report;
use super::steps::World;
use crate::stage::Stage;
use support::acl::{May, On, grant};
use support::broker::Broker;
use support::kafka::{self, DENIED_USER, PASSWORD, READING_USER};
use support::wait::wait_until;
use support::{postgres, topic, unique};

/// One set-up.
struct Setup {
    id: &'static str,
    status: &'static str,
    breaks: fn(&mut World<'_>),
}

const fn broken(id: &'static str, status: &'static str, breaks: fn(&mut World<'_>)) -> Setup {
    Setup { id, status, breaks }
}

/// Before a Postgres that others use too, and an embedded broker.
const MACHINES: &[Setup] = &[
    broken("table.locked", "warn", |world| {
        let holder = world.stage.sql();
        holder.run("BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE");
        world.sessions.push(holder);
    }),
    broken("table.prune", "warn", |world| {
        world.stage.insert("A", 1);
        world.relay.clone().set("progress.at_least_once", "true").run_once();
        relay_as_role(world, "REPLICATION");
        world.relay = world.relay.clone().set("progress.at_least_once", "true");
        sql(world, "GRANT SELECT ON outbox TO PUBLIC");
    }),
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
];

/// Before Kafka with access lists, which creates no topic.
const TOPICS: &[Setup] = &[
    broken("topic.exists", "fail", |world| world.stage.insert("A", 3)),
    broken("dead_letters.topic", "warn", |_| {}),
    broken("topic.settings", "warn", |world| {
        with_topic(world, &[("max.message.bytes", "1000")]);
    }),
    broken("topic.settings", "warn", |world| {
        with_topic(world, &[("unclean.leader.election.enable", "true")]);
    }),
    broken("progress.topic", "fail", |world| {
        let progress = world.stage.topic("progress");
        topic::create(world.stage.bootstrap(), &progress, 3, &[]);
        world.relay = world
            .relay
            .clone()
            .set("kafka.delivery", "exactly_once")
            .set("progress.topic", &progress);
    }),
    broken("topic.rights", "fail", |world| {
        with_topic(world, &[]);
        let brokers = world.kafka.unwrap().sasl_bootstrap();
        world.relay = world.relay.clone().log_in(&brokers, DENIED_USER, PASSWORD);
    }),
    // It may see the topic and its settings, and not write.
    broken("topic.rights", "fail", |world| {
        with_topic(world, &[]);
        let (bootstrap, topic) = (world.stage.bootstrap(), world.stage.topic("A"));
        grant(bootstrap, DENIED_USER, On::Topic, &topic, &[May::Describe, May::DescribeConfigs]);
        let brokers = world.kafka.unwrap().sasl_bootstrap();
        world.relay = world.relay.clone().log_in(&brokers, DENIED_USER, PASSWORD);
    }),
    broken("kafka.transactional_id", "fail", |world| {
        let bootstrap = world.stage.bootstrap();
        grant(bootstrap, READING_USER, On::Cluster, "kafka-cluster", &[May::DescribeConfigs]);
        let brokers = world.kafka.unwrap().sasl_bootstrap();
        let relay = world.relay.clone().set("kafka.delivery", "exactly_once");
        world.relay = relay.log_in(&brokers, READING_USER, PASSWORD);
    }),
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
    }),
];

fn sql(world: &World<'_>, text: &str) {
    world.stage.sql().run(text);
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

#[test]
fn each_broken_machine_passes_after_its_literal_steps() {
    let broker = Broker::embedded();
    for setup in MACHINES {
        eprintln!("{}", setup.id);
        hold(setup, World::new(Stage::new(postgres::installed(), &broker.bootstrap(), "setup")));
    }
}

#[test]
fn each_broken_topic_passes_after_its_literal_steps() {
    let Some(kafka) = kafka::strict() else { return };
    for setup in TOPICS {
        eprintln!("{}", setup.id);
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "setup");
        hold(setup, World { kafka: Some(kafka), ..World::new(stage) });
    }
}
