//! `shop sagas`: lists stuck orders, shows one, fires its deadline now, or compensates it. A
//! repeated action changes nothing more.

use std::io::Write;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use super::process::OrderProcess;
use crate::ShopError;
use crate::connect::connect;
use postrider_patterns::saga::{self, OperatorAction, Saga as _, SagaError};

/// Arguments of `shop sagas`.
#[derive(Debug, Args)]
pub(crate) struct SagasArgs {
    #[command(subcommand)]
    command: SagasCommand,
}

#[derive(Debug, Subcommand)]
enum SagasCommand {
    /// Print one line of JSON for each order whose deadline has passed
    List {
        #[command(flatten)]
        database: DatabaseArgs,
        /// All orders that have not ended
        #[arg(long)]
        all: bool,
        /// Most lines
        #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Print an order's saga with its timers and its history, as a line of JSON
    Show {
        #[command(flatten)]
        database: DatabaseArgs,
        /// The order's id
        order: Uuid,
    },
    /// Fire an order's deadline now: what was done for it is undone, or asked for again
    Advance(ActArgs),
    /// Cancel an order that has not ended, and have what was done for it undone
    Compensate(ActArgs),
}

#[derive(Debug, Args)]
struct DatabaseArgs {
    /// The database: a URL or key=value pairs
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
}

#[derive(Debug, Args)]
struct ActArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The order's id
    order: Uuid,
    /// Do it; without it, only print what would happen
    #[arg(long)]
    execute: bool,
}

impl SagasArgs {
    pub(crate) async fn run(&self, stdout: &mut dyn Write) -> Result<(), ShopError> {
        match &self.command {
            SagasCommand::List { database, all, limit } => {
                let client = connect(&database.database_url).await?;
                for found in saga::list::<OrderProcess>(&client, !all, *limit).await? {
                    print(stdout, &found)?;
                }
                Ok(())
            }
            SagasCommand::Show { database, order } => {
                let client = connect(&database.database_url).await?;
                let id = order.to_string();
                let found = saga::show::<OrderProcess>(&client, &id).await?;
                print(stdout, &found.ok_or(SagaError::Unknown { kind: OrderProcess::KIND, id })?)
            }
            SagasCommand::Advance(args) => args.act(OperatorAction::Advance, stdout).await,
            SagasCommand::Compensate(args) => args.act(OperatorAction::Compensate, stdout).await,
        }
    }
}

impl ActArgs {
    async fn act(&self, action: OperatorAction, stdout: &mut dyn Write) -> Result<(), ShopError> {
        let mut client = connect(&self.database.database_url).await?;
        let id = self.order.to_string();
        let step = saga::act::<OrderProcess>(&mut client, &id, action, self.execute).await?;
        let word = if self.execute { "done" } else { "planned" };
        let effect = json!({
            "id": id, "from": step.from, "to": step.to, "changed": step.changed,
            "ended": step.has_ended, "emitted": step.emitted,
        });
        print(stdout, &json!({ word: effect }))
    }
}

fn print(stdout: &mut dyn Write, line: &impl Serialize) -> Result<(), ShopError> {
    let line = serde_json::to_string(line).map_err(std::io::Error::other);
    line.and_then(|line| writeln!(stdout, "{line}")).map_err(ShopError::Output)
}
