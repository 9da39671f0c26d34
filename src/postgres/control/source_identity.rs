//! Detects that the slot has disappeared, or that cluster, publication or a table was replaced.
//!
//! Invariant: an object that this process has seen never counts as not yet created. Upholds G1.

use super::error::ControlError;
use super::inspect::{Inspection, Requirements};

/// Identity of the source for the life of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// `None` if the server hides it.
    system: Option<String>,
    standby: bool,
    publication: Option<u32>,
    publication_xid: Option<u32>,
    /// OIDs in the order of [`Requirements::tables`].
    tables: Vec<Option<u32>>,
    /// Entry in the publication, and transaction that put the table into a published schema.
    members: Vec<Option<(u32, Option<u32>)>>,
}

impl Known {
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

    /// [`Inspection::refusals`] reports damaged objects.
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

    /// Rows between removal and return were skipped. Ask after [`Inspection::refusals`], which
    /// reports a new filter or column list precisely.
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

    /// The publication may have omitted rows meanwhile.
    pub fn altered(&self, now: &Inspection) -> Option<u32> {
        let now = Self::of(now).publication_xid?;
        self.publication_xid.is_some_and(|before| before != now).then_some(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{NewSlot, PublicationFacts, Published, ServerFacts, SlotFacts, TableFacts};
    use super::*;
    use crate::wal::Class;
    use postrider_core::outbox::TableName;

    fn wanted() -> Requirements {
        Requirements {
            slot: "s".to_owned(),
            publication: "p".to_owned(),
            tables: vec![TableName::new("public", "outbox")],
            columns: Vec::new(),
            messages: false,
            create: true,
            new_slot: NewSlot::Failover,
        }
    }

    fn fit() -> Inspection {
        let server = ServerFacts {
            version_num: 180_000,
            encoding: "UTF8".to_owned(),
            wal_level: "logical".to_owned(),
            wal_sender_timeout: Duration::ZERO,
            in_recovery: false,
            database: "d".to_owned(),
            role: "r".to_owned(),
            may_replicate: true,
            system: Some(("7".to_owned(), 1)),
        };
        let table = TableFacts {
            oid: 11,
            kind: 'r',
            persistence: 'p',
            columns: Vec::new(),
            not_null: Vec::new(),
            generated: Vec::new(),
            parts: Vec::new(),
            published: Some(Published {
                filters_rows: false,
                columns: Vec::new(),
                member: Some(31),
                place: None,
            }),
        };
        let publication = PublicationFacts {
            oid: 21,
            xid: 700,
            inserts: true,
            other_changes: false,
            via_partition_root: false,
            others: 0,
            first_others: Vec::new(),
        };
        let slot = SlotFacts {
            plugin: Some("pgoutput".to_owned()),
            database: Some("d".to_owned()),
            active_pid: None,
            holder: String::new(),
            confirmed_flush: None,
            restart: None,
            wal_status: None,
            invalidation: None,
            synced: false,
            two_phase: false,
            waits_for: None,
        };
        Inspection {
            server,
            tables: vec![Some(table)],
            publication: Some(publication),
            slot: Some(slot),
            others: super::super::inspect::Others::default(),
            lacking: super::super::LackingRights::default(),
        }
    }

    fn departure(change: impl FnOnce(&mut Inspection)) -> Option<ControlError> {
        let mut now = fit();
        change(&mut now);
        let known = Known::of(&fit());
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

    #[test]
    fn g1_whatever_stands_in_the_place_of_the_source_is_a_matter_of_position() {
        let departures = [
            departure(|now| now.slot = None),
            departure(|now| now.server.system = Some(("8".to_owned(), 1))),
            departure(|now| now.publication.as_mut().unwrap().oid = 22),
            departure(|now| now.tables[0].as_mut().unwrap().oid = 12),
            departure(|now| now.tables[0] = None),
            departure(|now| {
                let table = now.tables[0].as_mut().unwrap();
                table.published.as_mut().unwrap().member = Some(32);
            }),
        ];
        for departure in departures {
            let error = departure.unwrap();
            assert_eq!((error.class(), error.exit_code()), (Class::Position, 70), "{error}");
            assert!(error.hint().unwrap().contains("re-send"), "{error}");
        }
    }

    #[test]
    fn a_table_that_was_put_in_again_is_not_called_a_new_publication() {
        let error = departure(|now| {
            now.tables[0].as_mut().unwrap().published.as_mut().unwrap().member = Some(32);
        });
        assert!(matches!(error, Some(ControlError::MemberReplaced { .. })), "{error:?}");
    }

    #[test]
    fn a_publication_that_was_altered_is_noticed_and_no_departure() {
        let mut now = fit();
        let known = Known::of(&fit());
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
        let mut standby = fit();
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
        assert!(matches!(error, Some(ControlError::OtherCluster { .. })), "{error:?}");
    }
}
