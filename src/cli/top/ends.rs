//! Ends `postrider top`: signals, and a terminal that vanishes. Only the thread that reads events
//! waits on the terminal.

use std::io::stdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::disable_raw_mode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::ExitCode;
use crate::failure::CommandFailure;

/// A write to a terminal that nobody reads from never ends.
const DRAWING_MAX: Duration = Duration::from_millis(500);

/// A separate thread reads, because crossterm's loop does not end at the end of input, and blocks
/// within an incomplete escape sequence.
pub(super) fn events() -> Receiver<Event> {
    let (sender, events) = channel();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    events
}

pub(super) fn is_terminal_gone() -> bool {
    let stdin = stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok()
        && fds.iter().any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

pub(super) fn listen_for_signals(ended: Arc<AtomicBool>) -> Result<(), CommandFailure> {
    let runtime = crate::runtime()?;
    let signals = {
        let _runtime = runtime.enter();
        // Before drawing: the default action would leave the terminal in raw mode.
        [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal)
    };
    let [Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)] = signals else { return Ok(()) };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hangup.recv() => {}
            }
            ended.store(true, Ordering::Relaxed);
            // Reached only while a drawing blocks.
            tokio::time::sleep(DRAWING_MAX).await;
            let _ = disable_raw_mode();
            std::process::exit(ExitCode::Ok.number().into());
        });
    });
    Ok(())
}
