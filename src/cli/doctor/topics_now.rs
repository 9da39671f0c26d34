//! Checks of `postrider doctor` for access rights and replicas of topics. A hidden topic is never
//! reported as missing. Lagging replicas fail only if records are refused because of them.

use super::check::Check;
use super::fix::{Fix, Place, StepKind};
use crate::failure::CommandFailure;
use postrider_config::{Config, Delivery};
use postrider_kafka::{KafkaSpec, TopicRights, TopicState, TopicsError, topic_states};

const RIGHTS: &str = "topic.rights";
const IN_SYNC: &str = "topic.in_sync";

pub(super) fn states(
    config: &Config,
    kafka: &KafkaSpec,
    topics: &[String],
) -> Result<Vec<TopicState>, TopicsError> {
    let mut names = topics.to_vec();
    names.push(config.dead_letters.topic.clone());
    if config.kafka.delivery == Delivery::ExactlyOnce || config.progress.at_least_once {
        names.push(config.progress.topic.clone());
    }
    names.dedup();
    topic_states(kafka, &names)
}

pub(super) fn checks(config: &Config, states: &Result<Vec<TopicState>, TopicsError>) -> Vec<Check> {
    let states = match states {
        Ok(states) => states,
        Err(TopicsError::Unsupported) => {
            let why = "these brokers do not say how topics stand";
            return vec![Check::unknown(RIGHTS, why), Check::unknown(IN_SYNC, why)];
        }
        Err(error) => {
            return Check::failed(RIGHTS, CommandFailure::from(error.clone())).collect();
        }
    };
    if states.is_empty() {
        let why = "no topic is there to look at";
        return vec![Check::unknown(RIGHTS, why), Check::unknown(IN_SYNC, why)];
    }
    vec![rights(config, states), in_sync(states)]
}

/// User name known to the brokers, or a placeholder.
pub(super) fn user_of(config: &Config) -> &str {
    let login = config.kafka.properties.iter().find(|one| one.name == "sasl.username");
    login.map_or("NAME", |login| login.value.as_str())
}

/// Missing right, as a fragment after the topic's name.
fn forbidden(config: &Config, state: &TopicState) -> Option<&'static str> {
    if state.is_hidden {
        return Some("is forbidden to us");
    }
    // Progress is read at each start.
    let is_read = state.name == config.progress.topic;
    match state.rights? {
        TopicRights { write: false, .. } => Some("may not be written by us"),
        TopicRights { read: false, .. } if is_read => Some("may not be read by us"),
        _ => None,
    }
}

fn rights(config: &Config, states: &[TopicState]) -> Check {
    let user = user_of(config);
    let hidden: Vec<_> =
        states.iter().filter_map(|state| Some((state, forbidden(config, state)?))).collect();
    if hidden.is_empty() {
        return match states.iter().find(|state| state.rights.is_none()) {
            Some(state) => Check::unknown(
                RIGHTS,
                format!("the brokers do not report the relay's rights on topic `{}`", state.name),
            ),
            None => Check::pass(RIGHTS, "we may write every topic that was asked for"),
        };
    }
    let names = hidden.iter().map(|(state, what)| format!("topic `{}` {what}", state.name));
    let names: Vec<_> = names.collect();
    let allow = |(state, _): &(&TopicState, &str)| {
        let topic = state.name.replace('\'', "");
        let reads = if topic == config.progress.topic { " --operation Read" } else { "" };
        format!(
            "kafka-acls.sh --bootstrap-server BROKER --add --allow-principal 'User:{user}' \
             --operation Describe --operation DescribeConfigs --operation Write{reads} --topic '{topic}'"
        )
    };
    let fix = hidden
        .iter()
        .map(allow)
        .fold(Fix::default(), |fix, command| fix.then(StepKind::Shell, Place::Kafka, command));
    Check::fail(RIGHTS, names.join(", "), fix)
}

fn in_sync(states: &[TopicState]) -> Check {
    let mut lagging =
        states.iter().flat_map(|state| state.lagging.iter().map(move |it| (state, it)));
    let worst = lagging.clone().min_by_key(|(state, it)| (!refuses(state, it.in_sync), it.in_sync));
    let Some((state, partition)) = worst else {
        return Check::pass(IN_SYNC, "every replica of these topics has all records");
    };
    let mut brokers: Vec<i32> = lagging.clone().flat_map(|(_, it)| it.behind.clone()).collect();
    brokers.sort_unstable();
    brokers.dedup();
    let brokers: Vec<_> = brokers.iter().map(ToString::to_string).collect();
    let brokers = brokers.join(", ");
    let more = lagging.by_ref().count() - 1;
    let more = if more > 0 { format!(", and {more} more partitions lag") } else { String::new() };
    let finding = format!(
        "partition {} of topic `{}` has {} of {} replicas in sync{more}",
        partition.id, state.name, partition.in_sync, partition.replicas
    );
    let start = format!(
        "start the brokers that are down or far behind ({brokers}): kafka-server-start.sh DIRECTORY/server.properties"
    );
    let fix = Fix::from(start).then(
        StepKind::Shell,
        Place::Kafka,
        "kafka-server-start.sh DIRECTORY/server.properties",
    );
    if refuses(state, partition.in_sync) {
        let finding = format!(
            "{finding}, and min.insync.replicas is {}: it stores nothing",
            state.min_in_sync.unwrap_or_default()
        );
        return Check::fail(IN_SYNC, finding, fix);
    }
    Check::warn(IN_SYNC, finding, fix)
}

fn refuses(state: &TopicState, in_sync: usize) -> bool {
    in_sync == 0 || state.min_in_sync.is_some_and(|wanted| in_sync < wanted)
}

#[cfg(test)]
mod tests {
    use super::super::check::Outcome;
    use super::*;
    use postrider_kafka::LaggingPartition;

    fn state(name: &str, in_sync: usize) -> TopicState {
        let lagging = LaggingPartition { id: 1, in_sync, replicas: 3, behind: vec![3, 2] };
        TopicState {
            name: name.to_owned(),
            is_hidden: false,
            rights: None,
            min_in_sync: Some(2),
            lagging: if in_sync < 3 { vec![lagging] } else { Vec::new() },
        }
    }

    #[test]
    fn replicas_that_lag_fail_where_records_are_refused() {
        assert_eq!(in_sync(&[state("a", 3)]).outcome, Outcome::Pass);
        assert_eq!(in_sync(&[state("a", 2)]).outcome, Outcome::Warn);
        let both = in_sync(&[state("a", 2), state("b", 1)]);
        assert_eq!(both.outcome, Outcome::Fail);
        assert!(both.finding.contains("of topic `b` has 1 of 3"), "{}", both.finding);
        assert!(both.finding.contains("1 more"), "{}", both.finding);
        assert!(both.fix.unwrap().text().contains("(2, 3)"));
        let unknown = TopicState { min_in_sync: None, ..state("a", 0) };
        assert_eq!(in_sync(&[unknown]).outcome, Outcome::Fail, "no leader");
    }
}
