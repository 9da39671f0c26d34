//! Plans a retry: which dead letters go to which topics, and which cannot be sent again
//! ([`NotRetryable`]). The operator sees the plan before anything is sent. No I/O.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::Source;
use super::retry::RetryArgs;
use postrider_core::route::RejectionCode;
use postrider_patterns::dead_letter::{DeadLetter, Job, PartitionOffset};

#[derive(Debug, Default)]
pub(super) struct RetryPlan {
    pub(super) jobs: Vec<Job>,
    /// Letters that cannot be sent, by partition and offset.
    pub(super) hindered: Vec<(PartitionOffset, NotRetryable)>,
    /// Selected letters that already have a receipt.
    pub(super) retried: usize,
    /// Jobs with unformatted key and value, because the row was rejected before formatting.
    pub(super) unformatted: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotRetryable {
    #[error("it was too large to be stored whole; insert the row again")]
    Cut,
    #[error(
        "it has a character that UTF8 lacks, as the database stores it; fix the text and insert \
         the row again"
    )]
    Untranslatable,
    #[error("it is a consumer's dead letter: its application must send it again")]
    Consumers,
    #[error("it names no topic; use --to TOPIC")]
    NoTopic,
    #[error("{0}; use --to TOPIC")]
    IllegalTopic(&'static str),
    #[error("its topic is the dead-letter topic itself; use --to TOPIC")]
    Circular,
}

/// `to`, or the original topic if rows may go there.
fn destination<'a>(
    letter: &'a DeadLetter,
    to: Option<&'a str>,
    source: &Source,
) -> Result<&'a str, NotRetryable> {
    if letter.is_cut {
        return Err(NotRetryable::Cut);
    }
    if letter.code == RejectionCode::UntranslatableCharacter.as_str() {
        return Err(NotRetryable::Untranslatable);
    }
    if letter.failure().is_some() {
        return Err(NotRetryable::Consumers);
    }
    let topic = to.or(letter.topic.as_deref()).ok_or(NotRetryable::NoTopic)?;
    if topic == source.topic.name {
        return Err(NotRetryable::Circular);
    }
    // The operator may choose any topic that is not reserved.
    let topics = &source.topics;
    let judged = if to.is_some() { topics.check_reserved(topic) } else { topics.check(topic) };
    judged.map(|()| topic).map_err(NotRetryable::IllegalTopic)
}

impl RetryPlan {
    /// Letters that cannot be sent do not count against the limit.
    pub(super) fn of(letters: &[DeadLetter], args: &RetryArgs, source: &Source) -> Self {
        let mut plan = Self::default();
        for letter in letters {
            if letter.is_retried && !args.filter.all {
                plan.retried += 1;
                continue;
            }
            if plan.jobs.len() >= args.filter.most() {
                continue;
            }
            match destination(letter, args.to.as_deref(), source) {
                Ok(topic) => {
                    // Without a table: only the brokers refused it, after formatting.
                    plan.unformatted += usize::from(source.formatted && letter.table().is_some());
                    plan.jobs.push(Job { at: letter.at, topic: topic.to_owned() });
                }
                Err(hindrance) => plan.hindered.push((letter.at, hindrance)),
            }
        }
        plan
    }

    pub(super) fn topics(&self) -> BTreeMap<&str, usize> {
        let mut topics = BTreeMap::new();
        for job in &self.jobs {
            *topics.entry(job.topic.as_str()).or_default() += 1;
        }
        topics
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = format!("to send again: {}\n", self.jobs.len());
        for (topic, count) in self.topics() {
            let _ = writeln!(text, "  {count:>8}  to {topic}");
        }
        if self.unformatted > 0 {
            let _ = writeln!(
                text,
                "warning: {} of them were rejected before [format] was applied: their keys and \
                 values are sent as in the table",
                self.unformatted
            );
        }
        if self.retried > 0 {
            let _ = writeln!(text, "retried already, not sent again: {}", self.retried);
        }
        if !self.hindered.is_empty() {
            let _ = writeln!(text, "cannot be sent: {}", self.hindered.len());
        }
        for (at, hindrance) in &self.hindered {
            let _ = writeln!(text, "  {:>8}  {hindrance}", at.to_string());
        }
        text
    }

    pub(super) fn to_json(&self, sent: Option<u64>) -> Value {
        let topics = self.topics().into_iter();
        let hindered = self.hindered.iter().map(|(at, hindrance)| {
            json!({
                "partition": at.partition,
                "offset": at.offset,
                "reason": hindrance.to_string(),
            })
        });
        json!({
            "executed": sent.is_some(),
            "sent": sent.unwrap_or(0),
            "to_send": topics.map(|(topic, count)| json!({ "topic": topic, "records": count }))
                .collect::<Vec<_>>(),
            "unformatted": self.unformatted,
            "cannot": hindered.collect::<Vec<_>>(),
            "retried_already": self.retried,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letters::FilterArgs;
    use postrider_core::route::TopicsSpec;
    use postrider_kafka::KafkaSpec;
    use postrider_patterns::dead_letter::{ConsumerFailure, DeadLetterOrigin, DeadLetterTopic};

    fn letter(offset: i64, topic: Option<&str>) -> DeadLetter {
        let topic = topic.map(str::to_owned);
        let mut letter = DeadLetter { topic, ..DeadLetter::rejected(offset, "refused", "why") };
        if let DeadLetterOrigin::Relay { table, .. } = &mut letter.origin {
            *table = None;
        }
        letter
    }

    fn letters() -> Vec<DeadLetter> {
        let mut letters: Vec<DeadLetter> =
            (0..6).map(|offset| letter(offset, Some("orders"))).collect();
        letters[0].is_cut = true;
        letters[1].topic = None;
        letters[2].is_retried = true;
        letters[4].topic = Some("bad/topic".into());
        letters
    }

    fn source() -> Source {
        let topic = DeadLetterTopic { kafka: KafkaSpec::default(), name: "dead".into() };
        let topics = TopicsSpec { own: Vec::new(), allowed: Vec::new() };
        Source { topic, topics, formatted: false }
    }

    fn plan(letters: &[DeadLetter], to: Option<&str>) -> RetryPlan {
        let args = RetryArgs { to: to.map(str::to_owned), ..RetryArgs::default() };
        RetryPlan::of(letters, &args, &source())
    }

    fn offsets(plan: &RetryPlan) -> Vec<i64> {
        plan.jobs.iter().map(|job| job.at.offset).collect()
    }

    #[test]
    fn what_cannot_be_sent_is_told_and_the_rest_goes_where_it_was_meant() {
        let plan = plan(&letters(), None);
        assert_eq!((offsets(&plan), plan.retried), (vec![3, 5], 1));
        let hindered: Vec<i64> = plan.hindered.iter().map(|(at, _)| at.offset).collect();
        assert_eq!(hindered, [0, 1, 4]);
        let text = plan.to_text();
        assert!(text.starts_with("to send again: 2\n         2  to orders\n"), "{text}");
        assert!(text.contains("cannot be sent: 3\n       0:0  it was too large"), "{text}");
        assert!(text.contains("use --to TOPIC"), "{text}");
    }

    #[test]
    fn another_topic_takes_all_but_what_was_cut() {
        let plan = plan(&letters(), Some("repaired"));
        assert_eq!(offsets(&plan), [1, 3, 4, 5]);
        assert!(plan.jobs.iter().all(|job| job.topic == "repaired"));
        assert_eq!(plan.hindered.len(), 1);
    }

    #[test]
    fn text_as_the_database_stores_it_goes_nowhere() {
        let code = RejectionCode::UntranslatableCharacter.as_str();
        let stored =
            DeadLetter { topic: Some("orders".into()), ..DeadLetter::rejected(0, code, "") };
        let letters = [stored, letter(1, Some("orders"))];
        for to in [None, Some("repaired")] {
            let plan = plan(&letters, to);
            assert_eq!(offsets(&plan), [1]);
            assert!(plan.to_text().contains("insert the row again"), "{}", plan.to_text());
        }
    }

    #[test]
    fn what_a_consumer_could_not_take_is_left_to_its_application() {
        let at = PartitionOffset { partition: 0, offset: 9 };
        let failure = ConsumerFailure {
            consumer: "payments".into(),
            attempts: 1,
            first_failed_ms: 0,
            failed_ms: 0,
        };
        let origin = DeadLetterOrigin::Consumer { at, failure };
        let letters = [DeadLetter { origin, ..letter(3, Some("orders")) }];
        for to in [None, Some("repaired")] {
            let plan = plan(&letters, to);
            assert_eq!((offsets(&plan), plan.hindered.len()), (vec![], 1));
            assert!(plan.to_text().contains("its application"), "{}", plan.to_text());
        }
    }

    #[test]
    fn the_limit_counts_what_is_sent() {
        let limited = |limit, all| {
            let filter = FilterArgs { limit: Some(limit), all, ..FilterArgs::default() };
            let args = RetryArgs { filter, ..RetryArgs::default() };
            RetryPlan::of(&letters(), &args, &source())
        };
        let plan = limited(1, false);
        assert_eq!((offsets(&plan), plan.hindered.len()), (vec![3], 2));
        let plan = limited(2, true);
        assert_eq!((offsets(&plan), plan.retried), (vec![2, 3], 0));
    }

    #[test]
    fn what_has_not_got_its_format_is_told() {
        let mut letters = letters();
        letters[3].origin = DeadLetter::rejected(0, "no_route", "").origin;
        assert_eq!(plan(&letters, None).unformatted, 0);
        let source = Source { formatted: true, ..source() };
        let plan = RetryPlan::of(&letters, &RetryArgs::default(), &source);
        assert_eq!((plan.unformatted, plan.jobs.len()), (1, 2));
        assert!(plan.to_text().contains("warning: 1 of them"), "{}", plan.to_text());
        assert_eq!(plan.to_json(None)["unformatted"], 1);
    }

    #[test]
    fn scripts_are_told_the_same() {
        let plan = plan(&letters(), None);
        let json = plan.to_json(None);
        assert_eq!((&json["executed"], &json["sent"]), (&json!(false), &json!(0)));
        assert_eq!(json["to_send"], json!([{ "topic": "orders", "records": 2 }]));
        assert_eq!(json["cannot"][1]["offset"], 1);
        assert_eq!(json["retried_already"], 1);
        assert_eq!(plan.to_json(Some(2))["sent"], 2);
    }

    #[test]
    fn only_legal_topics_but_our_own_are_destinations() {
        let (own, allowed) = (vec!["progress".to_owned()], vec!["orders".to_owned()]);
        let source = Source { topics: TopicsSpec { own, allowed }, ..source() };
        let to = |intended, to| destination(&letter(0, intended), to, &source).map(str::to_owned);
        assert_eq!(to(Some("orders"), None).as_deref(), Ok("orders"));
        assert_eq!(to(Some("bad/topic"), Some("orders")).as_deref(), Ok("orders"));
        assert_eq!(to(None, None), Err(NotRetryable::NoTopic));
        assert_eq!(to(Some("dead"), None), Err(NotRetryable::Circular));
        for reserved in ["bad/topic", "progress", "__consumer_offsets", "postrider.progress.x"] {
            for outcome in [to(Some(reserved), None), to(Some("orders"), Some(reserved))] {
                assert!(matches!(outcome, Err(NotRetryable::IllegalTopic(_))), "{reserved}");
            }
        }
        assert!(to(Some("other"), None).is_err());
        assert_eq!(to(None, Some("other")).as_deref(), Ok("other"));
    }
}
