//! How many requests are under way at once, and how many may wait for that.
//!
//! Enters: requests that need the database. Leaves: an [`Admitted`] for each that has its turn in
//! time, or nothing. What always holds: no more are under way than the database has sessions for, so
//! one that is admitted finds a session, and so do readiness, deadlines and the count of open orders;
//! no more wait than there is room for, and none waits long. Who is turned away has cost nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::settings::SESSIONS;

/// Sessions that no request takes: one for who asks whether the service is ready, one for who looks
/// after deadlines, one for who counts what is open.
const SESSIONS_KEPT: usize = 3;
/// Requests that wait for their turn, each with a body of 16 KiB at most. Bodies are read before, so
/// those that still arrive are not among them: `http` gives each a time.
const WAITING_MAX: usize = 256;
/// Some ten times what a burst that fills the room takes, and less than clients are patient. Twice as
/// long as requests wait for another with the same key (`lock_timeout`), after which all go on.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// The door.
#[derive(Debug)]
pub(super) struct Admission {
    /// Those under way and those that wait.
    room: Arc<Semaphore>,
    /// Those under way.
    seats: Arc<Semaphore>,
    wait_max: Duration,
    shed: AtomicU64,
}

/// A request's turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    _seat: OwnedSemaphorePermit,
    _room: OwnedSemaphorePermit,
}

impl Default for Admission {
    fn default() -> Self {
        Self::new(SESSIONS - SESSIONS_KEPT, WAITING_MAX, WAIT_MAX)
    }
}

impl Admission {
    fn new(seats: usize, waiting_max: usize, wait_max: Duration) -> Self {
        Self {
            room: Arc::new(Semaphore::new(seats + waiting_max)),
            seats: Arc::new(Semaphore::new(seats)),
            wait_max,
            shed: AtomicU64::new(0),
        }
    }

    /// Waits for a turn; `None` where there is no room to wait, or the wait was too long.
    pub(super) async fn enter(&self) -> Option<Admitted> {
        let admitted = self.try_enter().await;
        if admitted.is_none() {
            self.shed.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    }

    /// Requests that were turned away.
    pub(super) fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    async fn try_enter(&self) -> Option<Admitted> {
        let room = Arc::clone(&self.room).try_acquire_owned().ok()?;
        let seat = tokio::time::timeout(self.wait_max, Arc::clone(&self.seats).acquire_owned());
        // Nobody closes the semaphore.
        let seat = seat.await.ok()?.ok()?;
        Some(Admitted { _seat: seat, _room: room })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_hours(1);

    #[tokio::test]
    async fn who_finds_no_room_is_turned_away_at_once_and_who_waits_gets_the_next_turn() {
        let door = Arc::new(Admission::new(1, 1, LONG));
        let first = door.enter().await.unwrap();
        let waiting = tokio::spawn({
            let door = Arc::clone(&door);
            async move { door.enter().await }
        });
        while door.room.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(door.enter().await.is_none(), "an hour has not passed");
        assert_eq!(door.shed(), 1);
        drop(first);
        let second = waiting.await.unwrap();
        assert!(second.is_some());
        drop(second);
        assert_eq!((door.room.available_permits(), door.seats.available_permits()), (2, 1));
    }

    #[tokio::test]
    async fn who_waits_too_long_is_turned_away_and_leaves_its_room_to_others() {
        let door = Admission::new(1, 1, Duration::from_millis(1));
        let first = door.enter().await.unwrap();
        assert!(door.enter().await.is_none());
        assert!(door.enter().await.is_none());
        assert_eq!(door.shed(), 2);
        drop(first);
        assert!(door.enter().await.is_some());
    }

    #[test]
    fn there_is_a_session_for_each_request_and_some_are_left() {
        let door = Admission::default();
        assert!((1..SESSIONS).contains(&door.seats.available_permits()));
    }
}
