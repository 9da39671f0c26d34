//! Tests against a judge that keeps everything in memory, and tests of each kind of finding.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const TOPICS: u32 = 3;
const LETTERS: u32 = 2;

fn entry(kind: Kind, id: u8) -> Entry {
    Entry {
        id: IdToken::of(&[id]),
        kind,
        topic: 0,
        partition: if kind.is_row() { -1 } else { 0 },
        place: 0,
        content: 0,
        key: 0,
        rank: 0,
        index: 0,
        flags: 0,
    }
}

fn terms() -> Terms {
    let topics = vec![
        Kept::default(),
        Kept { since_ms: Some(100), ..Kept::default() },
        Kept { is_compacted: true, ..Kept::default() },
    ];
    Terms { topics, dead_letters: LETTERS, skips_rejected: false, all_rows_kept: true }
}

fn verdict(entries: &[Entry], terms: &Terms) -> Verdict {
    let folder = std::env::temp_dir();
    let (mut all, order) = (Sorter::new(&folder).unwrap(), Sorter::new(&folder).unwrap());
    for entry in entries {
        all.push(*entry).unwrap();
    }
    judge(&mut all, terms, order).unwrap()
}

/// Letters of other names; all other entries; these by id.
fn grouped(entries: &[Entry]) -> (Vec<Entry>, Vec<Entry>, BTreeMap<IdToken, Vec<Entry>>) {
    let (siblings, entries): (Vec<Entry>, Vec<Entry>) =
        entries.iter().partition(|entry| entry.is_letter(Kinship::Sibling));
    let mut by_id: BTreeMap<IdToken, Vec<Entry>> = BTreeMap::new();
    for entry in &entries {
        by_id.entry(entry.id).or_default().push(*entry);
    }
    (siblings, entries, by_id)
}

/// Computes the numbers with sets of ids and lists of partitions in memory.
fn naive(entries: &[Entry], terms: &Terms) -> Verdict {
    let (siblings, entries, by_id) = grouped(entries);
    let mut found = Verdict::default();
    for all in by_id.values() {
        let of = |wanted: &dyn Fn(&Entry) -> bool| -> Vec<Entry> {
            all.iter().filter(|entry| wanted(entry)).copied().collect()
        };
        let rows = of(&|entry| entry.kind.is_row());
        let plain = of(&|entry| entry.kind == Kind::Record && !entry.has(flag::AGAIN));
        let again = of(&|entry| entry.kind == Kind::Record && entry.has(flag::AGAIN));
        let letters = of(&|entry| entry.kind == Kind::DeadLetter);
        found.rows += rows.len() as u64;
        found.records += (plain.len() + again.len() + letters.len()) as u64;
        found.dropped += rows.iter().filter(|row| row.kind == Kind::Dropped).count() as u64;
        let repeats = plain.len().saturating_sub(1) + letters.len().saturating_sub(1);
        match rows.as_slice() {
            [] => {
                found.sent_again += again.len() as u64;
                if all.iter().all(|entry| entry.has(flag::NEWER)) {
                    found.newer += all.len() as u64;
                } else {
                    found.without_row += 1;
                    let own =
                        letters.iter().filter(|letter| !letter.is_letter(Kinship::Unknown)).count();
                    found.duplicated +=
                        (plain.len().saturating_sub(1) + own.saturating_sub(1)) as u64;
                    let is_ours = plain.len() + again.len() + own > 0;
                    found.phantom += u64::from(terms.all_rows_kept && is_ours);
                }
            }
            [row] => {
                found.sent_again += again.len() as u64;
                let is_elsewhere =
                    |entry: &Entry| row.kind == Kind::Row && entry.topic != row.topic;
                let (elsewhere, again): (Vec<_>, Vec<_>) =
                    again.into_iter().partition(is_elsewhere);
                found.duplicated += repeats as u64;
                let is_same = |entry: &Entry| {
                    entry.content == row.content && [-1, entry.partition].contains(&row.partition)
                };
                let differs = match row.kind {
                    Kind::Row => plain.iter().chain(&again).any(|entry| !is_same(entry)),
                    _ => !plain.is_empty(),
                };
                found.different += u64::from(differs);
                let must_arrive =
                    row.kind == Kind::Row || (row.kind == Kind::Rejected && !terms.skips_rejected);
                let topic = if row.kind == Kind::Row { row.topic } else { LETTERS };
                let kept = terms.topics[topic as usize];
                let is_sibling = |letter: &Entry| letter.id == row.id && letter.may_be_about(row);
                if all.len() - elsewhere.len() > 1 || siblings.iter().any(is_sibling) {
                    found.dead_lettered += u64::from(plain.is_empty() && again.is_empty());
                } else if !must_arrive {
                } else if row.has(flag::NOT_PASSED) || kept.is_open {
                    found.pending += 1;
                } else if kept.is_compacted
                    || kept.since_ms.is_some_and(|since| row.time_ms().is_none_or(|it| it <= since))
                {
                    found.unknown += 1;
                } else {
                    found.lost += 1;
                }
            }
            _ => found.not_unique += 1,
        }
    }
    naive_order(&entries, &by_id, &mut found);
    found
}

fn naive_order(entries: &[Entry], by_id: &BTreeMap<IdToken, Vec<Entry>>, found: &mut Verdict) {
    let mut records: Vec<Entry> = entries.to_vec();
    records.retain(|entry| {
        entry.kind == Kind::Record && !entry.has(flag::AGAIN) && !entry.has(flag::UNORDERED)
    });
    records.sort_by_key(|entry| (entry.topic, entry.partition, entry.place));
    let mut seen = BTreeSet::new();
    records.retain(|entry| seen.insert((entry.topic, entry.partition, entry.id)));
    let number = |entry: &Entry| {
        let rows: Vec<_> = by_id[&entry.id].iter().filter(|entry| entry.kind.is_row()).collect();
        let [row] = rows.as_slice() else { return None };
        row.has(flag::RANKED).then(|| row.rank.cast_signed())
    };
    let position = |entry: &Entry| entry.has(flag::RANKED).then_some((entry.rank, entry.index));
    for (at, entry) in records.iter().enumerate() {
        let of_key = |other: &&Entry| {
            (other.topic, other.partition, other.key) == (entry.topic, entry.partition, entry.key)
        };
        let before: Vec<_> = records[..at].iter().filter(of_key).collect();
        let is_later = |mine: Option<(u64, u32)>, other: Option<(u64, u32)>| {
            mine.zip(other).is_some_and(|(mine, other)| other > mine)
        };
        let is_greater = |mine: Option<i64>, other: Option<i64>| {
            mine.zip(other).is_some_and(|(mine, other)| other > mine)
        };
        let late = before.iter().any(|other| {
            is_later(position(entry), position(other)) || is_greater(number(entry), number(other))
        });
        found.reordered += u64::from(late);
        if position(entry).is_some() || number(entry).is_some() {
            found.ordered += 1;
        } else {
            found.unordered += 1;
        }
    }
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let kinds = [Kind::Row, Kind::Rejected, Kind::Dropped, Kind::Record, Kind::DeadLetter];
    let kind = prop::sample::select(vec![0, 0, 0, 1, 2, 3, 3, 3, 3, 3, 4]);
    let place = (0..TOPICS, -1..2_i32, 0..40_u64);
    let numbers = (0..3_u64, 0..3_u64, 0..6_u64, 0..2_u32);
    let flags = prop::collection::vec(prop::bool::weighted(0.2), 6);
    (kind, 0..12_u8, place, numbers, flags).prop_map(move |(kind, id, place, numbers, flags)| {
        let kind = kinds[kind];
        let (topic, partition, place) = place;
        let (content, key, rank, index) = numbers;
        let bits = flags.iter().enumerate().map(|(bit, set)| u8::from(*set) << bit);
        Entry {
            topic: if kind == Kind::DeadLetter { LETTERS } else { topic },
            partition: if kind.is_row() { partition } else { partition.max(0) },
            place,
            content,
            // The key of a row is its time.
            key: if kind.is_row() { key * 80 } else { key },
            rank,
            index,
            flags: bits.sum(),
            ..entry(kind, id)
        }
    })
}

/// No two records may share a place.
fn in_places(mut entries: Vec<Entry>) -> Vec<Entry> {
    let mut taken = BTreeSet::new();
    entries.retain(|entry| {
        entry.kind.is_row() || taken.insert((entry.topic, entry.partition, entry.place))
    });
    entries
}

proptest! {
    #[test]
    fn numbers_are_those_of_a_judge_that_keeps_all_in_memory(
        entries in prop::collection::vec(any_entry(), 0..60).prop_map(in_places),
        skips_rejected: bool, all_rows_kept: bool, is_open: bool,
    ) {
        let mut terms = Terms { skips_rejected, all_rows_kept, ..terms() };
        terms.topics[0].is_open = is_open;
        let found = verdict(&entries, &terms);
        let wanted = naive(&entries, &terms);
        for fault in Fault::ALL {
            let named = found.samples(fault).count() as u64;
            let number = found.number(fault);
            prop_assert!(named <= number && (number == 0 || named > 0), "{:?}", fault);
            prop_assert!(found.samples(fault).all(|finding| finding.id.is_some()));
        }
        let numbers = |verdict: Verdict| verdict.without_samples();
        prop_assert_eq!(numbers(found), numbers(wanted));
    }
}

#[test]
fn a_clean_system_has_no_finding() {
    let row = |id| Entry { content: 7, ..entry(Kind::Row, id) };
    let record = |id, place| Entry {
        content: 7,
        place,
        rank: place,
        flags: flag::RANKED,
        ..entry(Kind::Record, id)
    };
    let entries = [row(1), row(2), record(1, 10), record(2, 11)];
    let found = verdict(&entries, &terms());
    assert!(found.is_clean(true));
    assert_eq!((found.rows, found.records, found.ordered), (2, 2, 2));
}

#[test]
fn each_finding_is_named_with_its_place() {
    let record =
        |id, place, rank| Entry { place, rank, flags: flag::RANKED, ..entry(Kind::Record, id) };
    let mut entries: Vec<Entry> = (1..7).map(|id| entry(Kind::Row, id)).collect();
    // 1 is lost, 2 is repeated, 3 follows 4, 5 differs, 6 has two rows, 9 was never written.
    entries.push(entry(Kind::Row, 6));
    entries.extend([record(2, 10, 1), record(2, 11, 1), record(4, 12, 4), record(3, 13, 3)]);
    entries.extend([Entry { content: 1, ..record(5, 14, 5) }, record(6, 15, 6), record(9, 16, 7)]);
    let found = verdict(&entries, &terms());
    let place = |fault| {
        let [one] = found.samples(fault).collect::<Vec<_>>()[..] else { panic!("{fault:?}") };
        (one.id.unwrap().shown().into_bytes()[0], one.record.map(|(_, offset)| offset))
    };
    let wanted = [(1, None), (2, Some(11)), (3, Some(13)), (9, Some(16)), (5, Some(14)), (6, None)];
    assert_eq!(Fault::ALL.map(place), wanted);
    assert!(Fault::ALL.iter().all(|fault| found.number(*fault) == 1));
}

#[test]
fn letters_without_a_row_are_not_a_finding() {
    let letter = |place, rank| Entry { place, rank, topic: LETTERS, ..entry(Kind::DeadLetter, 1) };
    let strange = verdict(&[letter(1, 0), letter(2, 0)], &terms());
    assert_eq!((strange.without_row, strange.duplicated, strange.phantom), (1, 0, 0));
    let own = verdict(&[letter(1, 1), letter(2, 1), letter(3, 0)], &terms());
    assert_eq!((own.without_row, own.duplicated, own.phantom), (1, 1, 1));
}

/// The slot or the database may have been renamed since.
#[test]
fn another_names_letter_counts_only_for_a_row_of_its_table() {
    const TABLE: u32 = 11;
    let row = |id| Entry { index: TABLE, ..entry(Kind::Row, id) };
    let letter = |id, place, index| {
        let rank = Kinship::Sibling as u64;
        Entry { place, rank, index, topic: LETTERS, ..entry(Kind::DeadLetter, id) }
    };
    let found = |entries: &[Entry]| {
        let found = verdict(entries, &terms());
        let numbers = [found.lost, found.dead_lettered, found.duplicated, found.phantom];
        (numbers, found.records + found.without_row)
    };
    for table in [TABLE, 0] {
        assert_eq!(found(&[row(1), letter(1, 1, table)]), ([0, 1, 0, 0], 0), "{table}");
        assert_eq!(found(&[row(1), letter(1, 1, table), letter(1, 2, table)]).0, [0, 1, 0, 0]);
    }
    assert_eq!(found(&[row(1), letter(1, 1, TABLE + 2)]), ([1, 0, 0, 0], 0), "another table");
    assert_eq!(found(&[letter(1, 1, TABLE), letter(1, 2, TABLE)]), ([0; 4], 0), "no row");
    let delivered = [row(1), entry(Kind::Record, 1), letter(1, 1, TABLE), letter(1, 2, 0)];
    assert_eq!(found(&delivered), ([0; 4], 1));
}

#[test]
fn more_findings_are_counted_than_named() {
    let entries: Vec<Entry> = (0..200).map(|id| entry(Kind::Row, id)).collect();
    let found = verdict(&entries, &terms());
    assert_eq!(found.lost, 200);
    assert_eq!(found.samples(Fault::Lost).count(), super::super::verdict::SAMPLES_MAX);
}

#[test]
fn what_was_sent_to_another_topic_on_purpose_is_no_arrival_and_no_difference() {
    let row = entry(Kind::Row, 1);
    let elsewhere = Entry { topic: 1, flags: flag::AGAIN, content: 7, ..entry(Kind::Record, 1) };
    let found = verdict(&[row, elsewhere], &terms());
    assert_eq!((found.sent_again, found.different, found.lost), (1, 0, 1));
}
