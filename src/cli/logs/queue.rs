//! Lines on their way to stderr, which nobody may be reading.
//!
//! Enters: whole lines, from any thread. Leaves: the same, in order, written by a thread of its own;
//! and how many were left out. What always holds: a reader that stands still (`docker logs` in its
//! blocking mode, a pager, a full pipe) holds up nobody but who writes an audit line, which is
//! written when the call returns; what waits is bounded.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::AUDIT;

/// Bytes of lines that wait; what comes beyond that is left out.
const BYTES_MAX: usize = 1 << 20;

/// The lines that wait, for whoever writes some and for the thread that writes them out.
#[derive(Clone, Default)]
pub(super) struct Queue(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines left out that nobody was told of.
    left_out: u64,
    /// Lines ever added, and of those written or given up.
    added: u64,
    done: u64,
}

impl Queue {
    /// Adds a line, or leaves it out if too much waits.
    pub(super) fn add(&self, line: &[u8]) {
        let mut state = self.state();
        if state.bytes + line.len() > BYTES_MAX {
            state.left_out += 1;
            return;
        }
        state.add(line);
        drop(state);
        self.0.changed.notify_all();
    }

    /// Adds a line and waits until it is written.
    fn add_and_wait(&self, line: &[u8]) {
        let mut state = self.state();
        let number = state.add(line);
        self.0.changed.notify_all();
        while state.done < number {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds a last line, however much waits, and waits for so long at most until all are written.
    pub(super) fn end(&self, last: &[u8], limit: Duration) {
        let mut state = self.state();
        let number = if last.is_empty() { state.added } else { state.add(last) };
        self.0.changed.notify_all();
        let waits = |state: &mut State| state.done < number;
        drop(self.0.changed.wait_timeout_while(state, limit, waits));
    }

    /// Writes what comes, for ever. `told` makes a line of how many were left out.
    pub(super) fn write_to(&self, out: &mut impl Write, told: impl Fn(u64)) {
        loop {
            let (line, left_out) = self.next();
            // Nobody reads a closed stderr.
            let _ = out.write_all(&line);
            self.state().done += 1;
            self.0.changed.notify_all();
            if left_out > 0 {
                told(left_out);
            }
        }
    }

    /// The oldest line that waits, and how many were left out after the last one that does.
    fn next(&self) -> (Vec<u8>, u64) {
        let mut state = self.state();
        loop {
            if let Some(line) = state.lines.pop_front() {
                state.bytes -= line.len();
                let is_last = state.lines.is_empty();
                let left_out = if is_last { std::mem::take(&mut state.left_out) } else { 0 };
                return (line, left_out);
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is kept is whole between any two calls.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The line's number, from 1.
    fn add(&mut self, line: &[u8]) -> u64 {
        self.lines.push_back(line.to_vec());
        self.bytes += line.len();
        self.added += 1;
        self.added
    }
}

/// Where one event's line goes.
pub(super) enum Out {
    /// To the queue.
    Queued { queue: Queue, is_audit: bool },
    /// There is no thread to write it.
    Direct,
}

/// Goes to the queue; without one, to stderr.
pub(super) struct Outs(pub(super) Option<Queue>);

impl<'a> MakeWriter<'a> for Outs {
    type Writer = Out;

    fn make_writer(&'a self) -> Out {
        self.0.clone().map_or(Out::Direct, |queue| Out::Queued { queue, is_audit: false })
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Out {
        match self.make_writer() {
            Out::Queued { queue, .. } => Out::Queued { queue, is_audit: event.target() == AUDIT },
            direct @ Out::Direct => direct,
        }
    }
}

impl Write for Out {
    /// Takes a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self {
            Self::Queued { queue, is_audit: true } => queue.add_and_wait(line),
            Self::Queued { queue, is_audit: false } => queue.add(line),
            Self::Direct => io::stderr().write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Takes a line whenever the test lets it.
    struct Pipe {
        room: Receiver<()>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room.recv().is_ok() {
                self.taken.send(bytes.to_vec()).unwrap();
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A queue that is written to a pipe, the pipe's two ends, and what is told of lines left out.
    fn piped() -> (Queue, Sender<()>, Receiver<Vec<u8>>, Receiver<u64>) {
        let queue = Queue::default();
        let writer = queue.clone();
        let (room, has_room) = channel();
        let (taken, lines) = channel();
        let (told, left_out) = channel();
        std::thread::spawn(move || {
            writer.write_to(&mut Pipe { room: has_room, taken }, |count| told.send(count).unwrap());
        });
        (queue, room, lines, left_out)
    }

    #[test]
    fn lines_are_written_in_their_order() {
        let (queue, room, lines, _left_out) = piped();
        for line in ["a\n", "b\n", "c\n"] {
            queue.add(line.as_bytes());
            room.send(()).unwrap();
        }
        let written: Vec<_> = lines.iter().take(3).collect();
        assert_eq!(written, [b"a\n", b"b\n", b"c\n"]);
    }

    #[test]
    fn a_reader_that_stands_still_holds_up_nobody_and_what_it_missed_is_counted() {
        let (queue, room, lines, left_out) = piped();
        let line = [b'x'; 1024];
        for _ in 0..3_000 {
            queue.add(&line);
        }
        assert!(queue.state().bytes <= BYTES_MAX);
        // The reader reads again.
        for _ in 0..3_000 {
            room.send(()).unwrap();
        }
        let missed = left_out.recv().unwrap();
        let written = u64::try_from(lines.try_iter().count()).unwrap();
        assert!(written >= 1_024, "{written}");
        assert_eq!(written + missed, 3_000);
    }

    #[test]
    fn an_audit_line_is_written_when_the_call_returns() {
        let (queue, room, lines, _left_out) = piped();
        let mut out = Out::Queued { queue, is_audit: true };
        std::thread::scope(|scope| {
            let writing = scope.spawn(move || out.write_all(b"a row was left out\n"));
            assert!(lines.try_recv().is_err());
            room.send(()).unwrap();
            writing.join().unwrap().unwrap();
            assert_eq!(lines.try_recv().unwrap(), b"a row was left out\n");
        });
    }

    #[test]
    fn the_end_waits_for_what_is_written_and_for_no_reader_for_ever() {
        let (queue, room, lines, _left_out) = piped();
        queue.end(b"nobody reads this\n", Duration::from_millis(1));
        assert!(lines.try_recv().is_err());
        room.send(()).unwrap();
        room.send(()).unwrap();
        queue.end(b"the last line\n", Duration::from_mins(1));
        assert_eq!(lines.try_iter().last().unwrap(), b"the last line\n");
    }
}
