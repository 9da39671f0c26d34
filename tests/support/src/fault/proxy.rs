//! The proxy: listens on ports of its own, and carries what connects to the servers behind them.
//!
//! Input: connections of clients. Output: connections to the servers, each pair a [`Link`] with a
//! [`Reader`] for each way.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, Weak};

use postrider_sandbox::postgres::Address;

use super::link::{Fault, Kind, Link, Way};
pub use super::link::{Outlet, Reader};

/// The readers of a new link, to the server first.
pub type Readers = dyn Fn(&Arc<Link>) -> [Reader; 2] + Send + Sync;

/// What is done to a new link.
type Greeting = dyn FnMut(&Link) + Send;

/// The running proxy. Its threads end with this process.
pub struct Proxy {
    gates: Vec<Gate>,
    shared: Arc<Shared>,
}

/// One port of the proxy.
struct Gate {
    port: u16,
    /// The server's port, 0 until there is one.
    target: Arc<AtomicU16>,
}

struct Shared {
    readers: Box<Readers>,
    links: Mutex<Vec<Weak<Link>>>,
    /// Done to every new link before it carries anything.
    greet: Mutex<Box<Greeting>>,
}

impl Proxy {
    /// Before a Postgres server, without TLS, or the kinds of connections could not be told apart.
    pub fn postgres(target: &Address, readers: Box<Readers>) -> Self {
        let proxy = Self::start(1, readers, |_, client| kind(client));
        proxy.lead_to(&[target.port]);
        proxy
    }

    /// Before so many brokers, which come to be known by [`Proxy::lead_to`].
    pub fn brokers(count: usize, readers: Box<Readers>) -> Self {
        Self::start(count, readers, |broker, _| Kind::Broker(broker))
    }

    fn start(count: usize, readers: Box<Readers>, kind: fn(usize, &TcpStream) -> Kind) -> Self {
        let greet: Mutex<Box<Greeting>> = Mutex::new(Box::new(|_| ()));
        let shared = Arc::new(Shared { readers, links: Mutex::default(), greet });
        let gate = |number| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let target = Arc::new(AtomicU16::new(0));
            let (accepting, leads_to) = (Arc::clone(&shared), Arc::clone(&target));
            std::thread::spawn(move || {
                for client in listener.incoming() {
                    let (shared, leads_to) = (Arc::clone(&accepting), Arc::clone(&leads_to));
                    let client = client.unwrap();
                    // Telling the kinds apart may take as long as the client likes.
                    std::thread::spawn(move || {
                        let kind = kind(number, &client);
                        shared.connect(client, kind, leads_to.load(Ordering::SeqCst));
                    });
                }
            });
            Gate { port, target }
        };
        let gates = (0..count).map(gate).collect();
        Self { gates, shared }
    }

    /// Where clients have to connect, one port for each server.
    pub fn ports(&self) -> Vec<u16> {
        self.gates.iter().map(|gate| gate.port).collect()
    }

    /// The ports of the servers.
    pub fn lead_to(&self, ports: &[u16]) {
        for (gate, port) in self.gates.iter().zip(ports) {
            gate.target.store(*port, Ordering::SeqCst);
        }
    }

    /// What `target` looks like from this side.
    pub fn address(&self, target: &Address) -> Address {
        Address { port: self.ports()[0], ..target.clone() }
    }

    /// Does this to every link that lives.
    pub fn each(&self, act: impl FnMut(&Link)) {
        let mut links = self.shared.links.lock().unwrap();
        links.retain(|link| link.strong_count() > 0);
        let living: Vec<Arc<Link>> = links.iter().filter_map(Weak::upgrade).collect();
        drop(links);
        living.iter().map(Arc::as_ref).for_each(act);
    }

    /// Does this to every link that comes, before it carries anything; instead of what was asked for
    /// before.
    pub fn greet(&self, act: impl FnMut(&Link) + Send + 'static) {
        *self.shared.greet.lock().unwrap() = Box::new(act);
    }

    /// Injects this into every link that lives and every one that comes, until healed.
    pub fn inject(&self, way: Way, fault: Fault) {
        self.greet(move |link| link.inject(way, fault));
        self.each(|link| link.inject(way, fault));
    }

    /// Ends every fault, and what is done to new links.
    pub fn heal(&self) {
        self.greet(|_| ());
        self.each(Link::heal);
    }

    /// Cuts every connection, in the middle of whatever it carries.
    pub fn cut(&self) {
        self.each(Link::cut);
    }
}

impl Shared {
    fn connect(&self, client: TcpStream, kind: Kind, port: u16) {
        // A server that is down looks like one that closes at once.
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return };
        let link = Arc::new(Link::new(kind, client, server));
        // Under the lock, lest a fault that is injected meanwhile misses it.
        let mut links = self.links.lock().unwrap();
        (self.greet.lock().unwrap())(&link);
        links.push(Arc::downgrade(&link));
        drop(links);
        link.start((self.readers)(&link));
    }
}

/// For who only wants the bytes carried.
pub fn blind(_: &Arc<Link>) -> [Reader; 2] {
    [carry(), carry()]
}

/// Passes everything on.
pub fn carry() -> Reader {
    Box::new(|bytes, outlet| outlet.pass(bytes).map(|()| bytes.len()))
}

/// Passes on whole messages only, once `look` has seen them: it returns the length of the first one,
/// if it is there.
pub fn watch(mut look: impl FnMut(&[u8]) -> Option<usize> + Send + 'static) -> Reader {
    Box::new(move |bytes, outlet| match (!bytes.is_empty()).then(|| look(bytes)).flatten() {
        Some(length) => outlet.pass(&bytes[..length]).map(|()| length),
        None => Ok(0),
    })
}

/// Looks at the startup message without taking it.
fn kind(client: &TcpStream) -> Kind {
    let mut start = [0; 512];
    let length = client.peek(&mut start).unwrap_or_default();
    let replicates = start[..length].windows(11).any(|window| window == b"replication");
    if replicates { Kind::Stream } else { Kind::Sql }
}
