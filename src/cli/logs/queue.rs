//! A bounded queue of log lines in front of stderr, and the writer for `tracing`.
//!
//! A notice replaces dropped lines. The logging thread writes a line that stderr accepts at once,
//! so that a killed process has written its log. The queue's thread writes the others. Invariant: a
//! blocked reader (a pager, a full pipe) blocks only writers of audit lines. Memory is bounded.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::{AUDIT, Screen};

/// Bytes that may wait. Further lines are dropped.
const BYTES_MAX: usize = 1 << 20;

#[derive(Clone)]
pub(super) struct Queue(Arc<Shared>);

struct Shared {
    state: Mutex<QueueState>,
    changed: Condvar,
    /// Makes the line with the number of dropped lines.
    notice: Box<dyn Fn(u64) -> String + Send + Sync>,
    at_once: fn(&[u8]) -> bool,
}

#[derive(Default)]
struct QueueState {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    left_out: u64,
    /// Lines ever added, and lines written or given up.
    added: u64,
    done: u64,
}

impl Queue {
    /// `notice` makes the line about dropped lines; `at_once` writes a line, or returns false if it
    /// would block.
    pub(super) fn new(
        notice: impl Fn(u64) -> String + Send + Sync + 'static,
        at_once: fn(&[u8]) -> bool,
    ) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Shared { state, changed, notice: Box::new(notice), at_once }))
    }

    /// Adds a line, or drops it if the queue is full.
    pub(super) fn add(&self, line: &[u8]) {
        let mut state = self.state();
        if self.is_taken_at_once(&state, line) {
            return;
        }
        if state.bytes + line.len() > BYTES_MAX {
            state.left_out += 1;
            return;
        }
        self.push(&mut state, line);
    }

    /// Adds a line even to a full queue, and waits for it.
    fn add_and_wait(&self, line: &[u8]) {
        let mut state = self.state();
        if self.is_taken_at_once(&state, line) {
            return;
        }
        self.push(&mut state, line);
        let number = state.added;
        while state.done < number {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds a last line even to a full queue, and waits up to `limit` for all.
    pub(super) fn end(&self, last: &[u8], limit: Duration) {
        let mut state = self.state();
        if self.is_taken_at_once(&state, last) {
            return;
        }
        self.push(&mut state, last);
        let number = state.added;
        let waits = |state: &mut QueueState| state.done < number;
        drop(self.0.changed.wait_timeout_while(state, limit, waits));
    }

    pub(super) fn write_to(&self, out: &mut impl Write) {
        loop {
            let _ = out.write_all(&self.next());
            self.state().done += 1;
            self.0.changed.notify_all();
        }
    }

    /// No line overtakes a waiting one.
    fn is_taken_at_once(&self, state: &QueueState, line: &[u8]) -> bool {
        state.done == state.added && state.left_out == 0 && (self.0.at_once)(line)
    }

    fn push(&self, state: &mut QueueState, line: &[u8]) {
        self.tell(state);
        state.push(line.to_vec());
        self.0.changed.notify_all();
    }

    fn tell(&self, state: &mut QueueState) {
        if state.left_out > 0 {
            let notice = (self.0.notice)(std::mem::take(&mut state.left_out));
            state.push(notice.into_bytes());
        }
    }

    fn next(&self) -> Vec<u8> {
        let mut state = self.state();
        loop {
            if state.lines.is_empty() {
                self.tell(&mut state);
            }
            if let Some(line) = state.lines.pop_front() {
                state.bytes -= line.len();
                return line;
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        // The state is consistent between any two calls.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn push(&mut self, line: Vec<u8>) {
        self.bytes += line.len();
        self.added += 1;
        self.lines.push_back(line);
    }
}

pub(super) enum QueueWriter {
    /// A writer of an audit line waits until the line is written.
    Queued { queue: Queue, is_audit: bool },
    /// No thread writes the queue.
    Direct,
}

pub(super) struct Outs(pub(super) Option<Queue>);

impl<'a> MakeWriter<'a> for Outs {
    type Writer = QueueWriter;

    fn make_writer(&'a self) -> QueueWriter {
        self.0
            .clone()
            .map_or(QueueWriter::Direct, |queue| QueueWriter::Queued { queue, is_audit: false })
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> QueueWriter {
        match self.make_writer() {
            QueueWriter::Queued { queue, .. } => {
                QueueWriter::Queued { queue, is_audit: event.target() == AUDIT }
            }
            direct @ QueueWriter::Direct => direct,
        }
    }
}

impl Write for QueueWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self {
            Self::Queued { queue, is_audit: true } => queue.add_and_wait(line),
            Self::Queued { queue, is_audit: false } => queue.add(line),
            Self::Direct => Screen.write_all(line)?,
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

    fn piped() -> (Queue, Sender<()>, Receiver<Vec<u8>>) {
        let queue = Queue::new(|count| format!("{count} left out"), |_| false);
        let writer = queue.clone();
        let (room, has_room) = channel();
        let (taken, lines) = channel();
        std::thread::spawn(move || writer.write_to(&mut Pipe { room: has_room, taken }));
        (queue, room, lines)
    }

    #[test]
    fn lines_are_written_in_their_order() {
        let (queue, room, lines) = piped();
        for line in ["a\n", "b\n", "c\n"] {
            queue.add(line.as_bytes());
            room.send(()).unwrap();
        }
        let written: Vec<_> = lines.iter().take(3).collect();
        assert_eq!(written, [b"a\n", b"b\n", b"c\n"]);
    }

    /// Waits until the writer has these lines, and one more that does not fit into the pipe.
    fn await_writer(queue: &Queue, taken: u64) {
        loop {
            let state = queue.state();
            if state.added - state.lines.len() as u64 == taken + 1 {
                return;
            }
            drop(state);
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_reader_that_stands_still_holds_up_nobody_and_each_gap_is_counted_at_its_place() {
        const LINES: u64 = 3_000;
        let (queue, room, lines) = piped();
        let mut missed = 0;
        for round in 0..2 {
            queue.add(&[b'x'; 1024]);
            await_writer(&queue, 500 * round);
            for _ in 1..LINES {
                queue.add(&[b'x'; 1024]);
            }
            let notice = "2000 left out".len();
            assert!(queue.state().bytes <= BYTES_MAX + notice);
            for _ in 0..500 {
                room.send(()).unwrap();
                assert_eq!(lines.recv().unwrap().len(), 1024);
            }
        }
        let mut gaps = 0;
        let mut written = 1_000;
        loop {
            room.send(()).unwrap();
            let line = lines.recv().unwrap();
            if let Some(count) = String::from_utf8(line).unwrap().strip_suffix(" left out") {
                missed += count.parse::<u64>().unwrap();
                gaps += 1;
            } else {
                written += 1;
            }
            if written + missed == 2 * LINES {
                break;
            }
        }
        assert_eq!(gaps, 2);
    }

    #[test]
    fn a_line_that_is_taken_at_once_does_not_wait_for_the_thread() {
        let queue = Queue::new(|_| unreachable!("none is left out"), |line| line != b"waits\n");
        queue.add(b"written\n");
        assert_eq!(queue.state().added, 0);
        queue.add(b"waits\n");
        queue.add(b"behind it\n");
        assert_eq!(queue.state().lines.len(), 2);
    }

    #[test]
    fn an_audit_line_is_written_when_the_call_returns() {
        let (queue, room, lines) = piped();
        let mut out = QueueWriter::Queued { queue, is_audit: true };
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
        let (queue, room, lines) = piped();
        queue.end(b"nobody reads this\n", Duration::from_millis(1));
        assert!(lines.try_recv().is_err());
        room.send(()).unwrap();
        room.send(()).unwrap();
        queue.end(b"the last line\n", Duration::from_mins(1));
        assert_eq!(lines.try_iter().last().unwrap(), b"the last line\n");
    }
}
