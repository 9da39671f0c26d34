//! Tests with a server's messages, the encoder, and random bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::encode::{self, Old, Table};
use super::*;
use crate::lsn::Lsn;

const TEXT: &str = include_str!("../../../fixtures/wal/text.hex");
const BINARY: &str = include_str!("../../../fixtures/wal/binary.hex");

fn recorded(lines: &str) -> Vec<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16);
    let message =
        |line: &str| line.as_bytes().chunks(2).map(|pair| byte(pair).expect("hex")).collect();
    lines.lines().map(message).collect()
}

fn columns<'a>(tuple: &Tuple<'a>) -> Vec<Column<'a>> {
    let columns: Vec<_> = tuple.columns().collect();
    assert_eq!(columns.len(), tuple.len());
    for (column, end) in tuple.columns().with_ends() {
        if let Column::Text(bytes) | Column::Binary(bytes) = column {
            assert_eq!(&tuple.as_bytes()[end - bytes.len()..end], bytes);
        }
    }
    columns
}

/// The recordings are the server's, so equality proves that every field was read.
fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    match message {
        Message::Begin(begin) => encode::begin(&mut out, begin),
        Message::Commit(commit) => encode::commit(&mut out, commit),
        Message::Origin(origin) => encode::origin(&mut out, origin),
        Message::Relation(relation) => {
            let columns: Vec<_> =
                relation.columns().map(|column| (column.name, column.type_oid)).collect();
            let Relation { id, schema, name, .. } = *relation;
            encode::relation(&mut out, &Table { id, schema, name, columns: &columns });
        }
        Message::Type(named) => encode::type_name(&mut out, named),
        Message::Insert(insert) => {
            encode::insert(&mut out, insert.relation, &columns(&insert.tuple));
        }
        Message::Update(update) => {
            let old = update.old.map(|old| match old {
                OldRow::Key(tuple) => (true, columns(&tuple)),
                OldRow::Whole(tuple) => (false, columns(&tuple)),
            });
            let old =
                old.as_ref().map(|(key, row)| if *key { Old::Key(row) } else { Old::Whole(row) });
            encode::update(&mut out, update.relation, old, &columns(&update.new));
        }
        Message::Delete(delete) => match delete.old {
            OldRow::Key(tuple) => {
                encode::delete(&mut out, delete.relation, Old::Key(&columns(&tuple)));
            }
            OldRow::Whole(tuple) => {
                encode::delete(&mut out, delete.relation, Old::Whole(&columns(&tuple)));
            }
        },
        Message::Truncate(truncate) => {
            let relations: Vec<_> = truncate.relations().collect();
            encode::truncate(&mut out, truncate.options, &relations);
        }
        Message::Logical(message) => encode::logical(&mut out, message),
        Message::StreamAbort(abort) => encode::stream_abort(&mut out, *abort),
    }
    out
}

#[test]
fn a_servers_messages_are_read_and_written_alike() {
    let mut tags = String::new();
    for data in recorded(TEXT).into_iter().chain(recorded(BINARY)) {
        let message = decode(&data).expect("a server's message");
        tags.push(char::from(data[0]));
        let Message::Relation(relation) = message else {
            assert_eq!(encoded(&message), data);
            continue;
        };
        // The encoder writes neither key columns nor type modifiers.
        let columns: Vec<_> = relation.columns().collect();
        assert!(columns[0].in_key && !columns[1].in_key);
        assert_eq!((columns[1].type_modifier, columns[2].type_modifier), (-1, 20 + 4));
        assert_eq!(relation.replica_identity, b'd');
        assert_eq!(encoded(&message).len(), data.len());
    }
    assert_eq!(tags, "BYYRIICBUCBUCBDCBYYRTCBMCII");
}

#[test]
fn a_servers_fields_are_where_they_belong() {
    let messages = recorded(TEXT);
    let Ok(Message::Begin(begin)) = decode(&messages[0]) else { panic!("Begin") };
    let Ok(Message::Commit(commit)) = decode(&messages[6]) else { panic!("Commit") };
    assert_eq!(begin.final_lsn, commit.commit_lsn);
    assert_eq!(begin.commit_time, commit.commit_time);
    assert!(commit.end_lsn > commit.commit_lsn);
    let Ok(Message::Relation(relation)) = decode(&messages[3]) else { panic!("Relation") };
    assert_eq!((relation.schema, relation.name), (&b"Shop"[..], &b"outbox"[..]));
    let named: Vec<_> = relation.columns().map(|column| (column.name, column.type_oid)).collect();
    assert_eq!(named.len(), 13, "the generated column is not sent");
    assert_eq!(named[0], (&b"id"[..], 2950));
    let Ok(Message::Insert(insert)) = decode(&messages[4]) else { panic!("Insert") };
    assert_eq!(insert.relation, relation.id);
    assert_eq!(columns(&insert.tuple)[1], Column::Text(b"OrderPaid"));
    assert_eq!(columns(&insert.tuple)[10], Column::Text(b"\\x61ff"));
    let Ok(Message::Update(update)) = decode(&messages[8]) else { panic!("Update") };
    assert_eq!((update.old, columns(&update.new)[12]), (None, Column::Unchanged));
    let Ok(Message::Logical(logical)) = decode(&messages[23]) else { panic!("Logical") };
    assert_eq!((logical.transactional, logical.prefix), (true, &b"pre"[..]));
    assert_eq!(logical.content, b"body");
    let inserts = recorded(BINARY);
    let Ok(Message::Insert(insert)) = decode(&inserts[0]) else { panic!("Insert") };
    assert_eq!(columns(&insert.tuple)[3], Column::Binary(&(-7_i32).to_be_bytes()));
}

#[test]
fn g7_a_message_cut_short_or_padded_is_refused() {
    for data in recorded(TEXT).into_iter().chain(recorded(BINARY)) {
        for end in 0..data.len() {
            assert!(decode(&data[..end]).is_err(), "tag {} cut to {end}", data[0]);
        }
        let mut padded = data.clone();
        padded.push(0);
        assert_eq!(decode(&padded), Err(DecodeError::Trailing { bytes: 1 }));
    }
}

#[test]
fn markers_that_mean_nothing_are_refused() {
    let marker = |field, found| Err(DecodeError::UnknownMarker { field, found });
    assert_eq!(decode(b""), Err(DecodeError::Empty));
    assert_eq!(decode(b"S\0\0\0\x01\x01"), Err(DecodeError::UnknownTag { tag: b'S' }));
    let parallel = [b"A\0\0\0\x01\0\0\0\x02".as_slice(), &[0; 16]].concat();
    assert_eq!(decode(&parallel), Err(DecodeError::Trailing { bytes: 16 }));
    assert_eq!(decode(b"I\0\0\0\x01K\0\0"), marker("row marker", b'K'));
    assert_eq!(decode(b"U\0\0\0\x01X\0\0"), marker("row marker", b'X'));
    assert_eq!(decode(b"D\0\0\0\x01N\0\0"), marker("row marker", b'N'));
    assert_eq!(decode(b"I\0\0\0\x01N\0\x01z"), marker("column kind", b'z'));
    assert_eq!(decode(&[b"C\x01".as_slice(), &[0; 24]].concat()), marker("commit flags", 1));
    assert_eq!(
        decode(b"I\0\0\0\x01N\0\x01t\xFF\xFF\xFF\xFF"),
        Err(DecodeError::NegativeLength { field: "column length" })
    );
    assert!(decode(b"T\x7F\xFF\xFF\xFF\0").is_err(), "a count beyond the message");
}

fn column((kind, bytes): &(u8, Vec<u8>)) -> Column<'_> {
    match kind {
        0 => Column::Null,
        1 => Column::Unchanged,
        2 => Column::Text(bytes),
        _ => Column::Binary(bytes),
    }
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    vec(1_u8.., 0..8)
}

fn rows() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    vec((0_u8..4, vec(any::<u8>(), 0..20)), 0..8)
}

proptest! {
    #[test]
    fn transactions_round_trip(final_lsn: u64, end: u64, time: i64, xid: u32, content: Vec<u8>, text in name()) {
        let (mut out, lsn, commit_time) = (Vec::new(), Lsn::new(final_lsn), PgTime(time));
        let begin = Begin { final_lsn: lsn, commit_time, xid };
        encode::begin(&mut out, &begin);
        prop_assert_eq!(decode(&out), Ok(Message::Begin(begin)));
        out.clear();
        let commit = Commit { commit_lsn: lsn, end_lsn: Lsn::new(end), commit_time };
        encode::commit(&mut out, &commit);
        prop_assert_eq!(decode(&out), Ok(Message::Commit(commit)));
        out.clear();
        let origin = Origin { commit_lsn: lsn, name: &text };
        encode::origin(&mut out, &origin);
        prop_assert_eq!(decode(&out), Ok(Message::Origin(origin)));
        out.clear();
        let abort = StreamAbort { xid, subxid: xid.rotate_left(7) };
        encode::stream_abort(&mut out, abort);
        prop_assert_eq!(decode(&out), Ok(Message::StreamAbort(abort)));
        out.clear();
        let logical = LogicalMessage { transactional: xid % 2 == 1, lsn, prefix: &text, content: &content };
        encode::logical(&mut out, &logical);
        prop_assert_eq!(decode(&out), Ok(Message::Logical(logical)));
    }

    #[test]
    fn rows_round_trip(relation: u32, before in rows(), after in rows(), cut: prop::sample::Index) {
        let before: Vec<_> = before.iter().map(column).collect();
        let after: Vec<_> = after.iter().map(column).collect();
        let mut messages = vec![Vec::new(); 6];
        encode::insert(&mut messages[0], relation, &after);
        encode::update(&mut messages[1], relation, None, &after);
        encode::update(&mut messages[2], relation, Some(Old::Key(&before)), &after);
        encode::update(&mut messages[3], relation, Some(Old::Whole(&before)), &after);
        encode::delete(&mut messages[4], relation, Old::Key(&before));
        encode::delete(&mut messages[5], relation, Old::Whole(&before));
        for data in &messages {
            let message = decode(data).expect("well formed");
            prop_assert_eq!(&encoded(&message), data);
            prop_assert!(decode(&data[..cut.index(data.len())]).is_err());
        }
        let Ok(Message::Insert(insert)) = decode(&messages[0]) else { panic!("Insert") };
        prop_assert_eq!((insert.relation, columns(&insert.tuple)), (relation, after));
    }

    #[test]
    fn descriptions_round_trip(id: u32, schema in name(), table in name(), described in vec((name(), any::<u32>()), 0..6), emptied: Vec<u32>) {
        let columns: Vec<_> = described.iter().map(|(name, oid)| (name.as_slice(), *oid)).collect();
        let mut messages = vec![Vec::new(); 3];
        encode::relation(&mut messages[0], &Table { id, schema: &schema, name: &table, columns: &columns });
        encode::type_name(&mut messages[1], &Type { id, schema: &schema, name: &table });
        encode::truncate(&mut messages[2], 3, &emptied);
        for data in &messages {
            prop_assert_eq!(&encoded(&decode(data).expect("well formed")), data);
        }
        let Ok(Message::Truncate(truncate)) = decode(&messages[2]) else { panic!("Truncate") };
        prop_assert_eq!(truncate.relations().collect::<Vec<_>>(), emptied);
    }

    #[test]
    fn g7_any_bytes_are_a_message_or_an_error(tag: prop::sample::Index, mut data: Vec<u8>) {
        if let Some(first) = data.first_mut() {
            *first = *tag.get(b"BCORYIUDTMA?");
        }
        if let Ok(message) = decode(&data) {
            encoded(&message);
        }
    }

    #[test]
    fn g7_a_damaged_message_is_a_message_or_an_error(pick: prop::sample::Index, at: prop::sample::Index, byte: u8) {
        let mut messages = recorded(TEXT);
        let damaged = pick.index(messages.len());
        let data = &mut messages[damaged];
        let place = at.index(data.len());
        data[place] = byte;
        if let Ok(message) = decode(data) {
            encoded(&message);
        }
    }
}
