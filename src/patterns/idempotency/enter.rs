//! Decides whether a request is executed now, or waits for the first one with its key. Invariant:
//! at most one attempt per key exists in this process. Waits stay within the guard's limits.

use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::attempt::{Attempt, Outcome};
use super::counts::count;
use super::guard::{BeginOutcome, Guard};
use super::in_flight::{Holder, Progress};
use super::request::Request;

/// Several times the duration of an order.
const PAUSE: Duration = Duration::from_millis(10);
/// Each waiting request causes 5 round trips per second.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Maximum wait until the first request of this process knows whether Postgres has a response.
/// Without it, 86 of 100 concurrent repeats of a completed request got "in progress" while Redis
/// was away.
const DECISION_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum Entry {
    Execute(Attempt),
    Answer(Outcome),
}

impl Guard {
    pub(super) async fn enter(&self, request: &Request) -> Entry {
        let mut wait = Wait::new(self);
        let tally = &self.shared.tally;
        loop {
            let (lease, counter) = match self.begin_uncounted(request).await {
                BeginOutcome::New(lease) => (Some(lease), &tally.new),
                BeginOutcome::Unsure => (None, &tally.unsure),
                BeginOutcome::Replay(response) => {
                    count(&tally.replayed);
                    return Entry::Answer(Outcome::Replayed(response));
                }
                BeginOutcome::Mismatch => return self.mismatch(),
                BeginOutcome::Pending { .. } => match wait.step(request).await {
                    Some(answer) => return Entry::Answer(answer),
                    None => continue,
                },
            };
            match self.shared.in_flight.enter(request) {
                Ok(in_flight) => {
                    count(counter);
                    return Entry::Execute(Attempt::new(self, request, lease, in_flight));
                }
                Err(Holder::Other) => return self.mismatch(),
                Err(Holder::Same(_)) => {}
            }
            // Redis has lost the request that is in progress here, or was not asked.
            if let Some(lease) = lease {
                self.release(&lease).await;
            }
            if let Some(answer) = wait.step(request).await {
                return Entry::Answer(answer);
            }
        }
    }

    fn mismatch(&self) -> Entry {
        count(&self.shared.tally.mismatched);
        Entry::Answer(Outcome::Mismatch)
    }

    pub(super) fn pending(&self) -> Outcome {
        Outcome::Pending { retry_after: self.shared.retry_after() }
    }
}

struct Wait<'a> {
    guard: &'a Guard,
    decided_by: Instant,
    until: Instant,
    pause: Duration,
    place: Option<SemaphorePermit<'a>>,
}

impl<'a> Wait<'a> {
    fn new(guard: &'a Guard) -> Self {
        let now = Instant::now();
        let (decided_by, until) = (now + DECISION_MAX, now + guard.waiting.time_max);
        Self { guard, decided_by, until, pause: PAUSE, place: None }
    }

    /// Waits until it is worth asking again (`None`) or there is an answer.
    async fn step(&mut self, request: &Request) -> Option<Outcome> {
        let answer = self.next(request).await;
        let tally = &self.guard.shared.tally;
        match &answer {
            Some(Outcome::Replayed(_)) => count(&tally.replayed),
            Some(_) => count(&tally.pending),
            None => {}
        }
        answer
    }

    async fn next(&mut self, request: &Request) -> Option<Outcome> {
        let first = self.guard.shared.in_flight.holder(request);
        if let Some(Holder::Same(mut first)) = first
            && Instant::now() < self.decided_by
        {
            let is_decided = |progress: &Progress| !matches!(progress, Progress::Deciding);
            match timeout_at(self.decided_by, first.wait_for(is_decided)).await {
                Ok(Ok(progress)) => {
                    if let Progress::Done(response) = &*progress {
                        return Some(Outcome::Replayed(response.clone()));
                    }
                }
                // The first request ended without a response.
                Ok(Err(_)) => return None,
                Err(_) => {}
            }
        }
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(self.guard.pending());
        }
        if self.place.is_none() {
            let Ok(place) = self.guard.waiting.places.try_acquire() else {
                return Some(self.guard.pending());
            };
            self.place = Some(place);
        }
        if let Some(Holder::Same(mut first)) = self.guard.shared.in_flight.holder(request) {
            let is_done = |progress: &Progress| matches!(progress, Progress::Done(_));
            return match timeout(left, first.wait_for(is_done)).await {
                Ok(Ok(progress)) => match &*progress {
                    Progress::Done(response) => Some(Outcome::Replayed(response.clone())),
                    Progress::Deciding | Progress::Executing => None,
                },
                Ok(Err(_)) => None,
                Err(_) => Some(self.guard.pending()),
            };
        }
        sleep(self.pause.min(left)).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        None
    }
}
