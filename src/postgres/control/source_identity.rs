//! Detects that since this process began the slot has disappeared, or cluster, publication or a
//! table was replaced.
//!
//! Input: the [`Inspection`]s of the first and of later sessions. Output: an error if the slot is
//! gone, another object was replaced, or a table was removed from the publication and added again;
//! whether the publication was altered. Invariant: an object that this process has seen never
//! counts as not yet created. Upholds G1.

use super::error::ControlError;
use super::inspect::{Inspection, Requirements};

/// Identity of the source for the life of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The cluster's identifier; `None` if the server hides it.
    system: Option<String>,
    standby: bool,
    publication: Option<u32>,
    /// The transaction that last wrote the publication's row.
    publication_xid: Option<u32>,
    /// In the order of [`Requirements::tables`].
    tables: Vec<Option<u32>>,
    /// Their entries in the publication, and the transactions that put them into a published
    /// schema, in this order.
    members: Vec<Option<(u32, Option<u32>)>>,
}

impl Known {
    /// Remembers a source that is fit to stream from.
    pub fn of(inspection: &Inspection) -> Self {
        let oid = |table: &Option<_>| table.as_ref().map(|table: &super::TableFacts| table.oid);
        let member = |table: &Option<super::TableFacts>| {
            let published = table.as_ref()?.published.as_ref()?;
            Some((published.member?, published.place))
        };
        Self {
            system: inspection.server.system.as_ref().map(|(system, _)| system.clone()),
            standby: inspection.server.in_recovery,
            publication: inspection.publication.as_ref().map(|publication| publication.oid),
            publication_xid: inspection.publication.as_ref().map(|publication| publication.xid),
            tables: inspection.tables.iter().map(oid).collect(),
            members: inspection.tables.iter().map(member).collect(),
        }
    }

    /// Why `now` is not the remembered source. [`Inspection::refusals`] reports objects that were
    /// only damaged.
    pub fn departure(&self, now: &Inspection, wanted: &Requirements) -> Option<ControlError> {
        let now_known = Self::of(now);
        if let (Some(before), Some(now)) = (&self.system, &now_known.system)
            && before != now
        {
            return Some(ControlError::OtherCluster { before: before.clone(), now: now.clone() });
        }
        let slot = || wanted.slot.clone();
        if let Some(copy) = now.unstreamable(wanted) {
            return Some(copy);
        }
        // The primary, which has the slot, may only be away.
        if now.slot.is_none() && now.server.in_recovery && !self.standby {
            return Some(ControlError::StandbyReached { slot: slot(), what: "does not have" });
        }
        if now.slot.is_none() {
            return Some(ControlError::SlotVanished { slot: slot(), delivered: None });
        }
        if now_known.publication.is_some() && self.publication != now_known.publication {
            let publication = wanted.publication.clone();
            return Some(ControlError::PublicationReplaced { publication });
        }
        let tables = self.tables.iter().zip(&now_known.tables).zip(&wanted.tables);
        let replaced = tables.into_iter().find(|((before, now), _)| before != now);
        replaced.map(|(_, table)| ControlError::TableReplaced { table: table.clone() })
    }

    /// The error if a table was removed from the publication and added again: rows in between were
    /// skipped, as with a new publication. Ask after [`Inspection::refusals`], which reports a new
    /// filter or column list precisely.
    pub fn readmission(&self, now: &Inspection, wanted: &Requirements) -> Option<ControlError> {
        let now = Self::of(now);
        let mut members = self.members.iter().zip(&now.members).zip(&wanted.tables);
        let is_readmitted = |before: &Option<_>, now: &Option<_>| {
            before.is_some() && now.is_some() && before != now
        };
        let (_, table) = members.find(|((before, now), _)| is_readmitted(before, now))?;
        let (publication, table) = (wanted.publication.clone(), table.clone());
        Some(ControlError::MemberReplaced { publication, table })
    }

    /// The transaction that last wrote the publication's row, if it is not the remembered one. The
    /// publication was altered, perhaps twice, and may have omitted rows in between.
    pub fn altered(&self, now: &Inspection) -> Option<u32> {
        let now = Self::of(now).publication_xid?;
        self.publication_xid.is_some_and(|before| before != now).then_some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::super::requirements_check::tests::{good, wanted};
    use super::*;
    use crate::wal::Class;

    fn departure(change: impl FnOnce(&mut Inspection)) -> Option<ControlError> {
        let mut now = good();
        change(&mut now);
        let known = Known::of(&good());
        known.departure(&now, &wanted()).or_else(|| known.readmission(&now, &wanted()))
    }

    #[test]
    fn the_same_source_is_no_departure_even_after_a_failover() {
        assert_eq!(departure(|_| ()), None);
        assert_eq!(departure(|now| now.server.system = Some(("7".to_owned(), 2))), None);
        assert_eq!(departure(|now| now.server.system = None), None);
        // A missing publication has its own refusal.
        assert_eq!(departure(|now| now.publication = None), None);
    }

    /// Operators make harmless changes too.
    #[test]
    fn a_publication_that_was_altered_is_noticed_and_no_departure() {
        let mut now = good();
        let known = Known::of(&good());
        assert_eq!(known.altered(&now), None);
        now.publication.as_mut().unwrap().xid = 701;
        assert_eq!(known.altered(&now), Some(701));
        assert_eq!(known.departure(&now, &wanted()), None);
        assert_ne!(known, Known::of(&now), "what was judged before is judged anew");
        now.publication = None;
        assert_eq!(known.altered(&now), None);
    }

    /// A list of hosts leads to it while the primary restarts.
    #[test]
    fn a_standby_reached_in_place_of_the_primary_is_left_again() {
        let reached = [
            departure(|now| {
                (now.server.in_recovery, now.slot) = (true, None);
            }),
            departure(|now| {
                now.server.in_recovery = true;
                now.slot.as_mut().unwrap().synced = true;
                now.publication.as_mut().unwrap().oid = 22;
            }),
        ];
        for error in reached {
            let error = error.unwrap();
            assert!(matches!(error, ControlError::StandbyReached { .. }), "{error}");
            assert_eq!((error.class(), error.exit_code()), (Class::Transient, 69), "{error}");
            assert!(error.hint().unwrap().contains("target_session_attrs=read-write"), "{error}");
        }
        let mut standby = good();
        standby.server.in_recovery = true;
        let known = Known::of(&standby);
        standby.slot = None;
        let gone = known.departure(&standby, &wanted()).unwrap();
        assert_eq!(gone.class(), Class::Position, "{gone}");
    }

    #[test]
    fn another_cluster_is_named_before_what_it_lacks() {
        let error = departure(|now| {
            now.server.system = Some(("8".to_owned(), 1));
            now.slot = None;
        });
        let error = error.unwrap();
        assert!(matches!(error, ControlError::OtherCluster { .. }), "{error:?}");
        assert_eq!((error.class(), error.exit_code()), (Class::Position, 70), "{error}");
        assert!(error.hint().unwrap().contains("re-send"), "{error}");
    }
}
