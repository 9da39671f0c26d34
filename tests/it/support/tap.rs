//! A proxy between relay and Postgres that reads along: every status update of the relay is held
//! until whoever listens has had a look. Carries plain TCP only. Called by `wiretap`, and by the
//! crash bench with a listener of its own.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use postrider::sandbox::postgres::Address;

/// Codes of SSLRequest and GSSENCRequest (protocol, "Message Formats"), answered by one byte.
const ENCRYPTION_REQUESTS: [u64; 2] = [80_877_103, 80_877_104];

/// What a status update says, as log positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Said {
    /// What the relay said it has received.
    pub(crate) write: u64,
    /// What the relay acknowledges.
    pub(crate) flush: u64,
    /// What it says is applied.
    pub(crate) apply: u64,
    /// The highest position that Postgres had sent on this connection.
    pub(crate) sent: u64,
}

/// The running proxy.
#[derive(Debug)]
pub(crate) struct Tap {
    address: Address,
    shared: Arc<Shared>,
}

struct Shared {
    target: u16,
    listener: Box<dyn Fn(Said) + Send + Sync>,
    /// Both ends of every connection; those that ended are gone from memory.
    connections: Mutex<Vec<Weak<TcpStream>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared(to port {})", self.target)
    }
}

impl Tap {
    /// Listens on a port of its own for connections to `target`. A status update goes on to Postgres
    /// when `listener` returns. Its threads end with this process.
    pub(crate) fn start(target: &Address, listener: impl Fn(Said) + Send + Sync + 'static) -> Self {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut address = target.clone();
        address.port = socket.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            target: target.port,
            listener: Box::new(listener),
            connections: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in socket.incoming() {
                accepting.connect(client.unwrap());
            }
        });
        Self { address, shared }
    }

    /// Where the relay has to connect instead.
    pub(crate) fn address(&self) -> Address {
        self.address.clone()
    }

    /// Cuts every connection, in the middle of whatever it carries.
    pub(crate) fn cut(&self) {
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            if let Some(stream) = connection.upgrade() {
                // It may be about to end by itself.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Shared {
    fn connect(self: &Arc<Self>, client: TcpStream) {
        // A server that is down looks like one that closes at once.
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target)) else { return };
        let (client, server) = (Arc::new(client), Arc::new(server));
        let mut connections = self.connections.lock().unwrap();
        connections.retain(|connection| connection.strong_count() > 0);
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
            connections.push(Arc::downgrade(stream));
        }
        let talk = Arc::new(Talk::default());
        let (shared, heard) = (Arc::clone(self), Arc::clone(&talk));
        let (from, to) = (Arc::clone(&client), Arc::clone(&server));
        std::thread::spawn(move || carry(&from, &to, |bytes| shared.read_client(bytes, &heard)));
        std::thread::spawn(move || carry(&server, &client, |bytes| talk.read_server(bytes)));
    }

    /// Length of the first whole message, after the listener heard it when it is a status update.
    fn read_client(&self, bytes: &[u8], talk: &Talk) -> Option<usize> {
        if !talk.started.load(Ordering::SeqCst) {
            // What comes first has no type byte: its length, then a code.
            let length = size(bytes.get(..4)?);
            let code = number(bytes.get(..length)?.get(4..8)?);
            let asks = ENCRYPTION_REQUESTS.contains(&code);
            talk.asked.store(asks, Ordering::SeqCst);
            talk.started.store(!asks, Ordering::SeqCst);
            return Some(length);
        }
        let (body, length) = typed(bytes)?;
        if bytes[0] == b'd' && body.first() == Some(&b'r') {
            let position = |at: usize| number(&body[at..at + 8]);
            (self.listener)(Said {
                write: position(1),
                flush: position(9),
                apply: position(17),
                sent: talk.sent.load(Ordering::SeqCst),
            });
        }
        Some(length)
    }
}

/// What the two directions of a connection know of each other.
#[derive(Default)]
struct Talk {
    /// The client asked for encryption and awaits the one-byte answer.
    asked: AtomicBool,
    /// The client's startup message has passed: all that follows has a type byte.
    started: AtomicBool,
    /// The highest position that Postgres has sent.
    sent: AtomicU64,
}

impl Talk {
    /// XLogData `w`: start at 1, end of WAL at 9. Keepalive `k`: end of WAL at 1.
    fn read_server(&self, bytes: &[u8]) -> Option<usize> {
        if self.asked.swap(false, Ordering::SeqCst) {
            assert_eq!(bytes.first(), Some(&b'N'), "a wiretap cannot read TLS");
            return Some(1);
        }
        let (body, length) = typed(bytes)?;
        if bytes[0] == b'd' {
            let at = match body.first() {
                Some(b'w') => 9,
                Some(b'k') => 1,
                _ => return Some(length),
            };
            self.sent.fetch_max(number(&body[at..at + 8]), Ordering::SeqCst);
        }
        Some(length)
    }
}

/// Body and whole length of a message with a type byte, once all of it is there.
fn typed(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let length = 1 + size(bytes.get(1..5)?);
    Some((bytes.get(5..length)?, length))
}

/// A message's length field.
fn size(bytes: &[u8]) -> usize {
    usize::try_from(number(bytes)).unwrap()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Carries bytes one way, whole messages at a time; `read` gives the length of the first one.
fn carry(mut from: &TcpStream, mut to: &TcpStream, mut read: impl FnMut(&[u8]) -> Option<usize>) {
    let mut pending = Vec::new();
    let mut chunk = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        pending.extend_from_slice(&chunk[..count]);
        let mut whole = 0;
        while let Some(length) = read(&pending[whole..]) {
            whole += length;
        }
        if to.write_all(&pending[..whole]).is_err() {
            break;
        }
        pending.drain(..whole);
    }
    // Either side may be gone already; then there is nothing left to close.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
