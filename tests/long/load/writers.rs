//! Threads that write rows, and what they share: the number of the next row, and whether they are to end.
//!
//! Input: what each thread does. Output: what each found out. Invariant: a number is given once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use crate::load::rows::{self, Lane};

/// What the threads share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    stop: Arc<AtomicBool>,
    next: Arc<AtomicU32>,
}

impl Shared {
    /// Whether they are to end.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// The number that the next row gets.
    pub(crate) fn next(&self) -> u32 {
        self.next.load(Ordering::SeqCst)
    }

    /// Numbers for so many rows, each in a lane that is drawn.
    pub(crate) fn draw(&self, size: u32, mut lane: impl FnMut() -> Lane) -> Vec<(u32, Lane)> {
        let first = self.next.fetch_add(size, Ordering::SeqCst);
        (first..first + size).map(|number| (number, lane())).collect()
    }
}

/// All of them, with what each finds out.
pub(crate) struct Threads<T> {
    shared: Shared,
    threads: Vec<JoinHandle<T>>,
}

impl<T: Send + 'static> Threads<T> {
    /// None yet.
    pub(crate) fn none() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let next = Arc::new(AtomicU32::new(1));
        Self { shared: Shared { stop, next }, threads: Vec::new() }
    }

    /// Begins one more.
    pub(crate) fn start(&mut self, write: impl FnOnce(Shared) -> T + Send + 'static) {
        let shared = self.shared.clone();
        self.threads.push(std::thread::spawn(|| write(shared)));
    }

    /// The number that the next row gets: rows from here on were committed later than now.
    pub(crate) fn next(&self) -> u32 {
        self.shared.next()
    }

    /// Ends them; what they found out.
    pub(crate) fn stop(self) -> Vec<T> {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

/// An INSERT of these rows. Doomed ones say so, and are never committed.
pub(crate) fn insert(rows: &[(u32, Lane)], is_doomed: bool) -> String {
    let values: Vec<String> =
        rows.iter().map(|(number, lane)| rows::values(*number, *lane, is_doomed)).collect();
    format!(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES {}",
        values.join(",")
    )
}
