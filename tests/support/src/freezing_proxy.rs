//! A proxy before Postgres whose connections stop carrying when told, yet stay open: what a network
//! looks like that loses everything, or a peer that has not noticed the end of the other one. It
//! tells the stream from SQL sessions by the startup message, so it carries plain TCP only. Its
//! threads end with this process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use postrider_sandbox::postgres::Address;

pub use super::fault::link::Kind;
use super::fault::link::{BOTH, Fault, Link};
use super::fault::proxy::{Proxy, Reader, carry, watch};
use super::wait::wait_until;

/// The running proxy.
pub struct FreezingProxy {
    address: Address,
    proxy: Proxy,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Connections that were held.
    held: AtomicUsize,
    /// To be done before the next START_REPLICATION passes.
    before_start: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl FreezingProxy {
    /// Listens on a port of its own for connections to `target`.
    pub fn start(target: &Address) -> Self {
        let shared: Arc<Shared> = Arc::default();
        let reading = Arc::clone(&shared);
        let proxy = Proxy::postgres(target, Box::new(move |_| [reading.reader(), carry()]));
        Self { address: proxy.address(target), proxy, shared }
    }

    /// Where the relay has to connect; without TLS, or nothing could be told apart.
    pub fn url(&self) -> String {
        format!("{}?sslmode=disable", self.address.url())
    }

    /// The same as an address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What is connected now carries nothing any more, and nobody is told.
    pub fn freeze(&self) {
        self.proxy.each(lose);
    }

    /// What connects from now on carries nothing, if it is of this kind.
    pub fn hold(&self, kind: Kind) {
        let shared = Arc::clone(&self.shared);
        self.proxy.greet(move |link| {
            if link.kind == kind {
                lose(link);
                shared.held.fetch_add(1, Ordering::SeqCst);
            }
        });
    }

    /// Waits until a connection has come that carries nothing.
    pub fn wait_held(&self) {
        wait_until("a connection to hold", || self.shared.held.load(Ordering::SeqCst) > 0);
    }

    /// Ends the connections of a kind.
    pub fn cut(&self, kind: Kind) {
        self.proxy.each(|link| {
            if link.kind == kind {
                link.cut();
            }
        });
    }

    /// Ends the stream towards the client; Postgres goes on as if it were there.
    pub fn haunt(&self) {
        self.proxy.each(|link| {
            if link.kind == Kind::Stream {
                link.haunt();
            }
        });
    }

    /// Does this when the relay asks for a stream for the next time, before Postgres hears of it.
    pub fn before_start(&self, act: impl FnOnce() + Send + 'static) {
        *self.shared.before_start.lock().unwrap() = Some(Box::new(act));
    }
}

impl Shared {
    fn reader(self: &Arc<Self>) -> Reader {
        let shared = Arc::clone(self);
        watch(move |bytes| {
            shared.look(bytes);
            Some(bytes.len())
        })
    }

    fn look(&self, bytes: &[u8]) {
        const START: &[u8] = b"START_REPLICATION";
        if bytes.windows(START.len()).any(|window| window == START)
            && let Some(act) = self.before_start.lock().unwrap().take()
        {
            act();
        }
    }
}

fn lose(link: &Link) {
    for way in BOTH {
        link.inject(way, Fault::BlackHole);
    }
}
