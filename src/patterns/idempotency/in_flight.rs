//! Requests that this process executes. Others with their keys wait here and not in the database:
//! they receive the first one's [`Progress`], which closes if the first one ends without a
//! response. Invariant: at most one request per key waits in the database.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::request::{Fingerprint, Request};
use super::response::StoredResponse;

#[derive(Debug, Default)]
pub(super) struct AllInFlight(Mutex<HashMap<Name, First>>);

/// Scope and key.
type Name = (String, String);

#[derive(Debug)]
struct First {
    fingerprint: Fingerprint,
    progress: watch::Receiver<Progress>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    /// Postgres has not said yet whether the request was executed before.
    Deciding,
    Executing,
    Done(StoredResponse),
}

/// Reserves a key until it is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    all: Arc<AllInFlight>,
    name: Name,
    progress: watch::Sender<Progress>,
}

#[derive(Debug)]
pub(super) enum Holder {
    Same(watch::Receiver<Progress>),
    Other,
}

impl AllInFlight {
    pub(super) fn enter(self: &Arc<Self>, request: &Request) -> Result<InFlight, Holder> {
        let name = name(request);
        match self.lock().entry(name.clone()) {
            Entry::Occupied(first) => Err(Holder::of(first.get(), request)),
            Entry::Vacant(free) => {
                let (progress, receiver) = watch::channel(Progress::Deciding);
                let fingerprint = *request.fingerprint();
                free.insert(First { fingerprint, progress: receiver });
                Ok(InFlight { all: Arc::clone(self), name, progress })
            }
        }
    }

    pub(super) fn holder(&self, request: &Request) -> Option<Holder> {
        self.lock().get(&name(request)).map(|first| Holder::of(first, request))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, First>> {
        // Each change is a single step, so a panic leaves the map intact.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlight {
    pub(super) fn starts_effect(&self) {
        self.progress.send_replace(Progress::Executing);
    }

    pub(super) fn publish(&self, response: &StoredResponse) {
        self.progress.send_replace(Progress::Done(response.clone()));
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.all.lock().remove(&self.name);
    }
}

impl Holder {
    fn of(first: &First, request: &Request) -> Self {
        if request.accepts(&first.fingerprint) {
            Self::Same(first.progress.clone())
        } else {
            Self::Other
        }
    }
}

fn name(request: &Request) -> Name {
    (request.scope().to_owned(), request.key().as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::request::Key;

    fn request(scope: &str, key: &str, body: &str) -> Request {
        let fingerprint = Fingerprint::of("POST", "/orders", body.as_bytes());
        Request::new(scope, Key::parse(key).unwrap(), fingerprint).unwrap()
    }

    #[test]
    fn a_key_is_reserved_once_at_a_time_and_independently_of_others() {
        let all = Arc::<AllInFlight>::default();
        let hot = request("a", "hot", "1");
        let reserved = all.enter(&hot).unwrap();
        assert!(matches!(all.enter(&hot), Err(Holder::Same(_))));
        assert!(matches!(all.enter(&request("a", "hot", "2")), Err(Holder::Other)));
        assert!(all.enter(&request("a", "other", "1")).is_ok());
        assert!(all.enter(&request("b", "hot", "1")).is_ok());
        drop(reserved);
        assert!(all.holder(&hot).is_none());
        assert!(all.enter(&hot).is_ok());
        assert!(all.lock().is_empty());
    }

    #[tokio::test]
    async fn those_that_wait_get_the_response_or_learn_that_there_is_none() {
        let all = Arc::<AllInFlight>::default();
        let hot = request("a", "hot", "1");
        for response in [Some(StoredResponse::new(201, Vec::new(), "1").unwrap()), None] {
            let is_done = |progress: &Progress| matches!(progress, Progress::Done(_));
            let reserved = all.enter(&hot).unwrap();
            let Some(Holder::Same(mut waiting)) = all.holder(&hot) else { panic!("it is held") };
            assert_eq!(*waiting.borrow(), Progress::Deciding);
            reserved.starts_effect();
            assert_eq!(*waiting.borrow(), Progress::Executing);
            if let Some(response) = &response {
                reserved.publish(response);
            }
            drop(reserved);
            let got = waiting.wait_for(is_done).await.ok().map(|progress| progress.clone());
            assert_eq!(got, response.map(Progress::Done));
        }
    }
}
