//! Tests of a table's rows as frames, against a scripted server that splits its messages.

use super::super::buffer::BASE_BYTES;
use super::super::script::{Script, message, report};
use super::*;
use postrider_core::outbox::TableName;
use postrider_core::pgoutput::{Message as Decoded, decode};

const ORDERED: &[&str] = &["n"];

fn column(name: &str) -> RowColumn {
    RowColumn { name: name.to_owned(), type_oid: 25, modifier: -1, is_nullable: true }
}

fn scan(table: &str, order: &[&str]) -> TableScan {
    TableScan {
        table: TableName::new("public", table),
        table_oid: 7,
        columns: vec![column("n"), column("text")],
        sent: 2,
        order: order.iter().map(|name| (0, OrderColumn::not_null(*name))).collect(),
        is_marked: false,
        sql: format!("COPY {table}"),
    }
}

fn answer(numbers: std::ops::Range<u32>) -> Vec<u8> {
    let row = |n: u32| message(b'd', format!("{n}\tx\n").as_bytes());
    let mut wire = message(b'H', &[0, 0, 0]);
    wire.extend(numbers.flat_map(row));
    wire.extend([message(b'c', b""), message(b'C', b"COPY 1\0"), message(b'Z', b"T")].concat());
    wire
}

fn stream(wire: Vec<u8>, piece: usize, scans: Vec<TableScan>) -> TableStream<Script> {
    let connection = Connection::over(Script::stuttering(wire, piece), BASE_BYTES);
    let positions = Positions { first: Lsn::new(5), rows: 0, end: Lsn::new(1 << 40) };
    TableStream::begin(connection, scans, positions)
}

/// A letter per frame, with the number of a row.
fn drain(stream: &mut TableStream<Script>) -> (Vec<String>, Option<WalError>) {
    let (mut seen, mut idle) = (Vec::new(), 0);
    while idle < 5 && !stream.is_done() {
        loop {
            match stream.peek() {
                Ok(Some(frame)) => seen.push(shown(frame)),
                Ok(None) => break,
                Err(error) => return (seen, Some(error)),
            }
            stream.consume();
        }
        match stream.fill(Duration::from_millis(1)) {
            Ok(0) => idle += 1,
            Ok(_) => idle = 0,
            Err(error) => return (seen, Some(error)),
        }
    }
    (seen, None)
}

fn shown(frame: Frame<'_>) -> String {
    let Frame::Wal { data, .. } = frame else {
        let Frame::Keepalive { end, .. } = frame else { unreachable!("a table has no such frame") };
        return format!("end {end}");
    };
    match decode(data).unwrap() {
        Decoded::Begin(begin) => format!("B {}", begin.final_lsn),
        Decoded::Commit(commit) => format!("C {}", commit.end_lsn),
        Decoded::Relation(relation) => format!("R {}", String::from_utf8_lossy(relation.name)),
        Decoded::Insert(insert) => {
            let first = insert.tuple.columns().next();
            let Some(postrider_core::pgoutput::Column::Text(number)) = first else {
                unreachable!("every row here has a number")
            };
            String::from_utf8_lossy(number).into_owned()
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn a_row_is_marked_by_a_column_of_its_own_which_is_not_shown() {
    let row = |text: &str| message(b'd', text.as_bytes());
    let rows = ["a\t1\t65\n", "b\t1\t0\n", "c\t\\N\t255\n"].map(row).concat();
    let end = [message(b'c', b""), message(b'C', b"COPY 3\0"), message(b'Z', b"T")].concat();
    let marked = TableScan { is_marked: true, ..scan("a", ORDERED) };
    let plain = [message(b'd', b"7\t7\n"), end.clone()].concat();
    let wire = [message(b'H', &[0, 0, 0]), rows, end, message(b'H', &[0, 0, 0]), plain].concat();
    let mut stream = stream(wire, 4096, vec![marked, scan("b", ORDERED)]);
    let mut seen = Vec::new();
    stream.fill(Duration::from_millis(1)).unwrap();
    while let Some(frame) = stream.peek().unwrap() {
        let shown = shown(frame);
        seen.push((shown, stream.marks().unwrap()));
        stream.consume();
    }
    let marked: Vec<_> = seen.iter().filter(|(_, marks)| *marks > 0).collect();
    assert_eq!(marked, [&("a".to_owned(), 65), &("c".to_owned(), 255)]);
    assert_eq!((stream.rows(), stream.is_done()), (4, true));
}

#[test]
fn tables_are_transactions_of_their_own_and_end_with_a_keepalive() {
    let wire = [answer(0..2), answer(0..0), answer(2..3)].concat();
    let expected = ["B 0/5", "R a", "0", "1", "C 0/7", "B 0/7", "R c", "2", "C 0/9", "end 100/0"];
    for piece in [1, 3, 64, 4096] {
        let scans = ["a", "b", "c"].map(|table| scan(table, ORDERED)).to_vec();
        let mut stream = stream(wire.clone(), piece, scans);
        assert_eq!(drain(&mut stream), (expected.map(str::to_owned).to_vec(), None), "{piece}");
        assert_eq!((stream.rows(), stream.received()), (3, Lsn::new(1 << 40)));
    }
}

#[test]
fn many_rows_are_many_transactions_and_each_end_has_its_place() {
    let rows = TRANSACTION_ROWS * 2 + 3;
    let mut stream = stream(answer(0..rows), 1 << 16, vec![scan("a", ORDERED)]);
    let (seen, error) = drain(&mut stream);
    assert_eq!(error, None);
    let begins: Vec<_> = seen.iter().filter(|frame| frame.starts_with('B')).collect();
    assert_eq!(begins, ["B 0/5", "B 0/7", "B 0/9"]);
    let after = |end: u64| stream.cursor_at(Lsn::new(end)).map(|cursor| cursor.after.clone());
    assert_eq!(after(5), None);
    assert_eq!(after(7), Some(vec![(TRANSACTION_ROWS - 1).to_string()]));
    assert_eq!(after(9), Some(vec![(TRANSACTION_ROWS * 2 - 1).to_string()]));
    assert_eq!(after(11), Some(vec![(rows - 1).to_string()]));
    assert_eq!(stream.cursor().map(|cursor| cursor.table), Some("public.a".to_owned()));
}

#[test]
fn rows_that_were_delivered_before_count_in_the_first_transaction() {
    let connection = Connection::over(Script::new(answer(0..3), 1 << 16), BASE_BYTES);
    let positions =
        Positions { first: Lsn::new(5), rows: TRANSACTION_ROWS - 2, end: Lsn::new(1 << 40) };
    let mut stream = TableStream::begin(connection, vec![scan("a", &[])], positions);
    let expected = ["B 0/5", "R a", "0", "1", "C 0/7", "B 0/7", "2", "C 0/9", "end 100/0"];
    assert_eq!(drain(&mut stream).0, expected);
    assert_eq!(stream.cursor(), None, "rows without an order have no place");
}

fn only(numbers: impl IntoIterator<Item = u64>) -> RowNumbers {
    let mut writer = RowNumbersWriter::new(tempfile::tempfile().unwrap());
    for number in numbers {
        writer.push(number).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn of_all_tables_only_the_rows_with_these_numbers_are_shown() {
    let wire = [answer(0..4), answer(4..4), answer(4..6)].concat();
    let tables = || ["a", "b", "c"].map(|table| scan(table, ORDERED)).to_vec();
    let cases: [(&[u64], &[&str]); 4] = [
        (
            &[2, 4, 6],
            &["B 0/5", "R a", "1", "3", "C 0/7", "B 0/7", "R c", "5", "C 0/9", "end 100/0"],
        ),
        (&[5], &["B 0/5", "R c", "4", "C 0/7", "end 100/0"]),
        (&[], &["end 100/0"]),
        (&[1], &["B 0/5", "R a", "0", "C 0/7", "end 100/0"]),
    ];
    for (numbers, expected) in cases {
        for piece in [1, 64, 4096] {
            let numbers = only(numbers.iter().copied());
            let mut stream = stream(wire.clone(), piece, tables()).only(Some(numbers));
            assert_eq!(
                drain(&mut stream),
                (expected.iter().map(ToString::to_string).collect(), None)
            );
            let _ = stream.into_connection();
        }
    }
    let mut short = stream(wire, 64, tables()).only(Some(only([3, 7])));
    assert!(matches!(drain(&mut short).1, Some(WalError::Protocol(_))), "there is no row 7");
}

#[test]
fn g7_what_is_no_answer_to_copy_is_an_error_that_stays() {
    let refused = report(b'E', "ERROR", "42P01", "no such table");
    let other = message(b'T', b"\0\0");
    let short = [message(b'H', &[0, 0, 0]), message(b'd', b"1\n")].concat();
    for wire in [refused, other, short] {
        let mut stream = stream(wire, 64, vec![scan("a", ORDERED)]);
        assert!(drain(&mut stream).1.is_some());
        assert!(stream.peek().is_err());
    }
}

#[test]
fn g3_a_row_over_the_limit_is_told_with_its_size() {
    let row = message(b'd', &vec![b'x'; BASE_BYTES * 2]);
    let wire = [message(b'H', &[0, 0, 0]), row].concat();
    let mut stream = stream(wire, 1 << 16, vec![scan("a", ORDERED)]);
    let (_, error) = drain(&mut stream);
    let Some(WalError::RowTooLarge { table, bytes, limit }) = error else { panic!("{error:?}") };
    assert_eq!((table.as_str(), limit), ("public.a", BASE_BYTES));
    assert!(bytes > BASE_BYTES * 2, "{bytes}");
}
