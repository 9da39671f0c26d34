//! Tests of the judgements.

use super::*;

fn awaited(name: &str, exists: bool, is_read: bool) -> AwaitedSlot {
    AwaitedSlot { name: name.to_owned(), exists, is_read }
}

fn sound() -> FailoverFacts {
    FailoverFacts {
        slot: "my slot".to_owned(),
        has_primary: true,
        follows: Some(true),
        awaited: vec![awaited("b", true, true)],
        streaming: vec![StreamingStandby {
            name: "walreceiver".to_owned(),
            slot: Some("b".to_owned()),
            seconds: Some(100),
            has_feedback: true,
        }],
        standbys: vec![StandbyFacts {
            endpoint: "b:5432".to_owned(),
            syncs_slots: true,
            receives: true,
            feedback: true,
            slot_name: "b".to_owned(),
            names_database: Some(true),
            wal_level: "logical".to_owned(),
            copy: Some(SlotCopy { synced: true, temporary: false, invalidation: None }),
        }],
        unreached: Vec::new(),
    }
}

fn found(change: impl FnOnce(&mut FailoverFacts)) -> FailoverFinding {
    let mut facts = sound();
    change(&mut facts);
    let mut findings = facts.findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    findings.remove(0)
}

fn of_standby(change: impl FnOnce(&mut StandbyFacts)) -> FailoverFinding {
    found(|facts| change(&mut facts.standbys[0]))
}

fn of_copy(change: impl FnOnce(&mut SlotCopy)) -> FailoverFinding {
    of_standby(|standby| change(standby.copy.as_mut().unwrap()))
}

fn told(finding: &FailoverFinding, about: FailoverAbout, fix: &str) {
    assert_eq!(finding.about, about);
    assert!(finding.fix.text().contains(fix), "{fix} in {}", finding.fix.text());
}

#[test]
fn a_pair_as_it_should_be_has_no_finding() {
    assert_eq!(sound().findings(), []);
    let alone =
        FailoverFacts { has_primary: true, follows: Some(true), ..FailoverFacts::default() };
    assert_eq!(alone.findings(), [], "nothing is waited for where nobody stands by");
    // A relay may stream from a standby with the standby's own slot.
    let mut read = sound();
    (read.has_primary, read.follows, read.standbys[0].syncs_slots) = (false, None, false);
    (read.awaited, read.streaming) = (Vec::new(), Vec::new());
    read.standbys[0].copy.as_mut().unwrap().synced = false;
    assert_eq!(read.findings(), []);
    (read.standbys[0].feedback, read.standbys[0].slot_name) = (false, String::new());
    let findings = read.findings();
    let fixes: Vec<_> = findings.iter().map(|finding| finding.fix.text()).collect();
    assert!(fixes[0].contains("hot_standby_feedback = on"), "{fixes:?}");
    assert!(fixes[1].contains("SET primary_slot_name"), "{fixes:?}");
    let mut hidden = sound();
    hidden.standbys[0].names_database = None;
    assert_eq!(hidden.findings(), []);
}

#[test]
fn what_is_wrong_at_the_primary_is_named_with_its_fix() {
    let slot = found(|facts| facts.follows = Some(false));
    told(&slot, FailoverAbout::Slot, "ALTER_REPLICATION_SLOT \"my slot\" (FAILOVER true);");
    let empty = found(|facts| facts.awaited.clear());
    told(&empty, FailoverAbout::Awaited, "SET synchronized_standby_slots = 'b'; SELECT pg_reload");
    let missing = found(|facts| facts.awaited.push(awaited("c", false, false)));
    told(&missing, FailoverAbout::Awaited, "SET synchronized_standby_slots = 'b';");
    assert!(missing.what.contains("names `c`"), "{}", missing.what);
    let unread = found(|facts| facts.awaited.push(awaited("c", true, false)));
    told(&unread, FailoverAbout::Awaited, "SET synchronized_standby_slots = 'b';");
    let other = found(|facts| facts.awaited = vec![awaited("c", true, true)]);
    told(&other, FailoverAbout::Awaited, "SET synchronized_standby_slots = 'b, c';");
}

#[test]
fn what_is_wrong_at_the_standby_is_named_with_its_fix() {
    let off = of_standby(|standby| standby.syncs_slots = false);
    told(&off, FailoverAbout::Sync, "ALTER SYSTEM SET sync_replication_slots = on;");
    told(&off, FailoverAbout::Sync, "the same setting in its parameter group");
    let silent = of_standby(|standby| standby.feedback = false);
    told(&silent, FailoverAbout::Feedback, "ALTER SYSTEM SET hot_standby_feedback = on;");
    let nameless = of_standby(|standby| standby.names_database = Some(false));
    told(&nameless, FailoverAbout::Database, "'PRIMARY_CONNINFO dbname=postgres'");
    let replica = of_standby(|standby| standby.wal_level = "replica".to_owned());
    told(&replica, FailoverAbout::WalLevel, "SET wal_level = 'logical'; and restart it");
    let slotless = found(|facts| {
        facts.standbys[0].slot_name.clear();
        facts.streaming[0].slot = None;
    });
    told(&slotless, FailoverAbout::StandbySlot, "SET primary_slot_name = 'SLOT_OF_THE_STANDBY';");
}

#[test]
fn a_copy_of_the_slot_that_a_failover_would_lose_is_told() {
    let missing = of_standby(|standby| standby.copy = None);
    told(&missing, FailoverAbout::Copy, "SELECT pg_log_standby_snapshot();");
    assert_eq!(missing.fix.elsewhere(), "", "no setting");
    let young = of_copy(|copy| copy.temporary = true);
    told(&young, FailoverAbout::Copy, "SELECT pg_log_standby_snapshot();");
    assert!(missing.passes && young.passes, "a slot that was just made is not copied yet");
    let own = of_copy(|copy| copy.synced = false);
    told(&own, FailoverAbout::Copy, "SELECT pg_drop_replication_slot('my slot');");
    let invalid = of_copy(|copy| copy.invalidation = Some("wal_removed".to_owned()));
    told(&invalid, FailoverAbout::Copy, "ALTER SYSTEM SET max_slot_wal_keep_size = -1;");
    assert!(!own.passes && !invalid.passes);
    // The finding is the setting that prevents the copy, not the missing copy.
    let off = of_standby(|standby| (standby.syncs_slots, standby.copy) = (false, None));
    assert_eq!(off.about, FailoverAbout::Sync);
}

#[test]
fn what_a_primary_sees_of_a_standby_that_nobody_can_ask_is_told() {
    let slotless = found(|facts| {
        facts.standbys.clear();
        facts.streaming[0].slot = None;
    });
    told(&slotless, FailoverAbout::StandbySlot, "SET primary_slot_name");
    let silent = found(|facts| {
        facts.standbys.clear();
        facts.streaming[0].has_feedback = false;
    });
    told(&silent, FailoverAbout::Feedback, "hot_standby_feedback");
    let mut begun = sound();
    begun.standbys.clear();
    (begun.streaming[0].has_feedback, begun.streaming[0].seconds) = (false, Some(3));
    assert_eq!(begun.findings(), [], "it has had no time to say so");
    let away = found(|facts| facts.unreached.push(("c:5432".to_owned(), "refused".to_owned())));
    assert!(away.about == FailoverAbout::Host && away.passes);
}
