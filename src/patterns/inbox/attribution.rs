//! Finds the outcome of a transaction that failed with its session, or that its own effects ended.
//! Invariant: no message is blamed if its server was restarted. Only the server that ran a
//! transaction is asked for its outcome.

use uuid::Uuid;

use super::Effects;
use super::batch::{BatchProcessor, Halt};
use super::retries::Pending;
use super::session::TransactionFailure;
use super::sqlstate::FailureCause;

impl<E: Effects> BatchProcessor<E> {
    /// Waits for the next session. If the server was started since, the message is not blamed.
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
                        // The new server may number its transactions differently.
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

    /// If effects committed their transaction, the markers of the failed and of later messages are
    /// ignored.
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

pub(super) fn ids(messages: &[Pending]) -> impl Iterator<Item = Uuid> {
    messages.iter().map(|pending| pending.message.id)
}
