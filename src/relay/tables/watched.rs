//! Keeps a slot alive during long work, and stops the work if the slot is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::stop::StopSignal;
use postrider_core::session::ControlRequest;
use postrider_postgres::wal::{Stream, WalError};

/// The third write after the server closes a connection fails, so detection takes only seconds.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(1);

pub(super) fn goes_on(stop: &StopSignal) -> bool {
    stop.most_urgent() < ControlRequest::Drain
}

/// Runs the work on another thread. The work must stop if the slot cannot be kept, or if a stop was
/// requested.
pub(super) fn watched<T: Send>(
    slot: &mut Stream,
    heartbeat: Duration,
    stop: &StopSignal,
    work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> T + Send,
) -> Result<T, WalError> {
    let is_lost = AtomicBool::new(false);
    let every = heartbeat.min(KEEP_ALIVE_EVERY);
    let asks = || !is_lost.load(Ordering::Acquire) && goes_on(stop);
    let mut lost = None;
    let result = std::thread::scope(|scope| {
        let (done, finished) = sync_channel(1);
        let asks = &asks;
        let working = scope.spawn(move || done.send(work(asks)));
        loop {
            match finished.recv_timeout(every) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(error) = slot.keep_alive() {
                        is_lost.store(true, Ordering::Release);
                        lost.get_or_insert(error);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        match working.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("a thread that has ended has sent its result"),
        }
    });
    lost.map_or(Ok(result), Err)
}
