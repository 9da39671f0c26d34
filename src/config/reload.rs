//! Which options a running relay applies from a configuration that was read again.
//!
//! Invariant: [`taken_over`] checks options of both configurations together, so that no route goes
//! to one of the relay's own topics in effect.

use super::checks;
use super::model::Config;
use postrider_core::route::{PatternSpec, RuleAction, WHOLE_VALUE};
use postrider_service::units::InvalidValue;

const SECTIONS: [&str; 3] = ["outbox.", "route.", "format."];
/// Exceptions: the state of topics and of refused rows is kept for the life of the process.
const KEPT: [&str; 5] = [
    "route.rejected",
    "route.missing_topic",
    "route.missing_topic_deadline",
    "route.create_topics",
    "route.create_topics_max",
];
/// Applied if neither a flag nor a variable takes precedence.
pub const LEVEL: &str = "log.level";

pub fn is_taken_over(key: &str) -> bool {
    let is_ours = SECTIONS.iter().any(|section| key.starts_with(section));
    key == LEVEL || (is_ours && !KEPT.contains(&key))
}

pub fn taken_over(current: &Config, next: &Config) -> Result<Config, InvalidValue> {
    let mut config = current.clone();
    config.outbox = next.outbox.clone();
    config.format = next.format.clone();
    let (rejected, missing_topic) = (current.route.rejected, current.route.missing_topic.clone());
    config.route = next.route.clone();
    (config.route.rejected, config.route.missing_topic) = (rejected, missing_topic);
    config.log.level = next.log.level;
    checks::dead_letters(&config.dead_letters.topic, Some(&config.route))?;
    let spec = config.topics_spec();
    checks::reachable(&spec, &config.route.regex, &config.route.topic)?;
    for rule in &config.route.rules {
        let RuleAction::Send(destination) = &rule.action else { continue };
        let regex = match &rule.pattern {
            PatternSpec::Glob(_) => WHOLE_VALUE,
            PatternSpec::Regex(regex) => regex,
        };
        if let Some(topic) = &destination.topic {
            checks::reachable(&spec, regex, topic)?;
        }
        if destination.key.is_some() && config.polls_with_several_workers() {
            let reason = "several workers keep the order of the column of `route.key`, and a rule names another one";
            return Err(InvalidValue::new(reason).help(
                "leave the key of that rule out, or set source.poll.workers = \"1\" and restart",
            ));
        }
    }
    Ok(config)
}

impl Config {
    fn polls_with_several_workers(&self) -> bool {
        self.source.mode == super::SourceMode::Poll && self.source.poll.workers > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileChoice, Inputs, OPTIONS, load};

    fn config(set: &[&str]) -> Config {
        let set = set.iter().map(|text| (*text).to_owned()).collect();
        let variables = vec![("PGUSER".to_owned(), "app".to_owned())];
        let inputs = Inputs { file: FileChoice::Absent, set, variables, ..Inputs::default() };
        load(&inputs, &|_| Vec::new()).unwrap().config
    }

    #[test]
    fn routes_are_taken_over_and_servers_are_not() {
        let current = config(&["source.slot=a", "route.topic=one"]);
        let next = config(&[
            "source.slot=b",
            "route.topic=two",
            "route.headers=event_type",
            "route.rules.0.glob=x*",
            "route.rules.0.drop=true",
            "route.missing_topic=wait",
            "outbox.id=event_id",
            "format.value=json",
            "log.level=debug",
            "kafka.linger=5ms",
        ]);
        let taken = taken_over(&current, &next).unwrap();
        assert_eq!((taken.source.slot.as_str(), taken.route.topic.as_str()), ("a", "two"));
        assert_eq!((taken.route.headers.len(), taken.route.rules.len()), (1, 1));
        assert_eq!(taken.route.missing_topic, current.route.missing_topic);
        assert_eq!((taken.outbox.id.as_str(), taken.log.level), ("event_id", next.log.level));
        assert_eq!((taken.format, taken.kafka), (next.format, current.kafka));
        for (key, is_taken) in [
            ("route.topic", true),
            ("route.rules.0.glob", true),
            ("outbox.payload", true),
            ("format.value", true),
            ("log.level", true),
            ("log.format", false),
            ("route.missing_topic", false),
            ("source.slot", false),
            ("kafka.properties.route.x", false),
        ] {
            assert_eq!(is_taken_over(key), is_taken, "{key}");
        }
        assert!(KEPT.iter().all(|kept| OPTIONS.iter().any(|option| option.key == *kept)));
    }

    #[test]
    fn new_routes_and_old_topics_of_the_relays_own_must_go_together() {
        let current = config(&["dead_letters.topic=bad"]);
        for route in ["route.topic=bad", "route.topic=postrider.progress.x"] {
            // This route is valid with its own dead-letter topic, after a restart.
            let mut next = config(&[]);
            next.route.topic = route.trim_start_matches("route.topic=").to_owned();
            assert!(taken_over(&current, &next).is_err(), "{route}");
        }
        let polls = config(&["source.mode=poll", "source.poll.workers=2"]);
        let next = config(&["route.rules.0.glob=A*", "route.rules.0.key=tenant"]);
        assert!(taken_over(&polls, &next).unwrap_err().reason.contains("workers"));
        assert!(taken_over(&current, &next).is_ok());
    }
}
