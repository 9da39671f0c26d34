//! A thread for what blocks, beside the control plane.
//!
//! Enters: a question to Kafka. Leaves: its answer. What always holds: nobody waits for a thread whose
//! answer is not wanted any more, as a runtime would that is shut down.

use tokio::sync::oneshot;

use crate::error::RelayError;

/// Runs `work` on a thread of its own.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RelayError> {
    let (done, answer) = oneshot::channel();
    let thread = std::thread::Builder::new().name("postrider-blocking".to_owned());
    let spawned = thread.spawn(move || {
        // Nobody may be waiting any more.
        let _ = done.send(work());
    });
    spawned.map_err(|_| RelayError::Thread)?;
    answer.await.map_err(|_| RelayError::Thread)
}
