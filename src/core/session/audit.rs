//! Sends the dead letters of refused records.

use super::{Session, SessionError};
use crate::pipeline::{Answer, Confirmation, Outcome, OwnedOutgoing, Refused, SentDeadLetter};
use crate::sink::{SendError, Sink};
use crate::time::Instant;

/// Result for a refused record, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Audit {
    /// A dead letter without body was sent.
    DeadLetter(SentDeadLetter),
    /// The policy skipped it.
    Skipped(Refused),
}

impl Session {
    pub(super) fn keep(&mut self, answer: Answer) {
        match answer {
            Answer::Stored => {}
            Answer::Send(dead_letter) => self.dead_letters.push_back(*dead_letter),
            Answer::Skipped(refused) => self.audit.push(Audit::Skipped(*refused)),
        }
    }

    pub(super) fn send_dead_letters<S: Sink>(
        &mut self,
        now: Instant,
        sink: &mut S,
    ) -> Result<(), SessionError<S::Error>> {
        while let Some(dead_letter) = self.dead_letters.pop_front() {
            let sent = sink.send(now, &dead_letter.as_outgoing());
            match sent {
                Ok(()) => {
                    self.audit.push(Audit::DeadLetter(dead_letter.without_body()));
                }
                Err(SendError::Full) => {
                    self.dead_letters.push_front(dead_letter);
                    break;
                }
                Err(SendError::Refused(rejection)) => {
                    let OwnedOutgoing { record, ticket, .. } = dead_letter;
                    let outcome = Outcome::Refused(Box::new(Refused { record, rejection }));
                    let answer = self.pipeline.confirm(Confirmation { ticket, outcome })?;
                    self.keep(answer);
                }
                Err(SendError::Broken(error)) => return Err(SessionError::Sink(error)),
            }
        }
        Ok(())
    }
}
