//! A proxy before Postgres whose connections stop carrying when told, yet stay open: what a network
//! looks like that loses everything, or a peer that has not noticed the end of the other one. It
//! tells the stream from SQL sessions by the startup message, so it carries plain TCP only. Its
//! threads end with this process.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::sandbox::postgres::Address;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Stream,
    Sql,
}

/// The running proxy.
pub(crate) struct Sluice {
    address: Address,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    links: Mutex<Vec<Arc<Link>>>,
    /// New connections of this kind carry nothing.
    held: Mutex<Option<Kind>>,
    /// To be done before the next START_REPLICATION passes.
    before_start: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

struct Link {
    kind: Kind,
    client: TcpStream,
    server: TcpStream,
    frozen: AtomicBool,
    /// The server is not told that the client is gone.
    haunted: AtomicBool,
}

impl Sluice {
    /// Listens on a port of its own for connections to `target`.
    pub(crate) fn start(target: &Address) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut address = target.clone();
        address.port = listener.local_addr().unwrap().port();
        let shared: Arc<Shared> = Arc::default();
        let (accepting, port) = (Arc::clone(&shared), target.port);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                accepting.connect(client.unwrap(), port);
            }
        });
        Self { address, shared }
    }

    /// Where the relay has to connect; without TLS, or nothing could be told apart.
    pub(crate) fn url(&self) -> String {
        format!("{}?sslmode=disable", self.address.url())
    }

    /// The same as an address.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// What is connected now carries nothing any more, and nobody is told.
    pub(crate) fn freeze(&self) {
        self.each(|link| link.frozen.store(true, Ordering::SeqCst));
    }

    /// What connects from now on carries nothing, if it is of this kind.
    pub(crate) fn hold(&self, kind: Kind) {
        *self.shared.held.lock().unwrap() = Some(kind);
    }

    /// Ends the connections of a kind.
    pub(crate) fn cut(&self, kind: Kind) {
        self.each(|link| {
            if link.kind == kind {
                close(&link.client);
                close(&link.server);
            }
        });
    }

    /// Ends the stream towards the client; Postgres goes on as if it were there.
    pub(crate) fn haunt(&self) {
        self.each(|link| {
            if link.kind == Kind::Stream {
                link.haunted.store(true, Ordering::SeqCst);
                close(&link.client);
            }
        });
    }

    /// Does this when the relay asks for a stream for the next time, before Postgres hears of it.
    pub(crate) fn before_start(&self, act: impl FnOnce() + Send + 'static) {
        *self.shared.before_start.lock().unwrap() = Some(Box::new(act));
    }

    fn each(&self, act: impl Fn(&Link)) {
        self.shared.links.lock().unwrap().iter().for_each(|link| act(link));
    }
}

impl Shared {
    fn connect(self: &Arc<Self>, client: TcpStream, port: u16) {
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return };
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        let kind = kind(&client);
        let frozen = AtomicBool::new(*self.held.lock().unwrap() == Some(kind));
        let haunted = AtomicBool::new(false);
        let link = Arc::new(Link { kind, client, server, frozen, haunted });
        self.links.lock().unwrap().push(Arc::clone(&link));
        let (shared, back) = (Arc::clone(self), Arc::clone(&link));
        std::thread::spawn(move || {
            link.carry(&link.client, &link.server, |bytes| shared.look(bytes));
        });
        std::thread::spawn(move || back.carry(&back.server, &back.client, |_| ()));
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

impl Link {
    fn carry(&self, mut from: &TcpStream, mut to: &TcpStream, look: impl Fn(&[u8])) {
        let mut chunk = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut chunk) {
            while self.frozen.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            look(&chunk[..count]);
            // A server that is haunted by a client sends on into the void.
            let gone = to.write_all(&chunk[..count]).is_err();
            if gone && !self.haunted.load(Ordering::SeqCst) {
                break;
            }
        }
        close(&self.client);
        if !self.haunted.load(Ordering::SeqCst) {
            close(&self.server);
        }
    }
}

fn close(stream: &TcpStream) {
    // It may have ended by itself.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Looks at the startup message without taking it.
fn kind(client: &TcpStream) -> Kind {
    let mut start = [0; 512];
    let length = client.peek(&mut start).unwrap_or_default();
    let replicates = start[..length].windows(11).any(|window| window == b"replication");
    if replicates { Kind::Stream } else { Kind::Sql }
}
