//! Checks of `postrider doctor` for the brokers, their advertised addresses, and the topics.
//!
//! Invariant: nothing is written, no topic is created, and no producer is fenced off. Each step has
//! a time limit.

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use super::certificates;
use super::check::{Check, Lack, Outcome};
use super::fix::{Fix, Place, StepKind};
use super::partitioner;
use super::topics_now::{self, user_of};
use crate::failure::CommandFailure;
use postrider_config::{Config, Delivery};
use postrider_kafka::{
    AdvertisedBroker, ClusterFacts, Grade, IdRights, KafkaSpec, Purpose, TopicFinding, TopicState,
    TopicsError, WantedTopic, cluster_facts, survey, topic_names, transactional_id_rights,
};
use postrider_relay::certificates::{Address, configured_brokers, is_kafka_encrypted};

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// The `transaction.timeout.ms` that the relay asks for.
const TRANSACTION_MS: u64 = 60_000;
const NAMED_MAX: usize = 5;

#[derive(Debug, Clone, Copy)]
pub(super) struct FromSource<'a> {
    pub(super) topics: Result<&'a [String], &'a str>,
    pub(super) transactional_id: Result<&'a str, &'a str>,
}

pub(super) fn checks(config: &Config, kafka: &KafkaSpec, source: FromSource<'_>) -> Vec<Check> {
    let topics = source.topics;
    let facts = match cluster_facts(kafka) {
        Ok(facts) => facts,
        Err(error) => return out_of_reach(kafka, error),
    };
    let advertised: Vec<_> = facts
        .brokers
        .iter()
        .map(|broker| Address { host: broker.host.clone(), ip: None, port: broker.port })
        .collect();
    let mut checks = vec![
        Check::pass("kafka.reachable", answering(facts.brokers.len())),
        listeners(&facts.brokers),
        encrypted(kafka, &facts.brokers),
        transactions(&facts, config.kafka.delivery),
        transactional_id(config, kafka, &facts, source.transactional_id),
    ];
    checks.extend(certificates::of_kafka(kafka, &advertised));
    let there = match topic_names(kafka) {
        Ok(names) => names,
        Err(error) => {
            checks.extend(Check::failed("topic.exists", CommandFailure::from(error)));
            return checks;
        }
    };
    let states = topics_now::states(config, kafka, topics.unwrap_or_default());
    checks.push(topics_exist(config, &facts, topics, &seen(&there, &states)));
    checks.extend(topics_now::checks(config, &states));
    checks.extend(surveyed(config, kafka, topics.unwrap_or_default(), &there));
    let routed = topics.unwrap_or_default().iter().map(String::as_str);
    let routed: Vec<_> = routed.filter(|topic| there.contains(*topic)).collect();
    checks.push(partitioner::check(config, kafka, &routed));
    checks
}

pub(crate) fn answering(brokers: usize) -> String {
    match brokers {
        1 => "1 broker answers".to_owned(),
        brokers => format!("{brokers} brokers answer"),
    }
}

/// Listed or hidden topics. A hidden topic may exist, and is a separate finding.
fn seen(
    there: &BTreeSet<String>,
    states: &Result<Vec<TopicState>, TopicsError>,
) -> BTreeSet<String> {
    let hidden = states.iter().flatten().filter(|state| state.is_hidden);
    there.iter().cloned().chain(hidden.map(|state| state.name.clone())).collect()
}

pub(super) fn out_of_reach(kafka: &KafkaSpec, error: TopicsError) -> Vec<Check> {
    const OTHERS: &str = "the brokers and their topics were not looked at";
    let others = Check::unknown("kafka.others", OTHERS);
    let mut checks: Vec<_> = Check::failed("kafka.reachable", error).chain([others]).collect();
    // A certificate may be the cause.
    checks.extend(certificates::of_kafka(kafka, &configured_brokers(&kafka.brokers)));
    checks
}

/// Connects to advertised addresses, because clients use these whatever address they were given.
fn listeners(brokers: &[AdvertisedBroker]) -> Check {
    const ID: &str = "kafka.listeners";
    let refused: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = brokers
            .iter()
            .map(|broker| scope.spawn(move || unreachable_from_here(broker)))
            .collect();
        let answers = asked.into_iter().filter_map(|asked| asked.join().ok().flatten());
        answers.collect()
    });
    if refused.is_empty() {
        return Check::pass(ID, "every broker is reached where it says it is");
    }
    Check::fail(
        ID,
        refused.join("; "),
        "set advertised.listeners of those brokers to addresses that this machine reaches, or open the way to them",
    )
}

fn unreachable_from_here(broker: &AdvertisedBroker) -> Option<String> {
    let AdvertisedBroker { id, host, port } = broker;
    let told = |why: String| Some(format!("broker {id} advertises {host}:{port}, which {why}"));
    let addresses = match (host.as_str(), *port).to_socket_addrs() {
        Ok(addresses) => addresses,
        Err(error) => return told(format!("has no address: {error}")),
    };
    let mut last = "has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(_) => return None,
            Err(error) => last = format!("cannot be reached: {error}"),
        }
    }
    told(last)
}

fn encrypted(kafka: &KafkaSpec, brokers: &[AdvertisedBroker]) -> Check {
    const ID: &str = "kafka.tls";
    if is_kafka_encrypted(kafka) {
        return Check::pass(ID, "connections to the brokers are encrypted");
    }
    let is_local = |broker: &AdvertisedBroker| {
        broker.host == "localhost"
            || broker.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    if brokers.iter().all(is_local) {
        return Check::pass(ID, "the brokers are on this machine");
    }
    Check::warn(
        ID,
        "records cross the network unencrypted",
        "set security.protocol to ssl or sasl_ssl in [kafka.properties], with listeners for it at the brokers",
    )
}

fn transactions(facts: &ClusterFacts, delivery: Delivery) -> Check {
    const ID: &str = "kafka.transactions";
    if delivery != Delivery::ExactlyOnce {
        return Check::pass(ID, "kafka.delivery is at_least_once: no Kafka transactions are used");
    }
    if let Some(limit) = facts.transaction_max_ms.filter(|limit| *limit < TRANSACTION_MS) {
        return Check::fail(
            ID,
            format!(
                "brokers allow transactions of {limit} ms, and the relay asks for {TRANSACTION_MS}"
            ),
            format!("set transaction.max.timeout.ms={TRANSACTION_MS} or more at the brokers"),
        );
    }
    match facts.transaction_log_replicas {
        Some(1) if facts.brokers.len() > 1 => Check::warn(
            ID,
            "the state of transactions has one replica: without that broker nothing is delivered",
            "give __transaction_state three replicas with kafka-reassign-partitions.sh, and a plan for each of its partitions",
        ),
        Some(replicas) if replicas as usize > facts.brokers.len() => Check::fail(
            ID,
            format!(
                "the state of transactions wants {replicas} replicas, and there are {} brokers",
                facts.brokers.len()
            ),
            "set transaction.state.log.replication.factor to the number of brokers",
        ),
        _ => Check::pass(ID, "the brokers take the transactions of the relay"),
    }
}

/// Checks the right to begin transactions under the relay's id.
fn transactional_id(
    config: &Config,
    kafka: &KafkaSpec,
    facts: &ClusterFacts,
    id: Result<&str, &str>,
) -> Check {
    const ID: &str = "kafka.transactional_id";
    if config.kafka.delivery != Delivery::ExactlyOnce {
        return Check::pass(ID, "kafka.delivery is at_least_once: no transactional id is used");
    }
    let id = match id {
        Ok(id) => id,
        Err(why) => return Check::unknown(ID, why),
    };
    match transactional_id_rights(kafka, facts, id) {
        Ok(IdRights::Allowed) => Check::pass(ID, format!("`{id}` is ours to use")),
        Ok(IdRights::Unknown(why)) => Check::unknown(ID, why),
        Err(error) => Check::unknown(ID, error.to_string()),
        Ok(IdRights::Forbidden) => {
            let command = format!(
                "kafka-acls.sh --bootstrap-server BROKER --add --allow-principal 'User:{}' --operation Describe \
                 --operation Write --transactional-id '{}'",
                user_of(config),
                id.replace('\'', "")
            );
            let fix = Fix::default().then(StepKind::Shell, Place::Kafka, command);
            Check::fail(ID, format!("transactional id `{id}` is forbidden to us"), fix)
        }
    }
}

fn topics_exist(
    config: &Config,
    facts: &ClusterFacts,
    topics: Result<&[String], &str>,
    there: &BTreeSet<String>,
) -> Check {
    const ID: &str = "topic.exists";
    let topics = match topics {
        Ok([]) => return Check::unknown(ID, "no row shows which topics there must be"),
        Ok(topics) => topics,
        Err(why) => return Check::unknown(ID, why),
    };
    let missing: Vec<_> =
        topics.iter().filter(|topic| !there.contains(*topic)).map(String::as_str).collect();
    let by_relay = !config.route.missing_topic.create.is_empty();
    let fix = || Fix::postrider(format!("postrider setup --topics={}", missing.join(",")));
    let lacks = || {
        let wanted = |name: &&str| Lack::Topic(WantedTopic::new(*name, Purpose::Rows));
        missing.iter().map(wanted).collect::<Vec<_>>()
    };
    match missing.as_slice() {
        [] => Check::pass(ID, format!("the topics of the newest rows exist ({})", topics.len())),
        missing if by_relay => Check::pass(
            ID,
            format!(
                "{} is missing, and the relay creates it as route.missing_topic.create says",
                named(missing)
            ),
        ),
        missing if facts.creates_topics == Some(true) => Check::warn(
            ID,
            format!(
                "{} is missing, and the brokers create it with their defaults: one partition is usual{}",
                named(missing),
                match facts.default_replicas {
                    Some(1) => ", and default.replication.factor is 1",
                    _ => "",
                }
            ),
            fix(),
        )
        .lacking(lacks()),
        missing => Check::fail(
            ID,
            format!("{} does not exist, and nobody creates it", named(missing)),
            fix(),
        )
        .lacking(lacks()),
    }
}

fn named(topics: &[&str]) -> String {
    let first: Vec<_> =
        topics.iter().take(NAMED_MAX).map(|topic| format!("topic `{topic}`")).collect();
    let more = topics.len().saturating_sub(first.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    first.join(", ") + &more
}

fn not_surveyed(error: TopicsError) -> Vec<Check> {
    const ID: &str = "topic.settings";
    match error {
        TopicsError::Unsupported => {
            vec![Check::unknown(ID, "these brokers do not say which settings topics have")]
        }
        error => Check::failed(ID, CommandFailure::from(error)).collect(),
    }
}

fn surveyed(
    config: &Config,
    kafka: &KafkaSpec,
    topics: &[String],
    there: &BTreeSet<String>,
) -> Vec<Check> {
    const SOUND: [(&str, &str); 4] = [
        ("topic.settings", "the settings of the rows' topics neither lose nor refuse records"),
        ("dead_letters.topic", "the dead-letter topic is sound"),
        ("progress.topic", "the progress topic is sound, or is created by the first run"),
        ("kafka.version", "the brokers' transactions have no known flaw"),
    ];
    let (letters, progress) = (&config.dead_letters.topic, &config.progress.topic);
    let mut wanted: Vec<_> = topics.iter().map(|topic| (topic.clone(), Purpose::Rows)).collect();
    wanted.push((letters.clone(), Purpose::DeadLetters));
    let keeps_progress =
        config.kafka.delivery == Delivery::ExactlyOnce || config.progress.at_least_once;
    if keeps_progress {
        wanted.push((progress.clone(), Purpose::Progress));
    }
    let findings = match survey(kafka, &wanted) {
        Ok(findings) => findings,
        Err(error) => return not_surveyed(error),
    };
    let id_of = |finding: &TopicFinding| match &finding.topic {
        None => "kafka.version",
        Some(topic) if topic == letters => "dead_letters.topic",
        Some(topic) if topic == progress => "progress.topic",
        Some(_) => "topic.settings",
    };
    let mut checks = Vec::new();
    for (id, sound) in SOUND {
        let before = checks.len();
        let of_id = findings.iter().filter(|finding| id_of(finding) == id);
        checks.extend(of_id.map(|finding| {
            let outcome = match finding.grade {
                Grade::Unfit => Outcome::Fail,
                Grade::Warning => Outcome::Warn,
                // The cluster cannot do better.
                Grade::Remark => Outcome::Pass,
            };
            let check = Check::warn(id, finding.to_string(), finding.help.clone());
            let check = with_literal_fix(check, config, finding, there);
            let fix = check.fix.filter(|_| outcome != Outcome::Pass);
            Check { outcome, fix, ..check }
        }));
        if checks.len() == before {
            let unknown = match id {
                "topic.settings" if !topics.iter().any(|topic| there.contains(topic)) => {
                    Some("no topic of the rows is there to look at")
                }
                "dead_letters.topic" if !there.contains(letters) => {
                    Some("there is no such topic yet")
                }
                "progress.topic" if !keeps_progress => Some("no progress is kept in Kafka"),
                _ => None,
            };
            checks.push(match unknown {
                Some(why) => Check::unknown(id, why),
                None => Check::pass(id, sound),
            });
        }
    }
    checks
}

/// The command of the finding, or the fix that loses nothing.
fn with_literal_fix(
    check: Check,
    config: &Config,
    finding: &TopicFinding,
    there: &BTreeSet<String>,
) -> Check {
    let letters = &config.dead_letters.topic;
    match (check.id, finding.command()) {
        (_, Some(command)) => {
            let step = Fix::default().then(StepKind::Shell, Place::Kafka, command);
            check.with_steps(step)
        }
        // The first run creates a topic with this new name.
        ("progress.topic", None) if finding.grade == Grade::Unfit => {
            let line = format!("progress.topic = \"{}.1\"", config.progress.topic);
            check.with_steps(Fix::config(line))
        }
        ("dead_letters.topic", None) if !there.contains(letters) => check
            .with_steps(Fix::postrider("postrider setup --topics"))
            .lacking([Lack::Topic(WantedTopic::new(letters, Purpose::DeadLetters))]),
        _ => check,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_that_does_not_answer_is_told_with_its_broker() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let broker = AdvertisedBroker { id: 3, host: "127.0.0.1".into(), port };
        assert_eq!(listeners(std::slice::from_ref(&broker)).outcome, Outcome::Pass);
        drop(listener);
        let told = listeners(&[broker]);
        assert_eq!(told.outcome, Outcome::Fail);
        assert!(told.finding.starts_with("broker 3 advertises 127.0.0.1:"), "{}", told.finding);
        let nowhere = AdvertisedBroker { id: 1, host: "kafka-0.invalid".into(), port: 9092 };
        assert!(listeners(&[nowhere]).finding.contains("has no address"));
    }

    #[test]
    fn brokers_that_allow_only_short_transactions_are_told_where_those_are_used() {
        let facts = ClusterFacts {
            brokers: Vec::new(),
            transaction_max_ms: Some(10_000),
            transaction_log_replicas: None,
            creates_topics: None,
            default_replicas: None,
            protocol: None,
        };
        assert_eq!(transactions(&facts, Delivery::ExactlyOnce).outcome, Outcome::Fail);
        assert_eq!(transactions(&facts, Delivery::AtLeastOnce).outcome, Outcome::Pass);
        let enough = ClusterFacts { transaction_max_ms: Some(900_000), ..facts };
        assert_eq!(transactions(&enough, Delivery::ExactlyOnce).outcome, Outcome::Pass);
    }

    #[test]
    fn topics_are_named_as_far_as_that_helps() {
        assert_eq!(named(&["a", "b"]), "topic `a`, topic `b`");
        assert!(named(&["a"; 7]).ends_with(" and 2 more"));
    }
}
