//! `postrider status`: the state of a stream on one screen, or one JSON object; with `--watch`
//! repeatedly.
//!
//! Invariant: nothing is written. A part that does not answer has a line that says so, and does not
//! affect the others.

mod gather;
pub(super) mod relay;
#[cfg(test)]
mod tests;

use std::time::Duration;

use clap::Args;

use super::context::Context;
use super::each_stream::EachStream;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::marks::columns;
use gather::Status;

/// `status [--watch [DURATION]]`
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code: 1 if the slot is missing, lost or inactive, if the relay at http.bind hangs, is not
ready or is paused, or if Postgres or Kafka does not answer. With several streams, all are
shown, and the exit code is 1 if one has a problem; --stream selects one.

Examples:
  postrider status
  postrider status --watch 5s
  postrider status --output json | jq .slot.lag_bytes")]
pub struct StatusArgs {
    /// Refresh every DURATION [default: 2s]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, default_missing_value = "2s",
          value_parser = parse_pause)]
    pub watch: Option<Duration>,
}

/// Shortest interval at which servers are asked.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

fn parse_pause(text: &str) -> Result<Duration, String> {
    let pause = crate::parse_duration(text)?;
    if pause < SHORTEST_PAUSE {
        return Err("the shortest is 100ms".to_owned());
    }
    Ok(pause)
}

const CLEAR: &str = "\x1b[2J\x1b[H";

pub(crate) fn run(args: &StatusArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let streams = EachStream::load(context, Vec::new())?;
    loop {
        let found = streams.at_once(|one| Status::gather(&one.config, one.stream.as_deref()));
        if args.watch.is_some() && context.color_stdout() && !context.json() {
            context.print(CLEAR)?;
        }
        let exit = streams.print_all(found, |stream, status| {
            let text = status.to_text(columns(std::io::stdout()), context.color_stdout());
            streams.print(stream, &text, || status.to_json())?;
            Ok(if status.is_sound() { ExitCode::Ok } else { ExitCode::CheckFailed })
        })?;
        let Some(pause) = args.watch else { return Ok(exit) };
        std::thread::sleep(pause);
    }
}
