//! Every status update of the relay, held until it is known what was visible at that moment.
//!
//! Output: what was [`Told`].

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postrider::sandbox::postgres::Address;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::crash::coordinator;
use crate::crash::judge::Told;
use crate::crash::readers::Shelf;
use crate::load::rows::PLACES;
use support::status_proxy::{Said, StatusProxy};
use support::topic;

/// How long the brokers may take to say how far their topics reach, while leaders move.
const ENDS_LIMIT: Duration = Duration::from_mins(1);

/// The proxy between relay and Postgres.
pub(crate) struct Watch {
    tap: StatusProxy,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Watch {
    /// Stands before `target`. The transactional id is the relay's, where it has one.
    pub(crate) fn start(target: &Address, shelf: &Shelf, transactional_id: Option<String>) -> Self {
        let told: Arc<Mutex<Vec<Told>>> = Arc::default();
        let consumer: BaseConsumer = topic::client(&shelf.bootstrap).create().unwrap();
        // Locked for the whole look: of two relays' updates, the later one counts on the earlier.
        let highest = Mutex::new(0);
        let (shelf, kept) = (shelf.clone(), Arc::clone(&told));
        let listener = move |Said { write, flush, apply, sent }| {
            let mut highest = highest.lock().unwrap();
            let said = flush.max(write).max(apply);
            if flush <= *highest && said <= sent {
                return;
            }
            *highest = flush.max(*highest);
            let moment = shelf.now();
            if let Some(id) = &transactional_id {
                coordinator::await_markers(&shelf.bootstrap, id);
            }
            let marked = shelf.now();
            let ends = visible(&consumer, &shelf);
            let looked = shelf.now();
            kept.lock().unwrap().push(Told { flush, said, sent, ends, moment, marked, looked });
        };
        Self { tap: StatusProxy::start(target, listener), told }
    }

    /// Where the relay has to connect.
    pub(crate) fn address(&self) -> Address {
        self.tap.address()
    }

    /// Everything that went through.
    pub(crate) fn told(&self) -> Vec<Told> {
        self.told.lock().unwrap().clone()
    }
}

/// Up to where each partition can be read by those who read only what is committed. One request per
/// broker.
fn visible(consumer: &BaseConsumer, shelf: &Shelf) -> [u32; PLACES] {
    let deadline = Instant::now() + ENDS_LIMIT;
    loop {
        // The time -1 asks for the end; the isolation level is the consumer's.
        let answer = consumer.offsets_for_times(shelf.all(Offset::End), Duration::from_secs(5));
        let mut ends = [None; PLACES];
        for element in answer.iter().flat_map(TopicPartitionList::elements) {
            if let (Offset::Offset(end), Ok(())) = (element.offset(), element.error()) {
                let place = shelf.place(element.topic(), element.partition());
                ends[usize::from(place)] = u32::try_from(end).ok();
            }
        }
        if ends.iter().all(Option::is_some) {
            return ends.map(Option::unwrap_or_default);
        }
        assert!(Instant::now() < deadline, "no ends: {answer:?}");
        // The client would ask brokers that led before for a long time yet.
        let _ = consumer.fetch_metadata(None, Duration::from_secs(1));
        std::thread::sleep(Duration::from_millis(20));
    }
}
