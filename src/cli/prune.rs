//! `postrider prune`: deletes old rows of the outbox that every slot has passed, or drops their
//! partitions.
//!
//! Invariant: without `--execute` nothing changes. The positions of the slots are fixed before the
//! first row is deleted, so that a later change of a slot adds no row.

mod ahead;
pub(super) mod beginning;
mod report;

use std::time::Duration;

use clap::Args;
use tokio::time::sleep;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::needs_slot;
use super::progress_display::{ProgressDisplay, tell_interrupted};
use super::run::listen_for_signals;
use super::runtime;
use postrider_config::OutboxSection;
use postrider_postgres::control::prune::{
    Dropped, Partition, Passed, PassedSlot, PruneColumns, PruneError, PruneTable, Rows, cutoff,
    drop_partition, leaves, partitions, prepare_session, slot_position,
};
use postrider_postgres::control::{self, Client, ControlError};
use postrider_postgres::wal::WalError;
use postrider_relay::{ControlRequest, Meter, Plan, StopSignal, Total, Unit, kafka_spec};
use postrider_service::units::parse_duration;
use report::{Fate, PrunedPartition, PrunedTable};

const ATTEMPTS: u32 = 5;
const ATTEMPT_PAUSE: Duration = Duration::from_secs(1);
const ABORT_TICK: Duration = Duration::from_millis(100);
/// Minimum rows per page without `--execute`.
const COUNTED: u32 = 50_000;

/// `prune --older-than TIME [--slot NAME ...] [--execute]`
#[derive(Debug, Args)]
#[command(after_help = "\
Deletes a row if it is old enough and every slot has passed it: the row's transaction committed
before the position of the slot, which follows the confirmations of Kafka. Rows written before
the stream of a slot began are kept, because a lost slot may not have delivered them. If the
table is partitioned by outbox.created_at, whole partitions are dropped, and rows are deleted
only from the default partition.

Examples:
  postrider prune --older-than 7d                          print the plan; nothing is deleted
  postrider prune --older-than 7d --execute
  postrider prune --older-than 7d --ahead 7 --execute      create partitions of the next days, too
  postrider prune --older-than 7d --slot postrider --slot audit --execute")]
pub struct PruneArgs {
    /// Minimum age of a row, for example 7d
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub older_than: Duration,
    /// Slot that must have passed a row; repeatable [default: source.slot]
    #[arg(long, value_name = "NAME")]
    pub slot: Vec<String>,
    /// Create the partitions of this many future days, for a table partitioned by
    /// outbox.created_at
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=366))]
    pub ahead: Option<u32>,
    /// Rows per transaction
    #[arg(long, value_name = "N", default_value_t = 5_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,
    /// Pause after each transaction, to limit the load
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = parse_duration)]
    pub pause: Duration,
    /// Maximum wait for a lock; for a partition, at most half of Postgres's deadlock_timeout
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_duration)]
    pub lock_timeout: Duration,
    /// Also delete rows written before the slot's stream began. You must know that they
    /// were delivered
    #[arg(long)]
    pub from_before_slot: bool,
    /// Apply; without it, only print the plan
    #[arg(long)]
    pub execute: bool,
}

pub(crate) fn run(args: &PruneArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let config = context.load(Vec::new())?.config;
    needs_slot(&config, "postrider prune")?;
    let plan = Plan::new(kafka_spec(&config), config);
    let runtime = runtime()?;
    let client = runtime.block_on(control::connect(&plan.config.source.connect))?;
    runtime.block_on(prepare_session(&client, args.lock_timeout))?;
    let mut tables = Vec::new();
    let columns = columns(&plan.config.outbox);
    for name in &plan.config.source.tables {
        tables.push(runtime.block_on(PruneTable::look(&client, name, &columns))?);
    }
    // New rows get their partitions even if old rows cannot be deleted.
    let mut left = runtime.block_on(ahead::add(args, &client, &tables, context))?;
    let names = if args.slot.is_empty() {
        vec![plan.config.source.slot.clone()]
    } else {
        args.slot.clone()
    };
    let mut passed = Passed(Vec::new());
    for slot in names {
        let position = runtime.block_on(slot_position(&client, &slot))?;
        let known = beginning::known(&plan, &runtime, &client, &position)?;
        let since = match known {
            _ if args.from_before_slot => 0,
            Ok(since) => since.xid,
            Err(why) => return Err(PruneError::BeginningUnknown { slot, why }.into()),
        };
        passed.0.push(PassedSlot { slot, since, before: position.before });
    }
    let (stop, meter) = (StopSignal::default(), Meter::default());
    let run = PruneRun { args, client: &client, passed: &passed, stop: &stop, meter: &meter };
    let display = run.display(context);
    {
        let _inside = runtime.enter();
        runtime.spawn(listen_for_signals(stop.clone()));
    }
    for table in tables {
        let name = table.name.clone();
        let (pruned, failure) = runtime.block_on(run.table(table));
        report::print(&name, &pruned, &passed, args.execute, context)?;
        match failure {
            Some(PruneError::Locked { .. } | PruneError::Needed { .. }) => left = left.or(failure),
            Some(failure) => return Err(failure.into()),
            None => {}
        }
        if run.is_stopped() {
            let kept =
                if args.execute { "deleted rows stay deleted" } else { "nothing was changed" };
            drop(display);
            tell_interrupted(meter.reading(), kept, (&[], &[]));
            return Ok(ExitCode::Unavailable);
        }
    }
    if !args.execute && !context.json() {
        context.print("nothing was deleted; --execute does it\n")?;
    }
    left.map_or(Ok(ExitCode::Ok), |left| Err(left.into()))
}

fn columns(outbox: &OutboxSection) -> PruneColumns {
    PruneColumns { id: outbox.names(&outbox.id), age: outbox.names(&outbox.created_at) }
}

struct PruneRun<'a> {
    args: &'a PruneArgs,
    client: &'a Client,
    passed: &'a Passed,
    stop: &'a StopSignal,
    meter: &'a Meter,
}

impl PruneRun<'_> {
    fn display(&self, context: &Context) -> ProgressDisplay {
        let meter = self.meter.clone();
        ProgressDisplay::start(context, move || meter.reading())
    }

    /// The first signal lets a transaction end.
    fn is_stopped(&self) -> bool {
        self.stop.most_urgent() >= ControlRequest::Drain
    }

    async fn table(&self, table: PruneTable) -> (PrunedTable, Option<PruneError>) {
        let mut pruned = PrunedTable::default();
        let aborted = async {
            while self.stop.most_urgent() < ControlRequest::Abort {
                sleep(ABORT_TICK).await;
            }
        };
        // The session ends with the program, so Postgres rolls back.
        let failure = tokio::select! {
            done = self.prune(table, &mut pruned) => done.err(),
            () = aborted => None,
        };
        (pruned, failure)
    }

    async fn prune(&self, table: PruneTable, pruned: &mut PrunedTable) -> Result<(), PruneError> {
        pruned.cutoff = cutoff(self.client, self.args.older_than).await?;
        let cutoff = pruned.cutoff.clone();
        let (mut locked, mut needed) = (None, None);
        if table.by_age {
            let old = partitions(self.client, &table, &cutoff).await?;
            if !old.is_empty() {
                table.may_drop(self.client).await?;
            }
            self.meter.begin(
                "dropping partitions",
                Unit::Partitions,
                Total::Exactly(old.len() as u64),
            );
            for (done, partition) in (0..).zip(old) {
                self.meter.set_done(done);
                if self.is_stopped() {
                    return Ok(());
                }
                let object = format!("partition {} of table {}", partition.name, table.name);
                // A session that keeps one partition locked usually holds the whole table.
                let attempts = if locked.is_none() { ATTEMPTS } else { 0 };
                let Some(done) = self.partition(&table, partition, &cutoff, attempts).await? else {
                    continue;
                };
                if done.fate == Fate::Locked {
                    locked.get_or_insert(PruneError::Locked { object, attempts });
                }
                if done.fate == Fate::Needed {
                    let (table, partition) = (table.name.clone(), done.name.clone());
                    needed.get_or_insert(PruneError::Needed { table, partition });
                }
                pruned.partitions.push(done);
            }
        }
        for leaf in leaves(self.client, &table).await? {
            if self.is_stopped() {
                return Ok(());
            }
            self.rows(leaf, pruned).await?;
        }
        locked.or(needed).map_or(Ok(()), Err)
    }

    /// `None` if another session has removed the partition.
    async fn partition(
        &self,
        table: &PruneTable,
        partition: Partition,
        cutoff: &str,
        attempts: u32,
    ) -> Result<Option<PrunedPartition>, PruneError> {
        // Most partitions that must be kept are found here, before any lock is requested.
        let (client, passed) = (self.client, self.passed);
        let count = async || partition.count(client, table, cutoff, passed).await;
        let mut state = patiently(&format!("partition {}", partition.name), count).await?;
        let mut fate = match (state.kept, self.args.execute) {
            (1.., _) => Fate::Kept,
            (0, false) => Fate::Droppable,
            (0, true) => Fate::Locked,
        };
        let mut tried = 0;
        while fate == Fate::Locked && tried < attempts && !self.is_stopped() {
            if tried > 0 {
                sleep(ATTEMPT_PAUSE).await;
            }
            tried += 1;
            let judged = (cutoff, passed);
            let limit = self.args.lock_timeout;
            match drop_partition(client, table, &partition, judged, limit).await? {
                Dropped::Gone(rows) => {
                    (fate, state.rows) = (Fate::Dropped, rows);
                    sleep(self.args.pause).await;
                }
                Dropped::Kept(now) => (fate, state) = (Fate::Kept, now),
                Dropped::Needed => fate = Fate::Needed,
                Dropped::Vanished => return Ok(None),
                Dropped::Locked => {}
            }
        }
        let Partition { name, until, .. } = partition;
        Ok(Some(PrunedPartition { name, until, state, fate }))
    }

    async fn rows(&self, table: PruneTable, pruned: &mut PrunedTable) -> Result<(), PruneError> {
        let object = format!("table {}", table.name);
        let batch = if self.args.execute { self.args.batch } else { self.args.batch.max(COUNTED) };
        patiently(&object, async || table.indexed(self.client).await).await?;
        let rows = Rows::of(self.client, table, &pruned.cutoff, self.passed, batch);
        let mut rows = if self.args.execute { rows.deleting() } else { rows };
        let expected = patiently(&object, async || rows.expected().await).await?;
        let stage = if self.args.execute { "deleting old rows" } else { "counting old rows" };
        let before = pruned.old;
        self.meter.begin(stage, Unit::Rows, Total::About(expected));
        while !self.is_stopped()
            && let Some(page) = patiently(&object, async || rows.next().await).await?
        {
            pruned.add(&page);
            self.meter.set_done(pruned.old - before);
            if self.args.execute {
                sleep(self.args.pause).await;
            }
        }
        Ok(())
    }
}

async fn patiently<T>(
    object: &str,
    mut work: impl AsyncFnMut() -> Result<T, PruneError>,
) -> Result<T, PruneError> {
    let mut attempts = 1;
    loop {
        match work().await {
            Err(PruneError::Control(error)) if is_lock(&error) && attempts == ATTEMPTS => {
                return Err(PruneError::Locked { object: object.to_owned(), attempts });
            }
            Err(PruneError::Control(error)) if is_lock(&error) => {
                attempts += 1;
                sleep(ATTEMPT_PAUSE).await;
            }
            done => return done,
        }
    }
}

fn is_lock(error: &ControlError) -> bool {
    matches!(error, ControlError::Connection { source: WalError::Server(server), .. }
        if matches!(server.code.as_str(), "55P03" | "40P01"))
}
