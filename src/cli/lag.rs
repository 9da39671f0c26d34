//! `postrider lag`: how far behind delivery is, with an exit code for cron and probes.
//!
//! Input: the configuration, limits. Output: WAL that is not acknowledged and that is kept for the slot, the age of the
//! oldest unacknowledged transaction where the relay that reads the slot answers; exit code 1 above a limit, and for a
//! slot that is lost. Invariant: nothing is written; a limit on what is not known is exceeded.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::context::Context;
use super::doctor::check::bytes;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::needs_slot;
use super::status::relay::relay_facts;
use postrider_config::Loaded;
use postrider_postgres::control::{self, ControlError, SlotSample};
use postrider_service::units::{InvalidValue, parse_size};

/// `lag [--max SIZE] [--max-age DURATION]`
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code: 1 above a limit, and if the slot is lost; 78 if there is no slot, 69 if
Postgres does not answer. The age is asked of the relay at http.bind: if it does not
answer or does not read the slot, as a standby or while it is paused, the age is
unknown, and --max-age is exceeded. With two relays, ask where each of them runs.

Examples:
  postrider lag
  postrider lag --max 1GiB --max-age 5m || mail -s 'the outbox is behind' ops@example.org
  postrider lag --output json | jq .lag_bytes")]
pub struct LagArgs {
    /// Unacknowledged WAL, at most
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max: Option<u64>,
    /// Age of the oldest transaction that is not acknowledged, at most
    #[arg(long, value_name = "DURATION", value_parser = crate::parse_duration)]
    pub max_age: Option<Duration>,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|InvalidValue { reason, help }| match help {
        Some(help) => format!("{reason}: {help}"),
        None => reason,
    })
}

/// Runs it.
pub(crate) fn run(args: &LagArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let Loaded { config, stream, .. } = context.load(Vec::new())?;
    needs_slot(&config, "postrider lag")?;
    let source = &config.source;
    let sample = super::runtime()?.block_on(async {
        let client = control::connect(&source.connect).await?;
        control::sample(&client, &source.slot).await
    })?;
    let Some(sample) = sample else {
        let (slot, others) = (source.slot.clone(), Vec::new());
        return Err(ControlError::SlotMissing { slot, others }.into());
    };
    let relay = relay_facts(config.http.bind, Some(&source.slot), stream.as_deref());
    let age = match &relay {
        Ok(relay) => relay.oldest_seconds.ok_or_else(|| match &relay.paused {
            Some(paused) => format!("the relay is {paused}"),
            None => {
                format!("the relay that answers is {}, and does not read the slot", relay.state)
            }
        }),
        Err(why) => Err(why.to_string()),
    };
    let lag = sample.lag_bytes();
    let is_lost = sample.wal_status == "lost";
    let is_above = args.max.is_some_and(|max| lag > max)
        || args.max_age.is_some_and(|max| !matches!(&age, Ok(age) if *age <= max.as_secs_f64()));
    let is_wrong = is_above || is_lost;
    if context.json() {
        context.print_json(&json!({
            "what": "lag", "slot": source.slot, "ok": !is_wrong, "lag_bytes": lag,
            "retained_bytes": sample.retained_bytes(), "safe_bytes": sample.safe_wal_bytes,
            "status": sample.wal_status, "active": sample.active_pid.is_some(),
            "oldest_unacknowledged_seconds": age.as_ref().ok(), "age_unknown": age.as_ref().err(),
        }))?;
    } else if is_lost {
        context.print(&format!(
            "slot `{}` is lost: nothing is delivered from it any more; postrider repair\n",
            source.slot
        ))?;
    } else {
        context.print(&text(&source.slot, &sample, &age))?;
    }
    Ok(if is_wrong { ExitCode::CheckFailed } else { ExitCode::Ok })
}

fn text(slot: &str, sample: &SlotSample, age: &Result<f64, String>) -> String {
    let shown = |amount: u64| bytes(i64::try_from(amount).unwrap_or(i64::MAX));
    let (oldest, unknown) = match age {
        Ok(age) => (format!(", the oldest {age:.1} s ago"), String::new()),
        Err(why) => (String::new(), format!("; age unknown: {why}")),
    };
    let reader = if sample.active_pid.is_some() { "" } else { "; no relay reads it" };
    format!(
        "slot `{slot}`: {} not acknowledged{oldest}; {} of WAL kept{reader}{unknown}\n",
        shown(sample.lag_bytes()),
        shown(sample.retained_bytes())
    )
}
