//! A Postgres whose clock is behind: a proxy subtracts a time from all that replication says of the clock.
//!
//! Input: the bytes of the server. Output: the same, with other times in `XLogData`, keepalives, Begin and
//! Commit (protocol, "Streaming Replication Protocol" and "Logical Replication Message Formats"). Invariant:
//! all times of a connection are behind by as much. Carries plain TCP only.

use std::io;
use std::ops::Range;
use std::time::Duration;

use postrider::sandbox::postgres::Address;
use support::fault::proxy::{Outlet, Proxy, Reader, carry};

/// How far the clock is behind: longer than any test takes, and shorter than records are kept.
pub(super) const BEHIND: Duration = Duration::from_hours(2);

/// Starts the proxy before `target`. Its threads end with this process.
pub(super) fn slow_clock(target: &Address) -> Proxy {
    Proxy::postgres(target, Box::new(|_| [carry(), Server::default().reader()]))
}

/// What has come from the server on a connection.
#[derive(Default)]
struct Server {
    /// A message. What comes before is the answer to a request for encryption, `N` without a length.
    has_spoken: bool,
    /// `CopyBothResponse`, after which `CopyData` is of the replication.
    replicates: bool,
}

impl Server {
    fn reader(mut self) -> Reader {
        Box::new(move |bytes, outlet| {
            self.has_spoken |= bytes.first().is_some_and(|first| *first != b'N');
            if self.has_spoken { self.pass_message(bytes, outlet) } else { pass(bytes, outlet) }
        })
    }

    /// Passes the first message on, once all of it is there.
    fn pass_message(&mut self, bytes: &[u8], outlet: &Outlet) -> io::Result<usize> {
        let Some(size) = bytes.get(1..5) else { return Ok(0) };
        let length = 1 + u32::from_be_bytes(size.try_into().unwrap()) as usize;
        let Some(message) = bytes.get(..length) else { return Ok(0) };
        let mut message = message.to_vec();
        self.replicates |= message[0] == b'W';
        if self.replicates && message[0] == b'd' {
            for at in times(&message[5..]) {
                subtract(&mut message[5..][at]);
            }
        }
        pass(&message, outlet)
    }
}

fn pass(bytes: &[u8], outlet: &Outlet) -> io::Result<usize> {
    outlet.pass(bytes).map(|()| bytes.len())
}

/// Where the times of a `CopyData` are, in its body.
fn times(body: &[u8]) -> Vec<Range<usize>> {
    let starts = match (body.first(), body.get(25)) {
        (Some(b'k'), _) => vec![9],
        (Some(b'w'), Some(b'B')) => vec![17, 34],
        (Some(b'w'), Some(b'C')) => vec![17, 43],
        (Some(b'w'), _) => vec![17],
        _ => vec![],
    };
    starts.into_iter().map(|start| start..start + 8).collect()
}

fn subtract(time: &mut [u8]) {
    let micros = i64::from_be_bytes((&*time).try_into().unwrap());
    let behind = i64::try_from(BEHIND.as_micros()).unwrap();
    time.copy_from_slice(&(micros - behind).to_be_bytes());
}
