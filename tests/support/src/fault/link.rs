//! One carried connection, and what can happen to it.
//!
//! Input: bytes from the readers of `proxy`. Output: the same bytes at the other end, in the same
//! order, unless a [`Fault`] says otherwise. Invariant: a side that can no longer be written to
//! does not end the connection, a side that has ended does; so a message that is held back still
//! arrives when its sender has long given up.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::wait::let_pass;
use rustix::net::sockopt::set_socket_linger;

/// Chunks on their way at a time, each of up to [`CHUNK_BYTES`]; then the sender has to wait.
const CHUNKS_MAX: usize = 64;
/// What is read at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// A throttled line sends this often per second.
const THROTTLED_STEPS_PER_S: u32 = 50;

/// Where bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    ToServer,
    ToClient,
}

/// Both ways.
pub const BOTH: [Way; 2] = [Way::ToServer, Way::ToClient];

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A replication connection to Postgres.
    Stream,
    /// Any other connection to Postgres.
    Sql,
    /// A connection to a Kafka broker, from 0.
    Broker(usize),
}

/// What happens to one way of a connection. Those of one line last until [`Link::heal`], the others
/// happen once, when the byte after so many more arrives.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Every byte arrives this much later, at the same rate.
    Latency(Duration),
    /// So many bytes pass each second.
    Throttle { bytes_per_s: u32 },
    /// Nothing arrives until healed, not even the end: a network that loses everything.
    BlackHole,
    /// Both sides are closed.
    CutAfter(u64),
    /// Both sides are reset.
    ResetAfter(u64),
    /// The receiver sees the end; the other way goes on.
    HalfCloseAfter(u64),
    /// One bit (0 to 7) of that byte is the other one.
    FlipBit { after: u64, bit: u8 },
}

/// A connection from a client to a server. Closed, or reset, when its last thread lets go of it.
pub struct Link {
    pub kind: Kind,
    client: TcpStream,
    server: TcpStream,
    lines: [Line; 2],
    ended: AtomicBool,
    /// The server is not told that the client is gone.
    haunted: AtomicBool,
}

#[derive(Default)]
struct Line {
    weather: Mutex<Weather>,
    changed: Condvar,
}

/// The faults of a line at a time.
#[derive(Default)]
struct Weather {
    latency: Duration,
    bytes_per_s: Option<u32>,
    /// Nothing passes.
    lost: bool,
    /// How many bytes pass before what happens.
    strike: Option<(u64, Strike)>,
    /// What arrives is thrown away.
    shut: bool,
    /// Strikes so far.
    struck: u64,
}

#[derive(Debug, Clone, Copy)]
enum Strike {
    Cut,
    Reset,
    HalfClose,
    Flip(u8),
}

/// Looks at what has come of one way of a connection: passes on what it likes of the first whole
/// message and returns its length, or 0 to see more. Called with nothing when no more will come. An
/// error cuts the connection.
pub type Reader = Box<dyn FnMut(&[u8], &Outlet) -> std::io::Result<usize> + Send>;

/// The far end of one way of a connection.
pub struct Outlet {
    chunks: SyncSender<(Instant, Vec<u8>)>,
}

impl Outlet {
    /// Sends bytes on their way.
    pub fn pass(&self, bytes: &[u8]) -> std::io::Result<()> {
        let sent = self.chunks.send((Instant::now(), bytes.to_vec()));
        sent.map_err(|_| std::io::ErrorKind::BrokenPipe.into())
    }
}

impl Link {
    pub(super) fn new(kind: Kind, client: TcpStream, server: TcpStream) -> Self {
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        let (ended, haunted) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { kind, client, server, lines: [Line::default(), Line::default()], ended, haunted }
    }

    /// Starts carrying.
    pub(super) fn start(self: &Arc<Self>, readers: [Reader; 2]) {
        for (way, reader) in BOTH.into_iter().zip(readers) {
            let (chunks, arriving) = sync_channel(CHUNKS_MAX);
            let (link, end) = (Arc::clone(self), Arc::clone(self));
            std::thread::spawn(move || link.read(way, &Outlet { chunks }, reader));
            std::thread::spawn(move || end.write(way, &arriving));
        }
    }

    /// Does this to one way, from the next byte on.
    pub fn inject(&self, way: Way, fault: Fault) {
        self.change(way, |weather| match fault {
            Fault::Latency(latency) => weather.latency = latency,
            Fault::Throttle { bytes_per_s } => weather.bytes_per_s = Some(bytes_per_s),
            Fault::BlackHole => weather.lost = true,
            Fault::CutAfter(bytes) => weather.strike = Some((bytes, Strike::Cut)),
            Fault::ResetAfter(bytes) => weather.strike = Some((bytes, Strike::Reset)),
            Fault::HalfCloseAfter(bytes) => weather.strike = Some((bytes, Strike::HalfClose)),
            Fault::FlipBit { after, bit } => weather.strike = Some((after, Strike::Flip(bit))),
        });
    }

    /// Ends what lasts, and takes back what has not happened yet.
    pub fn heal(&self) {
        for way in BOTH {
            self.change(way, |weather| {
                let Weather { shut, struck, .. } = *weather;
                *weather = Weather { shut, struck, ..Weather::default() };
            });
        }
    }

    /// How often what happens once has happened.
    pub fn struck(&self) -> u64 {
        BOTH.iter().map(|way| self.weather(*way).struck).sum()
    }

    /// Closes both sides, in the middle of whatever is carried.
    pub fn cut(&self) {
        self.end(|link| {
            close(&link.client);
            close(&link.server);
        });
    }

    /// Resets both sides: the peers get "connection reset", not an end.
    pub fn reset(&self) {
        self.end(|link| {
            for stream in [&link.client, &link.server] {
                // Closing a socket that lingers for no time resets it. Its threads still hold it,
                // so they are sent home first; that the peer has gone before us is no matter.
                let _ = set_socket_linger(stream, Some(Duration::ZERO));
                let _ = stream.shutdown(Shutdown::Read);
            }
        });
    }

    /// Ends the connection towards the client; the server goes on as if it were there.
    pub fn haunt(&self) {
        self.haunted.store(true, Ordering::SeqCst);
        close(&self.client);
    }

    fn end(&self, how: impl FnOnce(&Self)) {
        if !self.ended.swap(true, Ordering::SeqCst) {
            how(self);
        }
        for line in &self.lines {
            line.changed.notify_all();
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn read(&self, way: Way, outlet: &Outlet, mut reader: Reader) {
        let (mut from, _) = self.ends(way);
        let mut pending = Vec::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Ok(count @ 1..) = from.read(&mut chunk) {
            pending.extend_from_slice(&chunk[..count]);
            let mut read = 0;
            while read < pending.len() {
                match reader(&pending[read..], outlet) {
                    Ok(0) => break,
                    Ok(length) => read += length,
                    Err(_) => return self.cut(),
                }
            }
            pending.drain(..read);
        }
        // What is cut off in the middle of a message is passed on as it came.
        if reader(&[], outlet).and_then(|_| outlet.pass(&pending)).is_err() {
            self.cut();
        }
    }

    fn write(&self, way: Way, arriving: &Receiver<(Instant, Vec<u8>)>) {
        for (arrived, bytes) in arriving {
            let due = arrived + self.weather(way).latency;
            while !self.has_ended()
                && let Some(left @ 1..) = due.checked_duration_since(Instant::now()).map(millis)
            {
                let_pass(Duration::from_millis(left.min(20)), "the latency of the line");
            }
            self.deliver(way, bytes);
        }
        // A network that loses everything loses the end, too.
        drop(self.open(way));
        self.leave(way);
    }

    /// The sender has ended, and all it sent is through.
    fn leave(&self, way: Way) {
        if way == Way::ToClient || !self.haunted.load(Ordering::SeqCst) {
            self.cut();
        }
    }

    fn deliver(&self, way: Way, mut bytes: Vec<u8>) {
        let (_, mut to) = self.ends(way);
        let mut done = 0;
        while done < bytes.len() && !self.has_ended() {
            let mut weather = self.open(way);
            let mut count = bytes.len() - done;
            let pause = weather.bytes_per_s.map(|rate| {
                let step = u32::try_from(count).unwrap().min(rate / THROTTLED_STEPS_PER_S).max(1);
                count = step as usize;
                Duration::from_secs(1) * step / rate
            });
            if let Some((left, strike)) = &mut weather.strike {
                count = count.min(usize::try_from(*left).unwrap());
                *left -= count as u64;
                if count == 0 {
                    let strike = *strike;
                    weather.strike = None;
                    weather.struck += 1;
                    weather.shut |= matches!(strike, Strike::HalfClose);
                    drop(weather);
                    self.strike(strike, to, &mut bytes[done]);
                    continue;
                }
            }
            let is_shut = weather.shut;
            drop(weather);
            if !is_shut && to.write_all(&bytes[done..done + count]).is_err() {
                self.change(way, |weather| weather.shut = true);
            }
            done += count;
            let_pass(pause.unwrap_or_default(), "the throttle of the line");
        }
    }

    fn strike(&self, strike: Strike, to: &TcpStream, next: &mut u8) {
        match strike {
            Strike::Cut => self.cut(),
            Strike::Reset => self.reset(),
            Strike::HalfClose => drop(to.shutdown(Shutdown::Write)),
            Strike::Flip(bit) => *next ^= 1 << bit,
        }
    }

    /// The faults of a line, once it carries anything, or the connection has ended.
    fn open(&self, way: Way) -> MutexGuard<'_, Weather> {
        let line = self.line(way);
        let lost = |weather: &mut Weather| weather.lost && !self.has_ended();
        line.changed.wait_while(self.weather(way), lost).unwrap()
    }

    fn change(&self, way: Way, change: impl FnOnce(&mut Weather)) {
        change(&mut self.weather(way));
        self.line(way).changed.notify_all();
    }

    fn weather(&self, way: Way) -> MutexGuard<'_, Weather> {
        self.line(way).weather.lock().unwrap()
    }

    fn line(&self, way: Way) -> &Line {
        &self.lines[usize::from(way == Way::ToClient)]
    }

    fn ends(&self, way: Way) -> (&TcpStream, &TcpStream) {
        match way {
            Way::ToServer => (&self.client, &self.server),
            Way::ToClient => (&self.server, &self.client),
        }
    }
}

fn close(stream: &TcpStream) {
    // It may have ended by itself.
    let _ = stream.shutdown(Shutdown::Both);
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}
