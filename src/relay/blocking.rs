//! Runs a blocking call, for example of the Kafka client, on its own thread.
//!
//! `spawn_blocking` is unsuitable: a runtime that shuts down waits for its blocking tasks.

use tokio::sync::oneshot;

use crate::error::RelayError;

pub(super) fn of_stream<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let span = tracing::Span::current();
    move || span.in_scope(work)
}

/// Keeps the caller's stream, which the task that polls the future may not have.
pub(super) fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, RelayError>> {
    let work = of_stream(work);
    async move {
        let (done, answer) = oneshot::channel();
        let thread = std::thread::Builder::new().name("postrider-blocking".to_owned());
        let spawned = thread.spawn(move || {
            let _ = done.send(work());
        });
        spawned.map_err(|_| RelayError::Thread)?;
        answer.await.map_err(|_| RelayError::Thread)
    }
}
