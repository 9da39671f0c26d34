//! Builds the dead letter of a consumer that could not process a record.
//!
//! Attempts and the time of the first failure are kept, however often the record is sent again.

use super::headers::{
    ATTEMPTS_HEADER, CONSUMER_HEADER, CUT_HEADER, ERROR_CODE_HEADER, ERROR_HEADER, FAILED_HEADER,
    FIRST_FAILED_HEADER, OFFSET_HEADER, PARTITION_HEADER, RETRIED_HEADER, TOPIC_HEADER,
};
use super::{Header, StoredRecord, text};

const REASON_BYTES_MAX: usize = 1_024;

/// Own headers kept if the others must go. The relay's id header comes first.
const KEPT_HEADERS_MAX: usize = 16;
const KEPT_BYTES_MAX: usize = 256;

/// Why a consumer set a record aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerFailure {
    /// Name of the consumer.
    pub consumer: String,
    /// Attempts so far; 0 for a record that cannot be parsed.
    pub attempts: u32,
    /// First failure, in Unix milliseconds.
    pub first_failed_ms: i64,
    /// Last failure, in Unix milliseconds.
    pub failed_ms: i64,
}

/// Parts omitted for the brokers' size limit. Each step omits more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// None.
    Nothing,
    /// The value.
    Value,
    /// Also headers, except the first 16 of at most 256 bytes.
    Headers,
    /// Also the key.
    Key,
}

impl Truncation {
    /// The next step.
    pub const fn deeper(self) -> Option<Self> {
        match self {
            Self::Nothing => Some(Self::Value),
            Self::Value => Some(Self::Headers),
            Self::Headers => Some(Self::Key),
            Self::Key => None,
        }
    }

    /// Remaining key and value.
    pub fn rest(self, record: &StoredRecord) -> (Option<&[u8]>, Option<&[u8]>) {
        let key = record.key.as_deref().filter(|_| self != Self::Key);
        (key, record.value.as_deref().filter(|_| self == Self::Nothing))
    }

    const fn parts(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Value => Some("value"),
            Self::Headers => Some("value and headers"),
            Self::Key => Some("value, headers and key"),
        }
    }
}

impl ConsumerFailure {
    /// The dead letter's headers; the reason is cut to 1,024 bytes.
    pub fn headers(
        &self,
        (code, reason): (&str, &str),
        record: &StoredRecord,
        cut: Truncation,
    ) -> Vec<Header> {
        let ours = [
            text(ERROR_CODE_HEADER, code),
            text(ERROR_HEADER, on_one_line(reason)),
            text(CONSUMER_HEADER, self.consumer.as_str()),
            text(TOPIC_HEADER, record.topic.as_str()),
            text(PARTITION_HEADER, record.partition.to_string()),
            text(OFFSET_HEADER, record.offset.to_string()),
            text(ATTEMPTS_HEADER, self.attempts.to_string()),
            text(FIRST_FAILED_HEADER, self.first_failed_ms.to_string()),
            text(FAILED_HEADER, self.failed_ms.to_string()),
        ];
        let mark = cut.parts().map(|parts| {
            text(
                CUT_HEADER,
                format!(
                    "{parts} left behind: the brokers accept no record of this \
                                      size"
                ),
            )
        });
        let own = match cut {
            Truncation::Nothing | Truncation::Value => record.headers.clone(),
            Truncation::Headers | Truncation::Key => record
                .headers
                .iter()
                .filter(|it| is_small(it))
                .take(KEPT_HEADERS_MAX)
                .cloned()
                .collect(),
        };
        ours.into_iter().chain(mark).chain(own).collect()
    }

    /// Adds the history. The first failure counts for all consumers, because all took the record
    /// then; attempts belong to one.
    #[must_use]
    pub fn after_all(self, record: &StoredRecord) -> Self {
        let Some(history) = History::of(&record.headers) else { return self };
        let before = if history.consumer == self.consumer { history.attempts } else { 0 };
        Self {
            attempts: self.attempts.saturating_add(before),
            first_failed_ms: self.first_failed_ms.min(history.first_failed_ms),
            ..self
        }
    }

    pub(super) fn history(&self) -> [Header; 3] {
        [
            text(CONSUMER_HEADER, self.consumer.as_str()),
            text(ATTEMPTS_HEADER, self.attempts.to_string()),
            text(FIRST_FAILED_HEADER, self.first_failed_ms.to_string()),
        ]
    }
}

/// A record's last four headers; its own may have equal names.
struct History<'h> {
    own: &'h [Header],
    consumer: &'h str,
    attempts: u32,
    first_failed_ms: i64,
}

impl<'h> History<'h> {
    fn of(headers: &'h [Header]) -> Option<Self> {
        let (own, [consumer, attempts, first_failed, mark]) = headers.split_last_chunk()?;
        named(mark, RETRIED_HEADER)?;
        Some(Self {
            own,
            consumer: named(consumer, CONSUMER_HEADER)?,
            attempts: named(attempts, ATTEMPTS_HEADER)?.parse().ok()?,
            first_failed_ms: named(first_failed, FIRST_FAILED_HEADER)?.parse().ok()?,
        })
    }
}

pub(super) fn without_history(headers: &[Header]) -> &[Header] {
    History::of(headers).map_or(headers, |history| history.own)
}

fn named<'h>((name, value): &'h Header, wanted: &str) -> Option<&'h str> {
    str::from_utf8(value.as_deref()?).ok().filter(|_| name == wanted)
}

fn is_small((name, value): &Header) -> bool {
    name.len() + value.as_ref().map_or(0, Vec::len) <= KEPT_BYTES_MAX
}

/// Terminals show it, so lines are joined.
fn on_one_line(reason: &str) -> String {
    let kept = reason.get(..reason.floor_char_boundary(REASON_BYTES_MAX)).unwrap_or_default();
    kept.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{DeadLetter, DeadLetterOrigin, PartitionOffset, retried};

    const WHY: (&str, &str) = ("poison", "the amount is negative");

    fn failure() -> ConsumerFailure {
        ConsumerFailure {
            consumer: "payments".into(),
            attempts: 5,
            first_failed_ms: 17,
            failed_ms: 18,
        }
    }

    fn record(headers: Vec<Header>) -> StoredRecord {
        StoredRecord {
            topic: "orders".into(),
            partition: 2,
            offset: 40,
            timestamp_ms: Some(3),
            key: Some(b"k".to_vec()),
            value: Some(b"v".to_vec()),
            headers,
        }
    }

    fn dead(
        record: &StoredRecord,
        failure: &ConsumerFailure,
        cut: Truncation,
    ) -> Option<DeadLetter> {
        let headers = failure.headers(WHY, record, cut);
        let topic = "dead".into();
        DeadLetter::read(StoredRecord { topic, partition: 0, offset: 7, headers, ..record.clone() })
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(
            names in proptest::collection::vec(
                proptest::sample::select(vec!["id", ERROR_HEADER, CUT_HEADER, CONSUMER_HEADER]), 0..4,
            ),
            value in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..4)),
        ) {
            // A cut mark directly after the consumer's headers would count as its own.
            prop_assume!(names.first() != Some(&CUT_HEADER));
            let own = names.iter().map(|name| ((*name).to_owned(), value.clone())).collect();
            let record = record(own);
            for cut in [Truncation::Nothing, Truncation::Value] {
                let letter = dead(&record, &failure(), cut).unwrap();
                prop_assert_eq!(&letter.headers, &record.headers);
                prop_assert_eq!((&letter.key, &letter.value), (&record.key, &record.value));
                prop_assert_eq!((letter.topic.as_ref(), letter.timestamp_ms), (Some(&record.topic), Some(3)));
                prop_assert_eq!((&*letter.code, &*letter.reason), WHY);
                prop_assert_eq!(letter.origin, DeadLetterOrigin::Consumer { at: record.at(), failure: failure() });
                prop_assert_eq!(letter.is_cut, cut != Truncation::Nothing);
                prop_assert_eq!(letter.at, PartitionOffset { partition: 0, offset: 7 });
            }
        }
    }

    #[test]
    fn each_cut_leaves_more_behind_and_what_is_left_is_a_dead_letter() {
        let own = |name: &str, bytes: usize| text(name, vec![b'x'; bytes]);
        let small = (0..40).map(|_| own("small", 251));
        let large = [own("trace", 9_000), own("idempotency-key", 36), own("event_type", 9_000)];
        let record = record(large.into_iter().chain(small).collect());
        let (mut cut, mut left) = (Truncation::Nothing, Vec::new());
        while let Some(deeper) = cut.deeper() {
            cut = deeper;
            let letter = dead(&record, &failure(), cut).unwrap();
            let (key, value) = cut.rest(&record);
            assert!(letter.is_cut && value.is_none() && letter.header("idempotency-key").is_some());
            left.push((letter.headers.len(), key.is_some()));
        }
        assert_eq!(left, [(43, true), (16, true), (16, false)]);
    }

    #[test]
    fn id_and_type_are_found_under_the_names_of_cloudevents() {
        let own = |names: [&str; 2]| names.map(|name| text(name, format!("{name}'s"))).to_vec();
        for names in [["id", "event_type"], ["ce_id", "ce_type"]] {
            let mut letter = dead(&record(own(names)), &failure(), Truncation::Nothing).unwrap();
            let (id, event_type) = (format!("{}'s", names[0]), format!("{}'s", names[1]));
            assert_eq!(
                (letter.id(), letter.event_type()),
                (Some(id.as_bytes()), Some(&*event_type))
            );
            letter.summarize();
            assert_eq!(letter.id(), Some(id.as_bytes()));
        }
    }

    #[test]
    fn other_records_are_no_consumers_dead_letters() {
        let headers = failure().headers(WHY, &record(Vec::new()), Truncation::Nothing);
        for missing in 0..headers.len() {
            let mut headers = headers.clone();
            headers.remove(missing);
            let letter = DeadLetter::read(record(headers));
            assert!(letter.is_none_or(|letter| letter.failure().is_none()), "{missing}");
        }
    }

    #[test]
    fn a_record_sent_again_bears_its_own_headers_and_the_newest_history_and_mark() {
        let id = text("id", "7");
        let before = PartitionOffset { partition: 9, offset: 9 };
        let letter =
            dead(&record(vec![id.clone(), retried(before)]), &failure(), Truncation::Nothing)
                .unwrap();
        let again = [vec![id], failure().history().to_vec(), vec![retried(letter.at)]].concat();
        assert_eq!(letter.headers_again(), again);
        assert_eq!((letter.id(), letter.header("id")), (Some(&b"7"[..]), Some("7")));
        assert_eq!((letter.partition_again(), letter.timestamp_again(99)), (Some(2), 99));
    }

    #[test]
    fn a_record_that_fails_again_keeps_its_first_failure_and_all_its_attempts() {
        let own = vec![text(ATTEMPTS_HEADER, "99")];
        let mut record = record(own.clone());
        let (mut seen, mut expected) = (failure().after_all(&record), 5);
        for _ in 0..3 {
            assert_eq!((seen.first_failed_ms, seen.failed_ms, seen.attempts), (17, 18, expected));
            let letter = dead(&record, &seen, Truncation::Nothing).unwrap();
            assert_eq!(letter.headers, record.headers);
            record = StoredRecord { headers: letter.headers_again(), ..record };
            assert_eq!((&record.headers[..1], record.headers.len()), (&own[..], 5));
            let later = ConsumerFailure { first_failed_ms: 18, ..failure() };
            seen = later.clone().after_all(&record);
            expected += 5;
            let other = ConsumerFailure { consumer: "stock".into(), ..later }.after_all(&record);
            assert_eq!((other.first_failed_ms, other.attempts), (17, 5));
        }
    }

    #[test]
    fn a_reason_is_short_and_drives_no_terminal() {
        assert_eq!(on_one_line("a\x1b[2J\nb"), "a [2J b");
        assert_eq!(on_one_line(&"é".repeat(2_000)).len(), 1_024);
    }
}
