//! `postrider peek`: prints the records of rows that wait in the slot, without consuming them. If a
//! relay reads the slot, a temporary copy is read, which ends with the command.

use std::io::{self, IsTerminal as _};

use clap::Args;

use super::context::Context;
use super::counted::counted;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::needs_slot;
use super::route::rehearse_stream;
use postrider_postgres::control::{self, ControlError, PeekRequest};
use postrider_relay::{Plan, RelayError};

/// Per row with its own transaction: begin, table, row, commit.
const MESSAGES_A_ROW: u32 = 4;

/// Further attempts read more, because other tables may precede the rows, and before PostgreSQL 15
/// a begin and a commit per transaction.
const GROWTH: u32 = 8;
/// Maximum of messages, because they are held in memory.
const MESSAGES_MAX: u32 = 1_000_000;

/// `peek [--limit N]`
#[derive(Debug, Args)]
#[command(after_help = "\
Postgres decodes the WAL from the position of the slot, and each transaction to its end. A
transaction of millions of rows is spilled to disk on the server. A relay that starts meanwhile
waits for the slot. While a relay uses the slot, peek reads a temporary copy of it, for which
the server needs a free slot. Then unacknowledged rows are shown, too. The role needs
REPLICATION.

Exit code: 1 if peek finds no row within a million messages of other tables.

Examples:
  postrider peek
  postrider peek --limit 1000 | jq -r .topic | sort | uniq -c")]
pub struct PeekArgs {
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
}

pub(crate) fn run(args: &PeekArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let config = context.load(Vec::new())?.config;
    needs_slot(&config, "postrider peek")?;
    let plan = Plan::of(config.clone());
    let wanted = plan.requirements().map_err(RelayError::from)?;
    let (lines, is_whole) = super::runtime()?.block_on(async {
        let client = control::connect(&config.source.connect).await?;
        let inspection = control::inspect(&client, &wanted).await?;
        if let Some(refusal) = inspection.refusals(&wanted).into_iter().next() {
            return Err(refusal.into());
        }
        let mut slot = wanted.slot.clone();
        let mut limit = args.limit.saturating_mul(MESSAGES_A_ROW).saturating_add(MESSAGES_A_ROW);
        loop {
            let request = PeekRequest {
                slot: &slot,
                publication: &wanted.publication,
                messages: wanted.messages,
                before: None,
                limit,
            };
            let messages = match control::peek(&client, request).await {
                Err(ControlError::SlotHeld { .. }) if slot == wanted.slot => {
                    slot = control::copy_to_peek(&client, &wanted.slot).await?;
                    continue;
                }
                messages => messages?,
            };
            let is_whole = messages.len() < limit as usize;
            let lines = rehearse_stream(&config, (&inspection, &wanted), &messages)?;
            if is_whole || lines.len() > args.limit as usize || limit >= MESSAGES_MAX {
                return Ok::<_, CommandFailure>((lines, is_whole));
            }
            limit = limit.saturating_mul(GROWTH).min(MESSAGES_MAX);
        }
    })?;
    let is_drawn = !context.json() && io::stdout().is_terminal();
    for line in lines.iter().take(args.limit as usize) {
        if is_drawn {
            let mut text = Vec::new();
            let _ = line.write_pretty(&mut text, context.color_stdout());
            context.print_bytes(&text)?;
        } else {
            context.print(&format!("{line}\n"))?;
        }
    }
    let shown = lines.len().min(args.limit as usize);
    if lines.len() > shown || shown > 0 && !is_whole {
        tracing::info!("{} shown, and there may be more", counted(shown as u64, "row"));
    } else if is_whole {
        tracing::info!("{} shown, and no more are committed", counted(shown as u64, "row"));
    } else {
        tracing::warn!(
            "no row among the first {MESSAGES_MAX} messages: other tables lie before it"
        );
        return Ok(ExitCode::CheckFailed);
    }
    Ok(ExitCode::Ok)
}
