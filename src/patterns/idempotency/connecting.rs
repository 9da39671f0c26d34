//! A Redis connection that exists or is being opened, shared by all calls of the guard. Invariant:
//! connecting takes at most [`CONNECT_TIMEOUT`], and continues if the waiting call gives up. A
//! failed value stays failed.

use std::io;

use redis::{RedisError, RedisResult};
use tokio::sync::watch;

use crate::redis_client::{CONNECT_TIMEOUT, Connection, Server};

/// `None` while the connection is being opened.
type State = Option<RedisResult<Connection>>;

/// A connection that its own task opens. Clones share it.
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
            let _ = sender.send(Some(made));
        });
        Self(receiver)
    }

    pub(super) async fn ready(&mut self) -> RedisResult<Connection> {
        let made = self.0.wait_for(Option::is_some).await;
        match made.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            // The runtime of the connecting task has ended.
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
