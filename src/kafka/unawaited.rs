//! A client that is dropped on another thread, so that dropping it returns at once.
//!
//! Dropping an admin client or a consumer takes up to 0.1 s, because their threads check that often
//! if they should end.

use std::ops::Deref;

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
        // Without a thread, the closure drops it here.
        let _ = thread.spawn(move || drop(client));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

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
