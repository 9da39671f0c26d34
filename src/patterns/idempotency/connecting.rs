//! A connection to Redis that is there or being made, shared by all calls of the guard.
//!
//! Input: a [`Server`]. Output: a [`Connection`], or why there is none. Invariant: connecting takes at most
//! [`CONNECT_TIMEOUT`], and goes on when the call that waits for it gives up, so that a slow handshake ends
//! some time; what has failed once fails for ever, and the caller makes another.

use std::io;

use redis::{RedisError, RedisResult};
use tokio::sync::watch;

use crate::redis_client::{CONNECT_TIMEOUT, Connection, Server};

/// `None` while it is being made.
type State = Option<RedisResult<Connection>>;

/// A connection that a task of its own makes; a clone is the same one.
#[derive(Clone)]
pub(super) struct Connecting(watch::Receiver<State>);

impl Connecting {
    /// Must be called inside a tokio runtime.
    pub(super) fn start(server: &Server) -> Self {
        let (sender, receiver) = watch::channel(None);
        let server = server.clone();
        tokio::spawn(async move {
            let made = tokio::time::timeout(CONNECT_TIMEOUT, server.connect()).await;
            let made =
                made.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
            // Only if nobody has a use for it any more there is no receiver.
            let _ = sender.send(Some(made));
        });
        Self(receiver)
    }

    /// Waits until it is made.
    pub(super) async fn ready(&mut self) -> RedisResult<Connection> {
        let made = self.0.wait_for(Option::is_some).await;
        match made.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            // The runtime that made it has ended.
            Ok(None) | Err(_) => Err(RedisError::from(io::Error::from(io::ErrorKind::BrokenPipe))),
        }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.0.borrow().is_none()
    }

    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}
