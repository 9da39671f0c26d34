//! Reads and validates the routing rules, `[[route.rules]]`. A rule has one pattern, and either
//! drops its rows or changes how they are sent.

use std::collections::{BTreeMap, BTreeSet};

use super::checks;
use super::layer::Setting;
use super::model::OutboxSection;
use super::options::OptionSpec;
use super::reader::SettingsReader;
use super::rule_options::{RULE_OPTIONS, RULES};
use postrider_core::outbox::glob;
use postrider_core::route::{
    DestinationSpec, FieldSpec, PatternSpec, RuleAction, RuleSpec, WHOLE_VALUE,
};
use postrider_service::units::InvalidValue;

fn numbers(settings: &BTreeMap<String, Setting>) -> BTreeSet<u16> {
    let number = |key: &String| {
        let rest = key.strip_prefix(RULES)?.strip_prefix('.')?;
        rest.split('.').next()?.parse().ok()
    };
    settings.keys().filter_map(number).collect()
}

/// Topics that rules name, each with its key and the expression whose groups it may name.
pub(super) fn topics<'a>(
    settings: &BTreeMap<String, Setting>,
    rules: &'a [RuleSpec],
) -> Vec<(String, &'a str, &'a String)> {
    let named = numbers(settings).into_iter().zip(rules).filter_map(|(number, rule)| {
        let RuleAction::Send(destination) = &rule.action else { return None };
        let regex = match &rule.pattern {
            PatternSpec::Glob(_) => WHOLE_VALUE,
            PatternSpec::Regex(regex) => regex,
        };
        Some((format!("{RULES}.{number}.topic"), regex, destination.topic.as_ref()?))
    });
    named.collect()
}

/// Whether the earlier rule certainly matches each row that the later one matches.
fn covers(earlier: &RuleSpec, later: &RuleSpec) -> bool {
    let is_all = match &earlier.pattern {
        PatternSpec::Glob(glob) => glob.chars().all(|char| char == '*'),
        PatternSpec::Regex(regex) => [".*", "(.*)", WHOLE_VALUE].contains(&regex.as_str()),
    };
    let is_inside = match (&earlier.pattern, &later.pattern) {
        (PatternSpec::Glob(glob), PatternSpec::Glob(name)) if !name.contains(['*', '?']) => {
            glob::matches(glob.as_bytes(), name.as_bytes())
        }
        (one, other) => one == other,
    };
    earlier.column == later.column && (is_all || is_inside)
}

impl SettingsReader<'_> {
    /// `by` is the column of a rule that names none.
    pub(super) fn rules(&mut self, by: &str, outbox: &OutboxSection) -> Option<Vec<RuleSpec>> {
        let numbers = numbers(self.settings);
        let rules: Vec<(u16, Option<RuleSpec>)> = numbers
            .into_iter()
            .map(|number| (number, RuleReader { number, reader: self }.read(by, outbox)))
            .collect();
        for (place, (number, rule)) in rules.iter().enumerate() {
            let covering = rules.iter().take(place).find(|(_, earlier)| match (earlier, rule) {
                (Some(earlier), Some(rule)) => covers(earlier, rule),
                _ => false,
            });
            if let Some((earlier, _)) = covering {
                let reason =
                    format!("no row reaches this rule: {RULES}.{earlier} matches all of its rows");
                let help =
                    "the first rule that matches decides: move this rule before it, or remove it";
                let mut reader = RuleReader { number: *number, reader: self };
                let name = if reader.is_given("glob") { "glob" } else { "regex" };
                reader.refuse::<()>(name, &reason, help);
            }
        }
        rules.into_iter().map(|(_, rule)| rule).collect()
    }
}

struct RuleReader<'r, 's> {
    number: u16,
    reader: &'r mut SettingsReader<'s>,
}

impl RuleReader<'_, '_> {
    fn read(&mut self, by: &str, outbox: &OutboxSection) -> Option<RuleSpec> {
        let column = self.column("column")?.unwrap_or_else(|| by.to_owned());
        let (pattern, regex) = self.pattern()?;
        let topic = self.given("topic", |text| Ok(text.to_owned()))?;
        let key = self.column("key")?;
        let headers = self.headers()?;
        let partition = self.column("partition")?;
        let resolve = |column: &str| outbox.resolve(column).to_owned();
        let destination = DestinationSpec {
            key: key.as_deref().map(resolve),
            headers: headers.map(|fields| outbox.resolve_all(&fields)),
            partition: partition.as_deref().map(resolve),
            topic,
        };
        let drops = self.is_given("drop") && self.reader.switch(&self.key("drop"))?;
        if drops && destination != DestinationSpec::default() {
            let help = "remove drop, or topic, key, headers and partition";
            return self.refuse("drop", "a rule that drops its rows sends them nowhere", help);
        }
        if !drops && destination == DestinationSpec::default() {
            let help = "give it a topic, key, headers or partition, or drop = true";
            return self.refuse("glob", "the rule does nothing", help);
        }
        if let Some(topic) = &destination.topic {
            self.check_template(&regex, topic)?;
        }
        let action = if drops { RuleAction::Drop } else { RuleAction::Send(destination) };
        Some(RuleSpec { column: resolve(&column), pattern, action })
    }

    /// Pattern, and the expression whose groups the topic may name.
    fn pattern(&mut self) -> Option<(PatternSpec, String)> {
        let glob = self.given("glob", checks::glob)?;
        let regex = self.given("regex", |text| Ok(text.to_owned()))?;
        match (glob, regex) {
            (Some(glob), None) => Some((PatternSpec::Glob(glob), WHOLE_VALUE.to_owned())),
            (None, Some(regex)) => {
                self.check_template(&regex, "x")?;
                Some((PatternSpec::Regex(regex.clone()), regex))
            }
            (None, None) => {
                let help = "write glob = \"Order*\", or regex = \"Order(.*)\"";
                self.refuse("glob", "the rule has no pattern", help)
            }
            (Some(_), Some(_)) => {
                let help = "remove one of the two; a second pattern is a rule of its own";
                self.refuse("regex", "the rule has a glob already", help)
            }
        }
    }

    #[expect(clippy::option_option, reason = "as for `given`")]
    fn headers(&mut self) -> Option<Option<Vec<FieldSpec>>> {
        if !self.is_given("headers") {
            return Some(None);
        }
        self.reader.items(&self.key("headers"), checks::field).map(Some)
    }

    fn check_template(&mut self, regex: &str, topic: &str) -> Option<()> {
        match checks::template(regex, topic) {
            Ok(()) => Some(()),
            Err((setting, refusal)) => {
                let name = setting.rsplit('.').next().unwrap_or(setting);
                self.reader.refuse(&self.key(name), refusal)
            }
        }
    }

    #[expect(clippy::option_option, reason = "as for `given`")]
    fn column(&mut self, name: &str) -> Option<Option<String>> {
        self.given(name, checks::identifier)
    }

    /// The outer option means "no mistake", the inner one "given and not empty".
    #[expect(clippy::option_option, reason = "two questions, two answers")]
    fn given<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, InvalidValue>,
    ) -> Option<Option<T>> {
        if !self.is_given(name) {
            return Some(None);
        }
        let key = self.key(name);
        self.reader.text(&key, |text| match text {
            "" => Ok(None),
            text => parse(text).map(Some),
        })
    }

    fn is_given(&self, name: &str) -> bool {
        self.reader.settings.contains_key(&self.key(name))
    }

    fn key(&self, name: &str) -> String {
        format!("{RULES}.{}.{name}", self.number)
    }

    fn refuse<T>(&mut self, name: &str, reason: &str, help: &str) -> Option<T> {
        let refusal = InvalidValue::new(reason).help(help);
        // A missing option has no place, so another option of the rule is shown.
        let mut given =
            RULE_OPTIONS.iter().map(OptionSpec::name).filter(|name| self.is_given(name));
        let shown = if self.is_given(name) { name } else { given.next().unwrap_or(name) };
        self.reader.refuse(&self.key(shown), refusal)
    }
}
