//! Decides what to do with rows whose topic does not exist or may not be written.
//!
//! Input: the operator's [`MissingPolicy`], the brokers' answers about a topic, and the time, as a duration
//! since any fixed moment. Output: a [`TopicDecision`] for a row (ask, wait, create the topic, or reject
//! the row), and a list of topics that cannot be used. [`MissingTopics`] remembers the answers. No I/O.
//! Invariants:
//!
//! * a decision is the same for every row of a topic until the brokers' answer changes, so that the rows of
//!   one key take one way and keep their order (G2);
//! * rows are rejected only after the brokers were asked for their topic, or for all topics, since the
//!   first of them was read;
//! * rows of other topics wait for one topic no longer than the policy allows; topics that brokers may
//!   create by themselves, those that we try to create, and those that may come back, are waited for in a
//!   bounded share of the time, however many there are and whether or not they appear (G4). The topics that
//!   we create are bounded in number;
//! * memory is bounded (G3).

mod decision;

use std::collections::BTreeMap;
use std::time::Duration;

use super::allowance::Allowance;
use crate::route::{Rejection, as_compared};

pub use decision::{
    AbsentTopic, CreateRule, MissingPolicy, MissingTopic, TopicDecision, TopicFault,
};

/// Topics remembered; beyond that those are forgotten that were asked for longest ago, and asked for
/// again.
const TOPICS_MAX: usize = 10_000;
/// So many at a time, for to find them costs a look at all.
const FORGOTTEN: usize = TOPICS_MAX / 10;
/// How soon the brokers are asked again for a topic that rows want.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// The same for a topic that the brokers may be about to create.
const ASK_AGAIN_NEW: Duration = Duration::from_millis(200);
/// The same while a row waits for the answer: at first, as brokers create a topic in some 20 ms, and
/// later.
const ASK_AGAIN_SOON: Duration = Duration::from_millis(10);
const ASK_AGAIN_WAITING: Duration = Duration::from_millis(100);
/// How long brokers that are known to create topics by themselves may take for it.
const CREATION: Duration = Duration::from_millis(1_600);
/// The same where it is not known whether they do.
const CREATION_MAYBE: Duration = Duration::from_millis(500);
/// How long a broker may not know of a topic that the controller has created, and said so: whoever creates a
/// topic may write the first row for it at once, and the relay may ask another broker. Measured with three on
/// two busy cores: one topic in ten was denied when it was asked for at once.
const SPREADING: Duration = Duration::from_millis(500);
/// Time that rows of other topics wait at once while brokers create topics, and the share of all time
/// after that (one part in so many): some topics cannot be created, and rows choose how many others
/// there are.
const CREATIONS: Allowance = Allowance::new(CREATION, 10);
/// Less than this is not worth waiting for one.
const CREATION_MIN: Duration = Duration::from_millis(100);
/// A topic that was there a moment ago may be away because a broker has just started.
const KNOWN: Duration = Duration::from_secs(5);
/// The same for all of them together: what a broker has after so long is all that it has.
const RETURNS: Allowance = Allowance::new(KNOWN, 20);
/// Less than this is not worth waiting for one.
const RETURN_MIN: Duration = Duration::from_secs(1);
/// How long we may take to create one.
const OWN_CREATION: Duration = Duration::from_secs(10);
/// Time that rows of other topics wait at once while we try in vain, and the share of all time after
/// that: rows choose how many names there are, and each costs an answer of the controller.
const OWN_CREATIONS: Allowance = Allowance::new(OWN_CREATION, 10);
/// With less than this left, none is begun.
const OWN_CREATION_MIN: Duration = Duration::from_secs(1);
/// Until then, that is not looked at again for a topic.
const OWN_CREATION_LATER: Duration = Duration::from_secs(5);
/// After a topic could not be created, this long passes until it is tried again.
const CREATE_AGAIN: Duration = Duration::from_mins(1);
/// Whether writing is still denied only a record can tell, which costs a session: first after this.
const TRIAL_FIRST: Duration = Duration::from_secs(30);
/// The same where rows wait for it.
const TRIAL_WAITING: Duration = Duration::from_secs(5);
/// The pauses double up to this.
const TRIAL_MAX: Duration = Duration::from_mins(30);

#[derive(Debug, Clone)]
struct Absent {
    fault: TopicFault,
    since: Duration,
    asked: Duration,
    waiting: bool,
    /// It was there once; it is waited for so long.
    returns: Duration,
    /// Brokers that may create it, or may not know of it yet, are given so long.
    creates: Duration,
    /// That it is not to be had was told.
    told: bool,
    /// Our attempt to create it began then, and is waited for so long.
    creating: Option<(Duration, Duration)>,
    /// Why it was not created, and when that may be tried.
    not_created: Option<(Duration, String)>,
    /// The next trial, and the pause after it.
    trial: (Duration, Duration),
}

/// What is known of topics that are not to be had.
#[derive(Debug)]
pub struct MissingTopics {
    policy: MissingPolicy,
    absent: BTreeMap<String, Absent>,
    /// Topics that were there, by their names as Kafka compares them.
    known: BTreeMap<String, String>,
    brokers_create: Option<bool>,
    /// The last topic that brokers may have created, for all we knew, did not come.
    in_vain: bool,
    creations: Allowance,
    own_creations: Allowance,
    returns: Allowance,
    created: u64,
}

impl MissingTopics {
    /// Knows nothing yet.
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

    /// Whether the brokers create topics that are asked for, if that is known.
    pub const fn brokers_create(&mut self, created: Option<bool>) {
        self.brokers_create = created;
    }

    /// What to do with a row of this topic before anybody is asked. `quiet`: nothing is in flight, so
    /// that a trial that fails repeats nothing; where that is never so, it is done all the same.
    pub fn decide(&mut self, topic: &str, now: Duration, quiet: bool) -> TopicDecision {
        let Some(absent) = self.absent.get_mut(topic) else { return TopicDecision::Ask };
        if absent.fault == TopicFault::Denied {
            let (due, pause) = match self.policy.then {
                // Nothing goes on anyway.
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
            // What a list of a moment ago said of it is known.
            let waited = now.saturating_sub(absent.since);
            ((waited / 2).clamp(ASK_AGAIN_SOON, ASK_AGAIN_WAITING), TopicDecision::AskByName)
        } else if self.brokers_create != Some(false) && now.saturating_sub(absent.since) < ASK_AGAIN
        {
            // They may have created it, though nobody could wait for that.
            (ASK_AGAIN_NEW, TopicDecision::Ask)
        } else {
            (ASK_AGAIN, TopicDecision::Ask)
        };
        if now.saturating_sub(absent.asked) >= again {
            return ask;
        }
        self.verdict(topic, now)
    }

    /// What is wrong with a topic whose rows are given up from now on, unless somebody was told already: the time
    /// that it is waited for can end without another answer.
    pub fn untold(&mut self, topic: &str) -> Option<TopicFault> {
        let absent = self.absent.get_mut(topic)?;
        (!std::mem::replace(&mut absent.told, true)).then_some(absent.fault)
    }

    /// The brokers were asked for all topics, and this one was not among those that they named. Unless
    /// it `collides` with one that was, they may create it or have just created it, and be worth waiting for.
    pub fn unlisted(
        &mut self,
        topic: &str,
        collides: bool,
        now: Duration,
    ) -> (TopicDecision, bool) {
        let fault = match self.absent.get(topic) {
            // Who was asked for it by its name knows more than a list.
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

    /// The brokers were asked, or refused a record, and this is why the topic is not to be had. Returns
    /// whether that is news, too.
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
        // That brokers, or we, are about to create a topic is none.
        let lasts = match decision {
            TopicDecision::Reject(_) => true,
            TopicDecision::Wait => matches!(self.policy.then, MissingTopic::Wait(_)),
            TopicDecision::Ask | TopicDecision::AskByName | TopicDecision::Create(_) => false,
        };
        let told = self.absent.get_mut(topic).map(|absent| &mut absent.told);
        let news = lasts && told.is_some_and(|told| !std::mem::replace(told, true));
        (decision, news)
    }

    /// Grants what it is waited for, once.
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
                // The controller, which is asked to create it, knows.
                _ if self.brokers_create == Some(false) && self.is_ours_to_create(topic) => {
                    Duration::ZERO
                }
                limit => limit,
            };
            let left = self.creation_left(now);
            // A wait that is granted already costs nobody more.
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

    /// How long a topic may be away although it is about to be there.
    const fn may_take(&self) -> Duration {
        match self.brokers_create {
            Some(false) => SPREADING,
            Some(true) => CREATION,
            None => CREATION_MAYBE,
        }
    }

    /// How long rows may wait for another one. Where brokers create none, all at once no more than for one:
    /// what was created before the first was asked for has spread when its time is over.
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

    /// Whether Kafka creates no such topic for the sake of one that was there.
    fn collides(&self, topic: &str) -> bool {
        self.known.get(&as_compared(topic)).is_some_and(|known| known != topic)
    }

    /// It is there. Returns for how long it was not, if it was not.
    pub fn present(&mut self, topic: &str, now: Duration) -> Option<Duration> {
        let alike = as_compared(topic);
        if self.known.len() < TOPICS_MAX || self.known.contains_key(&alike) {
            self.known.insert(alike, topic.to_owned());
        }
        let absent = self.absent.remove(topic)?;
        let away = now.saturating_sub(absent.since);
        // Those that come of it are counted, and so many are wanted.
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
        let Some(absent) = self.absent.get_mut(topic) else { return };
        if let Some((begun, granted)) = absent.creating.take() {
            self.own_creations.give_back(granted.saturating_sub(now.saturating_sub(begun)), now);
        }
        absent.not_created = Some((now + CREATE_AGAIN, reason.to_owned()));
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

    /// Whether this topic is not to be had.
    pub fn has(&self, topic: &str) -> bool {
        self.absent.contains_key(topic)
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

    /// What our own creating says, where it has a say.
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

    /// How long rows wait for it; `None`: for ever.
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

/// What was found of a topic that was not to be had before.
#[derive(Debug, Clone, Copy)]
struct Found {
    fault: TopicFault,
    collides: bool,
}

#[cfg(test)]
mod tests;
