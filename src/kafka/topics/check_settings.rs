//! Checks if a topic's settings may lose or refuse records, given its purpose. Invariant: an
//! unknown setting counts as right.

use std::collections::BTreeMap;
use std::fmt;

/// First Kafka version with every known necessary fix of transactions.
const RECOMMENDED: (u32, u32) = (3, 6);

/// First version in which a topic with fewer replicas than min.insync.replicas stores records that
/// all of them have (KAFKA-15583; seen with 4.3). Earlier brokers do not store.
const BOUNDS_IN_SYNC: (u32, u32) = (3, 7);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    Rows,
    DeadLetters,
    Progress,
}

/// Severity, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grade {
    Unfit,
    Warning,
    /// Like a warning, but the cluster cannot do better.
    Remark,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicFinding {
    pub grade: Grade,
    /// `None` for the brokers.
    pub topic: Option<String>,
    /// A fragment that follows the topic's name.
    pub what: String,
    pub help: String,
}

impl fmt::Display for TopicFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.subject(), self.what)
    }
}

impl TopicFinding {
    pub fn subject(&self) -> String {
        match &self.topic {
            Some(topic) => format!("topic `{topic}`"),
            None => "the brokers".to_owned(),
        }
    }

    fn new(grade: Grade, topic: &str, what: impl Into<String>, help: String) -> Self {
        Self { grade, topic: Some(topic.to_owned()), what: what.into(), help }
    }

    /// The help, if it is only a command.
    pub fn command(&self) -> Option<&str> {
        self.help.starts_with("kafka-").then_some(self.help.as_str())
    }

    pub(super) fn unauthorised(topic: &str) -> Self {
        let help = format!(
            "kafka-acls.sh --bootstrap-server BROKER --add --allow-principal User:NAME --producer \
             --topic '{topic}'"
        );
        Self::new(Grade::Warning, topic, "is forbidden to us", help)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TopicFacts {
    pub(super) name: String,
    pub(super) brokers: usize,
    pub(super) partitions: usize,
    /// Replicas of the partition with the fewest.
    pub(super) replicas: usize,
    /// Reported by brokers before 4.
    pub(super) protocol: Option<(u32, u32)>,
    /// Effective settings; `None`: not visible.
    pub(super) settings: Option<BTreeMap<String, String>>,
}

impl TopicFacts {
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.as_ref()?.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.setting(name)?.parse().ok()
    }

    pub(super) fn finding(
        &self,
        grade: Grade,
        what: impl Into<String>,
        help: String,
    ) -> TopicFinding {
        TopicFinding::new(grade, &self.name, what, help)
    }

    fn set(&self, setting: &str) -> String {
        format!(
            "kafka-configs.sh --bootstrap-server BROKER --alter --topic '{}' --add-config {setting}",
            self.name
        )
    }
}

pub(super) fn judge(
    facts: &TopicFacts,
    purpose: Purpose,
    message_max_bytes: u32,
) -> Vec<TopicFinding> {
    let progress = purpose == Purpose::Progress;
    let mut findings = Vec::new();
    if progress {
        findings.extend(judge_progress(facts));
    }
    findings.extend(judge_copies(facts));
    let largest = facts.number("max.message.bytes").filter(|_| !progress);
    if let Some(largest) = largest.filter(|largest| *largest < message_max_bytes as usize) {
        let what = format!(
            "takes records of at most {largest} bytes, and kafka.message_max_bytes is \
             {message_max_bytes}: a larger record is noticed only when the brokers refuse it"
        );
        let help = facts.set(&format!("max.message.bytes={message_max_bytes}"));
        findings.push(facts.finding(Grade::Warning, what, help));
    }
    if facts.setting("unclean.leader.election.enable") == Some("true") {
        let what = "allows unclean leader election: a replica that lacks records may become \
                    leader, and those are lost";
        let help = facts.set("unclean.leader.election.enable=false");
        findings.push(facts.finding(Grade::Warning, what, help));
    }
    findings
}

fn judge_progress(facts: &TopicFacts) -> Option<TopicFinding> {
    if facts.partitions != 1 {
        let what = format!("has {} partitions, and progress is kept in one", facts.partitions);
        let help = format!(
            "set progress.topic to a name that does not exist; or, while no relay has kept progress \
             in it, and nothing else is kept there: kafka-topics.sh --bootstrap-server BROKER \
             --delete --topic '{}'",
            facts.name
        );
        return Some(facts.finding(Grade::Unfit, what, help));
    }
    let policy = facts.setting("cleanup.policy")?;
    if policy == "compact" {
        return None;
    }
    let what = format!("has cleanup.policy={policy}: the brokers would delete the progress");
    let help = format!(
        "set progress.topic to a name of its own; or, if nothing else is kept in this one \
         (compaction keeps only the newest record of each key): {}",
        facts.set("cleanup.policy=compact")
    );
    Some(facts.finding(Grade::Unfit, what, help))
}

fn judge_copies(facts: &TopicFacts) -> Option<TopicFinding> {
    let (in_sync, replicas) = (facts.number("min.insync.replicas")?, facts.replicas);
    // A leader election may be in progress.
    if replicas == 0 {
        return None;
    }
    if in_sync > replicas && facts.protocol.is_some_and(|version| version < BOUNDS_IN_SYNC) {
        let what = format!(
            "stores nothing: min.insync.replicas is {in_sync}, and it has {replicas} replicas"
        );
        let fewer = facts.set(&format!("min.insync.replicas={replicas}"));
        let help = format!(
            "give it more replicas (kafka-reassign-partitions.sh); or, if records may be lost \
             with the brokers that store them, {fewer}"
        );
        return Some(facts.finding(Grade::Unfit, what, help));
    }
    if replicas == 1 {
        let grade = if facts.brokers > 1 { Grade::Warning } else { Grade::Remark };
        let what = if facts.brokers > 1 {
            "has one replica: its data is lost if that broker fails"
        } else {
            "has one replica, as many as a single broker allows"
        };
        let help = "give it three replicas (kafka-reassign-partitions.sh) and \
                    min.insync.replicas=2";
        return Some(facts.finding(grade, what, help.to_owned()));
    }
    (in_sync.min(replicas) == 1).then(|| {
        let what = "has min.insync.replicas=1: a record counts as stored on one broker alone, and \
                    is lost with that broker";
        facts.finding(Grade::Warning, what, facts.set("min.insync.replicas=2"))
    })
}

pub(super) fn missing(
    topic: &str,
    purpose: Purpose,
    created: Option<bool>,
) -> Option<TopicFinding> {
    let told = purpose == Purpose::DeadLetters && created != Some(true);
    told.then(|| {
        let what = "does not exist: the relay ends at the first row that cannot be delivered";
        let help = "create it: `postrider setup --topics`, or kafka-topics.sh".to_owned();
        TopicFinding::new(Grade::Warning, topic, what, help)
    })
}

/// `protocol`, for example `3.5-IV2`.
pub(super) fn age_of(protocol: &str) -> Option<TopicFinding> {
    let (major, minor) = version_of(protocol)?;
    ((major, minor) < RECOMMENDED).then(|| TopicFinding {
        grade: Grade::Warning,
        topic: None,
        what: format!("speak Kafka {major}.{minor}, whose transactions have known flaws"),
        help: format!("use Kafka {}.{} or later", RECOMMENDED.0, RECOMMENDED.1),
    })
}

pub(super) fn version_of(protocol: &str) -> Option<(u32, u32)> {
    let mut numbers = protocol.split(['.', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(change: &[(&str, &str)]) -> TopicFacts {
        let sound = [
            ("min.insync.replicas", "2"),
            ("max.message.bytes", "1048588"),
            ("unclean.leader.election.enable", "false"),
            ("cleanup.policy", "compact"),
        ];
        let settings = sound.iter().chain(change);
        let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let name = "orders".to_owned();
        TopicFacts {
            name,
            brokers: 3,
            partitions: 1,
            replicas: 3,
            protocol: None,
            settings: Some(settings.collect()),
        }
    }

    const PURPOSES: [Purpose; 3] = [Purpose::Rows, Purpose::DeadLetters, Purpose::Progress];

    fn found(facts: &TopicFacts, purpose: Purpose) -> (Grade, String) {
        let findings = judge(facts, purpose, 1_000_000);
        let [finding] = findings.as_slice() else { panic!("{findings:?}") };
        assert!(finding.to_string().starts_with("topic `orders` "), "{finding}");
        assert!(!finding.help.is_empty());
        (finding.grade, format!("{finding}; {}", finding.help))
    }

    #[test]
    fn a_sound_topic_is_good_for_everything() {
        for purpose in PURPOSES {
            assert_eq!(judge(&facts(&[]), purpose, 1_000_000), []);
        }
    }

    #[test]
    fn what_nobody_tells_us_is_taken_to_be_right() {
        let silent = TopicFacts { settings: None, ..facts(&[]) };
        for purpose in PURPOSES {
            assert_eq!(judge(&silent, purpose, u32::MAX), []);
        }
    }

    #[test]
    fn a_topic_that_can_store_nothing_is_unfit() {
        for purpose in PURPOSES {
            let of = |protocol| TopicFacts { replicas: 1, protocol, ..facts(&[]) };
            let (grade, text) = found(&of(Some((3, 6))), purpose);
            assert_eq!(grade, Grade::Unfit);
            assert!(text.contains("--topic 'orders' --add-config min.insync.replicas=1"), "{text}");
            for protocol in [Some((3, 7)), None] {
                let (grade, text) = found(&of(protocol), purpose);
                assert!(grade == Grade::Warning && text.contains("has one replica"), "{text}");
            }
        }
    }

    #[test]
    fn progress_wants_one_partition_and_compaction() {
        let wide = TopicFacts { partitions: 3, ..facts(&[]) };
        assert_eq!(found(&wide, Purpose::Progress).0, Grade::Unfit);
        assert_eq!(judge(&wide, Purpose::Rows, 1_000_000), []);
        for policy in ["delete", "compact,delete"] {
            let (grade, text) = found(&facts(&[("cleanup.policy", policy)]), Purpose::Progress);
            assert_eq!(grade, Grade::Unfit);
            assert!(text.ends_with("--add-config cleanup.policy=compact"), "{text}");
        }
    }

    #[test]
    fn one_copy_is_a_warning_where_there_could_be_more() {
        let one = [("min.insync.replicas", "1")];
        let (grade, text) = found(&facts(&one), Purpose::Rows);
        assert!(grade == Grade::Warning && text.contains("min.insync.replicas=2"), "{text}");
        let single = TopicFacts { replicas: 1, ..facts(&one) };
        assert_eq!(found(&single, Purpose::Rows).0, Grade::Warning);
        let alone = TopicFacts { brokers: 1, ..single };
        assert_eq!(found(&alone, Purpose::Rows).0, Grade::Remark);
    }

    #[test]
    fn records_that_a_topic_would_refuse_or_lose_are_a_warning() {
        for setting in [("max.message.bytes", "999999"), ("unclean.leader.election.enable", "true")]
        {
            let (grade, text) = found(&facts(&[setting]), Purpose::DeadLetters);
            assert!(grade == Grade::Warning && text.contains("--add-config"), "{text}");
        }
        assert_eq!(
            judge(&facts(&[("max.message.bytes", "999")]), Purpose::Progress, 1_000_000),
            []
        );
    }

    #[test]
    fn a_missing_dead_letter_topic_is_told_where_nobody_creates_it() {
        let told = |purpose, created| missing("dead", purpose, created).is_some();
        assert!(told(Purpose::DeadLetters, Some(false)));
        assert!(!told(Purpose::DeadLetters, Some(true)) && told(Purpose::DeadLetters, None));
        assert!(!told(Purpose::Rows, Some(false)));
    }

    #[test]
    fn old_brokers_are_told() {
        for (version, old) in [("3.5-IV2", true), ("2.8", true), ("3.6-IV0", false), ("4.1", false)]
        {
            assert_eq!(age_of(version).is_some(), old, "{version}");
        }
        assert_eq!(age_of("?"), None);
    }
}
