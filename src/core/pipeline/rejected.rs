//! Decides what a rejected row becomes: a dead letter, a skipped row, or an error.

use super::confirmation::{Blame, RefusalCause};
use super::error::PipelineError;
use super::policy::RejectPolicy;
use super::step::Skipped;
use super::suspects::{LetterTreatment, Suspects};
use crate::outbox::{OutboxRow, Position};
use crate::route::{ERROR_CODE_HEADER, OwnedRecord, Rejection, RejectionCode, Router, untimed};

pub(super) enum Rejected {
    Letter { letter: OwnedRecord, code: RejectionCode, alone: bool },
    Skip(Box<Skipped>),
}

/// `sent_us`: the server's clock in microseconds since 2000.
pub(super) fn rejected(
    policy: &RejectPolicy,
    router: &Router,
    suspects: &mut Suspects,
    (row, sent_us): (&OutboxRow<'_>, i64),
    rejection: Rejection,
) -> Result<Rejected, PipelineError> {
    match policy {
        RejectPolicy::DeadLetter { topic } => {
            let (letter, alone) = letter(router, suspects, (row, sent_us), &rejection, topic)?;
            Ok(Rejected::Letter { letter, code: rejection.code, alone })
        }
        RejectPolicy::Stop => Err(PipelineError::Rejected { row: named(router, row), rejection }),
        RejectPolicy::Skip => {
            let (table, id) = (row.table().clone(), router.id_of(row));
            let position = row.position();
            Ok(Rejected::Skip(Box::new(Skipped { table, id, position, rejection })))
        }
    }
}

/// Names a row by its position, or by its id if it was read from its table.
fn named(router: &Router, row: &OutboxRow<'_>) -> String {
    let table = row.table();
    match router.id_of(row) {
        _ if router.reads_log() => format!("row {} of {table}", printed(row.position())),
        Some(id) => format!("the row of {table} with id `{id}`"),
        None => format!("a row of {table} without an id"),
    }
}

/// As in `postrider-lsn` and Postgres's tools.
fn printed(position: Position) -> String {
    format!("{}.{}", position.commit_lsn, position.index)
}

/// A refusal for the letter's size leads to a note, a refusal for its timestamp to a letter without
/// one. Neither delays other letters (G4).
fn letter(
    router: &Router,
    suspects: &mut Suspects,
    (row, sent_us): (&OutboxRow<'_>, i64),
    rejection: &Rejection,
    topic: &str,
) -> Result<(OwnedRecord, bool), PipelineError> {
    let (mut is_short, mut is_untimed) = (false, false);
    loop {
        let mut letter = if is_short {
            router.short_dead_letter(row, rejection, topic)
        } else {
            router.dead_letter(row, rejection, topic)
        };
        if is_untimed {
            letter = untimed(letter, row.position().commit_time.unix_ms());
        }
        let treatment = suspects.judge_letter((row.position(), sent_us), &letter.as_record());
        match treatment {
            LetterTreatment::Usual => return Ok((letter, false)),
            LetterTreatment::Alone => return Ok((letter, true)),
            LetterTreatment::Refused(_, RefusalCause::Size) if !is_short => is_short = true,
            LetterTreatment::Refused(_, cause) if cause.may_be_the_time() && !is_untimed => {
                is_untimed = true;
            }
            LetterTreatment::Refused(rejection, _) => {
                return Err(PipelineError::DeadLetterRefused {
                    topic: topic.to_owned(),
                    rejection,
                });
            }
        }
    }
}

pub(super) fn check_letters(blamed: &[Blame], letters: Option<&str>) -> Result<(), PipelineError> {
    for Blame { topic, cause, rejection, .. } in blamed {
        let is_final = *cause != RefusalCause::Size && !cause.may_be_the_time();
        if let Some(rejection) = rejection
            && is_final
            && letters == Some(topic.as_str())
        {
            let (topic, rejection) = (topic.clone(), rejection.clone());
            return Err(PipelineError::DeadLetterRefused { topic, rejection });
        }
    }
    Ok(())
}

/// False for a row's own record in the dead-letter topic.
pub(super) fn is_dead_letter(record: &OwnedRecord) -> bool {
    record.headers.first().is_some_and(|(name, _)| name == ERROR_CODE_HEADER)
}
