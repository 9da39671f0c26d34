//! Tests for the decision whether a row was delivered.

use super::*;

const UUID: &str = "8f14e45f-ceea-467f-a8f1-2b9a5b9d1c11";
const LETTERS: u32 = 9;
const OUTBOX: u32 = 11;
const OTHER: u32 = 13;

fn entry(kind: Kind, id: &str, topic: u32, content: u64) -> Entry {
    let id = IdToken::of(id.as_bytes());
    let (index, flags) = (if kind.is_row() { OUTBOX } else { 0 }, 0);
    Entry { id, kind, topic, partition: -1, place: 0, content, key: 0, rank: 0, index, flags }
}

fn row(id: &str, content: u64, place: u64) -> Entry {
    Entry { place, ..entry(Kind::Row, id, 1, content) }
}

fn record(id: &str, topic: u32, content: u64) -> Entry {
    entry(Kind::Record, id, topic, content)
}

fn letter(id: &str, table: u32) -> Entry {
    Entry { index: table, ..entry(Kind::DeadLetter, id, LETTERS, 0) }
}

/// Outcomes in the order of the rows' places.
fn judged(entries: &[Entry], terms: &Terms) -> Vec<Outcome> {
    let mut sorter = Sorter::new(&std::env::temp_dir()).unwrap();
    for entry in entries {
        sorter.push(*entry).unwrap();
    }
    let mut outcomes = Vec::new();
    judge::<SpillError>(&mut sorter, terms, |row, outcome| {
        outcomes.push((row.place, outcome));
        Ok(())
    })
    .unwrap();
    outcomes.sort_by_key(|(place, _)| *place);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn of(entries: &[Entry]) -> Vec<Outcome> {
    judged(entries, &Terms { dead_letters: LETTERS, ..Terms::default() })
}

const SHARED: Outcome = Outcome::Unknown(UnknownReason::IdShared);

#[test]
fn a_record_with_the_uuid_of_a_row_is_its_own_whatever_its_content_is() {
    assert_eq!(of(&[row(UUID, 5, 1)]), [Outcome::Missing]);
    for (topic, content) in [(1, 5), (1, 6), (2, 5)] {
        assert_eq!(of(&[row(UUID, 5, 1), record(UUID, topic, content)]), [Outcome::Delivered]);
    }
    let copy = Entry { flags: flag::AGAIN, ..record(UUID, 2, 5) };
    assert_eq!(of(&[row(UUID, 5, 1), copy]), [Outcome::Missing], "a replay to another topic");
    let again = Entry { flags: flag::AGAIN, ..record(UUID, 1, 5) };
    assert_eq!(of(&[row(UUID, 5, 1), again]), [Outcome::Delivered]);
}

#[test]
fn a_row_of_before_the_stream_is_unknown_unless_it_is_there() {
    let old = Entry { flags: flag::BEFORE, ..row(UUID, 5, 1) };
    assert_eq!(of(&[old]), [Outcome::Unknown(UnknownReason::BeforeStream)]);
    assert_eq!(of(&[old, record(UUID, 1, 5)]), [Outcome::Delivered]);
    let dropped = Entry { kind: Kind::Dropped, ..old };
    assert_eq!(of(&[dropped]), [Outcome::LeftOut]);
}

/// Several tables or producers may number from 1.
#[test]
fn a_record_with_another_id_is_a_rows_only_by_topic_and_content() {
    assert_eq!(of(&[row("1", 5, 1), record("1", 1, 5)]), [Outcome::Delivered]);
    assert_eq!(of(&[row("1", 5, 1), record("1", 1, 6)]), [SHARED]);
    assert_eq!(of(&[row("1", 5, 1), record("1", 2, 5)]), [SHARED]);
    assert_eq!(of(&[row("1", 5, 1)]), [Outcome::Missing]);
    let two = [row("1", 5, 1), row("1", 6, 2)];
    let with = |records: &[Entry]| of(&[two.as_slice(), records].concat());
    assert_eq!(with(&[record("1", 1, 5)]), [Outcome::Delivered, Outcome::Missing]);
    assert_eq!(with(&[record("1", 1, 5), record("1", 1, 7)]), [Outcome::Delivered, SHARED]);
    let alike = [row("1", 5, 1), row("1", 5, 2), record("1", 1, 5)];
    assert_eq!(of(&alike), [SHARED, SHARED], "one record, and two rows that it may be of");
    let both = [alike.as_slice(), &[record("1", 1, 5)]].concat();
    assert_eq!(of(&both), [Outcome::Delivered, Outcome::Delivered]);
}

#[test]
fn a_uuid_that_two_rows_have_tells_neither_of_them() {
    let rows = [row(UUID, 5, 1), row(UUID, 6, 2)];
    let with = |records: &[Entry]| of(&[rows.as_slice(), records].concat());
    assert_eq!(with(&[]), [Outcome::Missing, Outcome::Missing]);
    assert_eq!(with(&[record(UUID, 1, 6)]), [Outcome::Missing, Outcome::Delivered]);
    assert_eq!(with(&[record(UUID, 1, 7)]), [SHARED, SHARED]);
    let many: Vec<Entry> = (0..ROWS_MAX as u64 + 3).map(|n| row(UUID, n, n)).collect();
    assert_eq!(of(&many), vec![SHARED; many.len()], "an id of so many rows is none");
}

#[test]
fn a_dead_letter_is_of_a_row_of_its_own_table_alone() {
    // A table with this name in another database may use such a number.
    for (id, outcome) in [(UUID, Outcome::Delivered), ("1", SHARED)] {
        assert_eq!(of(&[row(id, 5, 1), letter(id, OUTBOX)]), [outcome], "{id}");
        let rejected = Entry { kind: Kind::Rejected, ..row(id, 0, 1) };
        assert_eq!(of(&[rejected, letter(id, OUTBOX)]), [outcome], "{id}");
        assert_eq!(of(&[rejected]), [Outcome::Missing], "{id}");
    }
    assert_eq!(of(&[row("1", 5, 1), letter("1", OTHER)]), [Outcome::Missing]);
    assert_eq!(of(&[row(UUID, 5, 1), letter(UUID, OTHER)]), [SHARED], "a table that was renamed?");
    // A dead letter for a record that the brokers refused does not name a table.
    assert_eq!(of(&[row(UUID, 5, 1), letter(UUID, 0)]), [Outcome::Delivered]);
    assert_eq!(of(&[row("1", 5, 1), letter("1", 0)]), [SHARED]);
    let other = Entry { index: OTHER, ..row("1", 6, 2) };
    let both = of(&[row("1", 5, 1), other, letter("1", OTHER)]);
    assert_eq!(both, [Outcome::Missing, SHARED]);
}

/// The slot or the database may have been renamed since.
#[test]
fn another_names_dead_letter_belongs_to_a_row_of_its_table() {
    let of_other = |id, table| Entry { rank: Kinship::Sibling as u64, ..letter(id, table) };
    for table in [OUTBOX, 0] {
        assert_eq!(of(&[row(UUID, 5, 1), of_other(UUID, table)]), [Outcome::Delivered]);
        assert_eq!(of(&[row("1", 5, 1), of_other("1", table)]), [SHARED]);
    }
    assert_eq!(of(&[row(UUID, 5, 1), of_other(UUID, OTHER)]), [Outcome::Missing]);
}

#[test]
fn what_a_topic_may_have_lost_is_unknown() {
    let at = |time: Option<i64>| {
        let flags = if time.is_some() { flag::TIMED } else { 0 };
        Entry { key: time.unwrap_or_default().cast_unsigned(), flags, ..row(UUID, 5, 1) }
    };
    let one = |kept: Kept, row: Entry| {
        let topics = vec![Kept::default(), kept];
        judged(&[row], &Terms { topics, dead_letters: LETTERS, skips_rejected: false })
    };
    let since = 1_000_000_000;
    let removed = Kept { since_ms: Some(since), ..Kept::default() };
    let unknown = |reason| [Outcome::Unknown(reason)];
    assert_eq!(one(removed, at(Some(since))), unknown(UnknownReason::Removed));
    assert_eq!(one(removed, at(Some(since + CLOCKS_APART_MS))), unknown(UnknownReason::Removed));
    assert_eq!(one(removed, at(None)), unknown(UnknownReason::Removed));
    assert_eq!(one(removed, at(Some(since + CLOCKS_APART_MS + 1))), [Outcome::Missing]);
    let compacted = Kept { is_compacted: true, ..Kept::default() };
    assert_eq!(one(compacted, at(Some(i64::MAX))), unknown(UnknownReason::Compacted));
    let open = Kept { is_open: true, ..Kept::default() };
    assert_eq!(one(open, at(None)), unknown(UnknownReason::OpenTransaction));
    assert_eq!(one(Kept::default(), at(None)), [Outcome::Missing]);
}

#[test]
fn what_the_configuration_leaves_out_is_not_missing() {
    let dropped = Entry { kind: Kind::Dropped, ..row(UUID, 0, 1) };
    assert_eq!(of(&[dropped]), [Outcome::LeftOut]);
    let rejected = Entry { kind: Kind::Rejected, ..row(UUID, 0, 1) };
    let terms = Terms { skips_rejected: true, ..Terms::default() };
    assert_eq!(judged(&[rejected], &terms), [Outcome::LeftOut]);
}
