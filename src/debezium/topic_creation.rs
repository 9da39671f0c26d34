//! Translates `topic.creation.*` to `route.missing_topic = "create"` and `route.create_topics`.
//!
//! Entries keep Connect's order, with the default group last. A group without equivalent globs is
//! reported, and its topics get the default group's settings.

use super::connector::glob;
use super::draft::{Draft, Taken, list, text};

const PREFIX: &str = "topic.creation.";
const DEFAULT: &str = "default";
const CREATE_TOPICS: &str = "route.create_topics";
const HELP: &str = "the relay's Kafka user needs the right to create topics, and route.create_topics_max bounds how \
                    many; `postrider setup --topics` creates them before";

pub(super) fn map(draft: &mut Draft) {
    let is_off =
        draft.peek("topic.creation.enable").is_some_and(|it| it.eq_ignore_ascii_case("false"));
    let groups = draft.take("topic.creation.groups");
    let listed = groups.as_ref().map_or("", Taken::text).split(',').map(str::trim);
    let names: Vec<String> = listed.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let all: Vec<Taken> = draft.take_all(PREFIX).into_iter().map(Taken::known).collect();
    if all.is_empty() && groups.is_none() {
        return;
    }
    let has_default = all.iter().any(|taken| of_group(taken, DEFAULT).is_some());
    if is_off || !has_default {
        let note = if is_off {
            "the worker creates no topics"
        } else {
            "without a default group the worker creates no topics"
        };
        for taken in groups.into_iter().chain(all) {
            draft.not_needed(taken, note);
        }
        return;
    }
    let default = Group::read(&all, DEFAULT);
    let mut entries = Vec::new();
    let mut untold = Vec::new();
    for name in &names {
        let group = Group::read(&all, name);
        match group.globs() {
            Some(globs) => {
                entries.extend(globs.iter().map(|glob| group.over(&default).entry(glob)));
            }
            None => untold.push(name.clone()),
        }
    }
    entries.push(default.entry("*"));
    let made_of: Vec<&Taken> = groups.iter().chain(&all).collect();
    draft.set_from("route.missing_topic", text("create"), "", &made_of);
    draft.set_from(CREATE_TOPICS, list(entries.iter().map(String::as_str)), "", &made_of);
    for taken in groups.into_iter().chain(all) {
        if untold.iter().any(|name| of_group(&taken, name).is_some()) {
            let note = "has patterns that route.create_topics cannot say: its topics are created as the default group's";
            draft.changed(
                taken,
                note,
                Some("add an entry to route.create_topics, before that of `*`"),
            );
        } else if taken.name().ends_with("default.partitions") {
            draft.mapped_with(taken, "route.missing_topic, route.create_topics", HELP);
        } else {
            draft.mapped(taken, CREATE_TOPICS);
        }
    }
}

fn of_group<'a>(taken: &'a Taken, group: &str) -> Option<&'a str> {
    let (_, rest) = taken.name().split_once(PREFIX)?;
    rest.strip_prefix(group)?.strip_prefix('.')
}

#[derive(Clone, Default)]
struct Group {
    include: Vec<String>,
    has_exclude: bool,
    settings: Vec<(String, String)>,
}

impl Group {
    fn read(all: &[Taken], name: &str) -> Self {
        let mut group = Self::default();
        for taken in all {
            let value = taken.text().to_owned();
            match of_group(taken, name) {
                None => {}
                Some("include") => {
                    group.include = value.split(',').map(|it| it.trim().to_owned()).collect();
                }
                Some("exclude") => group.has_exclude = !value.is_empty(),
                Some(_) if value.is_empty() => {}
                // Selects the brokers' default.
                Some("partitions" | "replication.factor") if value == "-1" => {}
                Some("replication.factor") => {
                    group.settings.push(("replication".to_owned(), value));
                }
                Some(setting) => group.settings.push((setting.to_owned(), value)),
            }
        }
        group
    }

    /// `None` if a pattern has no equivalent glob.
    fn globs(&self) -> Option<Vec<String>> {
        let globs =
            self.include.iter().map(|pattern| glob(pattern)).collect::<Option<Vec<String>>>();
        globs.filter(|globs| !globs.is_empty() && !self.has_exclude)
    }

    fn over(&self, default: &Self) -> Self {
        let mut group = self.clone();
        for (name, value) in &default.settings {
            if !group.settings.iter().any(|(known, _)| known == name) {
                group.settings.push((name.clone(), value.clone()));
            }
        }
        group
    }

    fn entry(&self, glob: &str) -> String {
        // A setting is one word in `route.create_topics`.
        let word = |value: &str| value.split_whitespace().collect::<String>();
        let settings = self.settings.iter().map(|(name, value)| format!(" {name}={}", word(value)));
        format!("{glob}:{}", settings.collect::<String>())
    }
}
