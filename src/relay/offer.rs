//! One frame on its way from the stream to the sink.
//!
//! Enters: a frame that was read. Leaves: what became of it. What always holds: a frame whose record has
//! no room stays the next one (G2, G3). Called by `session`.

use crate::failpoint;
use crate::kafka::{SendError, Sink};
use crate::pipeline::{Pipeline, Step};
use crate::relay::audit;
use crate::relay::error::RelayError;
use crate::route::Rejection;
use crate::wal::Frame;

/// What became of a frame.
pub(super) enum Offer {
    /// It may be consumed.
    Taken,
    /// Its record has no room in the sink's queue now.
    Full,
    /// The sink will never take its record.
    Refused(Rejection),
}

/// Offers a frame to the pipeline and its record, if any, to the sink. With `refused`, the record
/// the frame gave before is replaced by what the policy says. `acknowledged`: this is no dry run.
pub(super) fn offer<S: Sink>(
    pipeline: &mut Pipeline,
    sink: &mut S,
    frame: Frame<'_>,
    refused: Option<Rejection>,
    acknowledged: bool,
) -> Result<Offer, RelayError> {
    let outgoing = match step(pipeline, frame, refused)? {
        Step::Nothing => return Ok(Offer::Taken),
        Step::Skipped(skipped) => {
            audit::skipped_row(&skipped, acknowledged);
            return Ok(Offer::Taken);
        }
        Step::Send(outgoing) => outgoing,
    };
    failpoint::pass("row_decoded");
    let letter = outgoing.rejection.map(|code| audit::Letter::of(code, &outgoing.record));
    let sent = if outgoing.alone {
        sink.send_alone(&outgoing.record, outgoing.ticket)
    } else {
        sink.send(&outgoing.record, outgoing.ticket)
    };
    drop(outgoing);
    match sent {
        Ok(()) => pipeline.sent()?,
        Err(SendError::Full) => return Ok(Offer::Full),
        Err(SendError::Refused(rejection)) => return Ok(Offer::Refused(rejection)),
        Err(SendError::Broken(error)) => return Err(error.into()),
    }
    if let Some(letter) = letter {
        failpoint::pass("dead_letter_sent");
        letter.sent(acknowledged);
    }
    Ok(Offer::Taken)
}

fn step<'a>(
    pipeline: &'a mut Pipeline,
    frame: Frame<'a>,
    refused: Option<Rejection>,
) -> Result<Step<'a>, RelayError> {
    Ok(match refused {
        None => pipeline.frame(frame)?,
        Some(rejection) => pipeline.reject(frame, rejection)?,
    })
}
