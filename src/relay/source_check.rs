//! Checks the source again when a new session holds the slot, because another relay may have
//! delivered rows or changed the source. The session's thread asks, and the Tokio side answers.

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

/// A stream may run for this time without a check. A busy server needs a part of it.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// After a request to stop.
const LAST_ANSWER_LIMIT: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(100);

pub(super) struct HeldSource {
    pub(super) inspection: Inspection,
    pub(super) slot: SlotSample,
}

/// Session's end of the check.
pub(super) struct SourceCheck {
    asked: oneshot::Sender<ServerProcess>,
    answer: Receiver<Result<HeldSource, ControlError>>,
}

/// Control plane's end of the check.
pub(super) struct SourceCheckReply {
    asked: oneshot::Receiver<ServerProcess>,
    answer: SyncSender<Result<HeldSource, ControlError>>,
}

impl SourceCheck {
    pub(super) fn new() -> (Self, SourceCheckReply) {
        let (ask, asked) = oneshot::channel();
        let (answer, answered) = sync_channel(1);
        (Self { asked: ask, answer: answered }, SourceCheckReply { asked, answer })
    }

    /// [`RelayError::NoAnswer`] after [`ANSWER_LIMIT`], or sooner on a request to `stop`.
    pub(super) fn ask(
        self,
        stream: ServerProcess,
        stop: &StopSignal,
        mut alive: impl FnMut() -> Result<(), WalError>,
    ) -> Result<HeldSource, RelayError> {
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
    /// `None`: the session ended without a question.
    pub(super) async fn answer(
        self,
        client: &Client,
        wanted: &Requirements,
    ) -> Option<ServerProcess> {
        let stream = self.asked.await.ok()?;
        let _ = self.answer.try_send(held(client, wanted, stream).await);
        Some(stream)
    }
}

/// The slot is read last, so that the stream held it while all other facts were read.
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

/// An earlier holder may have left slots.
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
