//! Flushes and commits Kafka transactions on another thread, so that the thread that reads from
//! Postgres does not wait for the brokers.
//!
//! Input: requests to flush and to commit a producer's open transaction. Output: one result per
//! commit. Invariant: a request returns at once; a result other than `Ok` leaves the transaction's
//! outcome unknown. The thread ends when the `Committer` is dropped and the last request is done.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::{BaseProducer, Producer as _};

use super::deliveries::Deliveries;

/// Time limit of a commit, which usually takes a few milliseconds. After it the brokers are gone,
/// or a later answer would belong to an old request.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Records not sent by then (or within the linger) wait for the brokers. A discarded client stays
/// as long, because its reports are not taken.
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
    /// Starts the thread; `linger`: the client's linger.
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
                    // Nothing is left to flush, so this sends one request and waits for its answer.
                    Order::Commit => client.commit_transaction(END_LIMIT),
                };
                if done.send(outcome).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { orders, outcomes })
    }

    /// Flushes the open transaction, which is complete.
    pub(super) fn flush(&self) -> KafkaResult<()> {
        self.orders.send(Order::Flush).map_err(|_| KafkaError::Canceled)
    }

    /// Starts to commit the open transaction, whose records were all reported stored.
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
