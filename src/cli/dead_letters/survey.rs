//! One pass over the dead-letter topic: what lies in it, and what of that was retried.
//!
//! Enters: a reader of the whole topic and a [`Filter`]. Leaves: a [`Survey`]. What always holds:
//! values are looked at and not kept, so that memory goes with the number of dead letters that are
//! meant, some 550 bytes each; whether one was retried is known only at the end, since its receipt
//! lies behind it. Called by `list` and `retry`.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::error::DeadLettersError;
use super::filter::Filter;
use super::letter::{Explained, Place, receipt_of};
use super::progress::Progress;
use crate::kafka::{Reader, Received, Step};

/// Brokers that are there and send nothing for this long, before the end is reached, have failed.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// How soon a reader that waits looks at the time.
const TICK: Duration = Duration::from_millis(100);

/// Of ids and keys no more is kept: a list is for finding, `show` has it all.
const PART_BYTES_MAX: usize = 256;

/// A dead letter without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Letter {
    pub(super) place: Place,
    /// Milliseconds since the Unix epoch.
    pub(super) timestamp_ms: Option<i64>,
    pub(super) code: String,
    pub(super) reason: String,
    pub(super) table: Option<String>,
    pub(super) lsn: Option<String>,
    /// Where the row was to go.
    pub(super) topic: Option<String>,
    /// Its first 256 bytes.
    pub(super) id: Option<Vec<u8>>,
    /// Its first 256 bytes.
    pub(super) key: Option<Vec<u8>>,
    /// `None` for a null value.
    pub(super) value_bytes: Option<usize>,
    /// Parts of it were set aside for their size.
    pub(super) is_cut: bool,
    /// It was sent again and stored.
    pub(super) is_retried: bool,
}

/// What a pass has found.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Those that are meant, by place.
    pub(super) letters: Vec<Letter>,
    /// Records that are neither dead letters nor receipts.
    pub(super) foreign: usize,
}

impl Survey {
    /// Reads to the end. What was named and is not there is an error.
    pub(super) fn take(
        reader: &mut Reader,
        filter: &mut Filter<'_>,
        progress: &mut Progress,
    ) -> Result<Self, DeadLettersError> {
        let mut survey = Self::default();
        let mut retried = HashSet::new();
        let mut read = 0_u64;
        walk(reader, |record| {
            read += 1;
            progress.show(|| format!("{read} records read"));
            match Explained::read(record.headers()) {
                Some(explained) => survey.note(record, &explained, filter),
                None => match receipt_of(record.value(), record.headers()) {
                    Some(place) => drop(retried.insert(place)),
                    None => survey.foreign += 1,
                },
            }
            Ok(ControlFlow::Continue(()))
        })?;
        progress.clear();
        let missing = filter.missing();
        if !missing.is_empty() {
            return Err(DeadLettersError::Missing(missing));
        }
        for letter in &mut survey.letters {
            letter.is_retried = retried.contains(&letter.place);
        }
        survey.letters.sort_unstable_by_key(|letter| letter.place);
        Ok(survey)
    }

    fn note(&mut self, record: &Received<'_>, explained: &Explained<'_>, filter: &mut Filter<'_>) {
        let (place, timestamp_ms) = (place_of(record), record.timestamp_ms());
        if !filter.admits(place, timestamp_ms, explained) {
            return;
        }
        self.letters.push(Letter {
            place,
            timestamp_ms,
            code: explained.code.to_string(),
            reason: explained.reason.to_string(),
            table: explained.table.as_deref().map(str::to_owned),
            lsn: explained.lsn.map(|lsn| String::from_utf8_lossy(lsn).into_owned()),
            topic: explained.topic.as_deref().map(str::to_owned),
            id: explained.id().map(head),
            key: record.key().map(head),
            value_bytes: record.value().map(<[u8]>::len),
            is_cut: explained.is_cut(record.value()),
            is_retried: false,
        });
    }
}

/// Calls for each record until the end, or until told to stop.
pub(super) fn walk(
    reader: &mut Reader,
    mut each: impl FnMut(&Received<'_>) -> Result<ControlFlow<()>, DeadLettersError>,
) -> Result<(), DeadLettersError> {
    let mut heard = Instant::now();
    loop {
        match reader.next(TICK)? {
            Step::Record(record) => {
                if each(&record)?.is_break() {
                    return Ok(());
                }
                heard = Instant::now();
            }
            Step::End => return Ok(()),
            Step::Idle if heard.elapsed() < SILENCE_LIMIT => {}
            Step::Idle => {
                return Err(DeadLettersError::Unread { seconds: SILENCE_LIMIT.as_secs() });
            }
        }
    }
}

/// Where a record lies.
pub(super) fn place_of(record: &Received<'_>) -> Place {
    Place { partition: record.partition(), offset: record.offset() }
}

/// The beginning, cut between characters where it is text.
fn head(bytes: &[u8]) -> Vec<u8> {
    let end = match std::str::from_utf8(bytes) {
        Ok(text) => text.floor_char_boundary(PART_BYTES_MAX),
        Err(_) => bytes.len().min(PART_BYTES_MAX),
    };
    bytes.get(..end).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_parts_are_cut_between_characters() {
        assert_eq!(head(b"short"), b"short");
        assert_eq!(head("é".repeat(200).as_bytes()), "é".repeat(128).as_bytes());
        assert_eq!(head("éa".repeat(200).as_bytes()), "éa".repeat(85).as_bytes());
        assert_eq!(head(&[0xff; 300]), [0xff; 256]);
    }
}
