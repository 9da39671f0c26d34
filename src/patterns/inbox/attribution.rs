//! Finds out what became of a transaction that failed with its session, or that its effects ended.
//!
//! Input: the failure, and the messages of the transaction. Output: the failure with its cause as a new session
//! tells it; which messages have a marker but no effects. Invariant: no failure is held against a message
//! whose server was started again meanwhile; of another server nothing is asked about a transaction.

use uuid::Uuid;

use super::Effects;
use super::batch::{BatchProcessor, Halt};
use super::retries::Pending;
use super::session::TransactionFailure;
use super::sqlstate::FailureCause;

impl<E: Effects> BatchProcessor<E> {
    /// A session that was lost may have been ended by its message, or by the end of its server. It is told by the
    /// next session, which this waits for: of a server that was started since, nothing is held against the message.
    pub(super) async fn attribute(
        &mut self,
        mut failed: TransactionFailure,
    ) -> Result<TransactionFailure, Halt> {
        let Some(before) = failed.lost else { return Ok(failed) };
        self.is_commit_unknown = true;
        let mut outages = 0;
        loop {
            match self.database.started().await {
                Ok(started) => {
                    if started != before {
                        // It may number its transactions in another way.
                        (failed.cause, failed.xact) = (FailureCause::Contention, None);
                    }
                    return Ok(failed);
                }
                Err(rolled_back) => {
                    outages += 1;
                    let (why, hint) = rolled_back.explain();
                    self.wait_for_database((&why, hint), outages).await?;
                }
            }
        }
    }

    /// An effect may have committed the transaction, with the markers of messages that were still to have their
    /// effects: the one that failed and the later ones. For these the marker does not count; for the others of the
    /// transaction it does.
    pub(super) async fn note_commit(
        &mut self,
        failed: &TransactionFailure,
        messages: &[Pending],
    ) -> Result<(), Halt> {
        let Some(xact) = failed.xact else { return Ok(()) };
        let mut outages = 0;
        let is_committed = loop {
            match self.database.is_committed(xact).await {
                Ok(is_committed) => break is_committed,
                Err(rolled_back) => {
                    self.database.end_if_unavailable(&rolled_back);
                    outages += 1;
                    let (why, hint) = rolled_back.explain();
                    self.wait_for_database((&why, hint), outages).await?;
                }
            }
        };
        if is_committed {
            tracing::error!("effects committed the transaction they were called in");
            for id in ids(messages) {
                self.unmarked.remove(&id);
            }
            self.unmarked.extend(&failed.without);
        }
        Ok(())
    }
}

/// Of the messages, in order.
pub(super) fn ids(messages: &[Pending]) -> impl Iterator<Item = Uuid> {
    messages.iter().map(|pending| pending.message.id)
}
