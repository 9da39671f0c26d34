//! Decides a row's topic and destination by the routing rules, and caches the decisions.
//!
//! Input: compiled rules (`Rule`), and the columns that rules and templates use. Output: a `Decision`: drop
//! the row, or send it to a topic; or a rejection. For dead letters also the topic that a row was meant
//! for. Invariant: the same values always give the same decision; the cache is bounded (G3). In steady
//! state a row costs one look-up by its values: no expression is evaluated, no name is built.

use std::collections::HashMap;

use super::java_regex::{Matcher, Undecided};
use super::rejection::{Rejection, RejectionCode};
use super::source::SourceColumn;
use super::template::TopicTemplate;
use super::topics::TopicsSpec;
use crate::outbox::{OutboxRow, glob};

/// How many decisions are remembered. Far more than a sensible set of topics; bounds the memory
/// where a column that is looked at has a value of its own in every row (G3).
const REMEMBERED_MAX: usize = 1024;

/// Longer values are not remembered; bounds a remembered decision's size.
const REMEMBERED_BYTES_MAX: usize = 512;

/// What stands for NULL, and for a missing column, in the place of a length.
const NO_VALUE: u32 = u32::MAX;

/// Where the column stands that the default routes by.
const BY: usize = 0;

/// What becomes of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is left out, as a rule says.
    Drop,
    /// It goes to this topic, as this destination says.
    Send { topic: TopicId, destination: usize },
}

/// A topic's name; good until the next row is decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TopicId(usize);

/// A rule, compiled.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    /// Which of the consulted columns it looks at.
    pub(super) consulted: usize,
    pub(super) pattern: RulePattern,
    /// `None` drops.
    pub(super) send: Option<RuleTopic>,
}

/// What a rule's column must be, as a whole.
#[derive(Debug, Clone)]
pub(super) enum RulePattern {
    Glob(String),
    Regex(Box<Matcher>),
}

/// How a rule finds the topic.
#[derive(Debug, Clone)]
pub(super) struct RuleTopic {
    /// By a template of its own, over its column; without one, as by default.
    pub(super) template: Option<TopicTemplate>,
    pub(super) destination: usize,
}

/// Everything that decides.
#[derive(Debug, Clone)]
pub(super) struct Decisions {
    rules: Vec<Rule>,
    topics: TopicsSpec,
    template: TopicTemplate,
    /// The default's destination.
    destination: usize,
    /// The columns that are looked at, each once; the first is the one that the default routes by.
    consulted: Vec<SourceColumn>,
    /// Small and cleared when full, so a quick hash that rows could collide on does no harm.
    remembered: HashMap<Box<[u8]>, Decision, foldhash::fast::RandomState>,
    /// Number 0 is the one made last without being remembered.
    names: Vec<String>,
    key: Vec<u8>,
}

impl Decisions {
    /// Nothing decided yet. The default is `template` over the first column of `consulted`.
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

    /// Decides on a row.
    #[inline]
    pub(super) fn decide(
        &mut self,
        row: &OutboxRow<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Decision, Rejection> {
        if let [only] = self.consulted.as_slice() {
            // The value itself is the key; NULL is decided on each time.
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

    /// The topic's name.
    pub(super) fn name(&self, topic: TopicId) -> &str {
        let Some(name) = self.names.get(topic.0) else {
            unreachable!("topic {} of {}: the row was decided on last", topic.0, self.names.len());
        };
        name
    }

    /// The name of the topic that a row would have gone to, legal or not, where there is one; and the
    /// destination, the default's where no rule's is known.
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

    /// Whether no value that is looked at is cut. Of a logical message that is, what is missing may
    /// just as well have come later.
    pub(super) fn sees_all_of(&self, row: &OutboxRow<'_>) -> bool {
        let is_cut = |source: &SourceColumn| row.cut(source.slot).is_some();
        row.excerpt().is_none() || !(row.is_message() || self.consulted.iter().any(is_cut))
    }

    /// What is looked at; `None` where that cannot be read, or is cut.
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

    /// Decides anew, and remembers it under `key`.
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
            // Forgetting all is rare, cheap, and lets a changed set of values in.
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

    /// The name of a column that is looked at, for reasons.
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

/// What the rules come to; `value` is the consulted column that the template is applied to.
enum Choice<'a> {
    Drop,
    Send { template: &'a TopicTemplate, value: usize, destination: usize },
}

/// The value of a column that is looked at; `None` is NULL. A column that is not among them would
/// let its rule match nothing, and its rows go elsewhere.
fn value_at<'a>(values: &[Option<&'a [u8]>], number: usize) -> Option<&'a [u8]> {
    let Some(value) = values.get(number) else {
        unreachable!("the value of column {number} of {}", values.len());
    };
    *value
}

/// Not [`NO_VALUE`]: no value that Postgres sends comes near.
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
