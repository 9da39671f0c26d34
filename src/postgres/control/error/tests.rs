//! Tests of these errors' hints.

use super::*;

/// Dropping a slot loses its undelivered rows.
#[test]
fn no_advice_about_a_missing_publication_drops_the_slot() {
    let slot = || "s".to_owned();
    let hint = |others: &[&str]| {
        let missing = ControlError::PublicationMissing {
            publication: "nopub".to_owned(),
            tables: Vec::new(),
            slot: slot(),
            slot_exists: true,
            others: others.iter().map(ToString::to_string).collect(),
        };
        missing.hint().unwrap()
    };
    let mistyped = hint(&["postrider"]);
    assert!(
        mistyped
            .starts_with("is source.publication = `nopub` right? this database has `postrider`")
    );
    assert!(!mistyped.contains("pg_drop_replication_slot"), "{mistyped}");
    let dropped = hint(&[]);
    assert!(!dropped.contains("pg_drop_replication_slot"), "{dropped}");
    let at = |words: &str| dropped.find(words).unwrap_or_else(|| panic!("{words}: {dropped}"));
    assert!(at("`nopub` right?") < at("CREATE PUBLICATION \"nopub\""));
    assert!(at("`postrider repair`") < at("are lost"));
    let foreign = ControlError::SlotForeign {
        slot: "postrider".to_owned(),
        what: "it belongs to database `shop`".to_owned(),
        database: "Shop-2".to_owned(),
    };
    let hint = foreign.hint().unwrap();
    assert!(hint.contains("POSTRIDER_SOURCE__SLOT=postrider_shop_2 "), "{hint}");
    let lost = ControlError::SlotLost { slot: slot(), reason: String::new() }.hint().unwrap();
    assert!(lost.contains("re-send") && lost.contains("setup --from-now"), "{lost}");
    let gone = ControlError::SlotMissing { slot: slot(), others: Vec::new() }.hint().unwrap();
    assert!(gone.contains("this database has no slots") && gone.contains("setup"), "{gone}");
}

#[test]
fn every_refusal_has_a_hint_and_its_exit_code() {
    let table = || TableName::new("public", "Out\"box");
    let lost = ControlError::SlotLost { slot: "it's".to_owned(), reason: String::new() };
    assert_eq!(lost.exit_code(), 70);
    assert!(lost.hint().unwrap().contains("pg_drop_replication_slot('it''s')"));
    let missing = ControlError::PublicationMissing {
        publication: "p".to_owned(),
        tables: vec![table()],
        slot: "s".to_owned(),
        slot_exists: false,
        others: vec!["q".to_owned()],
    };
    assert_eq!(missing.exit_code(), 78);
    assert_eq!(
        missing.hint().unwrap(),
        "is source.publication = `p` right? this database has `q`; if it is new: `postrider \
         setup`, which does: CREATE PUBLICATION \"p\" FOR TABLE \"public\".\"Out\"\"box\" \
         WITH (publish = 'insert', publish_via_partition_root = true);"
    );
    let role = ControlError::RoleMayNotReplicate { role: "r".to_owned() };
    assert_eq!(role.exit_code(), 77);
    assert!(role.hint().unwrap().starts_with("ALTER ROLE \"r\" REPLICATION;"));
    let held =
        ControlError::SlotHeld { slot: "s".to_owned(), pid: 7, holder: "postrider".to_owned() };
    assert_eq!((held.exit_code(), held.class().is_transient()), (75, true));
    assert!(held.to_string().ends_with("process 7 (postrider)"));
}

#[test]
fn a_table_without_columns_has_none() {
    let error = |present: &[&str]| {
        let (missing, present) = (vec!["id".to_owned()], present.iter().map(ToString::to_string));
        let table = TableName::new("public", "t");
        ControlError::ColumnsMissing { table, missing, present: present.collect() }.to_string()
    };
    assert!(error(&[]).ends_with("has no column id (it has none)"), "{}", error(&[]));
    assert!(error(&["a", "b"]).ends_with("(it has a, b)"), "{}", error(&["a", "b"]));
}
