//! A proxy before Postgres that knows the messages of a stream: it cuts connections at chosen places of
//! them, or damages chosen bytes, so many times, and then lets everything pass.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_sandbox::postgres::Address;

use super::fault::link::{Kind, Outlet};
use super::fault::proxy::{Proxy, Reader, carry};
use super::wait::let_pass;

/// How long what was passed may take to arrive before the cut.
const ARRIVAL: Duration = Duration::from_millis(30);

/// Where the message of the output plugin begins in a message of the protocol: type and length, and
/// the head of XLogData (protocol, "Streaming Replication Protocol").
pub const HEAD: usize = 5 + 25;

/// What is done to a message: so much of these bytes passes, and is the end if it is not all.
type Treatment = Box<dyn FnMut(&[u8]) -> Option<Treated> + Send>;

/// A message as it is passed on.
pub struct Treated {
    pub bytes: Vec<u8>,
    /// The connection ends behind it.
    pub cut: bool,
}

/// The running proxy.
pub struct CuttingProxy {
    treat: Arc<Mutex<Treatment>>,
    left: Arc<Mutex<usize>>,
    proxy: Mutex<Option<Proxy>>,
}

impl CuttingProxy {
    /// Cuts so many connections behind the first Begin of each.
    pub fn behind_begin(times: usize) -> Self {
        Self::new(times, |message, _| {
            let is_begin = message.get(HEAD) == Some(&b'B');
            is_begin.then(|| Treated { bytes: message.to_vec(), cut: true })
        })
    }

    /// Does `treat` to so many messages of the server, numbered from 0; one that answers nothing to a
    /// message lets it pass and is asked about the next.
    pub fn new(
        times: usize,
        mut treat: impl FnMut(&[u8], usize) -> Option<Treated> + Send + 'static,
    ) -> Self {
        let left = Arc::new(Mutex::new(times));
        let counting = Arc::clone(&left);
        let treat: Treatment = Box::new(move |message| {
            let mut left = counting.lock().unwrap();
            if *left == 0 {
                return None;
            }
            let treated = treat(message, times - *left)?;
            *left -= 1;
            Some(treated)
        });
        Self { treat: Arc::new(Mutex::new(treat)), left, proxy: Mutex::default() }
    }

    /// Stands before this server; the address to connect to instead.
    pub fn before(&self, target: &Address) -> Address {
        let treat = Arc::clone(&self.treat);
        let proxy = Proxy::postgres(
            target,
            Box::new(move |link| {
                let treat = Arc::clone(&treat);
                let is_stream = link.kind == Kind::Stream;
                [carry(), if is_stream { reader(treat) } else { carry() }]
            }),
        );
        let address = proxy.address(target);
        *self.proxy.lock().unwrap() = Some(proxy);
        address
    }

    /// How often it would still do it.
    pub fn left(&self) -> usize {
        *self.left.lock().unwrap()
    }
}

fn reader(treat: Arc<Mutex<Treatment>>) -> Reader {
    Box::new(move |bytes, outlet: &Outlet| {
        let Some(length) = length(bytes).filter(|length| *length <= bytes.len()) else {
            return Ok(0);
        };
        let is_row = bytes[0] == b'd' && bytes.get(5) == Some(&b'w');
        let treated = is_row.then(|| (treat.lock().unwrap())(&bytes[..length])).flatten();
        match treated {
            None => outlet.pass(&bytes[..length])?,
            Some(treated) => {
                outlet.pass(&treated.bytes)?;
                if treated.cut {
                    let_pass(ARRIVAL, "what was passed arrives before the cut does");
                    return Err(ErrorKind::ConnectionAborted.into());
                }
            }
        }
        Ok(length)
    })
}

/// Of the first message, with its type byte.
fn length(bytes: &[u8]) -> Option<usize> {
    let size: [u8; 4] = bytes.get(1..5)?.try_into().ok()?;
    Some(1 + usize::try_from(u32::from_be_bytes(size)).unwrap())
}
