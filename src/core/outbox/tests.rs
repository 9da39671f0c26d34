//! Tests of the relation cache.

use super::fixture::{TABLE, describe, describe_domain, insert, spec};
use super::*;
use crate::pgoutput::Column::{Binary, Null, Text, Unchanged};

const fn text(bytes: &[u8]) -> Value<'_> {
    Value::Bytes { bytes, type_oid: type_oid::TEXT, format: Format::Text }
}

#[test]
fn columns_are_found_by_name_in_the_shape_last_described() {
    let mut spec = spec();
    let (id, payload) = (spec.want(Wanted::required("id")), spec.want(Wanted::required("payload")));
    let note = spec.want(Wanted::optional("note"));
    let (mut outbox, mut data) = (Outbox::new(spec), Vec::new());
    let columns = [("id", type_oid::INT8), ("payload", type_oid::TEXT)];
    describe(&mut outbox, TABLE, "outbox", &columns);
    let row = [Binary(&[0, 0, 0, 0, 0, 0, 0, 9]), Text(b"one")];
    let row = insert(&mut outbox, &mut data, TABLE, &row).expect("a row").expect("of the outbox");
    let number = [0, 0, 0, 0, 0, 0, 0, 9];
    let bytes = number.as_slice();
    let expected = Value::Bytes { bytes, type_oid: type_oid::INT8, format: Format::Binary };
    assert_eq!(row.column(id), expected);
    assert_eq!((row.column(payload), row.column(note)), (text(b"one"), Value::Absent));
    assert_eq!(row.table().to_string(), "public.outbox");

    let columns = ["note", "payload", "extra", "id"].map(|name| (name, type_oid::TEXT));
    describe(&mut outbox, TABLE, "outbox", &columns);
    let row = [Null, Text(b""), Text(b"?"), Text(b"id")];
    let row = insert(&mut outbox, &mut data, TABLE, &row).expect("a row").expect("of the outbox");
    assert_eq!((row.column(id), row.column(payload)), (text(b"id"), text(b"")));
    assert_eq!(row.column(note), Value::Null);
}

#[test]
fn debeziums_names_stand_in_for_ours_but_never_before_them() {
    let mut spec = spec();
    let kind = spec.want(Wanted::required("event_type"));
    let (mut outbox, mut data) = (Outbox::new(spec), Vec::new());
    describe(&mut outbox, TABLE, "outbox", &[("type", type_oid::TEXT)]);
    let row = insert(&mut outbox, &mut data, TABLE, &[Text(b"Paid")]).expect("a row");
    assert_eq!(row.expect("of the outbox").column(kind), text(b"Paid"));
    let both = [("type", type_oid::TEXT), ("event_type", type_oid::TEXT)];
    describe(&mut outbox, TABLE, "outbox", &both);
    let row = insert(&mut outbox, &mut data, TABLE, &[Text(b"theirs"), Text(b"ours")]);
    assert_eq!(row.expect("a row").expect("of the outbox").column(kind), text(b"ours"));
}

#[test]
fn other_tables_are_told_apart_from_unknown_ones() {
    let mut spec = OutboxSpec::new(vec![
        TableName::new("public", "outbox"),
        TableName::new("public", "letters"),
    ]);
    spec.want(Wanted::required("id"));
    let (mut outbox, mut data) = (Outbox::new(spec), Vec::new());
    let columns = [("id", type_oid::TEXT)];
    describe(&mut outbox, 1, "outbox", &columns);
    describe(&mut outbox, 2, "letters", &columns);
    describe(&mut outbox, 3, "orders", &[("whatever", type_oid::TEXT)]);
    for (table, name) in [(1, "outbox"), (2, "letters")] {
        let row = insert(&mut outbox, &mut data, table, &[Text(b"x")]).expect("a row");
        assert_eq!(row.expect("of an outbox").table().name, name);
    }
    assert!(insert(&mut outbox, &mut data, 3, &[Text(b"x"), Null]).expect("a row").is_none());
    assert_eq!(
        insert(&mut outbox, &mut data, 4, &[Text(b"x")]).expect_err("never described"),
        OutboxError::UnknownRelation { relation: 4 }
    );
    assert_eq!(outbox.table(2), Some(&TableName::new("public", "letters")));
    assert_eq!((outbox.table(3), outbox.table(4)), (None, None));
    describe(&mut outbox, 1, "outbox_old", &columns);
    describe(&mut outbox, 3, "outbox", &columns);
    assert!(insert(&mut outbox, &mut data, 1, &[Text(b"x")]).expect("a row").is_none());
    assert!(insert(&mut outbox, &mut data, 3, &[Text(b"x")]).expect("a row").is_some());
}

#[test]
fn g1_a_table_is_known_by_its_oid_whatever_it_was_called_when_the_row_was_written() {
    let mut spec = spec();
    let id = spec.want(Wanted::required("id"));
    spec.identify(TableName::new("public", "outbox"), TABLE);
    let (mut outbox, mut data) = (Outbox::new(spec), Vec::new());
    for name in ["old", "outbox", "outbox_renamed"] {
        describe(&mut outbox, TABLE, name, &[("id", type_oid::TEXT)]);
        let row = insert(&mut outbox, &mut data, TABLE, &[Text(b"x")]).expect("a row");
        let row = row.expect("of the outbox");
        assert_eq!(
            (row.table().to_string().as_str(), row.column(id)),
            ("public.outbox", text(b"x"))
        );
    }
    // A dropped table had the name before.
    describe(&mut outbox, TABLE - 1, "outbox", &[("id", type_oid::TEXT)]);
    assert!(insert(&mut outbox, &mut data, TABLE - 1, &[Text(b"x")]).expect("a row").is_some());
}

#[test]
fn a_column_is_found_by_the_first_of_its_names_and_absent_where_there_is_none() {
    let aliases = [("key".to_owned(), vec!["agg".to_owned()])].into();
    let mut spec = spec().with_aliases(aliases);
    let key = spec.want(Wanted::required("key"));
    assert_eq!(spec.wanted()[0].aliases, ["agg"]);
    let (mut outbox, mut data) = (Outbox::new(spec), Vec::new());
    let mut found = |columns: &[&str]| {
        let columns: Vec<_> = columns.iter().map(|name| (*name, type_oid::TEXT)).collect();
        describe(&mut outbox, TABLE, "outbox", &columns);
        let values = [Text(b"1"), Text(b"2"), Null];
        let row = insert(&mut outbox, &mut data, TABLE, &values[..columns.len()]).expect("a row");
        let row = row.expect("of the outbox");
        assert!(row.all().map(|(name, _)| name).eq(columns.iter().map(|(name, _)| *name)));
        match row.column(key) {
            Value::Bytes { bytes, .. } => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    };
    assert_eq!(found(&["key", "agg"]).as_deref(), Some("1"));
    assert_eq!(found(&["agg", "key"]).as_deref(), Some("2"));
    assert_eq!(found(&["other", "agg"]).as_deref(), Some("2"));
    assert_eq!(found(&["other", "another"]), None);
}

#[test]
fn g7_rows_unlike_their_table_are_refused() {
    let mut spec = spec();
    let id = spec.want(Wanted::required("id"));
    let (mut outbox, mut data) = (Outbox::new(spec), Vec::new());
    describe(&mut outbox, TABLE, "outbox", &[("id", type_oid::TEXT)]);
    for row in [&[][..], &[Null, Null]] {
        let error = insert(&mut outbox, &mut data, TABLE, row).expect_err("refused");
        assert!(matches!(error, OutboxError::ColumnCount { expected: 1, .. }));
    }
    let error = insert(&mut outbox, &mut data, TABLE, &[Unchanged]).expect_err("refused");
    assert!(matches!(error, OutboxError::ValueLeftOut { .. }));
    let row = insert(&mut outbox, &mut data, TABLE, &[Text(b"fine")]).expect("a row");
    let row = row.expect("of the outbox");
    assert_eq!(row.column(id), text(b"fine"));
}

#[test]
fn domains_are_treated_as_their_base_type() {
    let mut spec = spec();
    let payload = spec.want(Wanted::required("payload"));
    let (mut outbox, mut data) = (Outbox::new(spec), Vec::new());
    let type_of = |outbox: &mut Outbox, data: &mut Vec<u8>| {
        describe(outbox, TABLE, "outbox", &[("payload", 20_000)]);
        match insert(outbox, data, TABLE, &[Text(b"\\x")])
            .expect("a row")
            .expect("ours")
            .column(payload)
        {
            Value::Bytes { type_oid, .. } => type_oid,
            other => panic!("{other:?}"),
        }
    };
    describe_domain(&mut outbox, 20_000, "", "bytea");
    assert_eq!(type_of(&mut outbox, &mut data), type_oid::BYTEA);
    describe_domain(&mut outbox, 20_000, "public", "bytea");
    assert_eq!(type_of(&mut outbox, &mut data), 20_000, "a type of another schema");
    describe_domain(&mut outbox, 20_000, "", "bytea");
    describe_domain(&mut outbox, 20_000, "", "circle");
    assert_eq!(type_of(&mut outbox, &mut data), 20_000, "dropped and made anew");
}
