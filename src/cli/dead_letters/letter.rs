//! A record of the dead-letter topic, taken apart, and put together again for its topic.
//!
//! Enters: a record's headers in wire order, as `route` wrote them: what the relay has to say, then
//! the headers the consumer would have got, the row's id first. Leaves: [`Explained`], the record to
//! send again, and the receipt that says that it was. Pure. Called by the commands beside it.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde_json::json;

use crate::kafka::StoredRecord;
use crate::route::{
    COMMIT_TIMESTAMP_HEADER, ERROR_CODE_HEADER, ERROR_HEADER, LSN_HEADER, OwnedRecord,
    RejectionCode, TABLE_HEADER, TIMESTAMP_HEADER, TOPIC_HEADER, TopicsSpec,
};

/// Marks a record that was sent again, and the receipt for it. Its value is the dead letter's place.
pub(super) const RETRIED_HEADER: &str = "postrider-retried";

/// A header's name and value, lent by a record.
pub(super) type Lent<'a> = (&'a str, Option<&'a [u8]>);

/// Where a record lies in the dead-letter topic. Prints as `PARTITION:OFFSET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// From 0.
    pub partition: i32,
    /// From 0.
    pub offset: i64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.partition, self.offset)
    }
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (partition, offset) = text.split_once(':').ok_or(())?;
        if !plain(partition) || !plain(offset) {
            return Err(());
        }
        let place = (partition.parse(), offset.parse());
        let (Ok(partition), Ok(offset)) = place else { return Err(()) };
        Ok(Self { partition, offset })
    }
}

/// What `route` puts in the place of a body that is too large.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StandIn {
    id: Option<String>,
    size: u64,
    sha256: String,
}

/// Longer it cannot be: an id of 1 KiB at most, six bytes for each as JSON may write it, and some
/// 120 for the rest.
const STAND_IN_BYTES_MAX: usize = 8 << 10;

/// A dead letter's headers: what the relay says, and what is the row's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Explained<'a> {
    pub(super) code: Cow<'a, str>,
    pub(super) reason: Cow<'a, str>,
    /// A record that the brokers refused does not name its table.
    pub(super) table: Option<Cow<'a, str>>,
    pub(super) lsn: Option<&'a [u8]>,
    /// Where the row was to go, as far as that is known; legal or not.
    pub(super) topic: Option<Cow<'a, str>>,
    /// The time of the row's own choice.
    pub(super) timestamp_ms: Option<i64>,
    /// The commit's time, of a dead letter that bears none.
    pub(super) commit_ms: Option<i64>,
    /// The row's own headers, its id first.
    pub(super) own: Vec<Lent<'a>>,
}

impl<'a> Explained<'a> {
    /// Reads a dead letter's headers; `None` for any other record. The relay's headers come first
    /// and in this order, so a row's own header that bears such a name is taken for what it is.
    pub(super) fn read(headers: impl Iterator<Item = Lent<'a>>) -> Option<Self> {
        let mut headers = headers.peekable();
        let mut take = |wanted: &str| {
            let (_, value) = headers.next_if(|(name, _)| *name == wanted)?;
            Some(value.unwrap_or_default())
        };
        let code = String::from_utf8_lossy(take(ERROR_CODE_HEADER)?);
        let reason = String::from_utf8_lossy(take(ERROR_HEADER)?);
        let table = take(TABLE_HEADER).map(String::from_utf8_lossy);
        let lsn = take(LSN_HEADER);
        let topic = take(TOPIC_HEADER).map(String::from_utf8_lossy);
        let mut take_ms =
            |wanted| take(wanted).and_then(|ms| str::from_utf8(ms).ok()?.parse().ok());
        let (timestamp_ms, commit_ms) =
            (take_ms(TIMESTAMP_HEADER), take_ms(COMMIT_TIMESTAMP_HEADER));
        let own = headers.collect();
        Some(Self { code, reason, table, lsn, topic, timestamp_ms, commit_ms, own })
    }

    /// The row's id; `None` for NULL, or where it was set aside for its size.
    pub(super) fn id(&self) -> Option<&'a [u8]> {
        self.own.first().and_then(|(_, value)| *value)
    }

    /// Whether parts of the row are missing: of what is too large, size and checksum are all that
    /// `route` keeps. A row that was rejected for another reason may be too large as well, so the
    /// value is looked at too.
    pub(super) fn is_cut(&self, value: Option<&[u8]>) -> bool {
        self.code == RejectionCode::TooLarge.as_str()
            || value.is_some_and(|value| self.is_stand_in(value))
    }

    /// Whether the value is, to the byte, what `route` puts in a body's place.
    fn is_stand_in(&self, value: &[u8]) -> bool {
        if value.len() > STAND_IN_BYTES_MAX {
            return false;
        }
        let Ok(StandIn { id, size, sha256 }) = serde_json::from_slice(value) else { return false };
        let same_id = match self.id() {
            Some(known) => id.as_deref() == Some(&*String::from_utf8_lossy(known)),
            None => true,
        };
        let whole = json!({ "id": id, "size": size, "sha256": sha256 }).to_string();
        same_id && sha256.len() == 64 && whole.as_bytes() == value
    }

    /// The record to send again: the row's own headers, its position as every record has it, and
    /// the mark.
    pub(super) fn again(&self, record: &StoredRecord, topic: &str, now_ms: i64) -> OwnedRecord {
        let place = Place { partition: record.partition, offset: record.offset };
        let own =
            self.own.iter().map(|&(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)));
        let lsn = self.lsn.map(|lsn| (LSN_HEADER.to_owned(), Some(lsn.to_vec())));
        // Earlier versions stamped what the brokers had refused with the first millisecond of 1970, which
        // retention removes at once.
        let stamped_ms = record.timestamp_ms.filter(|ms| *ms > 1);
        // It was refused for being ahead of the brokers' clock, as likely as not.
        let commit_ms = self.commit_ms.map(|ms| ms.min(now_ms));
        OwnedRecord {
            topic: topic.to_owned(),
            partition: None,
            key: record.key.clone(),
            value: record.value.clone(),
            headers: own.chain(lsn).chain([mark(place)]).collect(),
            timestamp_ms: self.timestamp_ms.or(stamped_ms).or(commit_ms).unwrap_or(now_ms),
        }
    }
}

/// Why a dead letter cannot be sent again as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Hindrance {
    #[error(
        "its body or other parts were set aside as too large; send the row again from the table"
    )]
    Cut,
    #[error(
        "it has text as its database stores it, which UTF8 has no equivalent for; mend the text and \
         insert the row again"
    )]
    Untranslatable,
    #[error("it names no topic; use --to TOPIC")]
    NoTopic,
    #[error("{0}; use --to TOPIC")]
    IllegalTopic(&'static str),
    #[error("its topic is the dead-letter topic itself; use --to TOPIC")]
    Circular,
}

/// Where a dead letter goes: to `to`, or else to the topic it was meant for, if that is for rows.
pub(super) fn destination<'a>(
    intended: Option<&'a str>,
    to: Option<&'a str>,
    dead_letter_topic: &str,
    topics: &TopicsSpec,
) -> Result<&'a str, Hindrance> {
    let topic = to.or(intended).ok_or(Hindrance::NoTopic)?;
    if topic == dead_letter_topic {
        return Err(Hindrance::Circular);
    }
    // What `--to` names is the operator's choice, not the row's.
    let judged = if to.is_some() { topics.check_reserved(topic) } else { topics.check(topic) };
    judged.map(|()| topic).map_err(Hindrance::IllegalTopic)
}

/// Says in the dead-letter topic that the record at `place` was sent again and stored. Of the same
/// key and partition, so that it shares the dead letter's fate.
pub(super) fn receipt(
    dead_letter_topic: &str,
    place: Place,
    key: Option<Vec<u8>>,
    now_ms: i64,
) -> OwnedRecord {
    OwnedRecord {
        topic: dead_letter_topic.to_owned(),
        partition: Some(place.partition),
        key,
        value: None,
        headers: vec![mark(place)],
        timestamp_ms: now_ms,
    }
}

/// The place that a record is the receipt of, if it is one.
pub(super) fn receipt_of<'a>(
    value: Option<&[u8]>,
    mut headers: impl Iterator<Item = Lent<'a>>,
) -> Option<Place> {
    let (name, place) = headers.next()?;
    let is_receipt = value.is_none() && name == RETRIED_HEADER && headers.next().is_none();
    std::str::from_utf8(place?).ok()?.parse().ok().filter(|_| is_receipt)
}

fn mark(place: Place) -> (String, Option<Vec<u8>>) {
    (RETRIED_HEADER.to_owned(), Some(place.to_string().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RELAYS: [Lent<'static>; 5] = [
        ("postrider-error-code", Some(b"invalid_topic")),
        ("postrider-error", Some(b"a reason")),
        ("postrider-table", Some(b"public.outbox")),
        ("postrider-lsn", Some(b"0/1.0")),
        ("postrider-topic", Some(b"bad/topic")),
    ];
    const OWN: [Lent<'static>; 3] =
        [("id", Some(b"7")), ("postrider-topic", None), ("id", Some(b"\xff"))];

    fn letter() -> Vec<Lent<'static>> {
        RELAYS.into_iter().chain(OWN).collect()
    }

    fn lent(headers: &[(String, Option<Vec<u8>>)]) -> Vec<Lent<'_>> {
        headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect()
    }

    #[test]
    fn the_relays_words_and_the_rows_own_are_told_apart() {
        let letter = letter();
        let explained = Explained::read(letter.iter().copied()).unwrap();
        assert_eq!((&*explained.code, &*explained.reason), ("invalid_topic", "a reason"));
        assert_eq!(explained.table.as_deref(), Some("public.outbox"));
        assert_eq!(explained.topic.as_deref(), Some("bad/topic"));
        assert_eq!(explained.id(), Some(&b"7"[..]));
        assert_eq!(explained.own, OWN);
        // What the brokers refused names no table; what no_route rejected no topic.
        let bare = [RELAYS[0], RELAYS[1], OWN[0]];
        let explained = Explained::read(bare.into_iter()).unwrap();
        assert_eq!((explained.table, explained.lsn, explained.topic), (None, None, None));
        assert_eq!(explained.own, [OWN[0]]);
        for none in [&letter[1..], &letter[5..], &[]] {
            assert_eq!(Explained::read(none.iter().copied()), None);
        }
    }

    #[test]
    fn what_is_sent_again_is_what_the_consumer_would_have_got_and_a_mark() {
        let record = StoredRecord {
            topic: "dead".into(),
            partition: 3,
            offset: 17,
            timestamp_ms: Some(5),
            key: Some(b"k".to_vec()),
            value: None,
            headers: Vec::new(),
        };
        let letter = letter();
        let explained = Explained::read(letter.iter().copied()).unwrap();
        let again = explained.again(&record, "orders", 99);
        let marks = [RELAYS[3], (RETRIED_HEADER, Some(&b"3:17"[..]))];
        let wanted: Vec<Lent<'_>> = OWN.into_iter().chain(marks).collect();
        assert_eq!(lent(&again.headers), wanted);
        assert_eq!(
            (again.topic.as_str(), again.partition, again.timestamp_ms),
            ("orders", None, 5)
        );
        assert_eq!((again.key, again.value), (record.key, None));
    }

    #[test]
    fn a_receipt_is_known_by_its_only_header_and_its_null_value() {
        let place = Place { partition: 3, offset: 17 };
        let receipt = receipt("dead", place, Some(b"k".to_vec()), 5);
        assert_eq!((receipt.partition, receipt.value.as_ref()), (Some(3), None));
        let headers = lent(&receipt.headers);
        let read = |value, headers: &[Lent<'static>]| receipt_of(value, headers.iter().copied());
        assert_eq!(receipt_of(None, headers.iter().copied()), Some(place));
        assert_eq!(receipt_of(Some(b""), headers.iter().copied()), None);
        assert_eq!(read(None, &letter()), None);
        assert_eq!(read(None, &[(RETRIED_HEADER, Some(b"3:17")), OWN[0]]), None);
        assert_eq!(read(None, &[(RETRIED_HEADER, Some(b"soon"))]), None);
        assert_eq!(read(None, &[]), None);
    }

    #[test]
    fn a_body_that_was_set_aside_is_known_whatever_the_code() {
        let letter = letter();
        let explained = Explained::read(letter.iter().copied()).unwrap();
        let body =
            |id: &str| json!({ "id": id, "size": 2_000_000, "sha256": "0".repeat(64) }).to_string();
        assert!(explained.is_cut(Some(body("7").as_bytes())));
        // An application may well send such things of its own.
        for own in [body("8"), body("7").replace(':', ": "), "{}".into(), "[".into()] {
            assert!(!explained.is_cut(Some(own.as_bytes())), "{own}");
        }
        assert!(!explained.is_cut(None));
        let too_large = Explained { code: "too_large".into(), ..explained };
        assert!(too_large.is_cut(None));
    }

    #[test]
    fn only_legal_topics_but_our_own_are_destinations() {
        let allowed = vec!["orders".to_owned()];
        let topics = TopicsSpec { own: vec!["progress".to_owned()], allowed };
        let to = |intended, to| destination(intended, to, "dead", &topics);
        assert_eq!(to(Some("orders"), None), Ok("orders"));
        assert_eq!(to(Some("bad/topic"), Some("orders")), Ok("orders"));
        assert_eq!(to(None, None), Err(Hindrance::NoTopic));
        assert_eq!(to(Some("dead"), None), Err(Hindrance::Circular));
        for reserved in ["bad/topic", "progress", "__consumer_offsets", "postrider.progress.x"] {
            for outcome in [to(Some(reserved), None), to(Some("orders"), Some(reserved))] {
                assert!(matches!(outcome, Err(Hindrance::IllegalTopic(_))), "{reserved}");
            }
        }
        // What is not on the list may be chosen by who runs the command, and not by a row.
        assert!(to(Some("other"), None).is_err());
        assert_eq!(to(None, Some("other")), Ok("other"));
    }

    proptest! {
        #[test]
        fn places_round_trip(partition in 0..=i32::MAX, offset in 0..=i64::MAX) {
            let place = Place { partition, offset };
            prop_assert_eq!(place.to_string().parse(), Ok(place));
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in
            ["", ":", "1", "1:", ":1", "-1:2", "1:+2", "1:2:3", "a:b", "1:99999999999999999999"]
        {
            assert_eq!(text.parse::<Place>(), Err(()), "{text}");
        }
    }
}
