//! Whether a drain delivered what it should have: counted, ordered and compared byte for byte.
//!
//! Input: the rows, and the topics that the brokers have. Output: an [`Account`]. Invariant: it reads committed records
//! with a client that knows nothing of the contestants; when records were stored is the brokers' own time, the same
//! clock for all.

use std::collections::{BTreeMap, HashMap};

use rdkafka::Message as _;
use serde::Deserialize;

use super::rows::Rows;
use crate::topic;

/// What became of the rows.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) records: usize,
    pub(super) lost: usize,
    pub(super) repeated: usize,
    /// Rows whose first record comes after that of a later row of the key.
    pub(super) reordered: usize,
    /// Records with another key or value than the row's.
    pub(super) different: usize,
    /// How many records were stored in which millisecond since 1970.
    pub(super) stored_ms: BTreeMap<i64, usize>,
}

/// What a payload says of its row.
#[derive(Deserialize)]
struct Payload {
    order_id: usize,
}

impl Account {
    /// Reads the topics to their ends.
    pub(super) fn of(bootstrap: &str, rows: &Rows, prefix: &str) -> Self {
        let mut account = Self::default();
        let mut seen = vec![false; rows.shape.rows];
        let mut last: HashMap<Vec<u8>, usize> = HashMap::new();
        for name in rows.topics(prefix) {
            topic::for_each(bootstrap, &name, |record| {
                let (key, value) = (record.key(), record.payload().unwrap_or_default());
                if let Some(stored) = record.timestamp().to_millis() {
                    *account.stored_ms.entry(stored).or_default() += 1;
                }
                account.note(rows, &mut seen, &mut last, (key.unwrap_or_default(), value));
            });
        }
        account.lost = seen.iter().filter(|seen| !**seen).count();
        account
    }

    fn note(
        &mut self,
        rows: &Rows,
        seen: &mut [bool],
        last: &mut HashMap<Vec<u8>, usize>,
        (key, value): (&[u8], &[u8]),
    ) {
        self.records += 1;
        let row = serde_json::from_slice(value).map(|Payload { order_id }| order_id);
        let Some(row) = row.ok().filter(|row| *row < seen.len()) else {
            self.different += 1;
            return;
        };
        let is_same = rows.key(row).as_bytes() == key && rows.payload(row).as_bytes() == value;
        self.different += usize::from(!is_same);
        if std::mem::replace(&mut seen[row], true) {
            self.repeated += 1;
            return;
        }
        let before = last.entry(key.to_vec()).or_insert(row);
        self.reordered += usize::from(row < *before);
        *before = row.max(*before);
    }

    /// What is wrong; repeats are, too, where nothing crashed.
    pub(super) fn fault(&self, may_repeat: bool) -> Option<String> {
        let Self { records, lost, repeated, reordered, different, .. } = self;
        let is_right =
            lost + reordered + different == 0 && (may_repeat || *repeated == 0) && *records > 0;
        (!is_right).then(|| {
            format!(
                "{records} records: {lost} rows lost, {repeated} repeated, {reordered} reordered, {different} different"
            )
        })
    }

    /// When the first and the last record were stored.
    pub(super) fn span_ms(&self) -> (i64, i64) {
        let end = |found: Option<(&i64, &usize)>| found.map_or(0, |(stored, _)| *stored);
        (end(self.stored_ms.first_key_value()), end(self.stored_ms.last_key_value()))
    }

    /// Records a second of the second half, when what a start costs later is over: Java compiles what it runs often.
    pub(super) fn steady_rows_per_s(&self) -> Option<f64> {
        let mut before = 0;
        let half = self.stored_ms.iter().find(|(_, count)| {
            before += **count;
            before * 2 >= self.records
        })?;
        let after = u32::try_from(self.records - before).ok()?;
        let ms = u32::try_from(self.span_ms().1 - half.0).ok().filter(|ms| *ms > 0)?;
        Some(f64::from(after) * 1e3 / f64::from(ms))
    }

    /// The longest time in which nothing was stored, from this moment on.
    pub(super) fn silence_ms(&self, since_ms: i64) -> i64 {
        let after = self.stored_ms.range(since_ms..).map(|(stored, _)| *stored);
        let mut before = since_ms;
        let gaps = after.map(|stored| stored - std::mem::replace(&mut before, stored));
        gaps.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::Shape;
    use super::*;

    fn account(order: &[usize], spoil: impl Fn(&mut String)) -> Account {
        let rows = Rows::new(Shape { rows: 4, per_transaction: 1, bytes: 60, topics: 1 });
        let (mut account, mut seen, mut last) =
            (Account::default(), vec![false; 4], HashMap::new());
        for row in order {
            let mut value = rows.payload(*row);
            spoil(&mut value);
            let key = rows.key(*row);
            account.note(&rows, &mut seen, &mut last, (key.as_bytes(), value.as_bytes()));
        }
        account.lost = seen.iter().filter(|seen| !**seen).count();
        account
    }

    #[test]
    fn what_is_lost_repeated_reordered_or_spoiled_is_seen() {
        let same = |_: &mut String| {};
        assert_eq!(account(&[0, 1, 2, 3], same).fault(false), None);
        assert_eq!(account(&[0, 1, 0, 1, 2, 3], same).fault(true), None);
        assert_eq!(account(&[0, 1, 0, 1, 2, 3], same).repeated, 2);
        assert!(account(&[0, 1, 0, 1, 2, 3], same).fault(false).is_some());
        assert_eq!(account(&[0, 1, 3], same).lost, 1);
        assert_eq!(account(&[0, 2, 1, 3], same).reordered, 1);
        assert_eq!(account(&[0, 1, 2, 3], |value| *value = value.replace(": ", ":")).different, 4);
        assert!(account(&[], same).fault(true).is_some());
    }

    #[test]
    fn the_longest_silence_counts_from_a_moment() {
        let stored_ms = [(10, 5), (500, 1), (510, 1), (600, 3)].into();
        let account = Account { stored_ms, records: 10, ..Account::default() };
        assert_eq!(account.silence_ms(505), 90);
        assert_eq!(account.silence_ms(700), 0);
        assert_eq!(account.span_ms(), (10, 600));
        // Five of ten by 10 ms, five more within 590 ms.
        assert!(account.steady_rows_per_s().is_some_and(|rate| (rate - 5e3 / 590.0).abs() < 1e-9));
    }
}
