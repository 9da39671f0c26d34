//! Checks of `postrider doctor`: the effect of a failover to a standby on the slot, from PostgreSQL
//! 17 on. Pure.
//!
//! Invariant: a question that no server answered never passes. Without a standby, only the slot is
//! judged.

use super::check::Check;
use super::fix::{Fix, Place, StepKind};
use postrider_postgres::control::{FailoverAbout, FailoverFacts, FailoverFinding, FailoverFix};

/// Subject, id, text if nothing is wrong, and whether only a standby knows.
const SUBJECTS: [(FailoverAbout, &str, &str, bool); 9] = [
    (FailoverAbout::Slot, "slot.failover", "the slot follows a failover", false),
    (
        FailoverAbout::Awaited,
        "failover.awaited",
        "nothing is delivered before the standbys have it (synchronized_standby_slots)",
        false,
    ),
    (FailoverAbout::StandbySlot, "failover.standby_slot", "standbys stream by slots", false),
    (FailoverAbout::Feedback, "failover.feedback", "hot_standby_feedback is on", false),
    (FailoverAbout::Sync, "failover.sync", "sync_replication_slots is on", true),
    (FailoverAbout::Database, "failover.database", "primary_conninfo names a database", true),
    (FailoverAbout::WalLevel, "failover.wal_level", "wal_level is logical at the standbys", true),
    (FailoverAbout::Copy, "failover.copy", "the standbys have a copy of the slot", true),
    (FailoverAbout::Host, "failover.host", "every host of source.url was asked", false),
];

pub(super) fn checks(facts: &FailoverFacts, wants_failover: bool) -> Vec<Check> {
    if !facts.has_primary {
        let unknown = Check::unknown(SUBJECTS[0].1, "a standby was reached, and not its primary");
        let findings = facts.findings();
        let of_source = findings.iter().map(|finding| {
            let subject = SUBJECTS.iter().find(|(about, ..)| *about == finding.about);
            warning(subject.map_or(SUBJECTS[0].1, |(_, id, ..)| id), finding, facts)
        });
        return std::iter::once(unknown).chain(of_source).collect();
    }
    let mut findings = facts.findings();
    findings.retain(|one| wants_failover || one.about != FailoverAbout::Slot);
    let has_standby = facts.has_standby();
    let mut checks = Vec::new();
    for (about, id, well, standby_only) in SUBJECTS {
        let of_this = findings.iter().filter(|finding| finding.about == about);
        let before = checks.len();
        checks.extend(of_this.map(|finding| warning(id, finding, facts)));
        if checks.len() > before || (!has_standby && about != FailoverAbout::Slot) {
            continue;
        }
        checks.push(if about == FailoverAbout::Slot && facts.follows.is_none() {
            Check::unknown(id, "there is no slot to look at")
        } else if about == FailoverAbout::Slot && !wants_failover {
            Check::pass(id, "the slot need not follow a failover (source.failover)")
        } else if let Some(why) = unseen(facts, about, standby_only) {
            Check::unknown(id, why)
        } else {
            Check::pass(id, well)
        });
    }
    checks
}

fn unseen(facts: &FailoverFacts, about: FailoverAbout, standby_only: bool) -> Option<&'static str> {
    if standby_only && facts.standbys.is_empty() {
        return Some("source.url names no standby that could be asked");
    }
    let is_hidden = facts.standbys.iter().any(|standby| standby.names_database.is_none());
    if about == FailoverAbout::Database && is_hidden {
        return Some("the role may not see primary_conninfo (GRANT pg_read_all_settings shows it)");
    }
    None
}

fn warning(id: &'static str, finding: &FailoverFinding, facts: &FailoverFacts) -> Check {
    let fix = match &finding.fix {
        FailoverFix::Primary(sql) => Fix::sql(sql.clone()).say(finding.fix.elsewhere()),
        FailoverFix::Standby { sql, restart } => {
            Fix::standby(sql, *restart).say(finding.fix.elsewhere())
        }
        FailoverFix::Replication(command) => {
            let begun = Fix::from("with the relay stopped, over a replication connection: ");
            begun.say(command).then(StepKind::Sql, Place::Replication, command.clone())
        }
        FailoverFix::Words(words) => words.clone().into(),
    };
    let is_idle = finding.about == FailoverAbout::Slot && !facts.has_standby();
    let what = if is_idle {
        format!("{}; no standby is seen that would copy it", finding.what)
    } else {
        finding.what.clone()
    };
    Check::warn(id, what, fix)
}
