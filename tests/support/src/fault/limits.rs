//! Makes a broker do less than Apache Kafka does: requests that it does not offer, or in old versions only,
//! and codecs and settings of topics that it refuses.
//!
//! Input: [`Limits`], and the bytes between a client and a broker. Output: answers to ApiVersions without what is
//! hidden; a produce request of a refused codec, and a topic with a refused setting, are answered in the broker's place, and
//! never reach it. Facts: `ApiVersionsResponse.json`, `ProduceRequest.json`, `ProduceResponse.json`, `CreateTopicsRequest.json`
//! and `CreateTopicsResponse.json` of Apache Kafka 4.1.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use super::kafka_frame::{self as frame, Cursor, Request};
use super::proxy::{Outlet, Reader};

/// Stores records.
pub const PRODUCE: i16 = 0;
/// Reads records.
pub const FETCH: i16 = 1;
/// Tells what a broker offers.
const API_VERSIONS: i16 = 18;
/// Creates topics.
const CREATE_TOPICS: i16 = 19;
/// Gives a producer its id, without which there is neither idempotence nor a transaction.
pub const INIT_PRODUCER_ID: i16 = 22;
/// Takes a partition into a transaction.
pub const ADD_PARTITIONS_TO_TXN: i16 = 24;
/// Ends a transaction.
pub const END_TXN: i16 = 26;
/// Tells the settings of topics and brokers.
pub const DESCRIBE_CONFIGS: i16 = 32;
/// Tells of the cluster.
pub const DESCRIBE_CLUSTER: i16 = 60;

/// The last version of Produce whose lengths are not varints.
const PRODUCE_OF_OLD: i16 = 7;

/// The last version of CreateTopics whose lengths are not varints.
const CREATE_TOPICS_OF_OLD: i16 = 4;
/// How Apache Kafka answers a setting of a topic that it does not take.
const INVALID_CONFIG: i16 = 40;

/// Codec numbers, as the attributes of a batch have them.
pub const GZIP: u8 = 1;
pub const SNAPPY: u8 = 2;
pub const LZ4: u8 = 3;
pub const ZSTD: u8 = 4;
const CODEC_BITS: u8 = 0b111;
/// Length, leader epoch, magic, checksum and attributes follow the base offset of a batch.
const ATTRIBUTES_AT: usize = 8 + 4 + 4 + 1 + 4;

/// How Azure Event Hubs answers a batch whose codec it does not take
/// (twmb/franz-go#144, Azure/azure-event-hubs-for-kafka#37).
pub const UNSUPPORTED_FOR_MESSAGE_FORMAT: i16 = 43;
/// How Apache Kafka answers it.
pub const UNSUPPORTED_COMPRESSION_TYPE: i16 = 76;

/// What brokers do not do.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Api keys that are not offered.
    pub hidden: Vec<i16>,
    /// Api keys of which no newer version than this one is offered.
    pub older: Vec<(i16, i16)>,
    /// Codecs that are refused, and with which error.
    pub refused_codecs: Option<(Vec<u8>, i16)>,
    /// Settings with which no topic is created.
    pub refused_settings: Vec<&'static str>,
}

/// What the two ways of a connection know of each other.
struct Talk {
    limits: Limits,
    /// By correlation id, the answers that are not passed on as they are.
    awaited: Mutex<HashMap<i32, Answer>>,
}

enum Answer {
    /// To ApiVersions of this version.
    Versions(i16),
    /// In the place of whatever the broker says.
    Instead(Vec<u8>),
}

impl Limits {
    /// The readers of a connection to a broker.
    pub(super) fn readers(&self) -> [Reader; 2] {
        let talk = Arc::new(Talk { limits: self.clone(), awaited: Mutex::default() });
        let heard = Arc::clone(&talk);
        [
            Box::new(move |bytes, outlet| talk.request(bytes, outlet)),
            Box::new(move |bytes, outlet| heard.response(bytes, outlet)),
        ]
    }

    /// The newest version that is offered of a request; a codec is looked for in old forms only.
    fn newest(&self, api_key: i16, of_the_broker: i16) -> i16 {
        let is_read = api_key == PRODUCE && self.refused_codecs.is_some();
        let read = is_read.then_some(PRODUCE_OF_OLD);
        let is_created = api_key == CREATE_TOPICS && !self.refused_settings.is_empty();
        let read = read.or(is_created.then_some(CREATE_TOPICS_OF_OLD));
        let older = self.older.iter().filter(|(key, _)| *key == api_key).map(|(_, newest)| *newest);
        older.chain(read).fold(of_the_broker, i16::min)
    }
}

impl Talk {
    fn request(&self, bytes: &[u8], outlet: &Outlet) -> io::Result<usize> {
        let Some(length) = frame::length(bytes) else { return Ok(0) };
        let whole = &bytes[..length];
        let expect = |id, answer| drop(self.awaited.lock().unwrap().insert(id, answer));
        match Request::read(whole) {
            Some(request) if request.api_key == API_VERSIONS => {
                expect(request.correlation_id, Answer::Versions(request.version));
                outlet.pass(whole)?;
            }
            Some(request) if [PRODUCE, CREATE_TOPICS].contains(&request.api_key) => {
                match self.refusal(&request) {
                    Some(refusal) => {
                        expect(request.correlation_id, Answer::Instead(refusal));
                        // The broker has to answer something, lest the order of answers be another.
                        outlet.pass(&question(request.correlation_id))?;
                    }
                    None => outlet.pass(whole)?,
                }
            }
            _ => outlet.pass(whole)?,
        }
        Ok(length)
    }

    fn response(&self, bytes: &[u8], outlet: &Outlet) -> io::Result<usize> {
        let Some(length) = frame::length(bytes) else { return Ok(0) };
        let whole = &bytes[..length];
        let awaited =
            frame::answered(whole).and_then(|id| self.awaited.lock().unwrap().remove(&id));
        match awaited {
            Some(Answer::Versions(version)) => {
                let less = less_offered(whole, version, &self.limits);
                outlet.pass(&less.expect("an answer to ApiVersions"))?;
            }
            Some(Answer::Instead(answer)) => outlet.pass(&answer)?,
            None => outlet.pass(whole)?,
        }
        Ok(length)
    }

    /// The answer to what is refused.
    fn refusal(&self, request: &Request<'_>) -> Option<Vec<u8>> {
        if request.api_key == CREATE_TOPICS {
            self.no_topic(request)
        } else {
            self.no_batch(request)
        }
    }

    /// The answer to a request for one topic that has a refused setting.
    fn no_topic(&self, request: &Request<'_>) -> Option<Vec<u8>> {
        let mut body = request.body(false)?;
        let count = body.int32()?;
        let name = body.text(false)?;
        let has = |setting: &&str| body.0.windows(setting.len()).any(|it| it == setting.as_bytes());
        if !self.limits.refused_settings.iter().any(has) {
            return None;
        }
        assert!(count == 1 && (2..=CREATE_TOPICS_OF_OLD).contains(&request.version));
        let mut answer = request.correlation_id.to_be_bytes().to_vec();
        // How long the client is throttled, and one topic.
        answer.extend([0, 0, 0, 0, 0, 0, 0, 1]);
        answer.extend(i16::try_from(name.len()).ok()?.to_be_bytes());
        answer.extend(name.as_bytes());
        answer.extend(INVALID_CONFIG.to_be_bytes());
        // No message.
        answer.extend([0xFF; 2]);
        Some(framed(&answer))
    }

    /// The answer to a produce request of which a batch has a refused codec.
    fn no_batch(&self, request: &Request<'_>) -> Option<Vec<u8>> {
        let (codecs, error) = self.limits.refused_codecs.as_ref()?;
        assert!(request.version <= PRODUCE_OF_OLD, "the client was offered no newer one");
        let mut body = request.body(false)?;
        let transactional_id = body.int16()?;
        body.take(usize::try_from(transactional_id).unwrap_or(0))?;
        let (_acks, _timeout_ms) = (body.int16()?, body.int32()?);
        let mut answer = request.correlation_id.to_be_bytes().to_vec();
        let mut is_refused = false;
        let topics = body.int32()?;
        answer.extend(topics.to_be_bytes());
        for _ in 0..topics {
            let name = body.text(false)?;
            let partitions = body.int32()?;
            answer.extend(i16::try_from(name.len()).ok()?.to_be_bytes());
            answer.extend(name.as_bytes());
            answer.extend(partitions.to_be_bytes());
            for _ in 0..partitions {
                let partition = body.int32()?;
                let length = usize::try_from(body.int32()?).ok()?;
                let batch = body.take(length)?;
                is_refused |= codecs.contains(&(batch.get(ATTRIBUTES_AT + 1)? & CODEC_BITS));
                answer.extend(partition.to_be_bytes());
                answer.extend(error.to_be_bytes());
                // Offset, time of storing and first offset of the log: none.
                answer.extend([0xFF; 24]);
            }
        }
        // How long the client is throttled.
        answer.extend(0_i32.to_be_bytes());
        is_refused.then(|| framed(&answer))
    }
}

/// ApiVersions in its first version, of a client without an id.
fn question(correlation_id: i32) -> Vec<u8> {
    let id = correlation_id.to_be_bytes();
    framed(&[&API_VERSIONS.to_be_bytes()[..], &[0, 0], &id, &[0xFF, 0xFF]].concat())
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&i32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
}

/// The same answer to ApiVersions without what is hidden.
fn less_offered(frame: &[u8], version: i16, limits: &Limits) -> Option<Vec<u8>> {
    let is_flexible = version >= 3;
    let mut cursor = Cursor(&frame[4..]);
    let mut answer = cursor.take(4 + 2)?.to_vec();
    let count = if is_flexible {
        cursor.varint()?.checked_sub(1)?
    } else {
        usize::try_from(cursor.int32()?).ok()?
    };
    let mut offered = Vec::new();
    for _ in 0..count {
        let (api_key, oldest, newest) = (cursor.int16()?, cursor.int16()?, cursor.int16()?);
        if is_flexible {
            cursor.tags()?;
        }
        if !limits.hidden.contains(&api_key) {
            offered.push((api_key, oldest, limits.newest(api_key, newest)));
        }
    }
    if is_flexible {
        // Seven bits to a byte; there are fewer than 2^14 requests.
        let number = offered.len() + 1;
        answer.extend([u8::try_from(number & 0x7F).ok()? | 0x80, u8::try_from(number >> 7).ok()?]);
    } else {
        answer.extend(i32::try_from(offered.len()).ok()?.to_be_bytes());
    }
    for (api_key, oldest, newest) in offered {
        answer.extend([api_key, oldest, newest].iter().flat_map(|number| number.to_be_bytes()));
        if is_flexible {
            answer.push(0);
        }
    }
    answer.extend(cursor.0);
    Some(framed(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            hidden: vec![22],
            older: vec![(3, 7)],
            refused_codecs: Some((vec![3], 76)),
            refused_settings: vec!["b.c"],
        }
    }

    #[test]
    fn what_is_hidden_is_left_out_in_both_forms() {
        let old = framed(&[
            0, 0, 0, 9, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 12, 0, 22, 0, 0, 0, 5, 0, 0, 0, 0,
        ]);
        let less = framed(&[0, 0, 0, 9, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 7, 0, 0, 0, 0]);
        assert_eq!(less_offered(&old, 2, &limits()), Some(less));
        let new = framed(&[
            0, 0, 0, 9, 0, 0, 3, 0, 0, 0, 3, 0, 12, 0, 0, 22, 0, 0, 0, 5, 0, 1, 2, 3, 4, 0,
        ]);
        let less = framed(&[0, 0, 0, 9, 0, 0, 0x82, 0, 0, 0, 0, 3, 0, 7, 0, 1, 2, 3, 4, 0]);
        assert_eq!(less_offered(&new, 4, &limits()), Some(less));
    }

    #[test]
    fn a_topic_with_a_refused_setting_is_answered_and_no_other() {
        let talk = Talk { limits: limits(), awaited: Mutex::default() };
        let create = |setting: &[u8; 3]| {
            let header = [0, 19, 0, 4, 0, 0, 0, 5, 0, 1, b'c'];
            let topic =
                [0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0, 3];
            framed(&[&header[..], &topic, setting, &[0, 1, b'9', 0, 0, 0, 9, 0]].concat())
        };
        let refusal = |setting| talk.refusal(&Request::read(&create(setting)).unwrap());
        assert_eq!(refusal(b"b.d"), None);
        let expected = [0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, b't', 0, 40, 0xFF, 0xFF];
        assert_eq!(refusal(b"b.c"), Some(framed(&expected)));
    }

    #[test]
    fn a_batch_of_a_refused_codec_is_answered_for_each_partition() {
        let talk = Talk { limits: limits(), awaited: Mutex::default() };
        let produce = |codec: u8| {
            let mut batch = [0; 61];
            batch[ATTRIBUTES_AT + 1] = 0b1_0000 | codec;
            let header = [0, 0, 0, 7, 0, 0, 0, 5, 0, 1, b'c'];
            let topic = [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 9, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1];
            framed(&[&header[..], &topic, &[0, 0, 0, 2, 0, 0, 0, 61], &batch].concat())
        };
        let refusal = |codec| talk.refusal(&Request::read(&produce(codec)).unwrap());
        assert_eq!(refusal(2), None);
        let topic = [0, 0, 0, 5, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 2, 0, 76];
        let expected = [&topic[..], &[0xFF; 24], &[0; 4]].concat();
        assert_eq!(refusal(3), Some(framed(&expected)));
    }
}
