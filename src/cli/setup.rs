//! `postrider setup`: outbox table, publication and slot, made where they are missing.
//!
//! Enters: the configured names. Leaves: the SQL on stdout, or a database that is ready. What always
//! holds: it can be run any number of times, and `--print` touches nothing.

use std::fmt::Write as _;

use clap::Args;
use serde_json::json;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::Failure;
use crate::config::FlagValue;
use crate::control::{SetupPlan, connect};

/// `setup [--print] [--table SCHEMA.NAME]`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postrider setup --print | psql shop\n  postrider setup --table shop.outbox\n  PGHOST=db PGUSER=owner PGDATABASE=shop postrider setup"
)]
pub struct SetupArgs {
    /// Print the SQL and do nothing
    #[arg(long)]
    pub print: bool,
    /// An outbox table that exists already, in place of source.tables; may be repeated
    #[arg(long, value_name = "SCHEMA.NAME")]
    pub table: Vec<String>,
}

/// Runs it.
pub fn run(args: &SetupArgs, context: &Context) -> Result<ExitCode, Failure> {
    let exists = !args.table.is_empty();
    let tables = FlagValue { key: "source.tables", value: args.table.join(","), flag: "--table" };
    let source = context.load(exists.then_some(tables).into_iter().collect())?.config.source;
    let plan = SetupPlan::new(&source.slot, &source.publication, &source.tables, exists);
    if args.print {
        print(&plan, context)?;
        return Ok(ExitCode::Ok);
    }
    super::runtime()?.block_on(async {
        let client = connect(&source.connect).await?;
        plan.run(&client).await.map_err(Failure::from)
    })?;
    let ready: Vec<&str> = plan.steps.iter().map(|step| step.object.as_str()).collect();
    if context.json() {
        context.print_json(&json!({ "ready": ready }))?;
    } else {
        let mut lines = String::new();
        for object in ready {
            let _ = writeln!(lines, "ready: {object}");
        }
        context.print(&lines)?;
    }
    Ok(ExitCode::Ok)
}

fn print(plan: &SetupPlan, context: &Context) -> Result<(), Failure> {
    if !context.json() {
        return context.print(&plan.script());
    }
    let steps: Vec<_> =
        plan.steps.iter().map(|step| json!({ "object": step.object, "sql": step.sql })).collect();
    context.print_json(&json!({ "steps": steps }))
}
