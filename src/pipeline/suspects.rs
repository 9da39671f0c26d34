//! Records that the brokers refused, and how a later session treats their rows.
//!
//! Enters: what a session that ended knows of the records at fault. Leaves: for a row's record whether
//! it is sent as usual, alone in its batch (and its Kafka transaction), or not again. What always holds:
//! a row is refused only for what the brokers said of a batch in which its record, or its like, was the
//! only one at fault, or because it is like several that its topic has just refused ([`Inferred`]) (G4);
//! whatever lies behind the refused batch is sent as usual.
//!
//! A session numbers its tickets anew, so a record is known by where its transaction committed, by its
//! weight, and by topic, key and value. Two rows of one transaction that agree in all of that share
//! their fate.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::confirmation::{Aspect, Blame};
use super::error::PipelineError;
use super::inferred::Inferred;
use crate::ledger::Ledger;
use crate::lsn::Lsn;
use crate::outbox::Position;
use crate::route::{Record, Rejection, RejectionCode, content_of};

/// Attempts that a record gets alone, where the brokers do not say that it is at fault.
const ATTEMPTS_ALONE: u32 = 2;
/// The same where the fault may be the brokers' own, with waits between them that double.
const ATTEMPTS_LATER: u32 = 8;
/// The first of these; 32 s in all.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// What identifies a record from one session to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Like {
    commit_lsn: Lsn,
    weight: u64,
    content: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Suspect {
    /// How often it was refused when it was sent alone.
    alone: u32,
    aspect: Aspect,
    rejection: Option<Rejection>,
    /// What it says of others is known.
    is_inferred_from: bool,
}

/// How a row's record is treated.
enum Treatment {
    Usual,
    Alone,
    Refused(Rejection),
}

/// The records that may be at fault for the end of sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suspects {
    all: BTreeMap<Like, Suspect>,
    /// Whether a record may be refused for what was said of others.
    infers: bool,
    inferred: Inferred,
    /// Topics of which a record went alone since a batch was refused for its size and none stood out.
    probed: BTreeSet<String>,
}

/// Topics in `probed`; beyond that it begins anew.
const PROBED_MAX: usize = 1_000;

/// What a session that ended for a refused batch leaves to the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lesson {
    /// What is known now.
    pub suspects: Suspects,
    /// Something of it was not known before, so that the next session will not end the same way.
    pub is_news: bool,
    /// How many records were found that the brokers refuse for good.
    pub refused: usize,
    /// The topic takes records, and no such batch of them: smaller ones may help.
    pub is_of_the_batch: bool,
    /// How long the next session is to wait, where the fault may be the brokers' own, and pass; zero
    /// otherwise.
    pub wait: Duration,
}

impl Suspects {
    /// Adds what one more session has found: `blamed`, and the topic of a batch that was refused for its
    /// size, where no record stood out.
    pub(super) fn learn(
        &self,
        blamed: &[Blame],
        ledger: &Ledger,
        unnamed: Option<&str>,
    ) -> Result<Lesson, PipelineError> {
        let mut suspects = self.clone();
        suspects.passed(ledger.settled());
        let before = suspects.refused();
        let (mut is_news, mut wait) = (false, Duration::ZERO);
        for blame in blamed {
            let like = Like {
                commit_lsn: ledger.commit_lsn(blame.ticket)?,
                weight: blame.ticket.weight(),
                content: blame.content,
            };
            is_news |= suspects.add(like, blame);
            wait = wait.max(suspects.wait_for(&like));
        }
        let is_of_the_batch = unnamed.is_some_and(|topic| !suspects.is_first_probe(topic));
        let refused = suspects.refused().saturating_sub(before);
        Ok(Lesson { suspects, is_news, refused, is_of_the_batch, wait })
    }

    /// The same; whether a record is refused for what was said of others.
    pub(super) fn inferring(self, infers: bool) -> Self {
        Self { infers, ..self }
    }

    /// Whatever committed before `lsn` is settled, and not sent again. What was only sent may be: it stays
    /// known, or the next session would meet it as if for the first time.
    pub(super) fn passed(&mut self, lsn: Lsn) {
        let first = self.all.first_key_value();
        if first.is_some_and(|(first, _)| first.commit_lsn < lsn) {
            self.all = self.all.split_off(&Like { commit_lsn: lsn, weight: 0, content: 0 });
        }
    }

    /// How many rows are refused for good.
    fn refused(&self) -> usize {
        self.all.values().filter(|suspect| suspect.rejection.is_some()).count()
    }

    /// Whether no record needs another treatment than usual.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.inferred.is_empty()
    }

    /// Whether a row goes where it is routed, and whether its record, which `record` makes, goes alone.
    #[inline]
    pub(super) fn judge<'r, R>(
        &mut self,
        row: Position,
        routed: Result<Option<R>, Rejection>,
        record: impl FnOnce(&R) -> Record<'r>,
    ) -> (Result<Option<R>, Rejection>, bool) {
        let found = match &routed {
            Ok(Some(routed)) if !self.is_empty() => self.treatment(row, &record(routed)),
            _ => Treatment::Usual,
        };
        match found {
            Treatment::Usual => (routed, false),
            Treatment::Alone => (routed, true),
            Treatment::Refused(rejection) => (Err(rejection), false),
        }
    }

    fn treatment(&mut self, row: Position, record: &Record<'_>) -> Treatment {
        let at_us = row.commit_time.unix_us();
        let found = self.find(row, record).and_then(|like| self.all.get_mut(&like));
        let Some(suspect) = found else {
            return self.inferred.judge(record, at_us).map_or(Treatment::Usual, Treatment::Refused);
        };
        let Some(rejection) = suspect.rejection.clone() else {
            // Others like it may have been refused since it came under suspicion.
            return self.inferred.judge(record, at_us).map_or(Treatment::Alone, Treatment::Refused);
        };
        // Only here its timestamp is known.
        if self.infers && !std::mem::replace(&mut suspect.is_inferred_from, true) {
            self.inferred.refused(suspect.aspect, record, at_us);
        }
        Treatment::Refused(rejection)
    }

    /// Whether the record is one of them.
    pub(super) fn has(&self, row: Position, record: &Record<'_>) -> bool {
        !self.is_empty() && self.find(row, record).is_some()
    }

    fn find(&self, row: Position, record: &Record<'_>) -> Option<Like> {
        let least = Like { commit_lsn: row.commit_lsn, weight: record.weight() as u64, content: 0 };
        let (first, _) = self.all.range(least..).next()?;
        if (first.commit_lsn, first.weight) != (least.commit_lsn, least.weight) {
            return None;
        }
        let like = Like { content: content_of(record.topic, record.key, record.value), ..least };
        self.all.contains_key(&like).then_some(like)
    }

    /// Whether that was not known.
    fn add(&mut self, like: Like, blame: &Blame) -> bool {
        let fresh =
            Suspect { alone: 0, aspect: blame.aspect, rejection: None, is_inferred_from: false };
        let is_new = !self.all.contains_key(&like);
        let known = self.all.entry(like).or_insert(fresh);
        if known.rejection.is_some() {
            return false;
        }
        known.alone += u32::from(blame.alone);
        known.aspect = blame.aspect;
        known.rejection.clone_from(&blame.rejection);
        let attempts =
            if blame.aspect == Aspect::Brokers { ATTEMPTS_LATER } else { ATTEMPTS_ALONE };
        if known.rejection.is_none() && known.alone >= attempts {
            let Blame { topic, reason, .. } = blame;
            let reason = format!("topic `{topic}` does not take the record: {reason}");
            known.rejection = Some(Rejection { code: RejectionCode::Refused, reason });
        }
        let is_named = known.rejection.is_some();
        if is_named {
            self.probed.remove(&blame.topic);
        }
        is_new || is_named || blame.alone
    }

    /// How long to wait before the record is sent again.
    fn wait_for(&self, like: &Like) -> Duration {
        let tried = self.all.get(like).filter(|one| one.rejection.is_none());
        match tried {
            Some(Suspect { alone: alone @ 1.., aspect: Aspect::Brokers, .. }) => {
                FIRST_WAIT * (1 << (alone - 1))
            }
            _ => Duration::ZERO,
        }
    }

    /// Whether a record of the topic, that is to go alone, is the first that does.
    fn is_first_probe(&mut self, topic: &str) -> bool {
        if self.probed.len() >= PROBED_MAX {
            self.probed.clear();
        }
        self.probed.insert(topic.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Budget, Ticket};
    use crate::pgoutput::PgTime;
    use crate::route::Headers;

    const COMMIT: Lsn = Lsn::new(100);

    fn row() -> Position {
        Position { commit_lsn: COMMIT, index: 3, commit_time: PgTime(7) }
    }

    fn record(value: &[u8]) -> Record<'_> {
        let (key, headers) = (Some(b"k".as_slice()), Headers::new());
        Record { topic: "t", partition: None, key, value: Some(value), headers, timestamp_ms: 1 }
    }

    fn blame(ticket: Ticket, value: &[u8], alone: bool, rejection: Option<Rejection>) -> Blame {
        let (topic, content) = ("t".into(), content_of("t", Some(b"k"), Some(value)));
        let (aspect, reason) = (Aspect::Size, "why".into());
        Blame { ticket, topic, content, alone, aspect, reason, rejection }
    }

    /// A session in which these records were sent and refused, and whether that was news.
    fn session(suspects: &mut Suspects, blamed: &[(&[u8], bool, Option<Rejection>)]) -> bool {
        let mut ledger = Ledger::new(Budget::default());
        ledger.begin(row().commit_lsn, row().commit_time.unix_us()).unwrap();
        let blamed: Vec<Blame> = blamed
            .iter()
            .map(|(value, alone, rejection)| {
                let ticket = ledger.next_ticket(record(value).weight()).unwrap();
                ledger.count(ticket).unwrap();
                blame(ticket, value, *alone, rejection.clone())
            })
            .collect();
        let found = suspects.learn(&blamed, &ledger, None).unwrap();
        *suspects = found.suspects;
        found.is_news
    }

    fn learn(
        suspects: &mut Suspects,
        value: &[u8],
        alone: bool,
        rejection: Option<Rejection>,
    ) -> bool {
        session(suspects, &[(value, alone, rejection)])
    }

    fn rejection() -> Rejection {
        Rejection { code: RejectionCode::TooLarge, reason: "too large".into() }
    }

    #[test]
    fn g4_a_record_of_a_refused_batch_goes_alone_and_its_like_of_another_commit_does_not() {
        let mut suspects = Suspects::default();
        assert!(learn(&mut suspects, b"large", false, None));
        assert_eq!(suspects.judge(row(), Ok(Some(1)), |_| record(b"large")), (Ok(Some(1)), true));
        assert_eq!(suspects.judge(row(), Ok(Some(1)), |_| record(b"other")), (Ok(Some(1)), false));
        let later = Position { commit_lsn: Lsn::new(101), ..row() };
        // A message outside of transactions has the time at which it was sent, another one each time.
        let again = Position { commit_time: PgTime(8), ..row() };
        assert_eq!(suspects.judge(again, Ok(Some(1)), |_| record(b"large")), (Ok(Some(1)), true));
        assert_eq!(suspects.judge(later, Ok(Some(1)), |_| record(b"large")), (Ok(Some(1)), false));
        assert!(!learn(&mut suspects, b"large", false, None), "it is known");
    }

    #[test]
    fn g4_what_the_brokers_name_is_not_sent_again() {
        let mut suspects = Suspects::default();
        assert!(learn(&mut suspects, b"large", false, None));
        assert!(learn(&mut suspects, b"large", true, Some(rejection())));
        assert_eq!(
            suspects.judge(row(), Ok(Some(1)), |_| record(b"large")),
            (Err(rejection()), false)
        );
        assert_eq!(suspects.refused(), 1);
        assert!(!learn(&mut suspects, b"large", true, Some(rejection())));
    }

    #[test]
    fn g4_what_may_be_no_fault_of_the_record_gets_two_attempts_alone() {
        let mut suspects = Suspects::default();
        assert!(learn(&mut suspects, b"odd", false, None));
        assert!(learn(&mut suspects, b"odd", true, None));
        assert_eq!(suspects.judge(row(), Ok(Some(1)), |_| record(b"odd")), (Ok(Some(1)), true));
        assert!(learn(&mut suspects, b"odd", true, None));
        let (judged, _) = suspects.judge(row(), Ok(Some(1)), |_| record(b"odd"));
        assert_eq!(judged.unwrap_err().reason, "topic `t` does not take the record: why");
    }

    #[test]
    fn g4_a_topic_that_keeps_refusing_large_records_costs_no_session_for_each() {
        let mut suspects = Suspects::default().inferring(true);
        for value in [b"large1", b"large2", b"large3"] {
            let (judged, _) = suspects.judge(row(), Ok(Some(1)), |_| record(b"larger"));
            assert_eq!(judged, Ok(Some(1)));
            assert!(learn(&mut suspects, value, true, Some(rejection())));
            // The next session meets it again, perhaps more than once.
            for _ in 0..9 {
                let (judged, _) = suspects.judge(row(), Ok(Some(1)), |_| record(value));
                assert_eq!(judged, Err(rejection()));
            }
        }
        suspects.passed(Lsn::new(101));
        let (judged, _) = suspects.judge(row(), Ok(Some(1)), |_| record(b"larger"));
        assert_eq!(judged.unwrap_err().code, RejectionCode::TooLarge);
        assert_eq!(suspects.judge(row(), Ok(Some(1)), |_| record(b"small")), (Ok(Some(1)), false));
    }

    #[test]
    fn g4_without_inference_each_record_is_tried() {
        let mut suspects = Suspects::default().inferring(false);
        for value in [b"large1", b"large2", b"large3", b"large4"] {
            assert!(learn(&mut suspects, value, true, Some(rejection())));
            let (judged, _) = suspects.judge(row(), Ok(Some(1)), |_| record(value));
            assert_eq!(judged, Err(rejection()));
        }
        let (judged, _) = suspects.judge(row(), Ok(Some(1)), |_| record(b"larger"));
        assert_eq!(judged, Ok(Some(1)));
    }

    #[test]
    fn g4_once_one_is_named_the_others_of_its_batch_still_go_alone() {
        let mut suspects = Suspects::default();
        assert!(session(
            &mut suspects,
            &[(b"1", false, None), (b"2", false, None), (b"3", false, None)]
        ));
        assert!(learn(&mut suspects, b"2", true, Some(rejection())));
        assert_eq!(suspects.judge(row(), Ok(Some(1)), |_| record(b"2")), (Err(rejection()), false));
        assert_eq!(suspects.judge(row(), Ok(Some(1)), |_| record(b"3")), (Ok(Some(1)), true));
    }

    #[test]
    fn batches_are_made_smaller_only_once_a_record_has_gone_alone() {
        let mut suspects = Suspects::default();
        let unnamed = |suspects: &mut Suspects| {
            let ledger = Ledger::new(Budget::default());
            let found = suspects.learn(&[], &ledger, Some("t")).unwrap();
            *suspects = found.suspects;
            found.is_of_the_batch
        };
        assert!(!unnamed(&mut suspects));
        assert!(unnamed(&mut suspects), "the record was stored");
        assert!(learn(&mut suspects, b"2", true, Some(rejection())));
        assert!(!unnamed(&mut suspects), "the record was at fault");
    }

    /// A session that sends on past a record may still end without having settled it.
    #[test]
    fn g4_what_is_settled_is_forgotten_and_nothing_else() {
        let mut suspects = Suspects::default();
        learn(&mut suspects, b"odd", false, None);
        let mut ledger = Ledger::new(Budget::default());
        let later = Position { commit_lsn: Lsn::new(200), ..row() };
        ledger.begin(later.commit_lsn, 7).unwrap();
        let ticket = ledger.next_ticket(record(b"later").weight()).unwrap();
        ledger.count(ticket).unwrap();
        let found = suspects.learn(&[blame(ticket, b"later", false, None)], &ledger, None);
        suspects = found.unwrap().suspects;
        suspects.passed(COMMIT);
        assert!(suspects.has(row(), &record(b"odd")) && suspects.has(later, &record(b"later")));
        suspects.passed(Lsn::new(101));
        assert!(!suspects.has(row(), &record(b"odd")) && suspects.has(later, &record(b"later")));
        suspects.passed(Lsn::new(201));
        assert!(suspects.is_empty());
    }

    #[test]
    fn g4_what_may_be_the_brokers_own_fault_gets_more_attempts_and_time_between_them() {
        let mut suspects = Suspects::default();
        let mut waited = Duration::ZERO;
        for attempt in 0..8 {
            let (judged, _) = suspects.judge(row(), Ok(Some(1)), |_| record(b"odd"));
            assert!(judged.is_ok(), "{attempt}");
            let mut ledger = Ledger::new(Budget::default());
            ledger.begin(row().commit_lsn, 7).unwrap();
            let ticket = ledger.next_ticket(record(b"odd").weight()).unwrap();
            ledger.count(ticket).unwrap();
            let blamed = Blame { aspect: Aspect::Brokers, ..blame(ticket, b"odd", true, None) };
            let lesson = suspects.learn(&[blamed], &ledger, None).unwrap();
            assert!(lesson.is_news && lesson.wait.is_zero() == (attempt == 7));
            waited += lesson.wait;
            suspects = lesson.suspects;
        }
        assert!(waited > Duration::from_secs(30), "{waited:?}");
        assert!(suspects.judge(row(), Ok(Some(1)), |_| record(b"odd")).0.is_err());
    }
}
