//! `postrider peek`: prints the records of the rows that wait in the slot, consuming none.
//!
//! Input: the configuration, how many rows. Output: a line of JSON for each, as `route` prints it, in the order of their
//! commits. Invariant: nothing is written, and neither position of the slot moves; a slot that a relay reads is refused
//! with its reader.

use clap::Args;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::needs_slot;
use super::route::rehearse_stream;
use postrider_postgres::control::{self, PeekRequest};
use postrider_relay::{Plan, RelayError};

/// Messages that a row takes at most where each has a transaction of its own: begin, table, row, commit.
const MESSAGES_A_ROW: u32 = 4;

/// `peek [--limit N]`
#[derive(Debug, Args)]
#[command(after_help = "\
Postgres decodes its log from where the slot stands. Refused while a relay reads the slot. The role needs
REPLICATION.

Examples:
  postrider peek
  postrider peek --limit 1000 | jq -r .topic | sort | uniq -c")]
pub struct PeekArgs {
    /// Rows, at most
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
}

/// Runs it.
pub(crate) fn run(args: &PeekArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let config = context.load(Vec::new())?.config;
    needs_slot(&config, "postrider peek")?;
    let plan = Plan::of(config.clone());
    let wanted = plan.requirements().map_err(RelayError::from)?;
    let (inspection, messages) = super::runtime()?.block_on(async {
        let client = control::connect(&config.source.connect).await?;
        let inspection = control::inspect(&client, &wanted).await?;
        if let Some(refusal) = inspection.refusals(&wanted).into_iter().next() {
            return Err(refusal);
        }
        let request = PeekRequest {
            slot: &wanted.slot,
            publication: &wanted.publication,
            messages: wanted.messages,
            limit: args.limit.saturating_mul(MESSAGES_A_ROW).saturating_add(MESSAGES_A_ROW),
        };
        Ok((inspection, control::peek(&client, request).await?))
    })?;
    let lines = rehearse_stream(&config, (&inspection, &wanted), &messages)?;
    for line in lines.iter().take(args.limit as usize) {
        context.print(line)?;
    }
    Ok(ExitCode::Ok)
}
