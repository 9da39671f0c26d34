//! Sends the dead letters of records that the brokers refused, and defines [`Audit`]: what became of such a record, for a
//! line in the relay's log.
//!
//! Its dead letter was sent, or the operator's policy left the record out.

use super::{Session, SessionError};
use crate::pipeline::{Answer, Confirmation, Outcome, OwnedOutgoing, Refused, SentDeadLetter};
use crate::sink::{SendError, Sink};
use crate::time::Instant;

/// What became of a record that the brokers refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Audit {
    /// Its dead letter was sent; here without its body.
    DeadLetter(SentDeadLetter),
    /// The policy leaves it out.
    Skipped(Refused),
}

impl Session {
    /// Keeps what a refused record needs: its dead letter until there is room, or a line in the audit.
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
