//! Which dead letter a row leaves as.
//!
//! Enters: a rejected row, and what its topic for dead letters has refused so far. Leaves: a letter that is
//! not known to be refused. Pure.

use super::confirmation::Aspect;
use super::error::PipelineError;
use super::suspects::{LetterTreatment, Suspects};
use crate::outbox::OutboxRow;
use crate::route::{ERROR_CODE_HEADER, OwnedRecord, Rejection, Router, untimed};

/// The dead letter of a row, and whether it goes alone. One that its topic refuses for its size has a note
/// in its body's place, one that it refuses for its time bears none: a row whose letter is refused for
/// either stops nobody else's (G4).
pub(super) fn letter(
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
            LetterTreatment::Refused(_, Aspect::Size) if !is_short => is_short = true,
            LetterTreatment::Refused(_, Aspect::Time) if !is_untimed => is_untimed = true,
            LetterTreatment::Refused(rejection, _) => {
                return Err(PipelineError::DeadLetterRefused {
                    topic: topic.to_owned(),
                    rejection,
                });
            }
        }
    }
}

/// Whether the record is a dead letter, rather than that of a row which chose their topic.
pub(super) fn is_dead_letter(record: &OwnedRecord) -> bool {
    record.headers.first().is_some_and(|(name, _)| name == ERROR_CODE_HEADER)
}
