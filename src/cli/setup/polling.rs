//! `postrider setup` if rows are polled. Creates the outbox table with columns for marks, an index
//! of waiting rows, a trigger that notifies of new ones, and topics. Options of a slot are refused.

use super::{Done, SetupArgs, print, wanted_topics};
use crate::each_stream::EachStream;
use crate::exit::ExitCode;
use crate::failure::CommandFailure;
use crate::needs_slot;
use postrider_config::{Config, Loaded, PollMark};
use postrider_postgres::control::{OutboxPartitions, PollSetup, PollSetupMark, connect};
use postrider_relay::{Plan, kafka_spec};

pub(super) fn run(
    args: &SetupArgs,
    streams: &EachStream<'_>,
    stream: &Loaded,
) -> Result<ExitCode, CommandFailure> {
    let config = stream.config.clone();
    let of_slots = [
        (args.from_now, "setup --from-now"),
        (args.no_slot, "setup --no-slot"),
        (args.existing.is_some(), "setup --existing"),
    ];
    for (_, what) in of_slots.into_iter().filter(|(is_given, _)| *is_given) {
        needs_slot(&config, what)?;
    }
    let relay = Plan::new(kafka_spec(&config), config);
    let plan = plan(args, &relay.config);
    if args.print {
        let topics = wanted_topics(args, &relay.config, true)?;
        print(&plan.steps(), &topics, (streams, stream))?;
        return Ok(ExitCode::Ok);
    }
    let mut done = Done::default();
    let runtime = crate::runtime()?;
    let made = runtime.block_on(async {
        let client = connect(&relay.config.source.connect).await?;
        plan.make(&client, &mut done.made).await
    });
    let topics = if made.is_ok() { done.remaining_topics(args, &relay) } else { Ok(()) };
    done.print(streams, stream)?;
    made?;
    topics.map(|()| ExitCode::Ok)
}

fn plan(args: &SetupArgs, config: &Config) -> PollSetup {
    let poll = &config.source.poll;
    PollSetup {
        tables: config.source.tables.clone(),
        existing_tables: !args.table.is_empty(),
        partitions: args.partition.map_or(OutboxPartitions::None, |_| OutboxPartitions::Day),
        mark: match poll.mark.clone() {
            PollMark::ProcessedAt(column) => PollSetupMark::ProcessedAt(column),
            PollMark::Status { column, pending, .. } => PollSetupMark::Status { column, pending },
            PollMark::Delete => PollSetupMark::Delete,
        },
        retry_count: poll.retry_count.clone(),
        notify: poll.notify.clone(),
        order_by: config.outbox.order_by.clone(),
        id: config.outbox.id.clone(),
        created_at: config.outbox.created_at.clone(),
    }
}
