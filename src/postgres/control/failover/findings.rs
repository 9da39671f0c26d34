//! Judges [`FailoverFacts`]: each setting that would lose rows or the slot in a failover.
//!
//! Pure. Invariant: a fix is literal, and names its server. A server without a standby has only
//! findings about its slot. A standby that a relay reads directly, without its primary, has none.

use super::{AwaitedSlot, FailoverFacts, SlotCopy, StandbyFacts, StreamingStandby};
use crate::wal::quote::{identifier, literal};

/// A standby reports the rows that it still needs within wal_receiver_status_interval, 10 s by
/// default.
const FEEDBACK_AFTER_S: i64 = 20;

/// Several settings may share one subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailoverAbout {
    Slot,
    /// `synchronized_standby_slots`.
    Awaited,
    StandbySlot,
    Feedback,
    Sync,
    /// Database name in `primary_conninfo`.
    Database,
    WalLevel,
    Copy,
    Host,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailoverFix {
    Primary(String),
    Standby {
        sql: String,
        restart: bool,
    },
    /// Replication command for the primary, while no relay reads the slot.
    Replication(String),
    Words(String),
}

impl FailoverFix {
    pub fn text(&self) -> String {
        self.sql_or_words() + self.elsewhere()
    }

    /// A managed server refuses `ALTER SYSTEM`.
    pub fn elsewhere(&self) -> &'static str {
        match self {
            Self::Primary(sql) | Self::Standby { sql, .. } if sql.contains("ALTER SYSTEM") => {
                " (where a service refuses ALTER SYSTEM: the same setting in its parameter group or flags)"
            }
            _ => "",
        }
    }

    fn sql_or_words(&self) -> String {
        match self {
            Self::Primary(sql) => format!("at the primary: {sql}"),
            Self::Standby { sql, restart: false } => format!("at the standby: {sql}"),
            Self::Standby { sql, restart: true } => {
                format!("at the standby: {sql} and restart it")
            }
            Self::Replication(command) => {
                format!("with the relay stopped, over a replication connection: {command}")
            }
            Self::Words(words) => words.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailoverFinding {
    pub about: FailoverAbout,
    /// True for a temporary state: a new slot is not copied yet.
    pub passes: bool,
    /// A lowercase sentence.
    pub what: String,
    pub fix: FailoverFix,
}

impl FailoverFinding {
    fn new(about: FailoverAbout, what: String, fix: FailoverFix) -> Self {
        Self { about, passes: false, what, fix }
    }
}

fn set(setting: &str, value: &str) -> String {
    format!("ALTER SYSTEM SET {setting} = {value}; SELECT pg_reload_conf();")
}

impl FailoverFacts {
    pub fn has_standby(&self) -> bool {
        self.has_primary && !self.stands_alone()
    }

    fn stands_alone(&self) -> bool {
        self.streaming.is_empty() && self.standbys.is_empty() && self.awaited.is_empty()
    }

    pub fn findings(&self) -> Vec<FailoverFinding> {
        let mut findings = Vec::new();
        if self.follows == Some(false) {
            findings.push(FailoverFinding::new(
                FailoverAbout::Slot,
                format!("replication slot `{}` does not follow a failover", self.slot),
                FailoverFix::Replication(format!(
                    "ALTER_REPLICATION_SLOT {} (FAILOVER true);",
                    identifier(&self.slot)
                )),
            ));
        }
        if !self.has_primary {
            for standby in &self.standbys {
                judge_source(standby, &mut findings);
            }
        }
        if !self.has_standby() {
            return findings;
        }
        self.judge_awaited(&mut findings);
        for standby in &self.streaming {
            self.judge_streaming(standby, &mut findings);
        }
        for standby in &self.standbys {
            self.judge_standby(standby, &mut findings);
        }
        for (endpoint, why) in &self.unreached {
            let mut host = FailoverFinding::new(
                FailoverAbout::Host,
                format!("{endpoint} was not looked at: {why}"),
                FailoverFix::Words("start it, or take it out of source.url".to_owned()),
            );
            host.passes = true;
            findings.push(host);
        }
        findings
    }

    fn await_all(&self, without: Option<&str>) -> String {
        let read = self.streaming.iter().filter_map(|standby| standby.slot.as_deref());
        let named = self.standbys.iter().map(|standby| standby.slot_name.as_str());
        let present = self.awaited.iter().filter(|slot| slot.exists).map(|slot| slot.name.as_str());
        let mut slots: Vec<&str> = present.chain(read).chain(named).collect();
        slots.retain(|slot| !slot.is_empty() && Some(*slot) != without);
        slots.sort_unstable();
        slots.dedup();
        if slots.is_empty() && without.is_none() {
            slots.push("SLOT_OF_THE_STANDBY");
        }
        set("synchronized_standby_slots", &literal(&slots.join(", ")))
    }

    fn judge_awaited(&self, findings: &mut Vec<FailoverFinding>) {
        let mut add = |what: String, sql: String| {
            let fix = FailoverFix::Primary(sql);
            findings.push(FailoverFinding::new(FailoverAbout::Awaited, what, fix));
        };
        if self.awaited.is_empty() {
            let what = "synchronized_standby_slots is empty: the relay may deliver rows that no standby has, and \
                        that a failover loses";
            add(what.to_owned(), self.await_all(None));
        }
        for AwaitedSlot { name, exists, is_read } in &self.awaited {
            if !exists {
                let what = format!(
                    "synchronized_standby_slots names `{name}`, and there is no such physical slot: nothing is \
                     delivered while it waits for that"
                );
                add(what, self.await_all(Some(name)));
            } else if !is_read {
                let what = format!(
                    "synchronized_standby_slots names `{name}`, which no standby reads: nothing is delivered until one \
                     does"
                );
                add(what, self.await_all(Some(name)));
            }
        }
        if self.awaited.is_empty() {
            return;
        }
        let is_awaited = |name: &str| self.awaited.iter().any(|slot| slot.name == name);
        for StandbyFacts { endpoint, slot_name, .. } in &self.standbys {
            if !slot_name.is_empty() && !is_awaited(slot_name) {
                let what = format!(
                    "standby {endpoint} reads slot `{slot_name}`, which synchronized_standby_slots does not name: if it \
                     is promoted, it may lack rows that were delivered"
                );
                add(what, self.await_all(None));
            }
        }
    }

    /// Judges from the primary's view; a reached standby has better data.
    fn judge_streaming(&self, standby: &StreamingStandby, findings: &mut Vec<FailoverFinding>) {
        let StreamingStandby { name, slot, seconds, has_feedback } = standby;
        let Some(slot) = slot else {
            if self.standbys.iter().all(|asked| !asked.slot_name.is_empty()) {
                findings.push(FailoverFinding::new(
                    FailoverAbout::StandbySlot,
                    format!("standby `{name}` streams without a slot, and copies no other: primary_slot_name is empty"),
                    slot_name_fix(),
                ));
            }
            return;
        };
        let was_asked = self.standbys.iter().any(|asked| asked.slot_name == *slot);
        let should_have = seconds.is_some_and(|seconds| seconds > FEEDBACK_AFTER_S);
        if !was_asked && !has_feedback && should_have {
            findings.push(FailoverFinding::new(
                FailoverAbout::Feedback,
                format!("the standby that reads slot `{slot}` does not say which rows it needs"),
                feedback_fix(),
            ));
        }
    }

    fn judge_standby(&self, standby: &StandbyFacts, findings: &mut Vec<FailoverFinding>) {
        let StandbyFacts { endpoint, wal_level, .. } = standby;
        let mut add = |about, what: String, fix| {
            findings.push(FailoverFinding::new(about, format!("standby {endpoint}: {what}"), fix));
        };
        let before = |sql: String| FailoverFix::Standby { sql, restart: false };
        let mut copies = true;
        if standby.slot_name.is_empty() {
            copies = false;
            let what = "primary_slot_name is empty, and no slot is copied without it";
            add(FailoverAbout::StandbySlot, what.to_owned(), slot_name_fix());
        }
        if !standby.feedback {
            copies = false;
            let what = "hot_standby_feedback is off, and no slot is copied without it";
            add(FailoverAbout::Feedback, what.to_owned(), feedback_fix());
        }
        if !standby.syncs_slots {
            copies = false;
            let what =
                "sync_replication_slots is off: the slot is not copied, and gone after a failover";
            let fix = before(set("sync_replication_slots", "on"));
            add(FailoverAbout::Sync, what.to_owned(), fix);
        }
        if standby.names_database == Some(false) {
            copies = false;
            let what =
                "primary_conninfo names no database (dbname), and no slot is copied without it";
            let fix = before(set("primary_conninfo", "'PRIMARY_CONNINFO dbname=postgres'"));
            add(FailoverAbout::Database, what.to_owned(), fix);
        }
        if wal_level != "logical" {
            copies = false;
            let what = format!("wal_level is {wal_level}: after a failover nothing can be decoded");
            let sql = "ALTER SYSTEM SET wal_level = 'logical';".to_owned();
            let fix = FailoverFix::Standby { sql, restart: true };
            add(FailoverAbout::WalLevel, what, fix);
        }
        let copy = standby.copy.as_ref();
        if let Some((passes, what, fix)) = self.judge_copy(copy, copies) {
            add(FailoverAbout::Copy, what, fix);
            if let Some(last) = findings.last_mut() {
                last.passes = passes;
            }
        }
    }

    /// Temporary state, description and fix. A setting that prevents the copy has its own finding.
    fn judge_copy(
        &self,
        copy: Option<&SlotCopy>,
        copies: bool,
    ) -> Option<(bool, String, FailoverFix)> {
        let slot = &self.slot;
        let write = || FailoverFix::Primary("SELECT pg_log_standby_snapshot();".to_owned());
        match copy {
            None if copies && self.follows == Some(true) => {
                Some((true, format!("has no copy of slot `{slot}` yet"), write()))
            }
            Some(SlotCopy { synced: false, .. }) => Some((
                false,
                format!(
                    "slot `{slot}` is the standby's own, which keeps the primary's from being copied"
                ),
                FailoverFix::Standby {
                    sql: format!("SELECT pg_drop_replication_slot({});", literal(slot)),
                    restart: false,
                },
            )),
            Some(SlotCopy { invalidation: Some(reason), .. }) => Some((
                false,
                format!(
                    "its copy of slot `{slot}` is invalid ({reason}), and no stream after a failover"
                ),
                valid_again(reason),
            )),
            Some(SlotCopy { temporary: true, .. }) => Some((
                true,
                format!("its copy of slot `{slot}` is not kept yet, and would go with a failover"),
                write(),
            )),
            None | Some(_) => None,
        }
    }
}

fn slot_name_fix() -> FailoverFix {
    let sql = set("primary_slot_name", "'SLOT_OF_THE_STANDBY'");
    FailoverFix::Standby { sql, restart: false }
}

fn feedback_fix() -> FailoverFix {
    FailoverFix::Standby { sql: set("hot_standby_feedback", "on"), restart: false }
}

/// Judges a standby's own slot, from which the relay streams.
fn judge_source(standby: &StandbyFacts, findings: &mut Vec<FailoverFinding>) {
    let endpoint = &standby.endpoint;
    // A standby that replays an archive, or nothing, has no primary that learns of the slot.
    if !standby.receives || standby.copy.as_ref().is_none_or(|slot| slot.synced) {
        return;
    }
    let mut add = |about, what: &str, fix| {
        let what = format!(
            "standby {endpoint}: {what}: the primary removes rows of its catalogs that are still needed to decode, and \
             the slot that the relay streams from is lost"
        );
        findings.push(FailoverFinding::new(about, what, fix));
    };
    if !standby.feedback {
        add(FailoverAbout::Feedback, "hot_standby_feedback is off", feedback_fix());
    }
    if standby.slot_name.is_empty() {
        let what = "primary_slot_name is empty, so that its feedback is forgotten while it is not connected";
        add(FailoverAbout::StandbySlot, what, slot_name_fix());
    }
}

/// The standby then recreates the copy.
fn valid_again(reason: &str) -> FailoverFix {
    let sql = match reason {
        "wal_removed" => set("max_slot_wal_keep_size", "-1"),
        "rows_removed" => set("hot_standby_feedback", "on"),
        "idle_timeout" => set("idle_replication_slot_timeout", "0"),
        "wal_level_insufficient" => {
            let sql = "ALTER SYSTEM SET wal_level = 'logical';".to_owned();
            return FailoverFix::Standby { sql, restart: true };
        }
        _ => return FailoverFix::Words("the standby's log says why".to_owned()),
    };
    let copied = set("sync_replication_slots", "on");
    FailoverFix::Standby { sql: format!("{sql} {copied}"), restart: false }
}
