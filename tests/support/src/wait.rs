//! Waiting in tests: for something to become so, for something to stay so, or for a time that is part of
//! the test itself. Nothing else in the tests sleeps; `tests/tidy` sees to that.
//!
//! Invariant: a wait for a condition ends, and says what it waited for; a time that passes has a
//! reason. No test lets time pass in the hope that something happens meanwhile.

use std::time::{Duration, Instant};

/// How long anything may take that must happen, on a machine busy with other tests.
const LIMIT: Duration = Duration::from_mins(3);
/// The first look comes at once and the second soon; later ones leave the machine to who is waited for.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];
/// A look that takes long is followed by a pause as long, up to this: looks take half of a core at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Looks again and again until there is something to see.
///
/// # Panics
/// After three minutes.
#[track_caller]
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    let found = within(LIMIT, look);
    assert!(found.is_some(), "waited three minutes for {what}");
    found.unwrap()
}

/// The same until it is so.
///
/// # Panics
/// After three minutes.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// What is seen within a time of the caller's; nothing if it ends before.
pub fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let [mut pause, longest] = LOOKS;
    let begun = Instant::now();
    loop {
        let looked = begun.elapsed();
        if let Some(found) = look() {
            return Some(found);
        }
        if looked >= limit {
            return None;
        }
        std::thread::sleep(pause.max(begun.elapsed().saturating_sub(looked).min(LONGEST_PAUSE)));
        pause = (pause * 2).min(longest);
    }
}

/// Demands that it is so, at each of many looks during a time: for what must not happen.
///
/// # Panics
/// As soon as it is not.
#[track_caller]
pub fn stays(what: &str, time: Duration, mut is_so: impl FnMut() -> bool) {
    let broken = within(time, || (!is_so()).then_some(()));
    assert!(broken.is_none(), "no longer: {what}");
}

/// Lets a time pass that is the fault itself, or a timeout that must run out, or the pace of what the
/// test does; `why` says which.
pub fn let_pass(time: Duration, why: &str) {
    assert!(!why.is_empty(), "a time that passes has a reason");
    std::thread::sleep(time);
}
