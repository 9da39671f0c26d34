//! `postrider lag`: how far behind delivery is, with exit code 1 above a limit or for a lost slot.
//! Nothing is written; a limit on an unknown value counts as exceeded.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::context::Context;
use super::doctor::check::bytes;
use super::each_stream::EachStream;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::needs_slot;
use super::status::relay::relay_facts;
use postrider_config::{Loaded, SourceMode};
use postrider_postgres::control::{self, ControlError, SlotSample};
use postrider_service::units::{InvalidValue, parse_size};

/// `lag [--max SIZE] [--max-age DURATION]`
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code: 1 above a limit or if the slot is lost, 78 if there is no slot, 69 if Postgres does
not answer.

The relay at http.bind reports the age. If that relay does not answer, is in standby or is
paused, the age is unknown and --max-age counts as exceeded. With two relays, run lag beside
each of them. With several streams, all are shown, and the exit code is the greatest; --stream
selects one.

Examples:
  postrider lag
  postrider lag --max 1GiB --max-age 5m || mail -s 'the outbox is behind' ops@example.org
  postrider lag --output json | jq .lag_bytes")]
pub struct LagArgs {
    /// Maximum unacknowledged WAL
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max: Option<u64>,
    /// Maximum age of the oldest unacknowledged transaction
    #[arg(long, value_name = "DURATION", value_parser = crate::parse_duration)]
    pub max_age: Option<Duration>,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|InvalidValue { reason, help }| match help {
        Some(help) => format!("{reason}: {help}"),
        None => reason,
    })
}

struct Lag {
    /// `None` if rows are polled.
    sample: Option<SlotSample>,
    /// Age of the oldest transaction, in seconds, or why it is unknown.
    age: Result<f64, String>,
}

pub(crate) fn run(args: &LagArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let streams = EachStream::load(context, Vec::new())?;
    // A polled stream only has an age.
    let found = streams.at_once(|stream| {
        if !streams.are_several() {
            needs_slot(&stream.config, "postrider lag")?;
        }
        ask(stream)
    });
    streams.print_all(found, |stream, lag| {
        let slot = &stream.config.source.slot;
        let is_wrong = lag.is_lost() || lag.is_above(args);
        streams.print(stream, &lag.to_text(slot), || lag.to_json(slot, is_wrong))?;
        Ok(if is_wrong { ExitCode::CheckFailed } else { ExitCode::Ok })
    })
}

fn ask(Loaded { config, stream, .. }: &Loaded) -> Result<Lag, CommandFailure> {
    let source = &config.source;
    let is_polled = source.mode == SourceMode::Poll;
    let sample = if is_polled {
        None
    } else {
        let sample = super::runtime()?.block_on(async {
            let client = control::connect(&source.connect).await?;
            control::sample(&client, &source.slot).await
        })?;
        let missing =
            || ControlError::SlotMissing { slot: source.slot.clone(), others: Vec::new() };
        Some(sample.ok_or_else(missing)?)
    };
    let slot = (!is_polled).then_some(source.slot.as_str());
    let age = match &relay_facts(config.http.bind, slot, stream.as_deref()) {
        Ok(relay) => relay.oldest_seconds.ok_or_else(|| match &relay.paused {
            Some(paused) => format!("the relay is {paused}"),
            None => {
                format!("the relay that answers is {}, and does not read the slot", relay.state)
            }
        }),
        Err(why) => Err(why.to_string()),
    };
    Ok(Lag { sample, age })
}

impl Lag {
    fn is_lost(&self) -> bool {
        self.sample.as_ref().is_some_and(|sample| sample.wal_status == "lost")
    }

    fn is_above(&self, args: &LagArgs) -> bool {
        let lag = self.sample.as_ref().map(SlotSample::lag_bytes);
        let is_young = |max: Duration| matches!(&self.age, Ok(age) if *age <= max.as_secs_f64());
        args.max.zip(lag).is_some_and(|(max, lag)| lag > max)
            || args.max_age.is_some_and(|max| !is_young(max))
    }

    fn to_text(&self, slot: &str) -> String {
        match &self.sample {
            Some(_) if self.is_lost() => {
                format!(
                    "slot `{slot}` is lost: nothing is delivered from it any more; postrider repair\n"
                )
            }
            Some(sample) => text(slot, sample, &self.age),
            None => match &self.age {
                Ok(age) => format!("rows are polled: the oldest {age:.1} s ago\n"),
                Err(why) => format!("rows are polled; age unknown: {why}\n"),
            },
        }
    }

    fn to_json(&self, slot: &str, is_wrong: bool) -> Value {
        let age = self.age.as_ref();
        let Some(sample) = &self.sample else {
            return json!({
                "what": "lag", "slot": null, "ok": !is_wrong,
                "oldest_unacknowledged_seconds": age.ok(), "age_unknown": age.err(),
            });
        };
        json!({
            "what": "lag", "slot": slot, "ok": !is_wrong, "lag_bytes": sample.lag_bytes(),
            "retained_bytes": sample.retained_bytes(), "safe_bytes": sample.safe_wal_bytes,
            "status": sample.wal_status, "active": sample.active_pid.is_some(),
            "oldest_unacknowledged_seconds": age.ok(), "age_unknown": age.err(),
        })
    }
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
