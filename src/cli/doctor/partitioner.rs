//! Check of `postrider doctor`: whether existing records are where the configured partitioner puts
//! their keys.
//!
//! Invariant: only the end of a topic is read. A partitioner is proposed only if it alone explains
//! all examined records.

use std::time::{Duration, Instant};

use super::check::Check;
use super::fix::Fix;
use postrider_config::Config;
use postrider_core::record::Partitioner;
use postrider_core::route::{DestinationSpec, RuleAction, RuleSpec};
use postrider_kafka::{KafkaSpec, KeyPlacement, key_placement};

const ID: &str = "topic.partitioner";
/// Time limit for all topics together.
const LIMIT: Duration = Duration::from_secs(3);

/// `topics`: existing topics.
pub(super) fn check(config: &Config, kafka: &KafkaSpec, topics: &[&str]) -> Check {
    let (route, ours) = (&config.route, config.kafka.partitioner);
    let chooses = |rule: &RuleSpec| {
        matches!(&rule.action, RuleAction::Send(DestinationSpec { partition: Some(_), .. }))
    };
    if route.partition.is_some() || route.rules.iter().any(chooses) {
        return Check::pass(ID, "rows choose their partitions themselves (partition of [route])");
    }
    if ours == Partitioner::Random {
        return Check::pass(ID, "kafka.partitioner is random: records of a key have no order");
    }
    let deadline = Instant::now() + LIMIT;
    let (mut seen, mut unread) = (Vec::new(), None);
    for topic in topics {
        if Instant::now() >= deadline {
            unread.get_or_insert(format!("there was no time for topic `{topic}`"));
            break;
        }
        match key_placement(kafka, topic, deadline) {
            Ok(placement) => seen.push((*topic, placement)),
            Err(error) => {
                unread.get_or_insert(error.to_string());
            }
        }
    }
    judge(ours, &seen, unread)
}

fn judge(ours: Partitioner, seen: &[(&str, KeyPlacement)], unread: Option<String>) -> Check {
    let wrong = seen.iter().filter(|(_, placement)| placement.elsewhere(ours) > 0);
    let wrong: Vec<_> = wrong.collect();
    let Some((topic, placement)) = wrong.first() else {
        let keyed: usize = seen.iter().map(|(_, placement)| placement.keyed).sum();
        return match (keyed, unread) {
            (_, Some(why)) => Check::unknown(ID, why),
            (0, None) => Check::unknown(ID, "there is no record with a key to look at"),
            (keyed, None) => Check::pass(
                ID,
                format!("the newest {keyed} records lie where {} puts them", ours.as_str()),
            ),
        };
    };
    let more = wrong.len() - 1;
    let more = if more > 0 { format!("; {more} more topics also") } else { String::new() };
    let (keyed, elsewhere) = (placement.keyed, placement.elsewhere(ours));
    let finding = format!(
        "{elsewhere} of the newest {keyed} records of topic `{topic}` lie in other partitions than {} gives their keys{more}: \
         records of one key before and after a relay begins have no order among them",
        ours.as_str()
    );
    let all = seen.iter().filter(|(_, placement)| placement.keyed > 0);
    let theirs = placement
        .placed_by()
        .filter(|theirs| all.clone().all(|(_, placement)| placement.elsewhere(*theirs) == 0));
    let fix = match theirs {
        Some(theirs) => {
            let line = format!("kafka.partitioner = \"{}\"", theirs.as_str());
            Fix::config(line.clone()).told_as(format!("place keys as those records are placed: {line}"))
        }
        None => "if partitions were added since, let consumers read to the end before the relay begins; if another writer has \
                 placed these records, let a column say the partition (route.partition)"
            .into(),
    };
    Check::warn(ID, finding, fix)
}
