//! Handles messages in the order of their aggregates' numbers, if the consumer enforces it.
//! Invariant: a waiting message is not handled, so no offset passes it. No message is given up
//! before the database was asked again.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::Effects;
use super::batch::{BatchProcessor, Halt, Letter};
use super::counters::add;
use super::retries::Pending;
use super::sequence::{self, GapPolicy, GivenUp, Misplaced, ReorderBuffer};
use crate::dead_letter::now_ms;

const GAP_CODE: &str = "sequence_gap";
const LATE_CODE: &str = "out_of_sequence";

impl<E: Effects> BatchProcessor<E> {
    /// Returns the message if it need not wait.
    pub(super) fn follow(&mut self, pending: Pending) -> Option<Pending> {
        let Some(buffer) = &mut self.reorder else { return self.retries.follow(pending) };
        let next = buffer.follow(pending, Instant::now());
        add(&self.counters.sequence_waits, usize::from(next.is_none()));
        self.retries.follow(next?)
    }

    pub(super) fn arrange(&self, pending: Vec<Pending>) -> Vec<Pending> {
        if self.reorder.is_some() { sequence::arrange(pending) } else { pending }
    }

    pub(super) fn note_sequences(&mut self, handled: &[Pending]) {
        let Some(buffer) = self.reorder.as_mut().filter(|buffer| buffer.len() > 0) else { return };
        for (aggregate, number) in handled.iter().filter_map(|it| sequence::place(&it.message)) {
            buffer.reach(&aggregate, number, Instant::now());
        }
    }

    /// Holds early messages, makes dead letters of late ones, and returns the others.
    pub(super) async fn set_aside(
        &mut self,
        messages: Vec<Pending>,
        misplaced: &[Misplaced],
    ) -> Result<Vec<Pending>, Halt> {
        let start = self.spec.sequence.map(|it| it.start).unwrap_or_default();
        let is_late = |pending: &Pending, last| {
            let number = pending.message.sequence;
            number.is_some_and(|number| sequence::is_late(number, last, start))
        };
        let mut misplaced = misplaced.iter().peekable();
        let (mut others, mut late) = (Vec::new(), Vec::new());
        for (at, pending) in messages.into_iter().enumerate() {
            match misplaced.next_if(|it| it.at == at) {
                None => others.push(pending),
                Some(it) if is_late(&pending, it.last) => late.push((pending, it.last)),
                Some(it) => {
                    let Some(buffer) = &mut self.reorder else {
                        unreachable!("no order is enforced, and a message was not next")
                    };
                    buffer.hold(pending, it.last, Instant::now());
                    add(&self.counters.sequence_waits, 1);
                }
            }
        }
        for (pending, last) in late {
            self.refuse(&pending, LATE_CODE, last).await?;
        }
        Ok(others)
    }

    pub(super) async fn continue_sequences(&mut self) -> Result<(), Halt> {
        self.process_ready().await?;
        let Some(buffer) = &mut self.reorder else { return Ok(()) };
        let aggregates = buffer.take_check(Instant::now());
        if aggregates.is_empty() {
            return Ok(());
        }
        // Without an answer no message is given up.
        let Ok(lasts) = self.database.sequences(&aggregates).await else { return Ok(()) };
        let are_brokers_away = self.counters.status().are_brokers_unavailable;
        // A message in a partition that is not read is not missing.
        let is_reading = self.full.is_empty() && !self.invalid.is_full() && !are_brokers_away;
        let now = Instant::now();
        buffer.count_time(is_reading, now);
        for (aggregate, last) in &lasts {
            buffer.reach(aggregate, *last, now);
        }
        self.process_ready().await?;
        self.give_up().await
    }

    async fn process_ready(&mut self) -> Result<(), Halt> {
        // Each round takes messages out of the buffer, or is the last.
        loop {
            let ready = self.reorder.as_mut().map(ReorderBuffer::take_ready).unwrap_or_default();
            if ready.is_empty() {
                return Ok(());
            }
            let ready = ready.into_iter().filter_map(|it| self.retries.follow(it)).collect();
            self.process_together(ready).await?;
        }
    }

    async fn give_up(&mut self) -> Result<(), Halt> {
        // The missing message may be in a partition of a slower or killed member.
        let is_stuck = self.is_stuck() && self.membership.has_all();
        loop {
            // A message that is retried is not missing.
            let retried = self.retries.all().filter_map(|it| sequence::place(&it.message));
            let there: BTreeSet<sequence::Aggregate> = retried.map(|(it, _)| it).collect();
            let buffer = self.reorder.as_mut();
            let given_up = buffer.and_then(|it| it.take_given_up(&there, is_stuck, Instant::now()));
            let Some(given_up) = given_up else { return Ok(()) };
            let GivenUp { mut messages, last } = given_up;
            add(&self.counters.sequence_gaps, messages.len());
            let (count, policy) = (messages.len(), self.spec.sequence.map(|it| it.on_gap));
            let first = messages.first().and_then(|pending| pending.message.sequence);
            if self.throttle.is_due("a sequence has a gap") {
                tracing::warn!(
                    count,
                    first,
                    last,
                    ?policy,
                    "messages have waited for an earlier one of their aggregate in vain"
                );
            }
            if policy == Some(GapPolicy::Pass) {
                // The others follow the first message, or wait for it while it fails.
                if let Some(first) = messages.first_mut() {
                    first.may_skip = true;
                }
                let passing = messages.into_iter();
                let passing = passing.filter_map(|it| self.retries.follow(it)).collect();
                self.process_together(passing).await?;
            } else {
                for pending in &messages {
                    self.refuse(pending, GAP_CODE, last).await?;
                }
            }
        }
    }

    async fn refuse(
        &mut self,
        pending: &Pending,
        code: &str,
        last: Option<i64>,
    ) -> Result<(), Halt> {
        let Pending { message, position, has_effect, .. } = pending;
        if code == LATE_CODE && !has_effect {
            // Nothing is lost: the message had only its number.
            add(&self.counters.passed_over, 1);
            self.membership.mark_handled(std::slice::from_ref(position), &[]);
            return Ok(());
        }
        let Some(number) = message.sequence else {
            unreachable!("a message without a number is always next")
        };
        let reason = match last {
            Some(last) => format!("it has number {number}, and number {last} was handled last"),
            None => format!("it has number {number}, and nothing of its aggregate was handled"),
        };
        let (failure, record) = (self.failure(0, now_ms()), (&message.record, position));
        let mut failures = 0;
        // No message may pass this one: the next ones of its aggregate are refused too.
        while let Letter::Unpublished(_) =
            self.dead_letter(record, Some(message), (code, &reason), failure.clone()).await?
        {
            failures += 1;
            self.wait(failures).await?;
        }
        Ok(())
    }
}
