//! Runs a blocking call, such as one to Kafka's client, on a thread of its own beside the tokio runtime.
//!
//! Input: a closure. Output: its result, or [`RelayError::Thread`]. Why not `spawn_blocking`: a runtime
//! that shuts down waits for its blocking tasks; here nobody waits for a thread whose result is no longer
//! wanted.

use tokio::sync::oneshot;

use crate::error::RelayError;

/// The same work for another thread, whose lines in the log are of the stream that this is called for.
pub(super) fn of_stream<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let span = tracing::Span::current();
    move || span.in_scope(work)
}

/// Runs `work` on a thread of its own. The stream is that of the call: a task that polls the future may have none.
pub(super) fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, RelayError>> {
    let work = of_stream(work);
    async move {
        let (done, answer) = oneshot::channel();
        let thread = std::thread::Builder::new().name("postrider-blocking".to_owned());
        let spawned = thread.spawn(move || {
            // Nobody may be waiting any more.
            let _ = done.send(work());
        });
        spawned.map_err(|_| RelayError::Thread)?;
        answer.await.map_err(|_| RelayError::Thread)
    }
}
