//! Any bytes are a pgoutput message or a typed error (G7), and what is read is what was written.

use postrider::pgoutput::encode::{self, Old};
use postrider::pgoutput::{Column, Message, OldRow, Tuple, decode};

/// Tries one input.
pub(crate) fn run(data: &[u8]) {
    let Ok(message) = decode(data) else { return };
    let mut written = Vec::new();
    match &message {
        Message::Begin(begin) => encode::begin(&mut written, begin),
        Message::Commit(commit) => encode::commit(&mut written, commit),
        Message::Origin(origin) => encode::origin(&mut written, origin),
        Message::Type(named) => encode::type_name(&mut written, named),
        Message::Logical(logical) => encode::logical(&mut written, logical),
        Message::StreamAbort(abort) => encode::stream_abort(&mut written, *abort),
        Message::Truncate(truncate) => {
            let relations: Vec<_> = truncate.relations().collect();
            encode::truncate(&mut written, truncate.options, &relations);
        }
        Message::Insert(insert) => {
            encode::insert(&mut written, insert.relation, &columns(&insert.tuple));
        }
        Message::Update(update) => {
            let before = update.old.map(|old| old_columns(&old));
            let before = before.as_ref().map(|(key, row)| old(*key, row));
            encode::update(&mut written, update.relation, before, &columns(&update.new));
        }
        Message::Delete(delete) => {
            let (key, row) = old_columns(&delete.old);
            encode::delete(&mut written, delete.relation, old(key, &row));
        }
        // The writer leaves out what a reader of outboxes does not need.
        Message::Relation(relation) => {
            assert_eq!(relation.columns().count(), relation.columns().len());
            return;
        }
    }
    assert_eq!(written, data);
}

fn columns<'a>(tuple: &Tuple<'a>) -> Vec<Column<'a>> {
    let columns: Vec<_> = tuple.columns().collect();
    assert_eq!(columns.len(), tuple.len());
    columns
}

fn old_columns<'a>(old: &OldRow<'a>) -> (bool, Vec<Column<'a>>) {
    match old {
        OldRow::Key(tuple) => (true, columns(tuple)),
        OldRow::Whole(tuple) => (false, columns(tuple)),
    }
}

fn old<'a>(key: bool, row: &'a [Column<'a>]) -> Old<'a> {
    if key { Old::Key(row) } else { Old::Whole(row) }
}
