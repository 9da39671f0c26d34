//! A proxy in front of Postgres that stops a connection at a chosen statement and forwards it when the
//! gate is opened. Its threads end with this process.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use support::wait::wait_until;

/// The running proxy.
pub(crate) struct Gate {
    pub(crate) port: u16,
    barrier: Arc<Barrier>,
}

#[derive(Default)]
struct Barrier {
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Default)]
struct State {
    is_open: bool,
    held: usize,
}

impl Gate {
    pub(crate) fn before(server: u16, needle: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let barrier = Arc::<Barrier>::default();
        let shared = Arc::clone(&barrier);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).unwrap();
                let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let barrier = Arc::clone(&shared);
                thread::spawn(move || carry(client, server, |bytes| barrier.pass(bytes, needle)));
                thread::spawn(move || carry(from, to, |_| ()));
            }
        });
        Self { port, barrier }
    }

    /// Waits until a connection is stopped.
    pub(crate) fn await_held(&self) {
        wait_until("the statement", || self.barrier.state.lock().unwrap().held > 0);
    }

    /// Lets it continue, and all others from now on.
    pub(crate) fn open(&self) {
        self.barrier.state.lock().unwrap().is_open = true;
        self.barrier.opened.notify_all();
    }
}

impl Barrier {
    /// Returns when the bytes may pass. A small statement comes in one piece.
    fn pass(&self, bytes: &[u8], needle: &str) {
        if bytes.windows(needle.len()).any(|window| window == needle.as_bytes()) {
            let mut state = self.state.lock().unwrap();
            state.held += 1;
            drop(self.opened.wait_while(state, |state| !state.is_open).unwrap());
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, pass: impl Fn(&[u8])) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        pass(&bytes[..length]);
        if to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    // The other end has gone already where this fails.
    let _ = to.shutdown(Shutdown::Write);
}
