//! Every status update of a relay beside the ends of all topics at that moment, so that a judge can
//! tell afterwards whether everything at or below the acknowledged position was in Kafka *then* (G1).
//! The updates are held by a [`StatusProxy`] meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider_sandbox::postgres::Address;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::status_proxy::{Said, StatusProxy};
use super::topic;

/// A broker that all tests share answers in milliseconds on its own, and in many seconds among them.
const LOOK_LIMIT: Duration = Duration::from_mins(1);

/// A status update, and how far the topics reached when it was about to leave for Postgres.
#[derive(Debug, Clone)]
pub struct Status {
    /// What the relay said it has received.
    pub write: u64,
    /// What the relay acknowledges.
    pub flush: u64,
    /// What it says is applied.
    pub apply: u64,
    /// The highest position that Postgres had sent on this connection.
    pub sent: u64,
    /// Topic, partition, end offset; nothing where nothing new is acknowledged.
    pub ends: Vec<(String, i32, i64)>,
}

/// The running proxy.
pub struct StatusLog {
    tap: StatusProxy,
    statuses: Arc<Mutex<Vec<Status>>>,
    /// Whom the brokers are asked by.
    consumer: Arc<Mutex<Option<BaseConsumer>>>,
}

/// The proxy's threads live on. Without this so would a client with its files for each test.
impl Drop for StatusLog {
    fn drop(&mut self) {
        // A test that fails has said why already; a second panic here would end all the others.
        drop(self.consumer.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl StatusLog {
    /// Listens on a port of its own for connections to `target`; notes the ends of the topics of
    /// `bootstrap` that begin with `prefix`. Its threads end with this process.
    pub fn start(target: &Address, bootstrap: &str, prefix: &str) -> Self {
        // The brokers answer a commit when it is decided; what is marked as committed in each
        // partition follows a moment later, and by itself. A judge looks there at the end.
        let mut config = topic::client(bootstrap);
        let consumer: BaseConsumer =
            config.set("isolation.level", "read_uncommitted").create().unwrap();
        let consumer = Arc::new(Mutex::new(Some(consumer)));
        let asked = Arc::clone(&consumer);
        let prefix = prefix.to_owned();
        // Locked for the whole look: of two relays' updates, the later one counts on the earlier.
        let highest = Mutex::new(0);
        let statuses: Arc<Mutex<Vec<Status>>> = Arc::default();
        let noted = Arc::clone(&statuses);
        let tap = StatusProxy::start(target, move |Said { write, flush, apply, sent }| {
            // Only an advance needs a look at the topics: it alone acknowledges something new.
            let mut highest = highest.lock().unwrap();
            let asked = asked.lock().unwrap();
            let ends = match asked.as_ref().filter(|_| flush > *highest) {
                Some(consumer) => ends(consumer, &prefix),
                None => Vec::new(),
            };
            *highest = flush.max(*highest);
            noted.lock().unwrap().push(Status { write, flush, apply, sent, ends });
        });
        Self { tap, statuses, consumer }
    }

    /// Where the relay has to connect instead.
    pub fn address(&self) -> Address {
        self.tap.address()
    }

    /// Every status update so far, in the order they were sent.
    pub fn statuses(&self) -> Vec<Status> {
        self.statuses.lock().unwrap().clone()
    }

    /// Cuts every connection, in the middle of whatever it carries.
    pub fn cut(&self) {
        self.tap.proxy().cut();
    }

    /// What holds the status updates and carries the connections.
    pub fn tap(&self) -> &StatusProxy {
        &self.tap
    }
}

fn ends(consumer: &BaseConsumer, prefix: &str) -> Vec<(String, i32, i64)> {
    let metadata = consumer.fetch_metadata(None, LOOK_LIMIT).unwrap();
    let names = metadata.topics().iter().map(rdkafka::metadata::MetadataTopic::name);
    let mut ends = Vec::new();
    for name in names.filter(|name| name.starts_with(prefix)) {
        for (partition, end) in topic::ends(consumer, name) {
            ends.push((name.to_owned(), partition, end));
        }
    }
    ends
}
