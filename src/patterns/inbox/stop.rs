//! The word that a consumer should end.
//!
//! Enters: the end of the caller's future, or of the caller. Leaves: a yes at the next look, and an
//! end of whatever is waited for.

use std::time::Duration;

use tokio::sync::watch;

/// One who listens.
#[derive(Debug, Clone)]
pub(super) struct Stop(watch::Receiver<bool>);

/// One who says it; being dropped says it too.
pub(super) type Asker = watch::Sender<bool>;

/// Both ends.
pub(super) fn channel() -> (Asker, Stop) {
    let (asker, listener) = watch::channel(false);
    (asker, Stop(listener))
}

impl Stop {
    /// Whether it was said.
    pub(super) fn is_asked(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Until it is said.
    pub(super) async fn asked(&self) {
        // An error means that the asker is gone.
        let _ = self.0.clone().wait_for(|asked| *asked).await;
    }

    /// False: it was said meanwhile.
    pub(super) async fn pause(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.asked()).await.is_err()
    }
}
