//! Adds the bootstrap servers again to a client that has lost all brokers.
//!
//! Input: whether a broker is reachable, repeatedly. Output: calls of `add_brokers`. Facts
//! (librdkafka 2.12.1): a broker that just starts may answer a metadata request with topics and no
//! brokers. The client then removes all its brokers, including the bootstrap servers
//! (confluentinc/librdkafka#5301). It schedules their return, but the end of that request may
//! cancel it, and the client never connects again.

use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};

/// Time without a reachable broker after which the client gets help. It tries to connect every
/// second by itself.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest interval of calls. The broker that empties the client may be the first one after a long
/// outage. librdkafka keeps the text of each call, about 100 bytes per minute.
const WAIT_MAX: Duration = Duration::from_mins(1);

/// The bootstrap servers of a client.
#[derive(Debug)]
pub struct BootstrapServers {
    addresses: String,
    outage: Option<Outage>,
}

#[derive(Debug)]
struct Outage {
    next: Instant,
    /// Interval until the call after it.
    wait: Duration,
    is_lost: bool,
}

impl BootstrapServers {
    /// Addresses in the form of `bootstrap.servers`.
    pub fn new(addresses: impl Into<String>) -> Self {
        Self { addresses: addresses.into(), outage: None }
    }

    /// Adds the servers to the client if no broker has been reachable for 15 s, and again at
    /// intervals that grow to a minute. Returns whether no broker has been reachable for 15 s. Call
    /// it often.
    pub fn restore<C: ClientContext>(&mut self, client: &Client<C>, is_reachable: bool) -> bool {
        if is_reachable {
            self.outage = None;
            return false;
        }
        if self.is_due(Instant::now()) {
            tracing::debug!("adding the bootstrap servers again");
            postrider_librdkafka::add_brokers(client, &self.addresses);
        }
        self.outage.as_ref().is_some_and(|outage| outage.is_lost)
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let outage = self.outage.get_or_insert_with(|| Outage {
            next: now + PATIENCE,
            wait: PATIENCE,
            is_lost: false,
        });
        let is_due = now >= outage.next;
        if is_due {
            *outage = Outage {
                next: now + outage.wait,
                wait: WAIT_MAX.min(2 * outage.wait),
                is_lost: true,
            };
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_are_added_after_a_while_and_then_less_often() {
        let mut servers = BootstrapServers::new("a:9092");
        let begin = Instant::now();
        let due = |second: &u64| servers.is_due(begin + Duration::from_secs(*second));
        let added: Vec<u64> = (0..300).filter(due).collect();
        assert_eq!(added, [15, 30, 60, 120, 180, 240]);
    }
}
