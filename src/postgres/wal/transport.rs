//! The socket to the server, TCP or unix, plain or TLS, and the trait that tests implement.
//!
//! Invariant: `read` and `write` return at once; only `wait` waits, at most for its limit. One
//! thread waits with poll(2): an event loop would be woken for each segment.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use rustls::{ClientConfig, ClientConnection};

use super::error::WalError;
use super::{tls, verifier};
use crate::libpq::{Endpoint, HostAddress, Keepalives};

/// Tests script one in memory.
pub trait Transport {
    /// `WouldBlock` without bytes, 0 only at the end of the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// `WouldBlock` if it cannot take any.
    fn write(&mut self, from: &[u8]) -> io::Result<usize>;

    /// False if some bytes are still queued.
    fn flush(&mut self) -> io::Result<bool>;

    /// Waits for input (or, with `writing`, for room to write); may return early.
    fn wait(&mut self, writing: bool, limit: Duration) -> io::Result<()>;

    /// True if the peer will send nothing beyond the readable input.
    fn is_over(&self) -> bool {
        false
    }
}

#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Tries every address of a name; `limit` applies to each.
    pub(crate) fn connect(
        endpoint: &Endpoint,
        keepalives: Keepalives,
        limit: Option<Duration>,
    ) -> Result<Self, WalError> {
        let unreachable = |error: io::Error| WalError::Unreachable {
            endpoint: endpoint.to_string(),
            reason: reason_of(&error),
        };
        if let Some(path) = endpoint.socket_path() {
            return UnixStream::connect(path).map(Self::Unix).map_err(unreachable);
        }
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in addresses(endpoint).map_err(unreachable)? {
            let connected = match limit {
                Some(limit) => TcpStream::connect_timeout(&address, limit),
                None => TcpStream::connect(address),
            };
            match connected.and_then(|socket| prepare(socket, keepalives)) {
                Ok(socket) => return Ok(Self::Tcp(socket)),
                Err(error) => last = error,
            }
        }
        Err(unreachable(last))
    }

    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.set_nonblocking(true),
            Self::Unix(socket) => socket.set_nonblocking(true),
        }
    }

    fn wait(&self, writing: bool, limit: Duration) -> io::Result<()> {
        let flags = if writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(self, flags)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn addresses(endpoint: &Endpoint) -> io::Result<Vec<SocketAddr>> {
    match &endpoint.address {
        HostAddress::Tcp { ip: Some(ip), .. } => Ok(vec![SocketAddr::new(*ip, endpoint.port)]),
        HostAddress::Tcp { host, .. } => {
            Ok((host.as_str(), endpoint.port).to_socket_addrs()?.collect())
        }
        HostAddress::Unix(_) => Ok(Vec::new()),
    }
}

fn prepare(socket: TcpStream, keepalives: Keepalives) -> io::Result<TcpStream> {
    // Status updates are small and must not wait for each other.
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&socket, keepalives.enabled)?;
    if let Some(idle) = keepalives.idle.filter(|_| keepalives.enabled) {
        sockopt::set_tcp_keepidle(&socket, idle)?;
    }
    if let Some(interval) = keepalives.interval.filter(|_| keepalives.enabled) {
        sockopt::set_tcp_keepintvl(&socket, interval)?;
    }
    if let Some(count) = keepalives.count.filter(|_| keepalives.enabled) {
        sockopt::set_tcp_keepcnt(&socket, count)?;
    }
    if let Some(limit) = keepalives.user_timeout {
        let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&socket, limit)?;
    }
    Ok(socket)
}

pub(super) fn reason_of(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "there is no such socket or name".to_owned(),
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "no answer in time".to_owned(),
        _ => error.to_string(),
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(into),
            Self::Unix(socket) => socket.read(into),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(from),
            Self::Unix(socket) => socket.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
pub struct Wire {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
}

impl Wire {
    pub(super) fn plain(socket: Socket) -> Self {
        Self { socket, tls: None }
    }

    pub(super) fn start_tls(
        self,
        config: Arc<ClientConfig>,
        endpoint: &Endpoint,
        deadline: Option<Instant>,
    ) -> Result<Self, WalError> {
        let failed = |error: &rustls::Error| {
            WalError::of_handshake(&endpoint.to_string(), error, error.to_string())
        };
        let mut session = ClientConnection::new(config, tls::server_name(endpoint))
            .map_err(|error| failed(&error))?;
        let mut socket = self.socket;
        while session.is_handshaking() {
            let limit = super::message_channel::remaining(deadline, "setting up TLS")?;
            while session.wants_write() {
                match session.write_tls(&mut socket) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(WalError::Io(error.to_string())),
                }
            }
            if !session.is_handshaking() {
                break;
            }
            socket.wait(session.wants_write(), limit).map_err(|e| WalError::Io(e.to_string()))?;
            match session.read_tls(&mut socket) {
                Ok(0) => return Err(WalError::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(WalError::Io(error.to_string())),
            }
            if let Err(error) = session.process_new_packets() {
                // Sends the alert to the server, which may be gone already.
                let _ = session.write_tls(&mut socket);
                return Err(failed(&error));
            }
        }
        Ok(Self { socket, tls: Some(Box::new(session)) })
    }

    /// `None` without TLS or if the certificate does not allow it.
    pub(super) fn binding(&self) -> Option<Vec<u8>> {
        let certificates = self.tls.as_ref()?.peer_certificates()?;
        verifier::end_point_binding(certificates.first()?)
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Transport for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(session) = &mut self.tls else { return self.socket.read(into) };
        let mut taken = 0;
        loop {
            let room = into.split_at_mut(taken).1;
            match session.reader().read(room) {
                Ok(0) => return Ok(taken),
                Ok(bytes) => taken += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    match session.read_tls(&mut self.socket) {
                        Ok(0) => return Ok(taken),
                        Ok(_) => {}
                        Err(_) if taken > 0 => return Ok(taken),
                        Err(error) => return Err(error),
                    }
                    session.process_new_packets().map_err(io::Error::other)?;
                }
                Err(_) if taken > 0 => return Ok(taken),
                Err(error) => return Err(error),
            }
        }
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let Some(session) = &mut self.tls else { return self.socket.write(from) };
        match session.writer().write(from)? {
            0 if !from.is_empty() => Err(ErrorKind::WouldBlock.into()),
            bytes => Ok(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        let Some(session) = &mut self.tls else { return Ok(true) };
        while session.wants_write() {
            match session.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn wait(&mut self, writing: bool, limit: Duration) -> io::Result<()> {
        let pending = self.tls.as_ref().is_some_and(|session| session.wants_write());
        self.socket.wait(writing || pending, limit)
    }

    fn is_over(&self) -> bool {
        let over = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut sockets = [PollFd::new(&self.socket, over)];
        // If the state is unknown, the next write reveals it.
        let known = poll(&mut sockets, Some(&Timespec::default()));
        let [socket] = sockets;
        known.is_ok() && socket.revents().intersects(over)
    }
}
