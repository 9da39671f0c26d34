//! Adds the bootstrap servers again to a client that has lost all brokers.
//!
//! A broker that just starts may answer with topics and no brokers. librdkafka 2.12.1 then removes
//! all brokers, including the bootstrap servers (confluentinc/librdkafka#5301), and may never
//! connect again.

use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};

/// The client itself tries every second.
const PATIENCE: Duration = Duration::from_secs(15);
/// librdkafka keeps the text of each call, about 100 bytes per minute.
const WAIT_MAX: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub struct BootstrapServers {
    addresses: String,
    outage: Option<Outage>,
}

#[derive(Debug)]
struct Outage {
    next: Instant,
    wait: Duration,
    is_lost: bool,
}

impl BootstrapServers {
    /// Form of `bootstrap.servers`.
    pub fn new(addresses: impl Into<String>) -> Self {
        Self { addresses: addresses.into(), outage: None }
    }

    /// Adds the servers after 15 s without a reachable broker, and again at growing intervals.
    /// Returns true after these 15 s. Call it often.
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
