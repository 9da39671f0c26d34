//! What a retry would do: which dead letters go where, and which cannot.
//!
//! Enters: a survey, `--to`, the limit. Leaves: a [`Plan`], and its text and JSON. Pure. Called by
//! `retry`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::letter::{Hindrance, Place, destination};
use super::survey::Letter;
use crate::route::{RejectionCode, TopicsSpec};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// By place.
    pub(super) errands: Vec<Errand>,
    /// By place.
    pub(super) hindered: Vec<(Place, Hindrance)>,
    /// Dead letters that are meant and have their receipt already.
    pub(super) retried: usize,
    /// Errands whose key and value are the columns' own bytes where others have another format:
    /// the relay rejected the row before it came to that.
    pub(super) unformatted: usize,
}

/// One dead letter to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Errand {
    pub(super) place: Place,
    pub(super) topic: String,
}

/// How the choice is narrowed down.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms<'a> {
    /// In place of the topics they were meant for.
    pub(super) to: Option<&'a str>,
    pub(super) dead_letter_topic: &'a str,
    /// Where rows may go.
    pub(super) topics: &'a TopicsSpec,
    /// Send no more than this.
    pub(super) most: usize,
    /// Also what was retried already.
    pub(super) again: bool,
    /// `[format]` makes more of a row than its columns' bytes.
    pub(super) formatted: bool,
}

impl Plan {
    /// Sorts them out, in their order. Those that cannot be sent do not count against the limit.
    pub(super) fn of(letters: &[Letter], terms: Terms<'_>) -> Self {
        let mut plan = Self::default();
        for letter in letters {
            if letter.is_retried && !terms.again {
                plan.retried += 1;
                continue;
            }
            if plan.errands.len() >= terms.most {
                continue;
            }
            let place = letter.place;
            let Terms { to, dead_letter_topic, topics, .. } = terms;
            let to = destination(letter.topic.as_deref(), to, dead_letter_topic, topics);
            match to {
                _ if letter.is_cut => plan.hindered.push((place, Hindrance::Cut)),
                _ if letter.code == RejectionCode::UntranslatableCharacter.as_str() => {
                    plan.hindered.push((place, Hindrance::Untranslatable));
                }
                Ok(topic) => {
                    // What only the brokers refused names no table, and had its format by then.
                    plan.unformatted += usize::from(terms.formatted && letter.table.is_some());
                    plan.errands.push(Errand { place, topic: topic.to_owned() });
                }
                Err(hindrance) => plan.hindered.push((place, hindrance)),
            }
        }
        plan
    }

    /// How many go to which topic.
    pub(super) fn topics(&self) -> BTreeMap<&str, usize> {
        let mut topics = BTreeMap::new();
        for errand in &self.errands {
            *topics.entry(errand.topic.as_str()).or_default() += 1;
        }
        topics
    }

    /// For people.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!("to send again: {}\n", self.errands.len());
        // Writing to a string cannot fail.
        for (topic, count) in self.topics() {
            let _ = writeln!(text, "  {count:>8}  to {topic}");
        }
        if self.unformatted > 0 {
            let _ = writeln!(
                text,
                "careful: {} of them were rejected before [format] was applied: their keys and \
                 values go as they stand in the table",
                self.unformatted
            );
        }
        if self.retried > 0 {
            let _ = writeln!(text, "retried already, left alone: {}", self.retried);
        }
        if !self.hindered.is_empty() {
            let _ = writeln!(text, "cannot be sent: {}", self.hindered.len());
        }
        for (place, hindrance) in &self.hindered {
            let _ = writeln!(text, "  {:>8}  {hindrance}", place.to_string());
        }
        text
    }

    /// For scripts; `sent` is what became of it, if it was executed.
    pub(super) fn to_json(&self, sent: Option<u64>) -> Value {
        let topics = self.topics().into_iter();
        let hindered = self.hindered.iter().map(|(place, hindrance)| {
            json!({
                "partition": place.partition,
                "offset": place.offset,
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

    fn letter(offset: i64, topic: Option<&str>) -> Letter {
        Letter {
            place: Place { partition: 0, offset },
            timestamp_ms: None,
            code: "refused".into(),
            reason: "why".into(),
            table: None,
            lsn: None,
            topic: topic.map(str::to_owned),
            id: None,
            key: None,
            value_bytes: Some(3),
            is_cut: false,
            is_retried: false,
        }
    }

    fn letters() -> Vec<Letter> {
        let mut letters: Vec<Letter> =
            (0..6).map(|offset| letter(offset, Some("orders"))).collect();
        letters[0].is_cut = true;
        letters[1].topic = None;
        letters[2].is_retried = true;
        letters[4].topic = Some("bad/topic".into());
        letters
    }

    const TERMS: Terms<'static> = Terms {
        to: None,
        dead_letter_topic: "dead",
        topics: &TopicsSpec { own: Vec::new(), allowed: Vec::new() },
        most: usize::MAX,
        again: false,
        formatted: false,
    };

    fn offsets(plan: &Plan) -> Vec<i64> {
        plan.errands.iter().map(|errand| errand.place.offset).collect()
    }

    #[test]
    fn what_cannot_be_sent_is_told_and_the_rest_goes_where_it_was_meant() {
        let plan = Plan::of(&letters(), TERMS);
        assert_eq!((offsets(&plan), plan.retried), (vec![3, 5], 1));
        let hindered: Vec<i64> = plan.hindered.iter().map(|(place, _)| place.offset).collect();
        assert_eq!(hindered, [0, 1, 4]);
        let text = plan.to_text();
        assert!(text.starts_with("to send again: 2\n         2  to orders\n"), "{text}");
        assert!(text.contains("cannot be sent: 3\n       0:0  its body"), "{text}");
        assert!(text.contains("use --to TOPIC"), "{text}");
    }

    #[test]
    fn another_topic_takes_all_but_what_was_cut() {
        let plan = Plan::of(&letters(), Terms { to: Some("repaired"), ..TERMS });
        assert_eq!(offsets(&plan), [1, 3, 4, 5]);
        assert!(plan.errands.iter().all(|errand| errand.topic == "repaired"));
        assert_eq!(plan.hindered.len(), 1);
    }

    #[test]
    fn text_as_the_database_stores_it_goes_nowhere() {
        let code = RejectionCode::UntranslatableCharacter.as_str().to_owned();
        let letters = [Letter { code, ..letter(0, Some("orders")) }, letter(1, Some("orders"))];
        for to in [None, Some("repaired")] {
            let plan = Plan::of(&letters, Terms { to, ..TERMS });
            assert_eq!(offsets(&plan), [1]);
            assert!(plan.to_text().contains("insert the row again"), "{}", plan.to_text());
        }
    }

    #[test]
    fn the_limit_counts_what_is_sent() {
        let plan = Plan::of(&letters(), Terms { most: 1, ..TERMS });
        assert_eq!((offsets(&plan), plan.hindered.len()), (vec![3], 2));
        let plan = Plan::of(&letters(), Terms { most: 2, again: true, ..TERMS });
        assert_eq!((offsets(&plan), plan.retried), (vec![2, 3], 0));
    }

    #[test]
    fn what_has_not_got_its_format_is_told() {
        let mut letters = letters();
        letters[3].table = Some("public.outbox".into());
        assert_eq!(Plan::of(&letters, TERMS).unformatted, 0);
        let plan = Plan::of(&letters, Terms { formatted: true, ..TERMS });
        assert_eq!((plan.unformatted, plan.errands.len()), (1, 2));
        assert!(plan.to_text().contains("careful: 1 of them"), "{}", plan.to_text());
        assert_eq!(plan.to_json(None)["unformatted"], 1);
    }

    #[test]
    fn scripts_are_told_the_same() {
        let plan = Plan::of(&letters(), TERMS);
        let json = plan.to_json(None);
        assert_eq!((&json["executed"], &json["sent"]), (&json!(false), &json!(0)));
        assert_eq!(json["to_send"], json!([{ "topic": "orders", "records": 2 }]));
        assert_eq!(json["cannot"][1]["offset"], 1);
        assert_eq!(json["retried_already"], 1);
        assert_eq!(plan.to_json(Some(2))["sent"], 2);
    }
}
