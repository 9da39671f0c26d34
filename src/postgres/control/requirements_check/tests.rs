//! Tests of refusals and warnings.

use std::time::Duration;

use super::*;
use crate::control::inspect::{
    NewSlot, Others, PartFacts, PublicationFacts, Published, ServerFacts,
};
use postrider_core::lsn::Lsn;

pub(in crate::control) fn wanted() -> Requirements {
    Requirements {
        slot: "postrider".to_owned(),
        publication: "postrider".to_owned(),
        tables: vec![TableName::new("public", "outbox")],
        columns: vec![
            Wanted::required("id"),
            Wanted::required("event_type"),
            Wanted::optional("traceparent"),
        ],
        messages: false,
        create: false,
        new_slot: NewSlot::Failover,
    }
}

pub(in crate::control) fn good() -> Inspection {
    Inspection {
        server: ServerFacts {
            version_num: 150_000,
            encoding: "UTF8".to_owned(),
            wal_level: "logical".to_owned(),
            wal_sender_timeout: Duration::from_mins(1),
            in_recovery: false,
            database: "shop".to_owned(),
            role: "relay".to_owned(),
            may_replicate: true,
            system: Some(("7".to_owned(), 1)),
        },
        tables: vec![Some(TableFacts {
            oid: 1,
            kind: 'r',
            persistence: 'p',
            columns: vec!["id".to_owned(), "type".to_owned()],
            not_null: Vec::new(),
            generated: Vec::new(),
            parts: Vec::new(),
            published: Some(Published {
                filters_rows: false,
                columns: Vec::new(),
                member: Some(3),
                place: None,
            }),
        })],
        publication: Some(PublicationFacts {
            oid: 2,
            xid: 700,
            inserts: true,
            other_changes: false,
            via_partition_root: false,
            others: 0,
            first_others: Vec::new(),
        }),
        slot: Some(SlotFacts {
            plugin: Some("pgoutput".to_owned()),
            database: Some("shop".to_owned()),
            active_pid: None,
            holder: String::new(),
            confirmed_flush: Some(Lsn::new(1)),
            restart: Some(Lsn::new(1)),
            wal_status: Some("reserved".to_owned()),
            invalidation: None,
            synced: false,
            two_phase: false,
            waits_for: None,
        }),
        others: Others::default(),
        lacking: super::super::LackingRights::default(),
    }
}

fn table(inspection: &mut Inspection) -> &mut TableFacts {
    inspection.tables[0].as_mut().unwrap()
}

#[test]
fn a_good_database_is_not_refused() {
    assert_eq!(good().refusals(&wanted()), []);
    assert_eq!(good().warnings(&wanted()), []);
    assert_eq!(good().held(&wanted()), None);
}

#[test]
fn a_partition_and_a_listed_child_are_not_refused() {
    let part = |name: &str, is_partition| PartFacts {
        oid: 7,
        name: TableName::new("public", name),
        is_partition,
        kind: 'r',
        persistence: 'p',
    };
    let mut inspection = good();
    table(&mut inspection).parts = vec![part("p1", true), part("outbox", false)];
    assert_eq!(inspection.refusals(&wanted()), []);
}

/// Rows of the slot's earlier tables would be acknowledged without delivery.
#[test]
fn g1_new_tables_do_not_take_the_place_of_those_that_the_slot_delivers() {
    let with_others = |i: &mut Inspection| {
        let publication = i.publication.as_mut().unwrap();
        (publication.others, publication.first_others) =
            (2, vec![TableName::new("public", "letters")]);
    };
    let mut inspection = good();
    with_others(&mut inspection);
    assert_eq!(inspection.refusals(&wanted()), []);
    let warning = inspection.warnings(&wanted()).remove(0).what;
    assert!(warning.contains("public.letters, ..") && warning.contains("undelivered"));
    table(&mut inspection).published = None;
    let refusals = inspection.refusals(&wanted());
    assert!(matches!(refusals.as_slice(), [ControlError::TablesLeftOut { .. }]), "{refusals:?}");
    inspection.tables[0] = None;
    let refusals = inspection.refusals(&wanted());
    assert!(
        matches!(
            refusals.as_slice(),
            [ControlError::TableMissing { .. }, ControlError::TablesLeftOut { .. }]
        ),
        "{refusals:?}"
    );
    inspection.slot = None;
    let refusals = inspection.refusals(&wanted());
    assert!(!refusals.iter().any(|one| matches!(one, ControlError::TablesLeftOut { .. })));
}

#[test]
fn a_generated_column_is_sent_from_18_on_where_it_is_published() {
    let generated = |version: i32, published: &[&str]| {
        let mut inspection = good();
        inspection.server.version_num = version;
        table(&mut inspection).generated = vec!["type".to_owned()];
        let columns = published.iter().map(|column| (*column).to_owned()).collect();
        table(&mut inspection).published.as_mut().unwrap().columns = columns;
        inspection.refusals(&wanted())
    };
    for (version, published) in [(140_000, &[][..]), (170_000, &["id", "type"]), (180_000, &["id"])]
    {
        let refusals = generated(version, published);
        assert!(
            matches!(&refusals[..], [ControlError::PublicationHidesColumns { .. }]),
            "{version}: {refusals:?}"
        );
    }
    assert!(generated(180_000, &["id", "type"]).is_empty());
    // Before `setup` creates anything.
    let mut inspection = good();
    (inspection.publication, inspection.slot) = (None, None);
    table(&mut inspection).published = None;
    table(&mut inspection).generated = vec!["type".to_owned()];
    let hides =
        |refusal: &ControlError| matches!(refusal, ControlError::PublicationHidesColumns { .. });
    assert!(inspection.refusals(&wanted()).iter().any(hides));
}

#[test]
fn what_only_costs_is_a_warning() {
    let mut inspection = good();
    inspection.publication.as_mut().unwrap().other_changes = true;
    inspection.publication.as_mut().unwrap().others = 9;
    inspection.server.encoding = "SQL_ASCII".to_owned();
    inspection.slot.as_mut().unwrap().wal_status = Some("unreserved".to_owned());
    assert_eq!(inspection.warnings(&wanted()).len(), 4);
}
