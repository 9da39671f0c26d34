//! The signal that asks a consumer's thread to stop.
//!
//! Input: a request to stop, or the drop of its sender. Output: a flag to poll, a future, and a
//! pause that ends early.

use std::time::Duration;

use tokio::sync::watch;

#[derive(Debug, Clone)]
pub(super) struct ConsumerStop(watch::Receiver<bool>);

/// Dropping it requests the stop too.
pub(super) type StopSender = watch::Sender<bool>;

pub(super) fn channel() -> (StopSender, ConsumerStop) {
    let (stop_sender, listener) = watch::channel(false);
    (stop_sender, ConsumerStop(listener))
}

impl ConsumerStop {
    pub(super) fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    pub(super) async fn asked(&self) {
        // An error means that the sender was dropped.
        let _ = self.0.clone().wait_for(|asked| *asked).await;
    }

    /// Returns false if a stop was requested during the sleep.
    pub(super) async fn pause(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.asked()).await.is_err()
    }
}
