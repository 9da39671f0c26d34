//! What a Kafka request says of itself, the little that is read of two of them, and an answer without brokers.
//!
//! Input: bytes a client sends to a broker, and answers to Metadata. Output: header and body of whole requests. Facts: the
//! protocol guide of Apache Kafka, and `EndTxnRequest.json`, `AddPartitionsToTxnRequest.json` and `MetadataResponse.json` of
//! version 4.1.

/// A request frame's length field.
const LENGTH_BYTES: usize = 4;

/// Names the brokers and the partitions of topics.
pub const METADATA: i16 = 3;
/// Versions of its answer that have an id for each topic.
const METADATA_WITH_TOPIC_IDS: std::ops::RangeInclusive<i16> = 10..=13;
/// Topics that are put into an answer without brokers. librdkafka 2.12 removes its brokers, handles these topics, and then
/// cancels the return of the bootstrap servers. The return is scheduled when the connections end, so that must take less
/// time than the topics do.
const ABSENT_TOPICS: usize = 50_000;

/// Begins what is done in a partition by a transaction; from version 4 brokers ask each other.
const ADD_PARTITIONS_TO_TXN: i16 = 24;
const ADD_PARTITIONS_OF_CLIENTS: std::ops::RangeInclusive<i16> = 0..=3;
/// Commits or aborts.
const END_TXN: i16 = 26;

/// Where each of the two begins to write lengths as varints, and tags behind the header.
const FLEXIBLE: i16 = 3;

/// A whole request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    pub api_key: i16,
    pub version: i16,
    pub correlation_id: i32,
    /// The client's id, the header's tags and the body.
    rest: &'a [u8],
}

/// Which transaction of which incarnation: every re-created producer has another epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Producer {
    pub transactional_id: String,
    pub id: i64,
    pub epoch: i16,
}

/// What is of interest here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The transaction takes in a partition, so it goes on.
    AddPartitions(Producer),
    /// The transaction is to end.
    End { producer: Producer, committed: bool },
}

/// The length of the first whole frame, its length field included.
pub fn length(bytes: &[u8]) -> Option<usize> {
    let length = i32::from_be_bytes(*bytes.first_chunk()?);
    let whole = LENGTH_BYTES + usize::try_from(length).unwrap_or(0);
    (bytes.len() >= whole).then_some(whole)
}

/// The correlation id of a whole response, which is the same as its request's.
pub fn answered(frame: &[u8]) -> Option<i32> {
    Some(i32::from_be_bytes(*frame.get(LENGTH_BYTES..)?.first_chunk()?))
}

/// An answer to Metadata as a broker gives it that just starts: without brokers, and with topics that it does not know yet
/// before those that it knows.
pub fn without_brokers(frame: &[u8], version: i16) -> Option<Vec<u8>> {
    assert!(METADATA_WITH_TOPIC_IDS.contains(&version), "version {version} of Metadata");
    let mut cursor = Cursor(frame.get(LENGTH_BYTES..)?);
    // Correlation id, no tags, how long the client is throttled.
    let mut answer = cursor.take(4 + 1 + 4)?.to_vec();
    for _ in 1..cursor.varint()? {
        // Id, host, port and rack.
        cursor.int32()?;
        cursor.text(true)?;
        cursor.int32()?;
        let rack = cursor.varint()?;
        cursor.take(rack.saturating_sub(1))?;
        cursor.tags()?;
    }
    answer.extend(varint(1));
    let cluster_id = cursor.varint()?;
    answer.extend(varint(cluster_id));
    answer.extend(cursor.take(cluster_id.saturating_sub(1))?);
    // The controller: none.
    cursor.int32()?;
    answer.extend([0xFF; 4]);
    answer.extend(varint(cursor.varint()? + ABSENT_TOPICS));
    for number in 0..ABSENT_TOPICS {
        let name = format!("absent-{number}");
        // UNKNOWN_TOPIC_OR_PARTITION.
        answer.extend([0, 3]);
        answer.extend(varint(name.len() + 1));
        answer.extend(name.as_bytes());
        // Its id, not internal, no partitions, no operations told, no tags.
        answer.extend([[0; 16].as_slice(), &[0, 1, 0x80, 0, 0, 0, 0]].concat());
    }
    answer.extend(cursor.0);
    Some([&i32::try_from(answer.len()).ok()?.to_be_bytes(), answer.as_slice()].concat())
}

/// As [`Cursor::varint`] reads it.
fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7F).unwrap() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}

impl<'a> Request<'a> {
    /// Reads a whole frame.
    pub fn read(frame: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor(frame.get(LENGTH_BYTES..)?);
        Some(Self {
            api_key: cursor.int16()?,
            version: cursor.int16()?,
            correlation_id: cursor.int32()?,
            rest: cursor.0,
        })
    }

    /// The same frame under another correlation id.
    pub fn renumbered(frame: &[u8], correlation_id: i32) -> Vec<u8> {
        let mut frame = frame.to_vec();
        // Behind length, api key and version.
        frame[LENGTH_BYTES + 4..LENGTH_BYTES + 8].copy_from_slice(&correlation_id.to_be_bytes());
        frame
    }

    /// The client's id, which has the old form in every version.
    pub fn client_id(&self) -> Option<String> {
        Cursor(self.rest).text(false)
    }

    /// What comes behind the header.
    pub(super) fn body(&self, is_flexible: bool) -> Option<Cursor<'a>> {
        let mut cursor = Cursor(self.rest);
        // The client's id; -1 where it has none.
        let length = cursor.int16()?;
        cursor.take(usize::try_from(length).unwrap_or(0))?;
        if is_flexible {
            cursor.tags()?;
        }
        Some(cursor)
    }

    /// What it does to a transaction, if it is one of those two requests.
    pub fn step(&self) -> Option<Step> {
        let is_addition = self.api_key == ADD_PARTITIONS_TO_TXN
            && ADD_PARTITIONS_OF_CLIENTS.contains(&self.version);
        if !is_addition && self.api_key != END_TXN {
            return None;
        }
        let is_flexible = self.version >= FLEXIBLE;
        let mut cursor = self.body(is_flexible)?;
        let transactional_id = cursor.text(is_flexible)?;
        let producer = Producer { transactional_id, id: cursor.int64()?, epoch: cursor.int16()? };
        if is_addition {
            return Some(Step::AddPartitions(producer));
        }
        Some(Step::End { producer, committed: cursor.take(1)? != [0] })
    }
}

/// Reads a message from its front.
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    pub(super) fn int16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn int32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn int64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    /// Seven bits to a byte, the lowest first.
    pub(super) fn varint(&mut self) -> Option<usize> {
        let mut number = 0;
        for shift in (0..35).step_by(7) {
            let [byte] = self.array()?;
            number |= usize::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn text(&mut self, is_flexible: bool) -> Option<String> {
        let length = if is_flexible {
            self.varint()?.checked_sub(1)?
        } else {
            usize::try_from(self.int16()?).ok()?
        };
        Some(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    pub(super) fn tags(&mut self) -> Option<()> {
        for _ in 0..self.varint()? {
            self.varint()?;
            let length = self.varint()?;
            self.take(length)?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        [&i32::try_from(body.len()).unwrap().to_be_bytes(), body.as_slice()].concat()
    }

    /// Api key, version, correlation id 7, client id `cl`.
    fn header(api_key: u8, version: u8) -> Vec<u8> {
        vec![0, api_key, 0, version, 0, 0, 0, 7, 0, 2, b'c', b'l']
    }

    /// Producer id 258, epoch 3.
    const PRODUCER: [u8; 10] = [0, 0, 0, 0, 0, 0, 1, 2, 0, 3];

    fn producer() -> Producer {
        Producer { transactional_id: "tx".into(), id: 258, epoch: 3 }
    }

    fn step(frame: &[u8]) -> Option<Step> {
        assert_eq!(length(frame), Some(frame.len()));
        Request::read(frame).unwrap().step()
    }

    #[test]
    fn the_end_of_a_transaction_is_read_in_both_forms() {
        let old = frame(&[&header(26, 1), b"\0\x02tx", &PRODUCER, &[1]]);
        let end = |committed| Some(Step::End { producer: producer(), committed });
        assert_eq!(step(&old), end(true));
        // One tag of two bytes behind the header, and none behind the body.
        let new = frame(&[&header(26, 3), &[1, 9, 2, 8, 8], b"\x03tx", &PRODUCER, &[0, 0]]);
        assert_eq!(step(&new), end(false));
    }

    #[test]
    fn a_client_without_an_id_is_read() {
        let header = [0, 26, 0, 1, 0, 0, 0, 7, 0xFF, 0xFF];
        let frame = frame(&[&header, b"\0\x02tx", &PRODUCER, &[0]]);
        assert_eq!(step(&frame), Some(Step::End { producer: producer(), committed: false }));
    }

    #[test]
    fn partitions_that_clients_add_are_read_and_those_of_brokers_are_not() {
        let added = |version| frame(&[&header(24, version), b"\0\x02tx", &PRODUCER, &[0; 4]]);
        assert_eq!(step(&added(1)), Some(Step::AddPartitions(producer())));
        assert_eq!(step(&added(4)), None);
    }

    #[test]
    fn other_requests_have_a_header_only() {
        let metadata = frame(&[&header(3, 12), &[0; 9]]);
        let request = Request::read(&metadata).unwrap();
        assert_eq!((request.api_key, request.version, request.correlation_id), (3, 12, 7));
        assert_eq!(request.step(), None);
    }

    #[test]
    fn what_is_cut_off_is_nothing_yet() {
        let whole = frame(&[&header(26, 1), b"\0\x02tx", &PRODUCER, &[1]]);
        for cut in 0..whole.len() {
            assert_eq!(length(&whole[..cut]), None, "{cut}");
            // Even where the length is a lie.
            let request = Request::read(&whole[..cut]);
            assert_eq!(request.and_then(|request| request.step()), None, "{cut}");
        }
        let two = [whole.clone(), whole.clone()].concat();
        assert_eq!(length(&two), Some(whole.len()));
    }

    #[test]
    fn frames_can_be_renumbered() {
        let end = frame(&[&header(26, 1), b"\0\x02tx", &PRODUCER, &[1]]);
        let other = Request::renumbered(&end, -5);
        assert_eq!(Request::read(&other).unwrap().correlation_id, -5);
        assert_eq!(step(&other), step(&end));
        assert_eq!(answered(&[0, 0, 0, 4, 0, 0, 1, 0]), Some(256));
        assert_eq!(answered(&[0, 0, 0, 4, 0]), None);
    }

    #[test]
    fn an_answer_loses_its_brokers_and_keeps_its_topics() {
        let [controller, port] = [[0, 0, 0, 1], [0, 0, 35, 132]];
        let broker = [&[0, 0, 0, 1, 2, b'a'][..], &port, &[0, 0]].concat();
        let topics = [0, 0, 2, b't', 9];
        let head = [0, 0, 0, 7, 0, 0, 0, 0, 0];
        let cluster_id = [2, b'c'];
        let all = frame(&[&head, &[2], &broker, &cluster_id, &controller, &[2], &topics]);
        let answer = without_brokers(&all, 12).unwrap();
        assert_eq!(length(&answer), Some(answer.len()));
        let start = [&head[..], &[1], &cluster_id, &[0xFF; 4], &varint(ABSENT_TOPICS + 2)].concat();
        assert!(answer[LENGTH_BYTES..].starts_with(&start) && answer.ends_with(&topics));
        assert_eq!(Cursor(&varint(300)).varint(), Some(300));
    }
}
