//! Reads Kafka requests along, and does to the end of a transaction (EndTxn) what a network or a
//! broker that fails at that moment does.
//!
//! Input: a plan, asked at every EndTxn. Output: a journal of what was seen and what was done. Who
//! breaks the rule of the ambiguous commit shows there: a producer that adds partitions in the epoch
//! in which it lost sight of an EndTxn.

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::kafka_frame::{self as frame, Producer, Request, Step};
use super::proxy::{Outlet, Reader};
use crate::wait::let_pass;

/// How long a connection whose client is gone is kept for the answer to what it sent last; else a
/// broker might not do what it has just read.
const LAST_ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Makes a second correlation id from a client's, which counts up from 1.
const SECOND: i32 = 1 << 30;

/// What is done to an EndTxn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Injection {
    /// It reaches the broker this much later, even if its client has gone by then.
    Delay(Duration),
    /// It never reaches the broker; the connection lives on.
    DropRequest,
    /// The broker does it; its answer never reaches the client; the connection lives on.
    DropResponse,
    /// The connection is cut instead.
    CutBefore,
    /// The broker does it; the connection is cut instead of the answer.
    CutAfter,
    /// The broker gets it twice, the client one answer.
    Duplicate,
}

/// An EndTxn that a client sent.
#[derive(Debug, Clone)]
pub struct End {
    pub producer: Producer,
    /// Whether it is a commit or an abort.
    pub committed: bool,
    pub injection: Option<Injection>,
    /// From the request to the answer, if one came.
    pub answered_after: Option<Duration>,
}

/// Everything seen so far.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    /// In the order they were seen.
    pub ends: Vec<End>,
    /// Who added a partition while an EndTxn of the same epoch had no answer, once for each partition.
    pub went_on: Vec<Producer>,
    /// Places in `ends`, of those whose client has had no answer.
    unanswered: HashMap<Producer, HashSet<usize>>,
}

impl Journal {
    /// How many of the EndTxns were commits, or aborts.
    pub fn seen(&self, committed: bool) -> usize {
        self.ends.iter().filter(|end| end.committed == committed).count()
    }

    /// How many injections are like this.
    pub fn injected(&self, is: impl Fn(Injection) -> bool) -> usize {
        self.ends.iter().filter(|end| end.injection.is_some_and(&is)).count()
    }
}

type Plan = dyn FnMut(&Producer, bool) -> Option<Injection> + Send;

/// The plan and the journal, shared with the threads of the proxy.
pub struct EndTxns {
    plan: Mutex<Box<Plan>>,
    /// By transactional id, what comes before the plan.
    next: Mutex<HashMap<String, Injection>>,
    journal: Mutex<Journal>,
}

impl EndTxns {
    pub(super) fn new() -> Self {
        Self {
            plan: Mutex::new(Box::new(|_, _| None)),
            next: Mutex::default(),
            journal: Mutex::default(),
        }
    }

    /// Asks this at every EndTxn from now on; told whose it is, and whether it is a commit.
    pub fn plan(&self, plan: impl FnMut(&Producer, bool) -> Option<Injection> + Send + 'static) {
        *self.plan.lock().unwrap() = Box::new(plan);
    }

    /// Does this to the next EndTxn of this transactional id alone.
    pub fn once(&self, transactional_id: &str, injection: Injection) {
        self.next.lock().unwrap().insert(transactional_id.to_owned(), injection);
    }

    /// What was seen and done so far.
    pub fn journal(&self) -> Journal {
        self.journal.lock().unwrap().clone()
    }

    /// Who added partitions so far while an EndTxn of the same epoch had no answer.
    pub fn went_on(&self) -> Vec<Producer> {
        self.journal.lock().unwrap().went_on.clone()
    }

    /// The readers of a connection to a broker.
    pub(super) fn readers(self: &Arc<Self>) -> [Reader; 2] {
        let ends = Arc::clone(self);
        let talk = Arc::new(Talk { ends, awaited: Mutex::default(), changed: Condvar::new() });
        let heard = Arc::clone(&talk);
        [
            Box::new(move |bytes, outlet| talk.request(bytes, outlet)),
            Box::new(move |bytes, outlet| heard.response(bytes, outlet)),
        ]
    }

    fn note(&self, producer: Producer, committed: bool) -> (usize, Option<Injection>) {
        let next = self.next.lock().unwrap().remove(&producer.transactional_id);
        let injection = next.or_else(|| (self.plan.lock().unwrap())(&producer, committed));
        let mut journal = self.journal.lock().unwrap();
        let place = journal.ends.len();
        journal.unanswered.entry(producer.clone()).or_default().insert(place);
        journal.ends.push(End { producer, committed, injection, answered_after: None });
        (place, injection)
    }

    fn answer(&self, place: usize, after: Duration) {
        let mut journal = self.journal.lock().unwrap();
        journal.ends[place].answered_after = Some(after);
        let producer = journal.ends[place].producer.clone();
        if let Some(places) = journal.unanswered.get_mut(&producer) {
            places.remove(&place);
        }
    }

    fn go_on(&self, producer: &Producer) {
        let mut journal = self.journal.lock().unwrap();
        let is_lost = journal.unanswered.get(producer).is_some_and(|places| !places.is_empty());
        if is_lost {
            journal.went_on.push(producer.clone());
        }
    }
}

/// What the two ways of a connection know of each other.
struct Talk {
    ends: Arc<EndTxns>,
    /// By correlation id, answers that are not just passed on.
    awaited: Mutex<HashMap<i32, Awaited>>,
    changed: Condvar,
}

struct Awaited {
    /// The EndTxn's place in the journal; nothing for the second of two.
    place: Option<usize>,
    since: Instant,
    then: Then,
    /// The broker shall do it even when the client has gone.
    outlives: bool,
}

/// What is done with an answer.
#[derive(Debug, Clone, Copy)]
enum Then {
    Pass,
    Swallow,
    Cut,
}

impl Talk {
    fn request(&self, bytes: &[u8], outlet: &Outlet) -> io::Result<usize> {
        if bytes.is_empty() {
            self.await_last_answers();
        }
        let Some(length) = frame::length(bytes) else { return Ok(0) };
        let whole = &bytes[..length];
        let request = Request::read(whole);
        match request.and_then(|request| request.step().map(|step| (request, step))) {
            Some((request, Step::End { producer, committed })) => {
                let (place, injection) = self.ends.note(producer, committed);
                self.end(whole, request.correlation_id, (place, injection), outlet)?;
            }
            Some((_, Step::AddPartitions(producer))) => {
                self.ends.go_on(&producer);
                outlet.pass(whole)?;
            }
            None => outlet.pass(whole)?,
        }
        Ok(length)
    }

    fn end(
        &self,
        whole: &[u8],
        correlation_id: i32,
        (place, injection): (usize, Option<Injection>),
        outlet: &Outlet,
    ) -> io::Result<()> {
        let outlives = injection.is_some();
        let expect = |id, place, then| {
            let awaited = Awaited { place, since: Instant::now(), then, outlives };
            self.awaited.lock().unwrap().insert(id, awaited);
        };
        let place = Some(place);
        match injection {
            Some(Injection::DropRequest) => return Ok(()),
            Some(Injection::CutBefore) => return Err(ErrorKind::ConnectionAborted.into()),
            Some(Injection::DropResponse) => expect(correlation_id, place, Then::Swallow),
            Some(Injection::CutAfter) => expect(correlation_id, place, Then::Cut),
            Some(Injection::Delay(_) | Injection::Duplicate) | None => {
                expect(correlation_id, place, Then::Pass);
            }
        }
        if let Some(Injection::Delay(delay)) = injection {
            let_pass(delay, "the delay that was injected");
        }
        outlet.pass(whole)?;
        if injection == Some(Injection::Duplicate) {
            let second = correlation_id ^ SECOND;
            expect(second, None, Then::Swallow);
            outlet.pass(&Request::renumbered(whole, second))?;
        }
        Ok(())
    }

    fn response(&self, bytes: &[u8], outlet: &Outlet) -> io::Result<usize> {
        let Some(length) = frame::length(bytes) else { return Ok(0) };
        let whole = &bytes[..length];
        let id = frame::answered(whole);
        let awaited = id.and_then(|id| self.awaited.lock().unwrap().remove(&id));
        self.changed.notify_all();
        let Some(Awaited { place, since, then, .. }) = awaited else {
            outlet.pass(whole)?;
            return Ok(length);
        };
        match then {
            Then::Pass => {
                if let Some(place) = place {
                    self.ends.answer(place, since.elapsed());
                }
                outlet.pass(whole)?;
            }
            Then::Swallow => {}
            Then::Cut => return Err(ErrorKind::ConnectionAborted.into()),
        }
        Ok(length)
    }

    /// The client has gone. A broker that is told at once might not do what it has just read.
    fn await_last_answers(&self) {
        let awaited = self.awaited.lock().unwrap();
        let outlives =
            |awaited: &mut HashMap<i32, Awaited>| awaited.values().any(|one| one.outlives);
        drop(self.changed.wait_timeout_while(awaited, LAST_ANSWER_LIMIT, outlives).unwrap());
    }
}
