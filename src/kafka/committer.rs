//! Sends the last records of Kafka transactions without a wait for others, and commits them, on a thread of its own, so
//! that the thread that reads from Postgres does not wait for the brokers.
//!
//! Input: requests to flush and to commit a producer's open transaction. Output: one result for each commit. Invariant: a
//! request returns at once; a result that is not `Ok` says nothing about the transaction's outcome. The
//! thread ends when the `Committer` is dropped and the last request is done.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::{BaseProducer, Producer as _};

use super::deliveries::Deliveries;

/// A commit takes a few milliseconds. After this long the brokers are gone, or the next answer
/// would be one to a request of long ago.
const END_LIMIT: Duration = Duration::from_secs(10);
/// What is not sent by then, or after as long as records wait for others, waits for the brokers. A client that is given up
/// meanwhile stays as long: nobody takes its reports.
const FLUSH_LIMIT: Duration = Duration::from_millis(100);

enum Order {
    Flush,
    Commit,
}

/// The thread that waits.
#[derive(Debug)]
pub(super) struct Committer {
    orders: Sender<Order>,
    outcomes: Receiver<KafkaResult<()>>,
}

impl Committer {
    /// Starts the thread, for a client whose records wait so long for others.
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
                    // Nothing is left to flush, so that this sends one request and waits for it.
                    Order::Commit => client.commit_transaction(END_LIMIT),
                };
                if done.send(outcome).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { orders, outcomes })
    }

    /// Everything of the open transaction was sent: none of it waits for more.
    pub(super) fn flush(&self) -> KafkaResult<()> {
        self.orders.send(Order::Flush).map_err(|_| KafkaError::Canceled)
    }

    /// Begins to commit the open transaction, all of whose records were reported stored.
    pub(super) fn commit(&self) -> KafkaResult<()> {
        self.orders.send(Order::Commit).map_err(|_| KafkaError::Canceled)
    }

    /// What became of the last commit, once that is known.
    pub(super) fn outcome(&self) -> Option<KafkaResult<()>> {
        match self.outcomes.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(KafkaError::Canceled)),
        }
    }
}
