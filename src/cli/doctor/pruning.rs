//! Checks of `postrider doctor`: whether old rows can be pruned, and whether the coming days have
//! partitions. Nothing is locked.

use std::time::Duration;

use super::check::{Check, Lack, Outcome, identifier};
use super::fix::Fix;
use crate::failure::CommandFailure;
use crate::prune::beginning::UNKEPT;
use postrider_core::outbox::TableName;
use postrider_postgres::control::prune::{
    Added, Day, PruneColumns, PruneError, PruneTable, add_day, leaves, missing_days,
};
use postrider_postgres::control::{Client, connect};
use postrider_relay::Plan;

/// Days from today that must have partitions: a missed weekly run is noticed in time.
const DAYS_AHEAD: u32 = 2;
/// Number of days that `postrider setup --partition day` creates.
const DAYS_CREATED: u32 = 7;
/// Maximum wait for a lock, because writers queue behind it.
const LOCK_LIMIT: Duration = Duration::from_millis(200);

const PRUNE: &str = "table.prune";
const DAYS: &str = "table.days";

fn columns(plan: &Plan) -> PruneColumns {
    let outbox = &plan.config.outbox;
    PruneColumns { id: outbox.names(&outbox.id), age: outbox.names(&outbox.created_at) }
}

pub(super) async fn checks(plan: &Plan, client: &Client) -> Vec<Check> {
    let columns = columns(plan);
    let mut checks = Vec::new();
    for name in &plan.config.source.tables {
        match PruneTable::look(client, name, &columns).await {
            Err(error) => checks.push(refused(error)),
            Ok(table) => {
                checks.push(match indexed(client, &table).await {
                    Ok(()) => Check::pass(PRUNE, format!("old rows of {name} can be pruned")),
                    Err(error) => refused(error),
                });
                if table.by_age {
                    let missing = missing_days(client, &table, DAYS_AHEAD).await;
                    checks.push(days(name, missing));
                }
            }
        }
    }
    checks
}

/// Downgrades a passed check, because `prune` cannot know which rows were delivered.
pub(super) fn beginning_unknown(checks: &mut [Check], slot: &str, why: &'static str) {
    for check in checks.iter_mut().filter(|check| check.id == PRUNE) {
        if check.outcome == Outcome::Pass {
            *check = refused(PruneError::BeginningUnknown { slot: slot.to_owned(), why });
        }
    }
}

async fn indexed(client: &Client, table: &PruneTable) -> Result<(), PruneError> {
    for leaf in leaves(client, table).await? {
        leaf.indexed(client).await?;
    }
    Ok(())
}

/// Warning for an error of `prune`. Rows are delivered anyway.
fn refused(error: PruneError) -> Check {
    if let PruneError::Control(error) = &error {
        return Check::unknown(PRUNE, error.to_string());
    }
    let steps = match &error {
        PruneError::Forbidden { grant, .. } if grant.starts_with("GRANT") => {
            Fix::sql(grant.as_str())
        }
        PruneError::RowsHidden { role, .. } => {
            Fix::sql(format!("ALTER ROLE {} BYPASSRLS;", identifier(role)))
        }
        PruneError::IndexMissing { .. } => Fix::sql(error.hint().unwrap_or_default()),
        PruneError::BeginningUnknown { why: UNKEPT, .. } => {
            Fix::config("progress.at_least_once = true")
        }
        _ => Fix::default(),
    };
    let failure = CommandFailure::from(error);
    let finding = failure.findings.into_iter().next();
    let (what, help) =
        finding.map(|one| (one.what, one.help.unwrap_or_default())).unwrap_or_default();
    Check::warn(PRUNE, what, help).with_steps(steps)
}

fn days(table: &TableName, missing: Result<Vec<Day>, PruneError>) -> Check {
    let missing = match missing {
        Ok(missing) => missing,
        Err(error) => return Check::unknown(DAYS, error.to_string()),
    };
    let Some(first) = missing.first() else {
        return Check::pass(
            DAYS,
            format!("{table} has partitions up to {DAYS_AHEAD} days from now"),
        );
    };
    let finding = format!(
        "{table} has no partition from {} on: rows of those days go to the default partition, where they are deleted \
         one by one, or are refused",
        first.from
    );
    let create: Vec<_> = missing.iter().map(|day| create(table, day)).collect();
    Check::warn(
        DAYS,
        finding,
        Fix::sql(create.join(" "))
            .say(" -- and run `postrider prune --older-than TIME --ahead 7 --execute` each day"),
    )
    .lacking([Lack::Days])
}

fn create(table: &TableName, day: &Day) -> String {
    let name =
        |name: &TableName| format!("{}.{}", identifier(&name.schema), identifier(&name.name));
    format!(
        "CREATE TABLE {} PARTITION OF {} FOR VALUES FROM ('{}') TO ('{}');",
        name(&day.partition),
        name(table),
        day.from,
        day.until
    )
}

pub(super) async fn missing(plan: &Plan) -> Result<Vec<String>, CommandFailure> {
    let client = connect(&plan.config.source.connect).await?;
    let mut names = Vec::new();
    for (_, day) in missing_of(plan, &client).await? {
        names.push(format!("partition {}", day.partition));
    }
    Ok(names)
}

/// Creates missing partitions. Waits for locks are short.
pub(super) async fn add(plan: &Plan, created: &mut Vec<String>) -> Result<(), CommandFailure> {
    let client = connect(&plan.config.source.connect).await?;
    for (table, day) in missing_of(plan, &client).await? {
        let (table_name, partition) = (table.name.clone(), day.partition.clone());
        match add_day(&client, &table, &day, LOCK_LIMIT).await? {
            Added::Created => created.push(format!("partition {partition}")),
            Added::Covered => {}
            Added::Occupied => {
                return Err(PruneError::DayOccupied { table: table_name, partition }.into());
            }
            Added::Taken => {
                return Err(PruneError::DayTaken { table: table_name, partition }.into());
            }
            Added::Locked => {
                let object =
                    format!("table {table_name}, which was to have partition {partition},");
                return Err(PruneError::Locked { object, attempts: 1 }.into());
            }
        }
    }
    Ok(())
}

async fn missing_of(
    plan: &Plan,
    client: &Client,
) -> Result<Vec<(PruneTable, Day)>, CommandFailure> {
    let columns = columns(plan);
    let mut missing = Vec::new();
    for name in &plan.config.source.tables {
        let table = PruneTable::look(client, name, &columns).await?;
        if !table.by_age {
            continue;
        }
        table.may_drop(client).await?;
        let days = missing_days(client, &table, DAYS_CREATED).await?;
        missing.extend(days.into_iter().map(|day| (table.clone(), day)));
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_without_partitions_are_told_with_what_creates_them() {
        let table = TableName::new("public", "outbox");
        let day = Day {
            partition: TableName::new("public", "outbox_p20261201"),
            from: "2026-12-01 00:00:00+00".to_owned(),
            until: "2026-12-02 00:00:00+00".to_owned(),
        };
        let told = days(&table, Ok(vec![day]));
        assert!(told.fix.unwrap().text().starts_with(
            "CREATE TABLE \"public\".\"outbox_p20261201\" PARTITION OF \"public\".\"outbox\" FOR VALUES FROM \
             ('2026-12-01 00:00:00+00') TO ('2026-12-02 00:00:00+00');"
        ));
        assert_eq!(told.lacks, [Lack::Days]);
        assert!(days(&table, Ok(Vec::new())).fix.is_none());
    }
}
