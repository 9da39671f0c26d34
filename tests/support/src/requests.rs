//! A proxy before Kafka's brokers that knows their requests by api key: it holds those of a kind back
//! for as long as a test likes, hangs up at them, or hides the brokers in answers to Metadata.
//!
//! Invariant: what is not chosen passes; the brokers advertise the proxy's ports on a listener of
//! their own, so that clients come back through it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use super::fault::kafka_frame::{self as frame, METADATA, Request, without_brokers};
use super::fault::link::Link;
use super::fault::proxy::{Proxy, Reader};
use super::kafka::{self, Kafka, Options};
use super::wait::wait_until;

/// Kinds of requests, by their keys (protocol guide of Apache Kafka).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i16)]
pub enum Ask {
    SaslHandshake = 17,
    DescribeConfigs = 32,
}

/// What is done to the requests that were chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    /// It waits, and all that comes after it on the same connection.
    Hold,
    /// The connection ends instead.
    HangUp,
}

/// The running proxy.
pub struct Requests {
    proxy: Proxy,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    chosen: Mutex<Option<(Ask, Deed)>>,
    changed: Condvar,
    /// How many came, by key.
    seen: Mutex<BTreeMap<i16, usize>>,
    are_brokers_hidden: AtomicBool,
    /// Ids of clients that had such an answer.
    misled: Mutex<BTreeSet<String>>,
}

/// Requests for Metadata of a connection that are not answered: version and client's id, by correlation id.
type Unanswered = Arc<Mutex<HashMap<i32, (i16, String)>>>;

/// Starts Kafka with these options behind such a proxy; `None` where this machine cannot run it.
pub fn start(options: &Options) -> Option<(Kafka, Requests)> {
    let shared: Arc<Shared> = Arc::default();
    let reading = Arc::clone(&shared);
    let readers = Box::new(move |_: &Arc<Link>| {
        let unanswered = Unanswered::default();
        [reading.reader(Arc::clone(&unanswered)), reading.answers(unanswered)]
    });
    let proxy = Proxy::brokers(options.brokers, readers);
    let kafka = kafka::start(&Options { proxied: proxy.ports(), ..options.clone() })?;
    proxy.lead_to(&kafka.proxied_ports());
    Some((kafka, Requests { proxy, shared }))
}

impl Requests {
    /// Addresses that lead through the proxy, as `bootstrap.servers` wants them.
    pub fn bootstrap(&self) -> String {
        let ports = self.proxy.ports().into_iter();
        ports.map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
    }

    /// Requests of this kind reach no broker until [`Self::pass`], and nobody hangs up.
    pub fn hold(&self, ask: Ask) {
        self.choose(Some((ask, Deed::Hold)));
    }

    /// A connection with such a request ends, until [`Self::pass`].
    pub fn hang_up_at(&self, ask: Ask) {
        self.choose(Some((ask, Deed::HangUp)));
    }

    /// Answers to Metadata name no broker until [`Self::pass`], like those of a broker that just starts.
    pub fn hide_brokers(&self) {
        self.shared.are_brokers_hidden.store(true, Ordering::SeqCst);
    }

    /// Waits until clients with these ids have had such an answer.
    pub fn wait_misled(&self, client_ids: &[&str]) {
        wait_until("answers without brokers", || {
            let misled = self.shared.misled.lock().unwrap();
            client_ids.iter().all(|id| misled.contains(*id))
        });
    }

    /// Everything passes, and what was held.
    pub fn pass(&self) {
        self.shared.are_brokers_hidden.store(false, Ordering::SeqCst);
        self.choose(None);
    }

    /// Cuts every connection that lives.
    pub fn cut(&self) {
        self.proxy.cut();
    }

    /// Waits until so many more such requests have come, to any broker.
    pub fn wait_for(&self, more: usize, ask: Ask) {
        let seen = || self.shared.seen.lock().unwrap().get(&(ask as i16)).copied().unwrap_or(0);
        let wanted = seen() + more;
        wait_until(&format!("{more} times {ask:?}"), || seen() >= wanted);
    }

    fn choose(&self, chosen: Option<(Ask, Deed)>) {
        *self.shared.chosen.lock().unwrap() = chosen;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn reader(self: &Arc<Self>, unanswered: Unanswered) -> Reader {
        let shared = Arc::clone(self);
        Box::new(move |bytes, outlet| {
            let Some(length) = frame::length(bytes) else { return Ok(0) };
            let request = Request::read(&bytes[..length]).ok_or(ErrorKind::InvalidData)?;
            *shared.seen.lock().unwrap().entry(request.api_key).or_default() += 1;
            shared.treat(request.api_key)?;
            if request.api_key == METADATA {
                let asked = (request.version, request.client_id().unwrap_or_default());
                unanswered.lock().unwrap().insert(request.correlation_id, asked);
            }
            outlet.pass(&bytes[..length])?;
            Ok(length)
        })
    }

    fn answers(self: &Arc<Self>, unanswered: Unanswered) -> Reader {
        let shared = Arc::clone(self);
        Box::new(move |bytes, outlet| {
            let Some(length) = frame::length(bytes) else { return Ok(0) };
            let whole = &bytes[..length];
            let id = frame::answered(whole).ok_or(ErrorKind::InvalidData)?;
            let asked = unanswered.lock().unwrap().remove(&id);
            match asked.filter(|_| shared.are_brokers_hidden.load(Ordering::SeqCst)) {
                Some((version, client_id)) => {
                    outlet.pass(&without_brokers(whole, version).ok_or(ErrorKind::InvalidData)?)?;
                    shared.misled.lock().unwrap().insert(client_id);
                }
                None => outlet.pass(whole)?,
            }
            Ok(length)
        })
    }

    fn treat(&self, api_key: i16) -> std::io::Result<()> {
        let is = |chosen: &Option<(Ask, Deed)>, deed: Deed| {
            chosen.is_some_and(|(ask, wanted)| ask as i16 == api_key && wanted == deed)
        };
        let chosen = self.chosen.lock().unwrap();
        if is(&chosen, Deed::HangUp) {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        drop(self.changed.wait_while(chosen, |chosen| is(chosen, Deed::Hold)).unwrap());
        Ok(())
    }
}
