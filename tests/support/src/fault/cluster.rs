//! Apache Kafka of which every broker is reached through the proxy: it advertises the proxy's ports
//! on a listener of their own, so nothing in the brokers' answers has to be rewritten.

use std::sync::{Arc, Mutex};

use super::endtxn::EndTxns;
use super::limits::Limits;
use super::proxy::Proxy;
use crate::kafka::{self, Kafka, Options};

/// The brokers and the proxy before them.
pub struct Cluster {
    /// Its `bootstrap` leads past the proxy, for judges.
    pub kafka: Kafka,
    /// What byte faults are given to.
    pub proxy: Proxy,
    /// What is done to the end of transactions.
    pub end_txns: Arc<EndTxns>,
}

/// Starts Kafka with these options behind a proxy; `None` where this machine cannot run it.
pub fn start(options: &Options) -> Option<Cluster> {
    let end_txns = Arc::new(EndTxns::new());
    let reading = Arc::clone(&end_txns);
    let proxy = Proxy::brokers(options.brokers, Box::new(move |_| reading.readers()));
    let options = Options { proxied: proxy.ports(), ..options.clone() };
    let kafka = kafka::start(&options)?;
    proxy.lead_to(&kafka.proxied_ports());
    Some(Cluster { kafka, proxy, end_txns })
}

impl Cluster {
    /// Addresses that lead through the proxy, as `bootstrap.servers` wants them.
    pub fn bootstrap(&self) -> String {
        let ports = self.proxy.ports().into_iter();
        ports.map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
    }
}

/// Apache Kafka that seems to do less.
pub struct LimitedKafka {
    /// Its `bootstrap` leads past the proxy, where it does everything.
    pub kafka: Kafka,
    proxy: Proxy,
    limits: Arc<Mutex<Limits>>,
}

/// Starts one broker behind a proxy that makes less of it; `None` where this machine cannot run it.
pub fn start_limited() -> Option<LimitedKafka> {
    let limits = Arc::new(Mutex::new(Limits::default()));
    let current = Arc::clone(&limits);
    let proxy = Proxy::brokers(1, Box::new(move |_| current.lock().unwrap().readers()));
    let kafka = kafka::start(&Options { proxied: proxy.ports(), ..Options::default() })?;
    proxy.lead_to(&kafka.proxied_ports());
    Some(LimitedKafka { kafka, proxy, limits })
}

impl LimitedKafka {
    /// What connections from now on can do less.
    pub fn limit(&self, limits: Limits) {
        *self.limits.lock().unwrap() = limits;
        self.proxy.cut();
    }

    /// The address that leads through the proxy, as `bootstrap.servers` wants it.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.proxy.ports()[0])
    }
}
