//! Flushes and commits Kafka transactions on another thread.
//!
//! Invariant: a request returns at once; a result other than `Ok` leaves the outcome unknown. The
//! thread ends after the `Committer` is dropped and the last request is done.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::{BaseProducer, Producer as _};

use super::deliveries::Deliveries;

/// A commit takes a few milliseconds. Later, the brokers are gone or an answer would belong to an
/// old request.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Records not sent by then (or within the linger) wait for the brokers. A discarded client lives
/// as long, because nobody takes its reports.
const FLUSH_LIMIT: Duration = Duration::from_millis(100);

enum Order {
    Flush,
    Commit,
}

#[derive(Debug)]
pub(super) struct Committer {
    orders: Sender<Order>,
    outcomes: Receiver<KafkaResult<()>>,
}

impl Committer {
    pub(super) fn start(
        client: Arc<BaseProducer<Deliveries>>,
        linger: Duration,
    ) -> std::io::Result<Self> {
        let (orders, ordered) = channel();
        let (done, outcomes) = channel();
        let thread = std::thread::Builder::new().name("postrider-commit".to_owned());
        let span = tracing::Span::current();
        thread.spawn(move || {
            let _of_stream = span.entered();
            for order in ordered {
                let outcome = match order {
                    Order::Flush => {
                        postrider_librdkafka::flush(client.client(), FLUSH_LIMIT.max(linger));
                        continue;
                    }
                    // Sends one request: nothing is left to flush.
                    Order::Commit => client.commit_transaction(END_LIMIT),
                };
                if done.send(outcome).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { orders, outcomes })
    }

    /// The open transaction must be complete.
    pub(super) fn flush(&self) -> KafkaResult<()> {
        self.orders.send(Order::Flush).map_err(|_| KafkaError::Canceled)
    }

    /// All records must be reported stored.
    pub(super) fn commit(&self) -> KafkaResult<()> {
        self.orders.send(Order::Commit).map_err(|_| KafkaError::Canceled)
    }

    pub(super) fn outcome(&self) -> Option<KafkaResult<()>> {
        match self.outcomes.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(KafkaError::Canceled)),
        }
    }
}
