//! A proxy between relay and Postgres that reads along: every status update of the relay is held
//! until whoever listens has had a look, and for as long as a test likes. Carries plain TCP only.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use postrider_sandbox::postgres::Address;

use super::fault::proxy::{Proxy, Reader, watch};

/// Codes of SSLRequest and GSSENCRequest (protocol, "Message Formats"), answered by one byte.
const ENCRYPTION_REQUESTS: [u64; 2] = [80_877_103, 80_877_104];

/// What comes before the first row of a binary COPY.
const COPY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// What a status update says, as log positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    /// What the relay said it has received.
    pub write: u64,
    /// What the relay acknowledges.
    pub flush: u64,
    /// What it says is applied.
    pub apply: u64,
    /// The highest position that Postgres had sent on this connection, or in windows of a backlog on another one.
    pub sent: u64,
}

/// The running proxy.
pub struct StatusProxy {
    address: Address,
    proxy: Proxy,
    shared: Arc<Shared>,
}

struct Shared {
    listener: Box<dyn Fn(Said) + Send + Sync>,
    /// The highest position that Postgres has sent in windows.
    windows: AtomicU64,
    /// No status update goes on.
    held: Mutex<bool>,
    released: Condvar,
}

impl StatusProxy {
    /// Listens on a port of its own for connections to `target`. A status update goes on to Postgres
    /// when `listener` returns. Its threads end with this process.
    pub fn start(target: &Address, listener: impl Fn(Said) + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            listener: Box::new(listener),
            windows: AtomicU64::new(0),
            held: Mutex::default(),
            released: Condvar::new(),
        });
        let reading = Arc::clone(&shared);
        let proxy = Proxy::postgres(target, Box::new(move |_| reading.readers()));
        Self { address: proxy.address(target), proxy, shared }
    }

    /// Where the relay has to connect instead.
    pub fn address(&self) -> Address {
        self.address.clone()
    }

    /// What carries the connections, for faults of all kinds.
    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Status updates are heard and then wait, with all that the relay sends after them on the same
    /// connection.
    pub fn hold(&self) {
        *self.shared.held.lock().unwrap() = true;
    }

    /// Lets them go on.
    pub fn release(&self) {
        *self.shared.held.lock().unwrap() = false;
        self.shared.released.notify_all();
    }
}

impl Shared {
    fn readers(self: &Arc<Self>) -> [Reader; 2] {
        let talk = Arc::new(Talk::default());
        let (shared, heard) = (Arc::clone(self), Arc::clone(&talk));
        let answered = Arc::clone(self);
        [
            watch(move |bytes| shared.read_client(bytes, &heard)),
            watch(move |bytes| talk.read_server(bytes, &answered.windows)),
        ]
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
                sent: talk.sent.load(Ordering::SeqCst).max(self.windows.load(Ordering::SeqCst)),
            });
            drop(self.released.wait_while(self.held.lock().unwrap(), |held| *held).unwrap());
        }
        if bytes[0] == b'Q'
            && let Some(end) = window_end(body)
        {
            talk.windows.lock().unwrap().push_back(end);
        }
        Some(length)
    }
}

/// Up to where a query asks for a window of a backlog.
fn window_end(query: &[u8]) -> Option<u64> {
    let text = str::from_utf8(query).ok()?;
    let (_, arguments) = text.split_once("pg_logical_slot_get_binary_changes(")?;
    let (high, low) = arguments.split('\'').nth(3)?.split_once('/')?;
    let half = |text| u64::from_str_radix(text, 16).ok();
    Some(half(high)? << 32 | half(low)?)
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
    /// Where the windows end that were asked for.
    windows: Mutex<VecDeque<u64>>,
}

impl Talk {
    /// XLogData `w`: start at 1, end of WAL at 9. Keepalive `k`: end of WAL at 1. Of a window: each row's position, and its
    /// end once the server is ready for another query.
    fn read_server(&self, bytes: &[u8], windows: &AtomicU64) -> Option<usize> {
        if self.asked.swap(false, Ordering::SeqCst) {
            assert_eq!(bytes.first(), Some(&b'N'), "a status_log cannot read TLS");
            return Some(1);
        }
        let (body, length) = typed(bytes)?;
        if bytes[0] == b'Z'
            && let Some(end) = self.windows.lock().unwrap().pop_front()
        {
            windows.fetch_max(end, Ordering::SeqCst);
        }
        if bytes[0] == b'd' {
            let row = body.strip_prefix(COPY_HEADER).unwrap_or(body);
            if let Some(rest) = row.strip_prefix(&[0, 2, 0, 0, 0, 8])
                && !self.windows.lock().unwrap().is_empty()
            {
                windows.fetch_max(number(&rest[..8]), Ordering::SeqCst);
            }
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
