//! A client whose end nobody waits for.
//!
//! Input: a client of the library. Output: the same, which is dropped on a thread of its own. Invariant: dropping it returns at
//! once; what ends the process ends the thread.
//!
//! An admin client and a consumer take up to a tenth of a second each to be dropped, as their threads look that often for
//! whether they are to end. A start made and dropped four of them, one after the other.

use std::ops::Deref;

/// See the module.
#[derive(Debug)]
pub(super) struct Unawaited<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> From<T> for Unawaited<T> {
    fn from(client: T) -> Self {
        Self(Some(client))
    }
}

impl<T: Send + 'static> Deref for Unawaited<T> {
    type Target = T;

    fn deref(&self) -> &T {
        let Some(client) = &self.0 else { unreachable!("it is taken when it is dropped") };
        client
    }
}

impl<T: Send + 'static> Drop for Unawaited<T> {
    fn drop(&mut self) {
        let client = self.0.take();
        let thread = std::thread::Builder::new().name("postrider-close".to_owned());
        // Without a thread it is dropped here, as the closure is.
        let _ = thread.spawn(move || drop(client));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Ends when it is told to, and tells that it has ended.
    struct Slow(Receiver<()>, Sender<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.recv().unwrap();
            self.1.send(()).unwrap();
        }
    }

    #[test]
    fn its_end_is_not_waited_for_and_comes() {
        let (end, may_end) = channel();
        let (ended, has_ended) = channel();
        drop(Unawaited::from(Slow(may_end, ended)));
        assert!(has_ended.try_recv().is_err());
        end.send(()).unwrap();
        has_ended.recv().unwrap();
    }
}
