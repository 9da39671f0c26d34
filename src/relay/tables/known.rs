//! What is known of a stream before rows of its tables are delivered: the progress in Kafka, and that the slot is ours.
//!
//! Input: the database as it was found, and the progress topic. Output: [`Known`], and the slot, [`Held`]. Invariant:
//! the slot is the lock. It is taken before the progress is read, and before the first row is sent it is seen to be
//! ours still, with the progress that was read: of two commands at once one sends, and of a command and a relay too.

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

/// How long a slot may take to be free that is not read.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// Between the command and the application name that the relay has, in that of a session which holds the slot.
const BY: &str = " by ";

/// Whether the holder of a slot, as the server names it, delivers rows of before it: a backfill or a repair. Where no
/// progress is kept nothing else tells.
pub fn holds_for_tables(holder: &str) -> bool {
    let origins = [RowOrigin::Backfill, RowOrigin::Repair];
    let mut commands = origins.iter().filter_map(|origin| origin.header());
    commands.any(|command| holder.strip_prefix(command).is_some_and(|rest| rest.starts_with(BY)))
}

/// A slot that nobody else has meanwhile.
pub(super) struct Held {
    pub(super) stream: Stream,
    /// Who has it for us.
    process: ServerProcess,
}

impl Held {
    /// Takes the slot as a relay would, so that none carries on with it meanwhile.
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

    /// Lets go of it. Whether or not it goes well: it sends nothing any more.
    pub(super) fn release(self) {
        let _ = self.stream.finish(RELEASE_LIMIT);
    }
}

/// What Kafka holds of the stream, or this process knows where nothing is kept there.
#[derive(Debug)]
pub(super) enum Known {
    Nothing,
    /// Rows of before the slot were about to be delivered: the slot was to be made, and nothing was sent.
    Intended(BackfillProgress),
    /// They are being delivered, and whether some were.
    Begun(BackfillProgress, bool),
    /// Rows of the slot were delivered, or it was made by `setup`.
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
            // `setup` was about to make the slot.
            None if progress.mark == Mark::default() && !has_slot => Self::Nothing,
            None => Self::Stream(Box::new(progress)),
        }
    }
}

/// The progress that is kept of this stream; of a stream that delivers exactly once no earlier producer can write any
/// more.
pub(super) fn in_kafka(found: &Found, lineage: &Lineage) -> Result<Option<Progress>, RelayError> {
    let kafka = &found.plan.kafka;
    tell(kafka, &ensure_progress_topic(kafka)?);
    if found.plan.config.kafka.delivery == Delivery::ExactlyOnce {
        fence_off(kafka, lineage)?;
    }
    Ok(newest_progress(kafka, &lineage.key())?)
}

/// Refuses to go on with other tables, or another publication, than those that it began with: what was committed
/// meanwhile may be neither of before the slot nor in its stream.
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

/// Where the slot is.
pub(super) fn confirmed(found: &Found) -> Option<Lsn> {
    found.inspection.slot.as_ref().and_then(|slot: &SlotFacts| slot.confirmed_flush)
}

impl TableRun {
    /// Refuses to make a slot, or to drop one, where another command has done so since the slot was looked at.
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

    /// Refuses to send where the slot is not ours any more, or not where it was.
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

/// Refuses to send where Kafka holds another progress than the one that was read or written before.
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
