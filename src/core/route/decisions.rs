//! Decides a row's topic and destination, and caches the decisions.
//!
//! Equal values give equal decisions; the cache is bounded (G3). In steady state a row costs one
//! look-up.

use std::collections::HashMap;

use super::java_regex::{Matcher, Undecided};
use super::rejection::{Rejection, RejectionCode};
use super::source::SourceColumn;
use super::template::TopicTemplate;
use super::topics::TopicsSpec;
use crate::outbox::{OutboxRow, glob};

/// Bounds memory if a consulted column is unique per row (G3).
const REMEMBERED_MAX: usize = 1024;

const REMEMBERED_BYTES_MAX: usize = 512;

/// Length of NULL and of a missing column.
const NO_VALUE: u32 = u32::MAX;

const BY: usize = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Drop,
    Send { topic: TopicId, destination: usize },
}

/// Valid until the next decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TopicId(usize);

#[derive(Debug, Clone)]
pub(super) struct Rule {
    /// Index in `Decisions::consulted`.
    pub(super) consulted: usize,
    pub(super) pattern: RulePattern,
    /// `None` drops the row.
    pub(super) send: Option<RuleTopic>,
}

#[derive(Debug, Clone)]
pub(super) enum RulePattern {
    Glob(String),
    Regex(Box<Matcher>),
}

#[derive(Debug, Clone)]
pub(super) struct RuleTopic {
    /// `None`: the default's.
    pub(super) template: Option<TopicTemplate>,
    pub(super) destination: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Decisions {
    rules: Vec<Rule>,
    topics: TopicsSpec,
    template: TopicTemplate,
    destination: usize,
    /// The first is the default's.
    consulted: Vec<SourceColumn>,
    /// Small and cleared when full, so hash collisions do no harm.
    remembered: HashMap<Box<[u8]>, Decision, foldhash::fast::RandomState>,
    /// Index 0 is the last name that was not cached.
    names: Vec<String>,
    key: Vec<u8>,
}

impl Decisions {
    pub(super) fn new(
        rules: Vec<Rule>,
        topics: TopicsSpec,
        consulted: Vec<SourceColumn>,
        template: TopicTemplate,
        destination: usize,
    ) -> Self {
        Self {
            rules,
            topics,
            template,
            destination,
            consulted,
            remembered: HashMap::default(),
            names: vec![String::new()],
            key: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn decide(
        &mut self,
        row: &OutboxRow<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Decision, Rejection> {
        if let [only] = self.consulted.as_slice() {
            // The value itself is the key.
            let part = only.render(row, scratch)?;
            if let Some(value) = part.bytes(row.column(only.slot), scratch) {
                if let Some(&decision) = self.remembered.get(value) {
                    return Ok(decision);
                }
                let value = value.to_vec();
                return self.make(&[Some(&value)], &value);
            }
            return self.make(&[None], &[]);
        }
        let mut key = std::mem::take(&mut self.key);
        let decision = self.decide_by_several(row, scratch, &mut key);
        self.key = key;
        decision
    }

    fn decide_by_several(
        &mut self,
        row: &OutboxRow<'_>,
        scratch: &mut Vec<u8>,
        key: &mut Vec<u8>,
    ) -> Result<Decision, Rejection> {
        key.clear();
        for source in &self.consulted {
            let part = source.render(row, scratch)?;
            match part.bytes(row.column(source.slot), scratch) {
                None => key.extend(NO_VALUE.to_be_bytes()),
                Some(value) => {
                    key.extend(length_of(value).to_be_bytes());
                    key.extend(value);
                }
            }
        }
        if let Some(&decision) = self.remembered.get(key.as_slice()) {
            return Ok(decision);
        }
        let mut rest = key.as_slice();
        let mut values = Vec::with_capacity(self.consulted.len());
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length);
            let bytes = if length == NO_VALUE { 0 } else { length as usize };
            let (value, after) = after.split_at(bytes);
            values.push((length != NO_VALUE).then_some(value));
            rest = after;
        }
        assert_eq!(values.len(), self.consulted.len(), "a value for each column that is looked at");
        self.make(&values, key)
    }

    pub(super) fn name(&self, topic: TopicId) -> &str {
        let Some(name) = self.names.get(topic.0) else {
            unreachable!("topic {} of {}: the row was decided on last", topic.0, self.names.len());
        };
        name
    }

    /// The intended topic, legal or not, and the destination.
    pub(super) fn intended(&self, row: &OutboxRow<'_>) -> (Option<String>, usize) {
        let nowhere = (None, self.destination);
        let Some(values) = self.values(row) else { return nowhere };
        let values: Vec<Option<&[u8]>> = values.iter().map(Option::as_deref).collect();
        let Ok(Choice::Send { template, value, destination }) = self.choose(&values) else {
            return nowhere;
        };
        let name = value_at(&values, value).and_then(|value| {
            let mut name = String::new();
            template.expand(str::from_utf8(value).ok()?, &mut name).ok()?;
            Some(name)
        });
        (name, destination)
    }

    /// In a cut logical message, missing members may come later.
    pub(super) fn sees_all_of(&self, row: &OutboxRow<'_>) -> bool {
        let is_cut = |source: &SourceColumn| row.cut(source.slot).is_some();
        row.excerpt().is_none() || !(row.is_message() || self.consulted.iter().any(is_cut))
    }

    /// `None` if a value is unreadable or cut.
    fn values(&self, row: &OutboxRow<'_>) -> Option<Vec<Option<Vec<u8>>>> {
        if self.consulted.iter().any(|source| row.cut(source.slot).is_some()) {
            return None;
        }
        let mut scratch = Vec::new();
        let mut value = |source: &SourceColumn| {
            let part = source.render(row, &mut scratch).ok()?;
            Some(part.bytes(row.column(source.slot), &scratch).map(<[u8]>::to_vec))
        };
        self.consulted.iter().map(&mut value).collect()
    }

    fn make(&mut self, values: &[Option<&[u8]>], key: &[u8]) -> Result<Decision, Rejection> {
        let choice = self.choose(values).map_err(|undecided| Rejection {
            code: RejectionCode::NoRoute,
            reason: format!("a rule cannot be applied: {undecided}"),
        });
        let (name, destination) = match choice? {
            Choice::Drop => (None, 0),
            Choice::Send { template, value, destination } => {
                let (column, value) = (self.column(value), value_at(values, value));
                (Some(topic_name(template, value, column, &self.topics)?), destination)
            }
        };
        let is_remembered = key.len() <= REMEMBERED_BYTES_MAX && values.iter().any(Option::is_some);
        if is_remembered && self.remembered.len() >= REMEMBERED_MAX {
            self.remembered.clear();
            self.names.truncate(1);
        }
        let decision = match name {
            None => Decision::Drop,
            Some(name) if is_remembered => {
                self.names.push(name);
                Decision::Send { topic: TopicId(self.names.len() - 1), destination }
            }
            Some(name) => {
                let Some(unremembered) = self.names.first_mut() else {
                    unreachable!("number 0 is there from the beginning");
                };
                *unremembered = name;
                Decision::Send { topic: TopicId(0), destination }
            }
        };
        if is_remembered {
            self.remembered.insert(key.into(), decision);
        }
        Ok(decision)
    }

    fn column(&self, number: usize) -> &str {
        let Some(source) = self.consulted.get(number) else {
            unreachable!("column {number} of {}", self.consulted.len());
        };
        &source.column
    }

    fn choose(&self, values: &[Option<&[u8]>]) -> Result<Choice<'_>, Undecided> {
        let default =
            Choice::Send { template: &self.template, value: BY, destination: self.destination };
        let mut first = None;
        for rule in &self.rules {
            if let Some(value) = value_at(values, rule.consulted)
                && rule.pattern.matches(value)?
            {
                first = Some(rule);
                break;
            }
        }
        let Some(rule) = first else { return Ok(default) };
        Ok(match &rule.send {
            None => Choice::Drop,
            Some(RuleTopic { template: Some(template), destination }) => {
                Choice::Send { template, value: rule.consulted, destination: *destination }
            }
            Some(RuleTopic { template: None, destination }) => {
                Choice::Send { template: &self.template, value: BY, destination: *destination }
            }
        })
    }
}

enum Choice<'a> {
    Drop,
    Send { template: &'a TopicTemplate, value: usize, destination: usize },
}

/// A wrong index would send rows another way, so it is a bug.
fn value_at<'a>(values: &[Option<&'a [u8]>], number: usize) -> Option<&'a [u8]> {
    let Some(value) = values.get(number) else {
        unreachable!("the value of column {number} of {}", values.len());
    };
    *value
}

fn length_of(value: &[u8]) -> u32 {
    match u32::try_from(value.len()) {
        Ok(length) if length < NO_VALUE => length,
        _ => unreachable!("a value of {} bytes", value.len()),
    }
}

impl RulePattern {
    fn matches(&self, value: &[u8]) -> Result<bool, Undecided> {
        match self {
            Self::Glob(glob) => Ok(glob::matches(glob.as_bytes(), value)),
            Self::Regex(regex) => str::from_utf8(value).map_or(Ok(false), |v| regex.matches(v)),
        }
    }
}

fn topic_name(
    template: &TopicTemplate,
    value: Option<&[u8]>,
    column: &str,
    topics: &TopicsSpec,
) -> Result<String, Rejection> {
    let reject = |code, reason: String| Rejection { code, reason };
    let no_route =
        |fault: &str| reject(RejectionCode::NoRoute, format!("column `{column}` {fault}"));
    let value = value.ok_or_else(|| no_route("is NULL"))?;
    let value = str::from_utf8(value).map_err(|_| no_route("is not UTF-8 text"))?;
    let mut name = String::new();
    template.expand(value, &mut name).map_err(|undecided| no_route(&undecided.to_string()))?;
    if name.is_empty() {
        return Err(no_route("yields an empty topic name"));
    }
    topics.check(&name).map_err(|reason| {
        reject(RejectionCode::InvalidTopic, format!("{reason}; it comes from column `{column}`"))
    })?;
    Ok(name)
}

#[cfg(test)]
mod tests;
