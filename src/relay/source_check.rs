//! Checks publication, tables and slot once more when a new session holds the slot, since another relay may
//! have delivered, or somebody changed the source, between the first check and that moment. The session's
//! thread asks; the tokio side, which has the SQL connection, answers.
//!
//! Input: the server process that streams to us. Output: the [`Inspection`] of the source and the slot's
//! position, read while that process holds the slot; or [`RelayError::NoAnswer`] after a limit. Invariant:
//! asked once, answered at most once; the stream is kept alive meanwhile.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::error::RelayError;
use crate::stop::StopSignal;
use postrider_core::session::ControlRequest;
use postrider_postgres::control::{
    self, Client, ControlError, Inspection, LeftCopy, Requirements, SlotSample,
};
use postrider_postgres::wal::{ServerProcess, WalError};

/// How long the answer may take: as long as a stream may go on without a look at what is published. A
/// server that is busy, or whose publication is of very many tables, needs some of it.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How long it may take when the relay was told to end.
const LAST_ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How soon a request to end is noticed.
const TICK: Duration = Duration::from_millis(100);

/// What the control plane saw while our stream held the slot.
pub(super) struct HeldSource {
    pub(super) inspection: Inspection,
    pub(super) slot: SlotSample,
}

/// Asks the control plane, once, what the source is and where the slot, while we hold it.
pub(super) struct SourceCheck {
    asked: oneshot::Sender<ServerProcess>,
    answer: Receiver<Result<HeldSource, ControlError>>,
}

/// The control plane's end.
pub(super) struct SourceCheckReply {
    asked: oneshot::Receiver<ServerProcess>,
    answer: SyncSender<Result<HeldSource, ControlError>>,
}

impl SourceCheck {
    /// Both ends.
    pub(super) fn new() -> (Self, SourceCheckReply) {
        let (ask, asked) = oneshot::channel();
        let (answer, answered) = sync_channel(1);
        (Self { asked: ask, answer: answered }, SourceCheckReply { asked, answer })
    }

    /// What the answer is, once; [`RelayError::NoAnswer`] after [`ANSWER_LIMIT`], or sooner when told to
    /// `stop`. The stream is kept `alive` meanwhile; if that fails, its end is the answer's reason.
    pub(super) fn ask(
        self,
        stream: ServerProcess,
        stop: &StopSignal,
        mut alive: impl FnMut() -> Result<(), WalError>,
    ) -> Result<HeldSource, RelayError> {
        // Nobody listens to a session that was called off.
        let _ = self.asked.send(stream);
        let asked = Instant::now();
        loop {
            match self.answer.recv_timeout(TICK) {
                Ok(answer) => return Ok(answer?),
                Err(RecvTimeoutError::Disconnected) => return Err(RelayError::NoAnswer),
                Err(RecvTimeoutError::Timeout) => alive()?,
            }
            let is_told = stop.most_urgent() > ControlRequest::Reconfigure;
            if asked.elapsed() >= if is_told { LAST_ANSWER_LIMIT } else { ANSWER_LIMIT } {
                return Err(RelayError::NoAnswer);
            }
        }
    }
}

impl SourceCheckReply {
    /// Waits for the question and answers it. Returns who streams; a session that never asks is none
    /// of ours.
    pub(super) async fn answer(
        self,
        client: &Client,
        wanted: &Requirements,
    ) -> Option<ServerProcess> {
        let stream = self.asked.await.ok()?;
        // Nobody may be waiting any more.
        let _ = self.answer.try_send(held(client, wanted, stream).await);
        Some(stream)
    }
}

/// The slot is looked at last, so that all the rest was read while it was ours.
async fn held(
    client: &Client,
    wanted: &Requirements,
    stream: ServerProcess,
) -> Result<HeldSource, ControlError> {
    let inspection = control::inspect(client, wanted).await?;
    let slot = control::held_sample(client, &wanted.slot, stream).await?;
    end_left_copies(client).await;
    Ok(HeldSource { inspection, slot })
}

/// Ends what an earlier holder of the slot has left, if it can.
async fn end_left_copies(client: &Client) {
    match control::end_left_copies(client).await {
        Ok(ended) => {
            for LeftCopy { name, pid, retained_bytes } in ended {
                tracing::info!(
                    slot = name,
                    pid,
                    retained_bytes,
                    "ended the temporary slot of a stopped relay"
                );
            }
        }
        Err(error) => tracing::debug!("copies of slots were not looked for: {error}"),
    }
}
