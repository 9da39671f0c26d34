//! Records that the brokers refused, and how a later session treats their rows.
//!
//! Enters: what a session that ended knows of the records at fault. Leaves: for a row's record whether
//! it is sent as usual, alone in its batch (and its Kafka transaction), or not again. What always holds:
//! a row is refused only for what the brokers said of a batch in which its record, or its like, was the
//! only one at fault, or because it is as large as several that its topic has just refused
//! ([`Oversize`]) (G4); whatever lies behind the refused batch is sent as usual.
//!
//! A session numbers its tickets anew, so a record is known by where its transaction committed, by its
//! weight, and by topic, key and value. Two rows of one transaction that agree in all of that share
//! their fate.

use super::confirmation::Blame;
use super::error::PipelineError;
use super::oversize::Oversize;
use crate::ledger::Ledger;
use crate::lsn::Lsn;
use crate::outbox::Position;
use crate::route::{Record, Rejection, RejectionCode, content_of};

/// Attempts that a record gets alone, where what the brokers say need not be the record's fault.
const ATTEMPTS_ALONE: u32 = 2;

/// What identifies a record from one session to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Like {
    commit_lsn: Lsn,
    weight: u64,
    content: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Suspect {
    like: Like,
    topic: String,
    /// When its row committed, in microseconds since the Unix epoch.
    commit_us: i64,
    /// How often it was refused when it was sent alone.
    alone: u32,
    rejection: Option<Rejection>,
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
    /// Sorted.
    all: Vec<Suspect>,
    /// No row that committed after this is among them.
    until: Lsn,
    oversize: Oversize,
}

impl Suspects {
    /// The records that the brokers blame, as a later session knows them; `last_sent` is the last row of
    /// which the sink took a record, and `reason` what the brokers said.
    pub(super) fn of(
        blamed: &[Blame],
        ledger: &Ledger,
        last_sent: Option<Position>,
        reason: &str,
    ) -> Result<Self, PipelineError> {
        let mut found = Self::default();
        for blame in blamed {
            let like = Like {
                commit_lsn: ledger.commit_lsn(blame.ticket)?,
                weight: blame.ticket.weight(),
                content: blame.content,
            };
            let (topic, rejection) = (blame.topic.clone(), blame.rejection.clone());
            let commit_us = ledger.commit_time(blame.ticket)?;
            let suspect =
                Suspect { like, topic, commit_us, alone: u32::from(blame.alone), rejection };
            found.until = last_sent.ok_or(PipelineError::NotSent)?.commit_lsn;
            found.add(suspect, reason);
        }
        Ok(found)
    }

    /// Adds what one more session has found; false if that was known, so that sessions would repeat.
    pub fn learn(&mut self, found: &Self, reason: &str) -> bool {
        let news = found.all.iter().map(|suspect| self.add(suspect.clone(), reason));
        let news = news.fold(false, |any, one| any | one);
        self.until = self.until.max(found.until);
        news
    }

    /// The same, but a record is refused only for what was said of itself.
    pub(super) fn without_inference(self) -> Self {
        Self { oversize: Oversize::default(), ..self }
    }

    /// Whatever committed before `lsn` is not sent again.
    pub fn passed(&mut self, lsn: Lsn) {
        if lsn > self.until {
            self.all.clear();
        }
    }

    /// How many rows are refused for good.
    pub fn refused(&self) -> usize {
        self.all.iter().filter(|suspect| suspect.rejection.is_some()).count()
    }

    /// Whether no record needs another treatment than usual.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.oversize.is_empty()
    }

    /// Whether a row goes where it is routed, and whether its record, which `record` makes, goes alone.
    #[inline]
    pub(super) fn judge<'r, R>(
        &self,
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

    fn treatment(&self, row: Position, record: &Record<'_>) -> Treatment {
        match self.find(row, record) {
            Some(Suspect { rejection: Some(rejection), .. }) => {
                Treatment::Refused(rejection.clone())
            }
            Some(_) => Treatment::Alone,
            None => self
                .oversize
                .judge(record.topic, record.weight() as u64, row.commit_time.unix_us())
                .map_or(Treatment::Usual, Treatment::Refused),
        }
    }

    /// Whether the record is one of them.
    pub(super) fn has(&self, row: Position, record: &Record<'_>) -> bool {
        !self.is_empty() && self.find(row, record).is_some()
    }

    fn find(&self, row: Position, record: &Record<'_>) -> Option<&Suspect> {
        let about = (row.commit_lsn, record.weight() as u64);
        let of = |one: &Suspect| (one.like.commit_lsn, one.like.weight);
        let from = self.all.partition_point(|one| of(one) < about);
        let mut alike = self.all.iter().skip(from).take_while(|one| of(one) == about).peekable();
        alike.peek()?;
        let content = content_of(record.topic, record.key, record.value);
        alike.find(|one| one.like.content == content)
    }

    fn add(&mut self, news: Suspect, reason: &str) -> bool {
        let place = self.all.binary_search_by_key(&news.like, |one| one.like);
        let known = match place {
            Err(place) => {
                learn(&mut self.oversize, &news);
                self.all.insert(place, news);
                return true;
            }
            Ok(place) => self.all.get_mut(place),
        };
        let Some(known) = known.filter(|known| known.rejection.is_none()) else { return false };
        known.alone += news.alone;
        known.rejection = news.rejection;
        if known.rejection.is_none() && known.alone >= ATTEMPTS_ALONE {
            let reason = format!("topic `{}` does not take the record: {reason}", known.topic);
            known.rejection = Some(Rejection { code: RejectionCode::Refused, reason });
        }
        learn(&mut self.oversize, known);
        known.rejection.is_some() || news.alone > 0
    }
}

/// Whoever is refused for its size says something of others.
fn learn(oversize: &mut Oversize, suspect: &Suspect) {
    let Suspect { like, topic, commit_us, rejection, .. } = suspect;
    if rejection.as_ref().is_some_and(|why| why.code == RejectionCode::TooLarge) {
        oversize.refused(topic, like.weight, *commit_us);
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
        let content = content_of("t", Some(b"k"), Some(value));
        Blame { ticket, topic: "t".into(), content, alone, rejection }
    }

    fn found(value: &[u8], alone: bool, rejection: Option<Rejection>) -> Suspects {
        let mut ledger = Ledger::new(Budget::default());
        ledger.begin(row().commit_lsn, row().commit_time.unix_us()).unwrap();
        let ticket = ledger.next_ticket(record(value).weight()).unwrap();
        ledger.count(ticket).unwrap();
        Suspects::of(&[blame(ticket, value, alone, rejection)], &ledger, Some(row()), "why")
            .unwrap()
    }

    fn rejection() -> Rejection {
        Rejection { code: RejectionCode::TooLarge, reason: "too large".into() }
    }

    #[test]
    fn g4_a_record_of_a_refused_batch_goes_alone_and_its_like_of_another_commit_does_not() {
        let mut suspects = Suspects::default();
        assert!(suspects.learn(&found(b"large", false, None), "why"));
        assert_eq!(suspects.judge(row(), Ok(Some(1)), |_| record(b"large")), (Ok(Some(1)), true));
        assert_eq!(suspects.judge(row(), Ok(Some(1)), |_| record(b"other")), (Ok(Some(1)), false));
        let later = Position { commit_lsn: Lsn::new(101), ..row() };
        // A message outside of transactions has the time at which it was sent, another one each time.
        let again = Position { commit_time: PgTime(8), ..row() };
        assert_eq!(suspects.judge(again, Ok(Some(1)), |_| record(b"large")), (Ok(Some(1)), true));
        assert_eq!(suspects.judge(later, Ok(Some(1)), |_| record(b"large")), (Ok(Some(1)), false));
        assert!(!suspects.learn(&found(b"large", false, None), "why"), "it is known");
    }

    #[test]
    fn g4_what_the_brokers_name_is_not_sent_again() {
        let mut suspects = Suspects::default();
        assert!(suspects.learn(&found(b"large", false, None), "why"));
        assert!(suspects.learn(&found(b"large", true, Some(rejection())), "why"));
        assert_eq!(
            suspects.judge(row(), Ok(Some(1)), |_| record(b"large")),
            (Err(rejection()), false)
        );
        assert_eq!(suspects.refused(), 1);
        assert!(!suspects.learn(&found(b"large", true, Some(rejection())), "why"));
    }

    #[test]
    fn g4_what_may_be_no_fault_of_the_record_gets_two_attempts_alone() {
        let mut suspects = Suspects::default();
        assert!(suspects.learn(&found(b"odd", false, None), "why"));
        assert!(suspects.learn(&found(b"odd", true, None), "why"));
        assert_eq!(suspects.judge(row(), Ok(Some(1)), |_| record(b"odd")), (Ok(Some(1)), true));
        assert!(suspects.learn(&found(b"odd", true, None), "why"));
        let (judged, _) = suspects.judge(row(), Ok(Some(1)), |_| record(b"odd"));
        assert_eq!(judged.unwrap_err().reason, "topic `t` does not take the record: why");
    }

    #[test]
    fn g4_a_topic_that_keeps_refusing_large_records_costs_no_session_for_each() {
        let mut suspects = Suspects::default();
        for value in [b"large1", b"large2", b"large3"] {
            let (judged, _) = suspects.judge(row(), Ok(Some(1)), |_| record(b"larger"));
            assert_eq!(judged, Ok(Some(1)));
            assert!(suspects.learn(&found(value, true, Some(rejection())), "why"));
        }
        suspects.passed(Lsn::new(101));
        let (judged, _) = suspects.judge(row(), Ok(Some(1)), |_| record(b"larger"));
        assert_eq!(judged.unwrap_err().code, RejectionCode::TooLarge);
        assert_eq!(suspects.judge(row(), Ok(Some(1)), |_| record(b"small")), (Ok(Some(1)), false));
    }

    #[test]
    fn what_is_behind_is_forgotten() {
        let mut suspects = Suspects::default();
        suspects.learn(&found(b"odd", false, None), "why");
        suspects.passed(COMMIT);
        assert!(suspects.has(row(), &record(b"odd")));
        suspects.passed(Lsn::new(101));
        assert!(suspects.is_empty());
    }
}
