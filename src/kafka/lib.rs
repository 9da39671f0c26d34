//! Kafka, on librdkafka: producers, progress records, readers, topics, and an embedded broker for
//! tests.
//!
//! ```
//! use std::time::Duration;
//!
//! use postrider_core::ledger::{Budget, Ledger};
//! use postrider_core::lsn::Lsn;
//! use postrider_core::route::OwnedRecord;
//! use postrider_kafka::embedded::Broker;
//! use postrider_kafka::{KafkaSpec, Producer, Reader, ReaderSpec, SendError};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = Broker::start(1, &[("orders", 1)])?;
//! let spec = KafkaSpec::of_brokers(&broker.bootstrap());
//!
//! let mut ledger = Ledger::new(Budget::default());
//! ledger.begin(Lsn::ZERO, 0)?;
//! let record = OwnedRecord { topic: "orders".into(), value: Some(b"placed".to_vec()), ..OwnedRecord::default() };
//! let mut producer = Producer::open(&spec)?;
//! let mut confirmations = Vec::new();
//! // There is no room until the brokers have said what partitions the topic has.
//! let ticket = loop {
//!     let send = |ticket| producer.send(&record.as_record(), ticket).map(|()| ticket);
//!     match ledger.send(100, send)? {
//!         Err(SendError::Full) => producer.poll(&mut confirmations)?,
//!         sent => break sent?,
//!     }
//! };
//! while confirmations.is_empty() {
//!     producer.poll(&mut confirmations)?;
//! }
//! assert_eq!(confirmations[0].ticket, ticket);
//!
//! let mut reader = Reader::open(&spec, ReaderSpec::whole(&["orders"]), Duration::from_secs(30))?;
//! let records = reader.collect(1, Duration::from_secs(30))?;
//! assert_eq!(records[0].value.as_deref(), Some(&b"placed"[..]));
//! # Ok(())
//! # }
//! ```

mod add_partition_error;
mod admissions;
mod bootstrap_servers;
mod brokers;
mod client_events;
mod committer;
mod consumer_events;
mod delivered_tap;
mod deliveries;
mod delivery_failure;
pub mod embedded;
pub mod failpoint;
mod fence;
mod first_write_gate;
mod init_progress;
mod key_hash;
mod key_placement;
mod listener;
mod log_line;
mod null;
mod offered_requests;
mod openssl;
mod producer;
mod progress_topic;
mod properties;
mod queue_limit;
mod reader;
mod refused_batch;
mod revoked_login;
mod secrets;
mod settings;
mod sink;
mod start_offset;
mod token_login;
mod topic_book;
mod topic_queries;
mod topics;
mod traces;
mod transactional;
mod transactional_id_rights;
mod unawaited;
mod version;
mod with_progress;

pub use bootstrap_servers::BootstrapServers;
pub use delivered_tap::{
    Content, DEAD_LETTERS_MAX, DeliveredRecord, DeliveredTap, RECORDS_MAX, TapHeaders, TapSpec,
    TappedDeadLetter,
};
pub use fence::fence_off;
pub use init_progress::{init_progress_at_least_once, init_progress_transactional, write_progress};
pub use key_placement::{KeyPlacement, key_placement};
pub use null::NullSink;
pub use openssl::keep_openssl_until_exit;
pub use postrider_core::pipeline::{Confirmation, Outcome, Refused};
pub use postrider_core::progress::{Lineage, Progress, ProgressSyntax};
pub use postrider_core::record::StoredRecord;
pub use postrider_core::sink::Sink;
pub use postrider_librdkafka::TopicRights;
pub use producer::Producer;
pub use progress_topic::newest_progress;
pub use properties::refuse_reserved;

pub use reader::to_stored_record;
pub use reader::{Isolation, Reader, ReaderError, ReaderEvent, ReaderSpec, Received};
pub use secrets::KafkaSecrets;
pub use settings::{KafkaSpec, SettingsError};
pub use sink::{KafkaSink, SendError, SinkError, renew_certificate};
pub use start_offset::{StartOffset, StartOffsetSyntax};
pub use topic_book::{TopicBook, Unavailable, UnavailableTopic};
pub use topics::{
    AdvertisedBroker, ClusterFacts, Grade, LaggingPartition, MadeTopics, PartitionBounds, Purpose,
    TopicBounds, TopicFinding, TopicState, TopicsError, WantedTopic, cluster_facts, create_missing,
    ensure_progress_topic, lacks_topic, learn_topic_settings, look_for_absent, look_for_gone,
    make_topics, survey, topic_bounds, topic_names, topic_states,
};
pub use traces::{SpanResult, TracedRow, Traces};
pub use transactional::ExactlyOnce;
pub use transactional_id_rights::{IdRights, transactional_id_rights};
pub use version::{client_features, client_version};
pub use with_progress::AtLeastOnceWithProgress;
