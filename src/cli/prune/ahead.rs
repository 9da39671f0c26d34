//! `postrider prune --ahead`: creates partitions of the coming days. A failure is returned after
//! all tables, because it must not keep old rows.

use std::fmt::Write as _;

use serde_json::json;
use tokio::time::sleep;

use super::{ATTEMPT_PAUSE, ATTEMPTS, PruneArgs};
use crate::context::Context;
use crate::failure::CommandFailure;
use postrider_postgres::control::Client;
use postrider_postgres::control::prune::{
    Added, Day, PruneError, PruneTable, add_day, missing_days,
};

/// A day without a partition; `None` without `--execute`.
type Outcome = (Day, Option<Added>);

/// Creates missing partitions. Returns the first failure.
pub(super) async fn add(
    args: &PruneArgs,
    client: &Client,
    tables: &[PruneTable],
    context: &Context,
) -> Result<Option<PruneError>, CommandFailure> {
    let Some(ahead) = args.ahead else { return Ok(None) };
    let mut failure = None;
    for table in tables {
        let mut outcomes: Vec<Outcome> = Vec::new();
        let missing = missing_days(client, table, ahead).await?;
        if args.execute && !missing.is_empty() {
            table.may_drop(client).await?;
        }
        for day in missing {
            let added =
                if args.execute { Some(patiently(args, client, table, &day).await?) } else { None };
            let error = added.and_then(|added| refused(table, &day, added));
            failure = failure.or(error);
            outcomes.push((day, added));
        }
        print(table, &outcomes, context)?;
    }
    Ok(failure)
}

async fn patiently(
    args: &PruneArgs,
    client: &Client,
    table: &PruneTable,
    day: &Day,
) -> Result<Added, PruneError> {
    let mut attempts = 1;
    loop {
        match add_day(client, table, day, args.lock_timeout).await? {
            Added::Locked if attempts < ATTEMPTS => attempts += 1,
            added => return Ok(added),
        }
        sleep(ATTEMPT_PAUSE).await;
    }
}

fn refused(table: &PruneTable, day: &Day, added: Added) -> Option<PruneError> {
    let (table, partition) = (table.name.clone(), day.partition.clone());
    match added {
        Added::Created | Added::Covered => None,
        Added::Occupied => Some(PruneError::DayOccupied { table, partition }),
        Added::Taken => Some(PruneError::DayTaken { table, partition }),
        Added::Locked => {
            let object = format!("table {table}, which was to have partition {partition},");
            Some(PruneError::Locked { object, attempts: ATTEMPTS })
        }
    }
}

fn print(
    table: &PruneTable,
    outcomes: &[Outcome],
    context: &Context,
) -> Result<(), CommandFailure> {
    if context.json() {
        let days: Vec<_> = outcomes
            .iter()
            .map(|(day, added)| {
                json!({
                    "partition": day.partition.to_string(), "from": day.from, "until": day.until,
                    "is": word(*added).0,
                })
            })
            .collect();
        return context.print_json(&json!({ "table": table.name.to_string(), "ahead": days }));
    }
    let mut text = String::new();
    for (day, added) in outcomes {
        let _ = writeln!(
            text,
            "partition {}, from {} until {}: {}",
            day.partition,
            day.from,
            day.until,
            word(*added).1
        );
    }
    context.print(&text)
}

const fn word(added: Option<Added>) -> (&'static str, &'static str) {
    match added {
        None => ("create", "would be created"),
        Some(Added::Created) => ("created", "created"),
        Some(Added::Covered) => ("covered", "already covered by another partition"),
        Some(Added::Occupied) => ("occupied", "not created: the default partition is in the way"),
        Some(Added::Taken) => ("taken", "not created: something else has its name"),
        Some(Added::Locked) => ("locked", "not created: the table was locked by others"),
    }
}
