//! How a consumer's dead letter is laid out, and put together again for its topic.
//!
//! Enters: the [`Record`] that a consumer could not take, with its [`Grounds`]. Leaves: the same key
//! and value, with headers that say why and then the record's own; later the [`Letter`] that they
//! are, and the record to send again. What always holds: reading gives back what was written, also
//! where the record's own headers bear the same names. Pure. Called by the rest of the room and by
//! `inbox`.

use serde::Serialize;

use super::{Header, Place, Record};

/// The reason in one word. The relay's dead letters have the same header.
pub const ERROR_CODE_HEADER: &str = "postrider-error-code";
/// The reason in a sentence. The relay's dead letters have the same header.
pub const ERROR_HEADER: &str = "postrider-error";
/// Who could not take it.
pub const CONSUMER_HEADER: &str = "postrider-consumer";
/// Where it lay. The relay's dead letters have the same header.
pub const TOPIC_HEADER: &str = "postrider-topic";
/// Where it lay in the topic.
pub const PARTITION_HEADER: &str = "postrider-partition";
/// Where it lay in the partition.
pub const OFFSET_HEADER: &str = "postrider-offset";
/// How often it was tried, with what was tried before it was sent again.
pub const ATTEMPTS_HEADER: &str = "postrider-attempts";
/// When it failed first, in milliseconds since the Unix epoch: ever, also before it was sent again.
pub const FIRST_FAILED_HEADER: &str = "postrider-first-failed-ms";
/// When it failed last, in milliseconds since the Unix epoch.
pub const FAILED_HEADER: &str = "postrider-failed-ms";
/// Marks a letter of which something had to be left where it lay; its value says what, and why.
pub const CUT_HEADER: &str = "postrider-cut";
/// Marks a record that was sent again, and the receipt for it: the dead letter's place.
pub const RETRIED_HEADER: &str = "postrider-retried";

/// Of the reason no more is kept: headers are for reading.
const REASON_BYTES_MAX: usize = 1_024;

/// Of the record's own headers, those that are kept when the others have to go.
const KEPT_HEADERS: [&str; 2] = ["id", "event_type"];
/// How large such a header may be.
const KEPT_BYTES_MAX: usize = 256;

/// What is left where the record lay, since the brokers take no dead letter so large: each step more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// All of it is here.
    Nothing,
    /// The value is missing.
    Value,
    /// And its headers but `id` and `event_type`.
    Headers,
    /// And its key.
    Key,
}

/// Why a record is set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Grounds {
    /// The consumer's name.
    pub consumer: String,
    /// One word.
    pub code: String,
    /// A sentence, without a word of the payload. 1,024 bytes of it are kept.
    pub reason: String,
    /// How often it was tried, also before it was sent again; 0 for what could not be understood.
    pub attempts: u32,
    /// Milliseconds since the Unix epoch; sending it again begins no new time.
    pub first_failed_ms: i64,
    /// Milliseconds since the Unix epoch.
    pub failed_ms: i64,
}

/// A dead letter in its topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Where the letter lies in the dead-letter topic.
    pub place: Place,
    /// Why it is there.
    pub grounds: Grounds,
    /// What the consumer received: topic, partition and offset are where it lay, the time is the
    /// dead letter's.
    pub record: Record,
    /// The value is missing here, perhaps headers and the key as well, since the brokers take no record
    /// so large; it may still lie where it lay.
    pub is_cut: bool,
    /// It was sent again and stored.
    pub is_retried: bool,
}

impl Letter {
    /// The text of one of the record's own headers, for lists: `id`, `event_type`.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.record.header(name).and_then(|value| str::from_utf8(value).ok())
    }

    /// Reads a record of a dead-letter topic; `None` for one that is not a consumer's dead letter.
    pub(super) fn read(record: Record) -> Option<Self> {
        let Record { partition, offset, timestamp_ms, key, value, headers, .. } = record;
        let mut headers = headers.into_iter().peekable();
        let mut take = |wanted: &str| {
            let (_, value) = headers.next_if(|(name, _)| name == wanted)?;
            String::from_utf8(value.unwrap_or_default()).ok()
        };
        let (code, reason) = (take(ERROR_CODE_HEADER)?, take(ERROR_HEADER)?);
        let consumer = take(CONSUMER_HEADER)?;
        let topic = take(TOPIC_HEADER)?;
        let origin = Place {
            partition: take(PARTITION_HEADER)?.parse().ok()?,
            offset: take(OFFSET_HEADER)?.parse().ok()?,
        };
        let attempts = take(ATTEMPTS_HEADER)?.parse().ok()?;
        let first_failed_ms = take(FIRST_FAILED_HEADER)?.parse().ok()?;
        let failed_ms = take(FAILED_HEADER)?.parse().ok()?;
        let is_cut = take(CUT_HEADER).is_some();
        let Place { partition: origin_partition, offset: origin_offset } = origin;
        Some(Self {
            place: Place { partition, offset },
            grounds: Grounds { consumer, code, reason, attempts, first_failed_ms, failed_ms },
            record: Record {
                topic,
                partition: origin_partition,
                offset: origin_offset,
                timestamp_ms,
                key,
                value,
                headers: headers.collect(),
            },
            is_cut,
            is_retried: false,
        })
    }

    /// The record's own headers, what has become of it so far and the mark, for sending it again.
    /// Older ones go: the record may have died before.
    pub(super) fn headers_again(&self) -> Vec<Header> {
        let (own, _) = past(&self.record.headers);
        let own = own.iter().filter(|(name, _)| name != RETRIED_HEADER).cloned();
        let Grounds { consumer, attempts, first_failed_ms, .. } = &self.grounds;
        let so_far = [
            text(CONSUMER_HEADER, consumer.clone()),
            text(ATTEMPTS_HEADER, attempts.to_string()),
            text(FIRST_FAILED_HEADER, first_failed_ms.to_string()),
            mark(self.place),
        ];
        own.chain(so_far).collect()
    }
}

impl Grounds {
    /// With what became of the record before it was sent again. Whose dead letter it was: others of the
    /// topic took it when it first came, so the first failure of any of them is the one that counts for
    /// their markers. Attempts are each consumer's own.
    #[cfg(feature = "inbox")]
    pub(crate) fn after_all(self, record: &Record) -> Self {
        let (_, Some(past)) = past(&record.headers) else { return self };
        let before = if past.consumer == self.consumer { past.attempts } else { 0 };
        Self {
            attempts: self.attempts.saturating_add(before),
            first_failed_ms: self.first_failed_ms.min(past.first_failed_ms),
            ..self
        }
    }
}

/// What a record that was sent again tells of its dead letter.
struct Past<'a> {
    consumer: &'a str,
    attempts: u32,
    first_failed_ms: i64,
}

/// The headers that the record had of its own, and its past if it was sent again: the last four, so
/// that its own may bear the same names.
fn past(headers: &[Header]) -> (&[Header], Option<Past<'_>>) {
    let read = || {
        let (own, [consumer, attempts, first, mark]) = headers.split_last_chunk()?;
        named(mark, RETRIED_HEADER)?;
        let past = Past {
            consumer: named(consumer, CONSUMER_HEADER)?,
            attempts: named(attempts, ATTEMPTS_HEADER)?.parse().ok()?,
            first_failed_ms: named(first, FIRST_FAILED_HEADER)?.parse().ok()?,
        };
        Some((own, Some(past)))
    };
    read().unwrap_or((headers, None))
}

fn named<'h>((name, value): &'h Header, wanted: &str) -> Option<&'h str> {
    str::from_utf8(value.as_deref()?).ok().filter(|_| name == wanted)
}

#[cfg(feature = "inbox")]
impl Cut {
    /// The next step, if there is one.
    pub(crate) const fn deeper(self) -> Option<Self> {
        match self {
            Self::Nothing => Some(Self::Value),
            Self::Value => Some(Self::Headers),
            Self::Headers => Some(Self::Key),
            Self::Key => None,
        }
    }

    /// The record's key and value, as far as they go along.
    pub(crate) fn rest(self, record: &Record) -> (Option<&[u8]>, Option<&[u8]>) {
        let key = record.key.as_deref().filter(|_| self != Self::Key);
        (key, record.value.as_deref().filter(|_| self == Self::Nothing))
    }
}

/// The dead letter's headers: why, and then those of the record's own that go along.
pub(crate) fn headers(record: &Record, grounds: &Grounds, cut: Cut) -> Vec<Header> {
    let Grounds { consumer, code, reason, attempts, first_failed_ms, failed_ms } = grounds;
    let ours = [
        text(ERROR_CODE_HEADER, code.clone()),
        text(ERROR_HEADER, legible(reason)),
        text(CONSUMER_HEADER, consumer.clone()),
        text(TOPIC_HEADER, record.topic.clone()),
        text(PARTITION_HEADER, record.partition.to_string()),
        text(OFFSET_HEADER, record.offset.to_string()),
        text(ATTEMPTS_HEADER, attempts.to_string()),
        text(FIRST_FAILED_HEADER, first_failed_ms.to_string()),
        text(FAILED_HEADER, failed_ms.to_string()),
    ];
    let missing = match cut {
        Cut::Nothing => None,
        Cut::Value => Some("value"),
        Cut::Headers => Some("value and headers"),
        Cut::Key => Some("value, headers and key"),
    };
    let mark = missing.map(|parts| {
        text(CUT_HEADER, format!("{parts} left behind: the brokers take no record so large"))
    });
    let own = match cut {
        Cut::Nothing | Cut::Value => record.headers.clone(),
        Cut::Headers | Cut::Key => {
            KEPT_HEADERS.into_iter().filter_map(|it| kept(record, it)).collect()
        }
    };
    ours.into_iter().chain(mark).chain(own).collect()
}

/// The first header of that name, unless it is what is too large.
fn kept(record: &Record, name: &str) -> Option<Header> {
    let value = record.header(name).filter(|value| value.len() <= KEPT_BYTES_MAX)?;
    Some((name.to_owned(), Some(value.to_vec())))
}

fn text(name: &str, value: String) -> Header {
    (name.to_owned(), Some(value.into_bytes()))
}

/// Cut between characters, and on one line: it is shown on terminals.
fn legible(reason: &str) -> String {
    let kept = reason.get(..reason.floor_char_boundary(REASON_BYTES_MAX)).unwrap_or_default();
    kept.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// The headers of the receipt for a letter that was sent again.
pub(super) fn mark(place: Place) -> Header {
    text(RETRIED_HEADER, place.to_string())
}

/// The place that a record is the receipt of, if it is one: a null value and the mark alone.
pub(super) fn receipt_of(record: &Record) -> Option<Place> {
    let [(name, Some(place))] = record.headers.as_slice() else { return None };
    let place = str::from_utf8(place).ok()?.parse().ok()?;
    (name == RETRIED_HEADER && record.value.is_none()).then_some(place)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grounds() -> Grounds {
        Grounds {
            consumer: "payments".into(),
            code: "poison".into(),
            reason: "the amount is negative".into(),
            attempts: 5,
            first_failed_ms: 17,
            failed_ms: 18,
        }
    }

    fn record(headers: Vec<Header>) -> Record {
        Record {
            topic: "orders".into(),
            partition: 2,
            offset: 40,
            timestamp_ms: Some(3),
            key: Some(b"k".to_vec()),
            value: Some(b"v".to_vec()),
            headers,
        }
    }

    /// As it would lie in the dead-letter topic.
    fn laid_down(record: &Record, headers: Vec<Header>) -> Record {
        Record { topic: "dead".into(), partition: 0, offset: 7, headers, ..record.clone() }
    }

    proptest! {
        #[test]
        fn what_was_laid_down_is_read_back(
            names in proptest::collection::vec(
                proptest::sample::select(vec!["id", ERROR_HEADER, CUT_HEADER, CONSUMER_HEADER]), 0..4,
            ),
            value in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..4)),
        ) {
            // A cut mark right behind ours would be taken for ours; no writer puts it first.
            prop_assume!(names.first() != Some(&CUT_HEADER));
            let own = names.iter().map(|name| ((*name).to_owned(), value.clone())).collect();
            let record = record(own);
            for cut in [Cut::Nothing, Cut::Value] {
                let down = laid_down(&record, headers(&record, &grounds(), cut));
                let letter = Letter::read(down).unwrap();
                prop_assert_eq!(&letter.record, &record);
                let is_cut = cut != Cut::Nothing;
                prop_assert_eq!((letter.grounds, letter.is_cut), (grounds(), is_cut));
                prop_assert_eq!(letter.place, Place { partition: 0, offset: 7 });
            }
        }
    }

    #[cfg(feature = "inbox")]
    #[test]
    fn each_cut_leaves_more_behind_and_what_is_left_is_a_letter() {
        let own = |name: &str, bytes: usize| (name.to_owned(), Some(vec![b'x'; bytes]));
        let record = record(vec![own("trace", 9_000), own("id", 36), own("event_type", 9_000)]);
        let (mut cut, mut left) = (Cut::Nothing, Vec::new());
        while let Some(deeper) = cut.deeper() {
            cut = deeper;
            let letter =
                Letter::read(laid_down(&record, headers(&record, &grounds(), cut))).unwrap();
            let (key, value) = cut.rest(&record);
            assert!(letter.is_cut && value.is_none() && letter.header("id").is_some());
            left.push((letter.record.headers.len(), key.is_some()));
        }
        assert_eq!(left, [(3, true), (1, true), (1, false)]);
    }

    #[test]
    fn other_records_are_no_letters() {
        let down = headers(&record(Vec::new()), &grounds(), Cut::Nothing);
        for missing in 0..down.len() {
            let mut headers = down.clone();
            headers.remove(missing);
            assert_eq!(Letter::read(laid_down(&record(Vec::new()), headers)), None, "{missing}");
        }
        assert_eq!(receipt_of(&record(vec![mark(Place { partition: 1, offset: 2 })])), None);
    }

    #[test]
    fn a_record_sent_again_bears_its_own_headers_and_the_newest_past_and_mark() {
        let id = ("id".to_owned(), Some(b"7".to_vec()));
        let record = record(vec![id.clone(), mark(Place { partition: 9, offset: 9 })]);
        let letter =
            Letter::read(laid_down(&record, headers(&record, &grounds(), Cut::Nothing))).unwrap();
        let so_far = [
            text(CONSUMER_HEADER, "payments".into()),
            text(ATTEMPTS_HEADER, "5".into()),
            text(FIRST_FAILED_HEADER, "17".into()),
        ];
        let again = letter.headers_again();
        assert_eq!(again[..1], [id]);
        assert_eq!(again[1..4], so_far);
        assert_eq!(again[4..], [mark(letter.place)]);
        assert_eq!(letter.header("id"), Some("7"));
        let receipt = Record { value: None, ..laid_down(&record, vec![mark(letter.place)]) };
        assert_eq!(receipt_of(&receipt), Some(letter.place));
    }

    #[cfg(feature = "inbox")]
    #[test]
    fn a_record_that_fails_again_keeps_its_first_failure_and_all_its_attempts() {
        // A header of its own that is called like one of ours stays where it is.
        let own = vec![text(ATTEMPTS_HEADER, "99".into())];
        let mut record = record(own.clone());
        let (mut seen, mut expected) = (grounds().after_all(&record), 5);
        for _ in 0..3 {
            assert_eq!((seen.first_failed_ms, seen.failed_ms, seen.attempts), (17, 18, expected));
            let down = laid_down(&record, headers(&record, &seen, Cut::Nothing));
            let letter = Letter::read(down).unwrap();
            assert_eq!(letter.record, record);
            record = Record { headers: letter.headers_again(), ..record };
            assert_eq!((&record.headers[..1], record.headers.len()), (&own[..], 5));
            let later = Grounds { first_failed_ms: 18, ..grounds() };
            seen = later.clone().after_all(&record);
            expected += 5;
            // Another consumer of the topic has tried less often.
            let other = Grounds { consumer: "stock".into(), ..later }.after_all(&record);
            assert_eq!((other.first_failed_ms, other.attempts), (17, 5));
        }
    }

    #[test]
    fn a_reason_is_short_and_drives_no_terminal() {
        assert_eq!(legible("a\x1b[2J\nb"), "a [2J b");
        assert_eq!(legible(&"é".repeat(2_000)).len(), 1_024);
    }
}
