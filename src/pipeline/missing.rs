//! What becomes of rows whose topic the brokers do not have, or deny us.
//!
//! Enters: what the brokers said of a topic, and the time, as a duration since any fixed moment.
//! Leaves: a [`Decision`] for the row in hand. Pure. What always holds:
//! * a decision is the same for every row of a topic until the brokers say something else, so that
//!   rows of one key go one way and keep their order (G2);
//! * no topic is given up before the brokers were asked about it after its first row was read;
//! * rows of other topics wait for one topic no longer than the policy says; where brokers may create
//!   topics by themselves, they wait for a few topics in vain, not once for each (G4);
//! * memory is bounded (G3).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::outbox::glob;
use crate::route::{Rejection, RejectionCode};

/// Topics remembered; beyond that the one that was asked for longest ago is forgotten.
const TOPICS_MAX: usize = 10_000;
/// How soon the brokers are asked again for a topic that rows want.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// The same while a row waits for the answer.
const ASK_AGAIN_WAITING: Duration = Duration::from_millis(100);
/// How long brokers that are known to create topics by themselves may take for it.
const CREATION: Duration = Duration::from_secs(2);
/// The same where it is not known whether they do.
const CREATION_MAYBE: Duration = Duration::from_millis(500);
/// So many topics in a row are waited for in vain, until one appears.
const VAIN_MAX: u32 = 2;
/// A topic that was there a moment ago may be away because a broker has just started.
const KNOWN: Duration = Duration::from_secs(5);
/// How long we may take to create one.
const OWN_CREATION: Duration = Duration::from_secs(10);
/// After a topic could not be created, this long passes until it is tried again.
const CREATE_AGAIN: Duration = Duration::from_mins(1);
/// Whether writing is still denied only a record can tell, which costs a session: first after this.
const TRIAL_FIRST: Duration = Duration::from_secs(30);
/// The same where rows wait for it.
const TRIAL_WAITING: Duration = Duration::from_secs(5);
/// The pauses double up to this.
const TRIAL_MAX: Duration = Duration::from_mins(30);

/// Why records cannot be sent to a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopicFault {
    /// The brokers know no such topic.
    Missing,
    /// We may not see it.
    Forbidden,
    /// We see it, and were denied to write to it.
    Denied,
}

impl TopicFault {
    /// As metrics and probes name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Forbidden | Self::Denied => "forbidden",
        }
    }

    const fn code(self) -> RejectionCode {
        match self {
            Self::Missing => RejectionCode::MissingTopic,
            Self::Forbidden | Self::Denied => RejectionCode::ForbiddenTopic,
        }
    }
}

/// `[route] missing_topic`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingTopic {
    /// Rows wait, and all behind them; for at most so long, if anything is said, then they are
    /// rejected.
    Wait(Option<Duration>),
    /// The topic is created; where that fails, rows are rejected.
    Create,
    /// Rows are rejected, after they have waited for so long.
    Reject(Duration),
}

/// How topics are created: the first rule that fits a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateRule {
    /// A glob.
    pub names: String,
    /// At least 1; `None` is the brokers' default.
    pub partitions: Option<i32>,
    /// At least 1; `None` is the brokers' default.
    pub replication: Option<i32>,
    /// Settings of the topic, such as `cleanup.policy`.
    pub settings: Vec<(String, String)>,
}

/// The operator's decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPolicy {
    /// What becomes of rows.
    pub then: MissingTopic,
    /// A name that fits none of them is not created.
    pub create: Vec<CreateRule>,
    /// Topics that are created at most.
    pub create_max: u64,
}

/// What to do with a row of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Ask the brokers, then [`MissingTopics::absent`] or [`MissingTopics::present`].
    Ask,
    /// Nothing now: the row waits.
    Wait,
    /// Have it created as this rule says, then [`MissingTopics::not_created`] if that fails. Said
    /// once; the row waits meanwhile.
    Create(CreateRule),
    /// It cannot be delivered.
    Reject(Rejection),
}

/// A topic as an observer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentTopic {
    /// Its name.
    pub topic: String,
    /// Why.
    pub fault: TopicFault,
    /// First found so.
    pub since: Duration,
    /// Whether rows wait for it now, rather than being rejected.
    pub waiting: bool,
}

#[derive(Debug, Clone)]
struct Absent {
    fault: TopicFault,
    since: Duration,
    asked: Duration,
    waiting: bool,
    /// It was there once.
    known: bool,
    /// That it is not to be had was told.
    told: bool,
    /// Our attempt to create it began then.
    creating: Option<Duration>,
    /// Why that failed, and when.
    not_created: Option<(Duration, String)>,
    /// The next trial, and the pause after it.
    trial: (Duration, Duration),
}

/// What is known of topics that are not to be had.
#[derive(Debug)]
pub struct MissingTopics {
    policy: MissingPolicy,
    absent: BTreeMap<String, Absent>,
    known: BTreeSet<String>,
    brokers_create: Option<bool>,
    vain: u32,
    created: u64,
}

impl MissingTopics {
    /// Knows nothing yet.
    pub const fn new(policy: MissingPolicy) -> Self {
        Self {
            policy,
            absent: BTreeMap::new(),
            known: BTreeSet::new(),
            brokers_create: None,
            vain: 0,
            created: 0,
        }
    }

    /// Whether the brokers create topics that are asked for, if that is known.
    pub const fn brokers_create(&mut self, created: Option<bool>) {
        self.brokers_create = created;
    }

    /// What to do with a row of this topic before anybody is asked. `quiet`: nothing is in flight, so
    /// that a trial that fails repeats nothing.
    pub fn decide(&mut self, topic: &str, now: Duration, quiet: bool) -> Decision {
        let Some(absent) = self.absent.get_mut(topic) else { return Decision::Ask };
        if absent.fault == TopicFault::Denied {
            let (due, pause) = match self.policy.then {
                // Nothing goes on anyway.
                MissingTopic::Wait(_) => (absent.asked + TRIAL_WAITING, TRIAL_WAITING),
                _ => absent.trial,
            };
            if now >= due && quiet {
                absent.trial = (now + pause, (pause * 2).min(TRIAL_MAX));
                return Decision::Ask;
            }
            return self.verdict(topic, now);
        }
        let again = if absent.waiting { ASK_AGAIN_WAITING } else { ASK_AGAIN };
        if now.saturating_sub(absent.asked) >= again {
            return Decision::Ask;
        }
        self.verdict(topic, now)
    }

    /// The brokers were asked, or refused a record, and this is why the topic is not to be had. Returns
    /// whether that is news, too.
    pub fn absent(&mut self, topic: &str, fault: TopicFault, now: Duration) -> (Decision, bool) {
        if !self.absent.contains_key(topic) && self.absent.len() >= TOPICS_MAX {
            let oldest = self.absent.iter().min_by_key(|(_, absent)| absent.asked);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.absent.remove(&oldest);
            }
        }
        let known = self.known.remove(topic);
        let absent = self.absent.entry(topic.to_owned()).or_insert_with(|| Absent {
            fault,
            since: now,
            asked: now,
            waiting: false,
            known,
            told: false,
            creating: None,
            not_created: None,
            trial: (now + TRIAL_FIRST, TRIAL_FIRST * 2),
        });
        absent.told &= absent.fault == fault;
        (absent.fault, absent.asked) = (fault, now);
        let decision = self.verdict(topic, now);
        // That brokers, or we, are about to create a topic is none.
        let lasts = match decision {
            Decision::Reject(_) => true,
            Decision::Wait => matches!(self.policy.then, MissingTopic::Wait(_)),
            Decision::Ask | Decision::Create(_) => false,
        };
        let told = self.absent.get_mut(topic).map(|absent| &mut absent.told);
        let news = lasts && told.is_some_and(|told| !std::mem::replace(told, true));
        (decision, news)
    }

    /// It is there. Returns for how long it was not, if it was not.
    pub fn present(&mut self, topic: &str, now: Duration) -> Option<Duration> {
        if self.known.len() < TOPICS_MAX && !self.known.contains(topic) {
            self.known.insert(topic.to_owned());
        }
        let absent = self.absent.remove(topic)?;
        self.vain = 0;
        Some(now.saturating_sub(absent.since))
    }

    /// The brokers have it, but who was denied to write to it need not be any less.
    pub fn seen(&mut self, topic: &str, now: Duration) -> Option<Duration> {
        match self.absent.get(topic) {
            Some(Absent { fault: TopicFault::Denied, .. }) => None,
            _ => self.present(topic, now),
        }
    }

    /// Our attempt to create it failed.
    pub fn not_created(&mut self, topic: &str, reason: &str, now: Duration) {
        self.created = self.created.saturating_sub(1);
        if let Some(absent) = self.absent.get_mut(topic) {
            (absent.creating, absent.not_created) = (None, Some((now, reason.to_owned())));
        }
    }

    /// Topics that are not to be had, those that rows wait for first; at most `most`.
    pub fn list(&self, most: usize) -> Vec<AbsentTopic> {
        let of = |(topic, absent): (&String, &Absent)| AbsentTopic {
            topic: topic.clone(),
            fault: absent.fault,
            since: absent.since,
            waiting: absent.waiting,
        };
        let waiting = self.absent.iter().filter(|(_, absent)| absent.waiting).map(of);
        let others = self.absent.iter().filter(|(_, absent)| !absent.waiting).map(of);
        waiting.chain(others).take(most).collect()
    }

    /// How many topics are not to be had.
    pub fn len(&self) -> usize {
        self.absent.len()
    }

    /// Whether every topic is to be had, as far as anybody knows.
    pub fn is_empty(&self) -> bool {
        self.absent.is_empty()
    }

    /// How many of them there are with this fault.
    pub fn count(&self, fault: TopicFault) -> usize {
        self.absent.values().filter(|absent| absent.fault == fault).count()
    }

    fn verdict(&mut self, topic: &str, now: Duration) -> Decision {
        if let Some(decision) = self.creation(topic, now) {
            return decision;
        }
        let patience = self.patience(topic);
        let Some(absent) = self.absent.get_mut(topic) else { return Decision::Ask };
        let waited = now.saturating_sub(absent.since);
        let was_waiting = absent.waiting;
        absent.waiting = patience.is_none_or(|patience| waited < patience);
        if absent.waiting {
            return Decision::Wait;
        }
        let (fault, why_not) = (absent.fault, absent.not_created.as_ref());
        let mut reason = match fault {
            TopicFault::Missing => format!("topic `{topic}` does not exist"),
            TopicFault::Forbidden | TopicFault::Denied => {
                format!("not authorised to write to topic `{topic}`")
            }
        };
        if let Some((_, why)) = why_not {
            reason = format!("{reason}, and was not created: {why}");
        }
        if was_waiting && fault == TopicFault::Missing {
            self.vain = self.vain.saturating_add(1);
        }
        Decision::Reject(Rejection { code: fault.code(), reason })
    }

    /// What our own creating says, where it has a say.
    fn creation(&mut self, topic: &str, now: Duration) -> Option<Decision> {
        let absent = self.absent.get_mut(topic)?;
        if self.policy.then != MissingTopic::Create || absent.fault != TopicFault::Missing {
            return None;
        }
        if let Some(begun) = absent.creating {
            absent.waiting = now.saturating_sub(begun) < OWN_CREATION;
            return absent.waiting.then_some(Decision::Wait);
        }
        let failed = absent.not_created.as_ref();
        if failed.is_some_and(|(at, _)| now.saturating_sub(*at) < CREATE_AGAIN) {
            return None;
        }
        let fits = |rule: &&CreateRule| glob::matches(rule.names.as_bytes(), topic.as_bytes());
        let rule = self.policy.create.iter().find(fits);
        let why_not = match rule {
            None => "no rule of route.create_topics fits its name",
            Some(_) if self.created >= self.policy.create_max => {
                "route.create_topics_max topics were created"
            }
            Some(rule) => {
                (absent.creating, absent.not_created, absent.waiting) = (Some(now), None, true);
                self.created += 1;
                return Some(Decision::Create(rule.clone()));
            }
        };
        absent.not_created = Some((now, why_not.to_owned()));
        None
    }

    /// How long rows wait for it; `None`: for ever.
    fn patience(&self, topic: &str) -> Option<Duration> {
        let absent = self.absent.get(topic)?;
        let asked_for = match self.policy.then {
            MissingTopic::Wait(deadline) => return deadline,
            MissingTopic::Create => Duration::ZERO,
            MissingTopic::Reject(deadline) => deadline,
        };
        if absent.fault != TopicFault::Missing {
            return Some(asked_for);
        }
        let creation = match self.brokers_create {
            // Who waits already goes on, whatever became of others.
            _ if self.vain >= VAIN_MAX && !absent.waiting => Duration::ZERO,
            Some(false) => Duration::ZERO,
            Some(true) => CREATION,
            None => CREATION_MAYBE,
        };
        let known = if absent.known { KNOWN } else { Duration::ZERO };
        Some(asked_for.max(creation).max(known))
    }
}

#[cfg(test)]
mod tests;
