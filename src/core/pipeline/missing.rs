//! Decides what to do with rows whose topic does not exist or may not be written.
//!
//! Input: the [`MissingPolicy`], the brokers' answers, and the time. Output: a [`TopicDecision`]
//! per row, and a list of unusable topics. Invariants:
//!
//! * a topic's rows get one decision until the brokers' answer changes, which keeps their order
//!   (G2);
//! * rows are rejected only after the brokers were asked since the first of them was read;
//! * other topics' rows wait only a bounded share of the time (G4);
//! * memory is bounded (G3).

mod decision;

use std::collections::BTreeMap;
use std::time::Duration;

use super::allowance::Allowance;
use crate::route::{Rejection, as_compared};

pub use decision::{
    AbsentTopic, CreateRule, MissingPolicy, MissingTopic, TopicDecision, TopicFault,
};

/// Beyond this, topics with the oldest queries are forgotten.
const TOPICS_MAX: usize = 10_000;
/// Topics forgotten at once, because each search is a full scan.
const FORGOTTEN: usize = TOPICS_MAX / 10;
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Query interval for a topic that the brokers may be creating.
const ASK_AGAIN_NEW: Duration = Duration::from_millis(200);
/// First query interval while a row waits: brokers create a topic in about 20 ms.
const ASK_AGAIN_SOON: Duration = Duration::from_millis(10);
const ASK_AGAIN_WAITING: Duration = Duration::from_millis(100);
/// Wait for brokers that create topics by themselves.
const CREATION: Duration = Duration::from_millis(1_600);
/// Wait for brokers that may create topics by themselves.
const CREATION_MAYBE: Duration = Duration::from_millis(500);
/// Time for which a broker may not know a topic that the controller has created. Measured with
/// three brokers on two busy cores: an immediate query denied one topic in ten.
const SPREADING: Duration = Duration::from_millis(500);
/// Time that other topics' rows wait at once for brokers that create topics, and then the share of
/// all time (one part in this number). Rows choose the number of topics.
const CREATIONS: Allowance = Allowance::new(CREATION, 10);
const CREATION_MIN: Duration = Duration::from_millis(100);
/// Wait for a topic that existed before: a broker may just have started.
const KNOWN: Duration = Duration::from_secs(5);
/// Limit for all returning topics together. A broker that has run this long shows everything it
/// has.
const RETURNS: Allowance = Allowance::new(KNOWN, 20);
const RETURN_MIN: Duration = Duration::from_secs(1);
const OWN_CREATION: Duration = Duration::from_secs(10);
/// Time that other topics' rows wait for failing attempts. Rows choose the number of names, and
/// each costs a controller's answer.
const OWN_CREATIONS: Allowance = Allowance::new(OWN_CREATION, 10);
const OWN_CREATION_MIN: Duration = Duration::from_secs(1);
const OWN_CREATION_LATER: Duration = Duration::from_secs(5);
const CREATE_AGAIN: Duration = Duration::from_mins(1);
/// Delay before a trial record, the only test whether writing is still denied. Its failure costs a
/// session.
const TRIAL_FIRST: Duration = Duration::from_secs(30);
/// Delay if rows wait.
const TRIAL_WAITING: Duration = Duration::from_secs(5);
const TRIAL_MAX: Duration = Duration::from_mins(30);

#[derive(Debug, Clone)]
struct Absent {
    fault: TopicFault,
    since: Duration,
    asked: Duration,
    waiting: bool,
    /// Wait for its return.
    returns: Duration,
    /// Wait for its creation.
    creates: Duration,
    told: bool,
    /// Start of the relay's own attempt, and its limit.
    creating: Option<(Duration, Duration)>,
    /// Time of the next attempt, and why the last one failed.
    not_created: Option<(Duration, String)>,
    /// Time of the next trial, and the delay after it.
    trial: (Duration, Duration),
}

/// State of topics that records cannot be sent to.
#[derive(Debug)]
pub struct MissingTopics {
    policy: MissingPolicy,
    absent: BTreeMap<String, Absent>,
    /// Topics that existed, by their names as Kafka compares them.
    known: BTreeMap<String, String>,
    brokers_create: Option<bool>,
    /// The last wait for the brokers to create a topic was in vain.
    in_vain: bool,
    creations: Allowance,
    own_creations: Allowance,
    returns: Allowance,
    created: u64,
}

impl MissingTopics {
    /// Creates a state without any answers.
    pub const fn new(policy: MissingPolicy) -> Self {
        Self {
            policy,
            absent: BTreeMap::new(),
            known: BTreeMap::new(),
            brokers_create: None,
            in_vain: false,
            creations: CREATIONS,
            own_creations: OWN_CREATIONS,
            returns: RETURNS,
            created: 0,
        }
    }

    /// Sets whether brokers create topics by themselves, if known.
    pub const fn brokers_create(&mut self, created: Option<bool>) {
        self.brokers_create = created;
    }

    /// The decision before any query. `quiet`: nothing is in flight, so a failed trial repeats
    /// nothing. If records are always in flight, the trial happens one delay later.
    pub fn decide(&mut self, topic: &str, now: Duration, quiet: bool) -> TopicDecision {
        let Some(absent) = self.absent.get_mut(topic) else { return TopicDecision::Ask };
        if absent.fault == TopicFault::Denied {
            let (due, pause) = match self.policy.then {
                MissingTopic::Wait(_) => (absent.asked + TRIAL_WAITING, TRIAL_WAITING),
                _ => absent.trial,
            };
            if now >= due && (quiet || now >= due + pause) {
                absent.trial = (now + pause, (pause * 2).min(TRIAL_MAX));
                return TopicDecision::Ask;
            }
            return self.verdict(topic, now);
        }
        let (again, ask) = if absent.waiting {
            let waited = now.saturating_sub(absent.since);
            ((waited / 2).clamp(ASK_AGAIN_SOON, ASK_AGAIN_WAITING), TopicDecision::AskByName)
        } else if self.brokers_create != Some(false) && now.saturating_sub(absent.since) < ASK_AGAIN
        {
            // The brokers may be creating it.
            (ASK_AGAIN_NEW, TopicDecision::Ask)
        } else {
            (ASK_AGAIN, TopicDecision::Ask)
        };
        if now.saturating_sub(absent.asked) >= again {
            return ask;
        }
        self.verdict(topic, now)
    }

    /// The fault of a topic whose rows are rejected, unless it was reported.
    pub fn untold(&mut self, topic: &str) -> Option<TopicFault> {
        let absent = self.absent.get_mut(topic)?;
        (!std::mem::replace(&mut absent.told, true)).then_some(absent.fault)
    }

    /// Handles a topic missing from the brokers' list, which they may create unless it `collides`
    /// with a listed one. Also returns whether to report it.
    pub fn unlisted(
        &mut self,
        topic: &str,
        collides: bool,
        now: Duration,
    ) -> (TopicDecision, bool) {
        let fault = match self.absent.get(topic) {
            // A query by name is more precise than a list.
            Some(Absent {
                fault: fault @ (TopicFault::Forbidden | TopicFault::Missing), ..
            }) => *fault,
            Some(_) => TopicFault::Unlisted,
            None => {
                let may_appear = match self.policy.then {
                    MissingTopic::Wait(_) | MissingTopic::Reject(_) => true,
                    MissingTopic::Create => false,
                };
                let collides = collides || self.collides(topic);
                if may_appear && !collides && self.creation_left(now) >= CREATION_MIN {
                    return (TopicDecision::AskByName, false);
                }
                TopicFault::Unlisted
            }
        };
        self.found(topic, Found { fault, collides }, now)
    }

    /// Handles the fault of a topic. Also returns whether to report it.
    pub fn absent(
        &mut self,
        topic: &str,
        fault: TopicFault,
        now: Duration,
    ) -> (TopicDecision, bool) {
        let collides = self.collides(topic);
        self.found(topic, Found { fault, collides }, now)
    }

    fn found(&mut self, topic: &str, found: Found, now: Duration) -> (TopicDecision, bool) {
        let fault = found.fault;
        if !self.absent.contains_key(topic) {
            self.add(topic, found, now);
        }
        let Some(absent) = self.absent.get_mut(topic) else { unreachable!("it was added") };
        absent.told &= absent.fault.is_missing() == fault.is_missing();
        (absent.fault, absent.asked) = (fault, now);
        let decision = self.verdict(topic, now);
        // A topic that the brokers or the relay may be about to create does not count.
        let lasts = match decision {
            TopicDecision::Reject(_) => true,
            TopicDecision::Wait => matches!(self.policy.then, MissingTopic::Wait(_)),
            TopicDecision::Ask | TopicDecision::AskByName | TopicDecision::Create(_) => false,
        };
        let told = self.absent.get_mut(topic).map(|absent| &mut absent.told);
        let news = lasts && told.is_some_and(|told| !std::mem::replace(told, true));
        (decision, news)
    }

    /// Grants the topic's waits.
    fn add(&mut self, topic: &str, found: Found, now: Duration) {
        if self.absent.len() >= TOPICS_MAX {
            self.forget();
        }
        let alike = as_compared(topic);
        let was_there = self.known.get(&alike).is_some_and(|known| known == topic);
        let (mut returns, mut creates) = (Duration::ZERO, Duration::ZERO);
        if was_there {
            self.known.remove(&alike);
        }
        let gives_up = !matches!(self.policy.then, MissingTopic::Wait(_));
        if gives_up && found.fault.is_missing() {
            if was_there && self.returns.left(now) >= RETURN_MIN {
                returns = self.returns.left(now);
                self.returns.spend(returns, now);
            }
            let limit = match self.may_take() {
                _ if found.collides => Duration::ZERO,
                // The controller, which creates it, knows it.
                _ if self.brokers_create == Some(false) && self.is_ours_to_create(topic) => {
                    Duration::ZERO
                }
                limit => limit,
            };
            let left = self.creation_left(now);
            // A granted wait costs other rows nothing more.
            if returns < limit && left >= CREATION_MIN {
                creates = limit.min(left);
                self.creations.spend(creates, now);
            }
        }
        let absent = Absent {
            fault: found.fault,
            since: now,
            asked: now,
            waiting: false,
            returns,
            creates,
            told: false,
            creating: None,
            not_created: None,
            trial: (now + TRIAL_FIRST, TRIAL_FIRST * 2),
        };
        self.absent.insert(topic.to_owned(), absent);
    }

    /// Time for which a topic may be missing while it is created.
    const fn may_take(&self) -> Duration {
        match self.brokers_create {
            Some(false) => SPREADING,
            Some(true) => CREATION,
            None => CREATION_MAYBE,
        }
    }

    /// If brokers create none, all topics share the time of one. Earlier topics have spread by its
    /// end.
    fn creation_left(&mut self, now: Duration) -> Duration {
        let creates = match self.brokers_create {
            None => !self.in_vain,
            Some(creates) => creates,
        };
        let kept = if creates { Duration::ZERO } else { CREATION.saturating_sub(SPREADING) };
        self.creations.left(now).saturating_sub(kept)
    }

    #[cold]
    fn forget(&mut self) {
        let mut asked: Vec<Duration> = self.absent.values().map(|absent| absent.asked).collect();
        let (_, oldest, _) = asked.select_nth_unstable(FORGOTTEN);
        let oldest = *oldest;
        self.absent.retain(|_, absent| absent.waiting || absent.asked > oldest);
    }

    fn collides(&self, topic: &str) -> bool {
        self.known.get(&as_compared(topic)).is_some_and(|known| known != topic)
    }

    /// Handles a topic that exists. Returns how long it was missing.
    pub fn present(&mut self, topic: &str, now: Duration) -> Option<Duration> {
        let alike = as_compared(topic);
        if self.known.len() < TOPICS_MAX || self.known.contains_key(&alike) {
            self.known.insert(alike, topic.to_owned());
        }
        let absent = self.absent.remove(topic)?;
        let away = now.saturating_sub(absent.since);
        if let Some((_, granted)) = absent.creating {
            self.own_creations.give_back(granted, now);
        }
        if absent.waiting {
            self.in_vain = false;
            self.returns.give_back(absent.returns.saturating_sub(away), now);
            self.creations.give_back(absent.creates.saturating_sub(away), now);
        }
        Some(away)
    }

    /// Handles a listed topic. Writing may still be denied.
    pub fn seen(&mut self, topic: &str, now: Duration) -> Option<Duration> {
        match self.absent.get(topic) {
            Some(Absent { fault: TopicFault::Denied, .. }) => None,
            _ => self.present(topic, now),
        }
    }

    /// Handles a failed attempt to create the topic.
    pub fn not_created(&mut self, topic: &str, reason: &str, now: Duration) {
        self.created = self.created.saturating_sub(1);
        let Some(absent) = self.absent.get_mut(topic) else { return };
        if let Some((begun, granted)) = absent.creating.take() {
            self.own_creations.give_back(granted.saturating_sub(now.saturating_sub(begun)), now);
        }
        absent.not_created = Some((now + CREATE_AGAIN, reason.to_owned()));
    }

    /// At most `most` unusable topics; those with waiting rows come first.
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

    /// True if the topic is unusable.
    pub fn has(&self, topic: &str) -> bool {
        self.absent.contains_key(topic)
    }

    /// Number of unusable topics.
    pub fn len(&self) -> usize {
        self.absent.len()
    }

    /// True if no topic is unusable.
    pub fn is_empty(&self) -> bool {
        self.absent.is_empty()
    }

    /// Number of topics with this fault.
    pub fn count(&self, fault: TopicFault) -> usize {
        self.absent.values().filter(|absent| absent.fault == fault).count()
    }

    fn verdict(&mut self, topic: &str, now: Duration) -> TopicDecision {
        if let Some(decision) = self.creation(topic, now) {
            return decision;
        }
        let patience = self.patience(topic);
        let Some(absent) = self.absent.get_mut(topic) else { return TopicDecision::Ask };
        let waited = now.saturating_sub(absent.since);
        let was_waiting = absent.waiting;
        absent.waiting = patience.is_none_or(|patience| waited < patience);
        if absent.waiting {
            return TopicDecision::Wait;
        }
        self.in_vain |= was_waiting && !absent.creates.is_zero();
        let (fault, why_not) = (absent.fault, absent.not_created.as_ref());
        let mut reason = match fault {
            TopicFault::Unlisted => {
                format!("topic `{topic}` is not among those that the brokers show us")
            }
            TopicFault::Missing => format!("topic `{topic}` does not exist"),
            TopicFault::Forbidden | TopicFault::Denied => {
                format!("not authorised to write to topic `{topic}`")
            }
        };
        if let Some((_, why)) = why_not {
            reason = format!("{reason}, and was not created: {why}");
        }
        TopicDecision::Reject(Rejection { code: fault.code(), reason })
    }

    fn creation(&mut self, topic: &str, now: Duration) -> Option<TopicDecision> {
        let absent = self.absent.get_mut(topic)?;
        if self.policy.then != MissingTopic::Create || !absent.fault.is_missing() {
            return None;
        }
        if let Some((begun, granted)) = absent.creating {
            absent.waiting = now.saturating_sub(begun) < granted;
            return absent.waiting.then_some(TopicDecision::Wait);
        }
        if absent.not_created.as_ref().is_some_and(|(again, _)| now < *again) {
            return None;
        }
        let rule = self.policy.rule(topic);
        let left = self.own_creations.left(now);
        let (later, why_not) = match rule {
            None => (CREATE_AGAIN, "no rule of route.create_topics fits its name"),
            Some(_) if self.created >= self.policy.create_max => {
                (CREATE_AGAIN, "route.create_topics_max topics were created")
            }
            Some(_) if left < OWN_CREATION_MIN => {
                (OWN_CREATION_LATER, "other topics could not be created, which took its time")
            }
            Some(rule) => {
                self.own_creations.spend(left, now);
                absent.creating = Some((now, left));
                (absent.not_created, absent.waiting) = (None, true);
                self.created += 1;
                return Some(TopicDecision::Create(rule.clone()));
            }
        };
        absent.not_created = Some((now + later, why_not.to_owned()));
        None
    }

    fn is_ours_to_create(&self, topic: &str) -> bool {
        self.policy.then == MissingTopic::Create && self.policy.rule(topic).is_some()
    }

    fn patience(&self, topic: &str) -> Option<Duration> {
        let absent = self.absent.get(topic)?;
        let asked_for = match self.policy.then {
            MissingTopic::Wait(deadline) => return deadline,
            MissingTopic::Create => Duration::ZERO,
            MissingTopic::Reject(deadline) => deadline,
        };
        if !absent.fault.is_missing() {
            return Some(asked_for);
        }
        let creates = match self.brokers_create {
            // More may have been granted before that was known.
            Some(false) => absent.creates.min(SPREADING),
            Some(true) | None => absent.creates,
        };
        Some(asked_for.max(creates).max(absent.returns))
    }
}

#[derive(Debug, Clone, Copy)]
struct Found {
    fault: TopicFault,
    collides: bool,
}

#[cfg(test)]
mod tests;
