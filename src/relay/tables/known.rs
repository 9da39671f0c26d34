//! Determines the state of a stream before rows of its tables are delivered, and takes the slot.
//!
//! Invariant: the slot is the lock. A command takes the slot before it reads the progress, and
//! checks both again before it sends the first row. Only one of several commands and relays sends.

use std::time::Duration;

use super::TableRun;
use super::error::TableRowsError;
use super::session::{Found, Remaining};
use crate::bootstrap::tell;
use crate::error::RelayError;
use postrider_config::Delivery;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Mark;
use postrider_core::progress::{BackfillProgress, Lineage, Progress};
use postrider_core::route::RowOrigin;
use postrider_kafka::{ensure_progress_topic, fence_off, newest_progress};
use postrider_postgres::control::{self, SlotFacts};
use postrider_postgres::wal::{Connection, ServerProcess, Stream, WalError};

/// Maximum time to wait for an unread slot to be released.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// Separates command and relay in the application name of the session that holds the slot.
const BY: &str = " by ";

/// Whether a backfill or a repair holds the slot. Without stored progress, only the application
/// name shows this.
pub fn holds_for_tables(holder: &str) -> bool {
    let origins = [RowOrigin::Backfill, RowOrigin::Repair];
    let mut commands = origins.iter().filter_map(|origin| origin.header());
    commands.any(|command| holder.strip_prefix(command).is_some_and(|rest| rest.starts_with(BY)))
}

pub(super) struct Held {
    pub(super) stream: Stream,
    process: ServerProcess,
}

impl Held {
    pub(super) fn take(found: &Found) -> Result<Self, WalError> {
        let source = &found.plan.config.source;
        let mut server = source.connect.clone();
        let origin = found.plan.origin.header().unwrap_or_default();
        server.application_name = format!("{origin}{BY}{}", server.application_name);
        let mut connection = Connection::open(&server, &found.params)?;
        let process = connection.server_process()?;
        let started = connection.start(&source.slot, &source.publication, Lsn::ZERO);
        let stream = started.map_err(|refused| refused.error)?;
        Ok(Self { stream, process })
    }

    /// A failure is ignored, because this process no longer sends rows.
    pub(super) fn release(self) {
        let _ = self.stream.finish(RELEASE_LIMIT);
    }
}

/// State from Kafka or, if Kafka keeps no progress, from this process.
#[derive(Debug)]
pub(super) enum Known {
    Nothing,
    /// A backfill was about to create the slot, and no row was sent.
    Intended(BackfillProgress),
    /// The flag says whether rows were delivered.
    Begun(BackfillProgress, bool),
    /// Rows of the slot were delivered, or `setup` created the slot.
    Stream(Box<Progress>),
}

impl Known {
    pub(super) fn of(progress: Option<Progress>, has_slot: bool) -> Self {
        let Some(progress) = progress else { return Self::Nothing };
        match progress.backfill {
            Some(begun) if begun.begins.is_some() => {
                Self::Begun(begun, progress.mark != Mark::default())
            }
            Some(intended) => Self::Intended(intended),
            // `setup` was about to create the slot.
            None if progress.mark == Mark::default() && !has_slot => Self::Nothing,
            None => Self::Stream(Box::new(progress)),
        }
    }
}

/// With exactly-once delivery, earlier producers are fenced first.
pub(super) fn in_kafka(found: &Found, lineage: &Lineage) -> Result<Option<Progress>, RelayError> {
    let kafka = &found.plan.kafka;
    tell(kafka, &ensure_progress_topic(kafka)?);
    if found.plan.config.kafka.delivery == Delivery::ExactlyOnce {
        fence_off(kafka, lineage)?;
    }
    Ok(newest_progress(kafka, &lineage.key())?)
}

/// Refuses other tables or another publication: a row committed in between could be lost.
pub(super) fn same_tables(noted: &Lineage, now: &Lineage) -> Result<(), TableRowsError> {
    let of = |lineage: &Lineage| {
        let Lineage { tables, publication, members, places, .. } = lineage.clone();
        (tables, publication, members, places)
    };
    if of(noted) == of(now) {
        return Ok(());
    }
    Err(TableRowsError::TablesChanged { slot: now.slot.clone(), command: "backfill" })
}

pub(super) fn confirmed(found: &Found) -> Option<Lsn> {
    found.inspection.slot.as_ref().and_then(|slot: &SlotFacts| slot.confirmed_flush)
}

impl TableRun {
    /// Refuses a slot that another command has created or dropped since the inspection.
    pub(super) fn check_unchanged(&self, found: &Found) -> Result<(), RelayError> {
        let source = &found.plan.config.source;
        let client = self.runtime.block_on(control::connect(&source.connect))?;
        let now = self.runtime.block_on(control::slot(&client, &source.slot))?;
        let of = |slot: &Option<SlotFacts>| {
            slot.as_ref().map(|slot| (slot.is_lost(), slot.confirmed_flush))
        };
        if of(&now) == of(&found.inspection.slot) {
            return Ok(());
        }
        Err(TableRowsError::ProgressChanged { slot: source.slot.clone() }.into())
    }

    /// Refuses to send if this process no longer holds the slot, or if the slot has moved.
    pub(super) fn check_held(
        &self,
        found: &Found,
        remaining: &Remaining,
    ) -> Result<(), RelayError> {
        let (Some(held), Some(begun)) = (&remaining.slot, &remaining.backfill) else {
            return Ok(());
        };
        let (source, slot) = (&found.plan.config.source, remaining.lineage.slot.clone());
        let client = self.runtime.block_on(control::connect(&source.connect))?;
        let sample = control::held_sample(&client, &source.slot, held.process);
        let confirmed = self.runtime.block_on(sample)?.confirmed_flush;
        match begun.begins {
            Some(begins) if begins != confirmed => {
                let confirmed = Some(confirmed);
                Err(TableRowsError::SlotMoved { slot, confirmed, begins }.into())
            }
            _ => Ok(()),
        }
    }
}

/// Refuses other progress than this command last read or wrote.
pub(super) fn check_progress(
    slot: &str,
    begun: Option<&BackfillProgress>,
    found: Option<&Progress>,
) -> Result<(), TableRowsError> {
    let (Some(begun), Some(found)) = (begun, found) else { return Ok(()) };
    let of = |begun: &BackfillProgress| {
        let repairs = begun.repair.is_some();
        (begun.begins, begun.snapshot.clone(), repairs)
    };
    if found.backfill.as_ref().map(of) == Some(of(begun)) {
        return Ok(());
    }
    Err(TableRowsError::ProgressChanged { slot: slot.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::progress::RepairScope;

    fn begun(begins: u64, snapshot: &str, repair: Option<RepairScope>) -> BackfillProgress {
        let (begins, snapshot) = (Some(Lsn::new(begins)), snapshot.to_owned());
        BackfillProgress { begins, snapshot, repair, ..BackfillProgress::default() }
    }

    #[test]
    fn g6_progress_of_another_command_is_noticed_before_anything_is_sent() {
        let own = begun(7, "1:2:", None);
        let with = |backfill| Progress {
            lineage: Lineage::default(),
            mark: Mark::at(Lsn::new(3)),
            backfill,
        };
        let check = |backfill| check_progress("s", Some(&own), Some(&with(backfill)));
        assert_eq!(check(Some(own.clone())), Ok(()));
        assert_eq!(check_progress("s", Some(&own), None), Ok(()), "none is kept");
        for other in [
            None,
            Some(begun(8, "1:2:", None)),
            Some(begun(7, "1:3:", None)),
            Some(begun(7, "1:2:", Some(RepairScope::default()))),
            Some(BackfillProgress::default()),
        ] {
            let error = check(other).unwrap_err();
            assert!(matches!(error, TableRowsError::ProgressChanged { .. }), "{error}");
        }
    }

    #[test]
    fn g6_other_tables_or_another_publication_are_not_gone_on_with() {
        let lineage = |change: fn(&mut Lineage)| {
            let mut lineage = Lineage { publication: 1, ..Lineage::default() };
            lineage.tables.insert("public.outbox".to_owned(), 2);
            lineage.members.insert("public.outbox".to_owned(), 3);
            change(&mut lineage);
            lineage
        };
        let noted = lineage(|_| ());
        assert_eq!(same_tables(&noted, &lineage(|now| now.standby = true)), Ok(()));
        let changes: [fn(&mut Lineage); 4] = [
            |now| now.publication = 9,
            |now| {
                now.tables.insert("public.outbox".to_owned(), 9);
            },
            |now| {
                now.tables.insert("public.another".to_owned(), 9);
            },
            |now| {
                now.members.insert("public.outbox".to_owned(), 9);
            },
        ];
        for change in changes {
            assert!(same_tables(&noted, &lineage(change)).is_err());
        }
    }
}
