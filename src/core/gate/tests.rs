//! Tests of resuming, by example and over random facts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::outbox::Position;
use crate::pgoutput::PgTime;
use crate::pipeline::CommitId;
use crate::progress::{BackfillProgress, RepairScope, Since};

const fn at(position: u64) -> Lsn {
    Lsn::new(position)
}

fn lineage(timeline: u32) -> Lineage {
    Lineage {
        system: "7312".to_owned(),
        timeline,
        database: "shop".to_owned(),
        slot: "postrider".to_owned(),
        publication: 7,
        tables: BTreeMap::from([("public.outbox".to_owned(), 8)]),
        ..Lineage::default()
    }
}

/// Timeline 3: 1 ended at 1000, 2 at 2000, the log at 3000; the slot is at 500.
fn facts(timeline: u32) -> Facts {
    let ancestors = [(1, at(1000)), (2, at(2000))];
    Facts {
        lineage: lineage(timeline),
        server: at(3000),
        history: ancestors.into_iter().filter(|(ancestor, _)| *ancestor < timeline).collect(),
        confirmed: at(500),
        created: false,
        exactly_once: true,
        publication: "outbox".to_owned(),
        next_xid: 900,
    }
}

fn progress(timeline: u32, mark: Mark) -> Progress {
    Progress { lineage: lineage(timeline), mark, backfill: None }
}

fn part(end: u64, commit: u64) -> Mark {
    Mark { part: Some(PartialTransaction { commit_lsn: at(commit), rows: 5 }), ..whole(end) }
}

fn whole(end: u64) -> Mark {
    Mark::at(at(end))
}

fn resumed(now: u32, before: u32, mark: Mark) -> (Mark, bool) {
    let resume = judge(&facts(now), Some(&progress(before, mark))).unwrap();
    for warning in &resume.warnings {
        assert!(matches!(warning, Warning::TailLost { .. }) && !warning.hint().is_empty());
    }
    (resume.mark, !resume.warnings.is_empty())
}

fn refused(now: &Facts, progress: Option<&Progress>) -> GateError {
    let error = judge(now, progress).unwrap_err();
    assert!(error.to_string().contains("slot `postrider`"), "{error}");
    assert!(error.hint().contains("adopt") || error.hint().contains("start with"), "{error}");
    error
}

#[test]
fn g1_g6_an_unfinished_backfill_is_not_carried_on_as_a_stream() {
    let begins = Some(Lsn::new(500));
    for (begins, end) in [(None, 0), (begins, 7)] {
        let snapshot = "1:2:".to_owned();
        let backfill = Some(BackfillProgress { begins, snapshot, ..BackfillProgress::default() });
        let unfinished = Progress { backfill, ..progress(1, Mark::at(Lsn::new(end))) };
        for exactly_once in [true, false] {
            let now = Facts { exactly_once, ..facts(1) };
            let error = judge(&now, Some(&unfinished)).unwrap_err();
            assert!(matches!(error, GateError::BackfillUnfinished { .. }), "{error}");
            assert!(error.hint().contains("postrider backfill"), "{}", error.hint());
            let mut repair = unfinished.clone();
            repair.backfill.as_mut().unwrap().repair = Some(RepairScope::default());
            let error = judge(&now, Some(&repair)).unwrap_err();
            assert!(matches!(error, GateError::RepairUnfinished { .. }), "{error}");
            assert!(error.hint().contains("postrider repair"), "{}", error.hint());
        }
    }
}

#[test]
fn g1_a_failover_without_the_transaction_that_was_open_is_carried_on() {
    let last = |lsn| Some(CommitId { lsn: at(lsn), xid: 7, time_us: 70 });
    let open = Mark { last: last(1000), ..whole(900) };
    assert_eq!(resumed(2, 1, open), (whole(900), false));
    let before = Mark { last: last(890), ..whole(900) };
    assert_eq!(resumed(2, 1, before), (before, false));
    assert_eq!(resumed(1, 1, open), (open, false), "the same log has it");
}

#[test]
fn g6_on_its_own_timeline_a_stream_is_carried_on_where_it_was_left() {
    for mark in [whole(500), whole(3000), part(500, 2999), part(0, 2000), Mark::default()] {
        assert_eq!(resumed(3, 3, mark), (mark, false));
    }
}

#[test]
fn g6_after_a_failover_what_the_new_server_has_is_not_repeated() {
    for mark in [whole(999), whole(1000), part(900, 999), part(0, 700), Mark::default()] {
        assert_eq!(resumed(3, 1, mark), (mark, false));
        assert_eq!(resumed(2, 1, mark), (mark, false));
    }
    assert_eq!(resumed(3, 2, whole(1500)), (whole(1500), false));
}

#[test]
fn g1_after_a_failover_that_lost_rows_the_new_ones_are_not_taken_for_them() {
    for (mark, left) in [
        (whole(1001), whole(1000)),
        (whole(2500), whole(1000)),
        (part(1100, 1200), whole(1000)),
        (part(900, 1000), whole(900)),
        (part(0, 1200), Mark::default()),
    ] {
        assert_eq!(resumed(3, 1, mark), (left, true), "{mark:?}");
    }
    let resume = judge(&facts(3), Some(&progress(1, whole(1001)))).unwrap();
    let warning = resume.warnings[0].to_string();
    assert!(warning.contains("0/3E8") && warning.contains("0/3E9"), "{warning}");
}

#[test]
fn g1_an_older_copy_of_the_server_is_refused() {
    for mark in [whole(3001), part(500, 3000)] {
        let error = refused(&facts(3), Some(&progress(3, mark)));
        assert!(matches!(error, GateError::Restored { .. }), "{error}");
        assert!(error.to_string().contains("0/BB8"), "{error}");
    }
}

#[test]
fn g1_a_standby_that_has_not_replayed_what_was_delivered_is_waited_for() {
    let mut now = facts(3);
    now.lineage.standby = true;
    let error = judge(&now, Some(&progress(3, whole(3001)))).unwrap_err();
    assert!(error.hint().contains("nothing to do"), "{error}");
    assert!(matches!(error, GateError::StandbyBehind { .. }), "{error}");
    assert!(judge(&now, Some(&progress(3, whole(3000)))).is_ok());
    // The standby replays earlier timelines, or followed another server.
    let mut of_a_standby = progress(1, whole(3001));
    of_a_standby.lineage.standby = true;
    for (timeline, before) in [(2, progress(3, whole(3001))), (3, of_a_standby)] {
        now.lineage.timeline = timeline;
        let error = judge(&now, Some(&before)).unwrap_err();
        assert!(matches!(error, GateError::StandbyBehind { .. }), "{error}");
    }
    // A primary cannot have delivered beyond its timeline's end.
    let mark = judge(&now, Some(&progress(1, whole(3001)))).unwrap().mark;
    assert_eq!(mark, whole(1000));
    now.lineage.timeline = 2;
    let error = refused(&now, Some(&progress(3, whole(3000))));
    assert!(matches!(error, GateError::OtherTimeline { .. }), "{error}");
}

#[test]
fn g1_a_timeline_that_the_server_does_not_descend_from_is_refused() {
    let no_history = Facts { history: Vec::new(), ..facts(3) };
    let of_the_future = Facts { history: vec![(4, at(9000))], ..facts(3) };
    for (now, before) in [(facts(2), 3), (no_history, 2), (of_the_future, 4)] {
        let error = refused(&now, Some(&progress(before, whole(900))));
        assert!(matches!(error, GateError::OtherTimeline { .. }), "{error}");
    }
}

#[test]
fn g1_another_cluster_database_or_slot_is_refused() {
    let changes: [fn(&mut Lineage); 3] = [
        |lineage| lineage.system = "7313".to_owned(),
        |lineage| lineage.database = "mail".to_owned(),
        |lineage| lineage.slot = "other".to_owned(),
    ];
    for change in changes {
        let mut progress = progress(3, whole(900));
        change(&mut progress.lineage);
        let error = refused(&facts(3), Some(&progress));
        assert!(matches!(error, GateError::OtherSource { .. }), "{error}");
        assert!(error.to_string().contains("7312/shop/postrider"), "{error}");
    }
}

#[test]
fn g6_a_slot_ahead_of_progress_is_a_gap() {
    for created in [false, true] {
        let now = Facts { confirmed: at(901), created, ..facts(3) };
        for mark in [whole(900), part(900, 950), part(0, 900)] {
            let error = refused(&now, Some(&progress(3, mark)));
            assert!(matches!(error, GateError::Gap { .. }), "{error}");
            assert!(error.to_string().contains("was gone") == created, "{error}");
            assert!(error.hint().contains("0/384 and 0/385"), "{}", error.hint());
        }
        let bearing = Facts { exactly_once: false, ..now };
        let resume = judge(&bearing, Some(&progress(3, whole(900)))).unwrap();
        assert_eq!(resume.mark, whole(900));
        assert!(matches!(resume.warnings[..], [Warning::Gap { .. }]), "{resume:?}");
    }
    let now = Facts { confirmed: at(1001), ..facts(3) };
    for mark in [whole(1200), part(0, 1200)] {
        let error = refused(&now, Some(&progress(1, mark)));
        assert!(matches!(error, GateError::Gap { .. }), "{error}");
    }
}

#[test]
fn g6_without_progress_there_is_no_exactly_once() {
    // The base predates a slot that this process created.
    for created in [false, true] {
        let error = refused(&Facts { created, ..facts(3) }, None);
        assert!(matches!(error, GateError::NoProgress { .. }), "{error}");
        assert!(error.hint().contains("postrider adopt --execute"));
    }
    let bearing = Facts { exactly_once: false, ..facts(3) };
    assert_eq!(judge(&bearing, None), Ok(Resume::default()));
}

#[test]
fn g6_a_base_written_before_the_slot_begins_wherever_the_slot_does() {
    let now = Facts { created: true, confirmed: at(2900), ..facts(3) };
    let mut base = progress(3, Mark::default());
    assert_eq!(judge(&now, Some(&base)), Ok(Resume::default()));
    (base.lineage.publication, base.lineage.tables) = (0, BTreeMap::new());
    assert_eq!(judge(&now, Some(&base)), Ok(Resume::default()));
}

#[test]
fn g1_a_slot_that_moved_before_the_first_row_is_a_gap() {
    let now = Facts { confirmed: at(2900), ..facts(3) };
    let mut base = progress(3, Mark::default());
    base.lineage.since = Some(Since::first(at(2900), 7));
    assert_eq!(judge(&now, Some(&base)), Ok(Resume::default()));
    base.lineage.since = Some(Since::first(at(2899), 7));
    let error = refused(&now, Some(&base));
    assert!(matches!(error, GateError::Gap { .. }), "{error}");
    let bearing = Facts { exactly_once: false, ..now };
    let warnings = judge(&bearing, Some(&base)).unwrap().warnings;
    assert!(matches!(warnings[..], [Warning::Gap { .. }]), "{warnings:?}");
}

#[test]
fn g1_a_publication_or_table_of_the_same_name_is_refused() {
    let (mut publication, mut table) = (facts(3), facts(3));
    publication.lineage.publication = 9;
    table.lineage.tables.insert("public.outbox".to_owned(), 9);
    for exactly_once in [true, false] {
        let with = |now: &Facts| Facts { exactly_once, ..now.clone() };
        let before = progress(3, whole(900));
        let error = refused(&with(&publication), Some(&before));
        assert!(matches!(error, GateError::PublicationReplaced { .. }), "{error}");
        let error = refused(&with(&table), Some(&before));
        assert!(
            matches!(&error, GateError::TableReplaced { table, .. } if table == "public.outbox")
        );
    }
}

#[test]
fn g6_tables_come_and_go_between_transactions_and_not_within_one() {
    let (mut more, mut fewer) = (facts(3), facts(3));
    more.lineage.tables.insert("public.mail".to_owned(), 9);
    fewer.lineage.tables.clear();
    for (now, table) in [(more, "public.mail"), (fewer, "public.outbox")] {
        let resume = judge(&now, Some(&progress(3, whole(900)))).unwrap();
        assert_eq!(resume, Resume { mark: whole(900), ..Resume::default() });
        let error = refused(&now, Some(&progress(3, part(900, 950))));
        assert!(matches!(&error, GateError::TablesChanged { table: named, .. } if named == table));
    }
}

#[test]
fn g6_a_table_may_be_renamed_at_any_time() {
    let mut now = facts(3);
    let oid = now.lineage.tables.remove("public.outbox").unwrap();
    now.lineage.tables.insert("public.events".to_owned(), oid);
    for mark in [whole(900), part(900, 950)] {
        let resume = judge(&now, Some(&progress(3, mark))).unwrap();
        assert_eq!(resume, Resume { mark, ..Resume::default() });
    }
}

#[test]
fn g6_message_prefixes_change_between_transactions_and_not_within_one() {
    let prefixes = |prefix: &str| Some(BTreeSet::from([prefix.to_owned()]));
    let mut now = facts(3);
    now.lineage.messages = prefixes("new");
    for (mark, refuses) in [(whole(900), false), (part(900, 950), true)] {
        let mut before = progress(3, mark);
        // Progress of an earlier version.
        assert!(judge(&now, Some(&before)).is_ok());
        before.lineage.messages = prefixes("old");
        let judged = judge(&now, Some(&before));
        let is_refused = matches!(judged, Err(GateError::PrefixesChanged { .. }));
        assert_eq!(is_refused, refuses, "{judged:?}");
    }
}

#[test]
fn g1_a_table_taken_out_of_the_publication_and_put_in_again_is_refused() {
    let mut now = facts(3);
    now.lineage.members.insert("public.outbox".to_owned(), 21);
    let mut before = progress(3, whole(900));
    assert!(judge(&now, Some(&before)).is_ok());
    before.lineage.members.insert("public.outbox".to_owned(), 20);
    let error = refused(&now, Some(&before));
    assert!(matches!(error, GateError::MemberReplaced { .. }), "{error}");
    let oid = now.lineage.tables.remove("public.outbox").unwrap();
    now.lineage.tables.insert("public.events".to_owned(), oid);
    now.lineage.members = BTreeMap::from([("public.events".to_owned(), 21)]);
    let error = refused(&now, Some(&before));
    assert!(matches!(error, GateError::MemberReplaced { .. }), "{error}");
    now.lineage.members = BTreeMap::from([("public.events".to_owned(), 20)]);
    assert!(judge(&now, Some(&before)).is_ok());
}

#[test]
fn g1_a_table_that_left_its_published_schema_for_a_while_is_refused() {
    let (mut now, mut before) = (facts(3), progress(3, whole(900)));
    now.lineage.places.insert("public.outbox".to_owned(), 31);
    assert!(judge(&now, Some(&before)).is_ok(), "an earlier version did not say");
    before.lineage.places.insert("public.outbox".to_owned(), 30);
    let error = refused(&now, Some(&before));
    assert!(matches!(error, GateError::MemberReplaced { .. }), "{error}");
}

#[test]
fn g1_a_publication_that_was_altered_is_told_and_carried_on() {
    let warnings = |before: Option<u32>, after: Option<u32>| {
        let mut progress = progress(3, whole(500));
        progress.lineage.publication_xid = before;
        let mut now = facts(3);
        now.lineage.publication_xid = after;
        let resume = judge(&now, Some(&progress)).unwrap();
        assert_eq!(resume.mark, progress.mark);
        resume.warnings
    };
    for (before, after) in [(Some(1), Some(1)), (None, Some(2)), (Some(1), None)] {
        assert_eq!(warnings(before, after), []);
    }
    let warnings = warnings(Some(1), Some(2));
    let [warning @ Warning::PublicationAltered { .. }] = warnings.as_slice() else {
        panic!("{warnings:?}")
    };
    let (said, hint) = (warning.to_string(), warning.hint());
    assert!(said.contains("`outbox`") && said.contains("`postrider`"), "{said}");
    assert!(hint.contains("`publish` contained insert") && hint.contains("re-send"), "{hint}");
}

#[test]
fn g1_g6_the_last_commit_is_demanded_of_the_log() {
    let last = CommitId { lsn: at(880), xid: 7, time_us: 70 };
    let mark = Mark { last: Some(last), ..whole(900) };
    let demanded = judge(&facts(3), Some(&progress(3, mark))).unwrap();
    assert_eq!(demanded.check, ResumeCheck::new(mark, at(500), true));
    assert!(demanded.check.is_some());
    let at_the_mark = Facts { confirmed: at(900), ..facts(3) };
    assert_eq!(judge(&at_the_mark, Some(&progress(3, mark))).unwrap().check, None);
}

/// Timeline 1 ended at 1000, before the mark: a standby was promoted, or the old server is lost.
#[test]
fn g6_what_a_promoted_standby_has_sent_is_not_taken_for_lost() {
    let last = Some(CommitId { lsn: at(1190), xid: 7, time_us: 70 });
    let mark = Mark { last, ..whole(1200) };
    let mut of_a_standby = progress(1, mark);
    of_a_standby.lineage.standby = true;
    let resume = judge(&facts(3), Some(&of_a_standby)).unwrap();
    assert!(resume.mark == mark && resume.check.is_some() && resume.warnings.is_empty());
    assert_eq!(resumed(3, 1, mark), (whole(1000), true));
    // A server whose log is shorter never sent it.
    let short = Facts { server: at(1100), ..facts(3) };
    assert_eq!(judge(&short, Some(&of_a_standby)).unwrap().mark, whole(1000));
    // Without a delivered commit, only a slot on the new timeline proves that it is the same
    // standby.
    of_a_standby.mark = whole(1200);
    let told = Facts { confirmed: at(1200), ..facts(3) };
    let resume = judge(&told, Some(&of_a_standby)).unwrap();
    assert!(resume.mark == whole(1200) && resume.warnings.is_empty());
    assert_eq!(judge(&facts(3), Some(&of_a_standby)).unwrap().mark, whole(1000));
}

fn marks() -> impl Strategy<Value = Mark> {
    (0_u64..12, proptest::option::of((0_u64..4, 1_u64..3))).prop_map(|(end, part)| Mark {
        end: at(end),
        part: part.map(|(above, rows)| PartialTransaction { commit_lsn: at(end + above), rows }),
        last: None,
    })
}

fn situations() -> impl Strategy<Value = (Facts, Option<Progress>)> {
    let progress = proptest::option::of((1_u32..4, marks()));
    let flags = (any::<bool>(), any::<bool>());
    (1_u32..4, 0_u64..16, (0_u64..16, 0_u64..16), 0_u64..16, flags, progress).prop_map(
        |(timeline, server, (one, two), confirmed, (created, exactly_once), progress)| {
            let ends = [(1, at(one)), (2, at(two))];
            let history = ends.into_iter().filter(|(ancestor, _)| *ancestor < timeline).collect();
            let (server, confirmed) = (at(server), at(confirmed));
            let lineage = lineage(timeline);
            let facts = Facts {
                lineage,
                server,
                history,
                confirmed,
                created,
                exactly_once,
                ..Facts::default()
            };
            (facts, progress.map(|(timeline, mark)| self::progress(timeline, mark)))
        },
    )
}

proptest! {
    /// A row is skipped if and only if it was delivered and still exists.
    #[test]
    fn g1_g6_what_is_taken_for_delivered_was(situation in situations()) {
        let (now, progress) = situation;
        let Ok(resume) = judge(&now, progress.as_ref()) else { return Ok(()) };
        let Some(progress) = progress else {
            prop_assert_eq!(resume, Resume::default());
            return Ok(());
        };
        let same = progress.lineage.timeline == now.lineage.timeline;
        let ancestor = now.history.iter().find(|(number, _)| *number == progress.lineage.timeline);
        let end = if same { now.server } else { ancestor.unwrap().1 };
        let had_slot = progress.mark.end > Lsn::ZERO;
        for (commit, index) in (0_u64..16).flat_map(|commit| (0..3).map(move |index| (commit, index))) {
            let row = Position { commit_lsn: at(commit), index, commit_time: PgTime(0) };
            let delivered_here = progress.mark.covers(row) && row.commit_lsn < end;
            prop_assert_eq!(resume.mark.covers(row), delivered_here, "{:?}", row);
            if now.exactly_once && had_slot && row.commit_lsn < now.confirmed {
                prop_assert!(resume.mark.covers(row), "{:?} is lost", row);
            }
        }
    }
}
