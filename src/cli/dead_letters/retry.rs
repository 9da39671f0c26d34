//! `dead-letters retry`: sends dead letters to their original topics, or to the topic of `--to`.
//!
//! Invariant: without `--execute` nothing is written. Partitions are processed in turn, each in
//! offset order, so that the records of a key keep their order. The first SIGTERM or Ctrl-C ends
//! the command after the records in flight, the second at once.

use super::error::DeadLettersError;
use super::plan::RetryPlan;
use super::{FilterArgs, Source, SourceArgs};
use crate::context::Context;
use crate::exit::ExitCode;
use crate::failure::CommandFailure;
use crate::progress_display::{ProgressDisplay, tell_interrupted};
use crate::replay::refuse_absent;
use crate::{run, runtime};
use postrider_core::route::check_topic;
use postrider_patterns::dead_letter::{DeadLetterError, Interrupt, RedriveControl, Target};
use postrider_relay::{ControlRequest, Meter, StopSignal, Total, Unit};

/// `dead-letters retry [filters] [PARTITION:OFFSET|ID ..] [--to TOPIC] [--rate N] [--execute]`
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
A record that is sent again keeps its id and gets a last header, postrider-retried, with the
position of its dead letter. After the brokers store the record, a receipt is written to the
dead-letter topic. A letter with a receipt is not sent again. An interruption between the two
repeats the record.

Examples:
  postrider dead-letters retry --code refused              print the plan; nothing is sent
  postrider dead-letters retry --code refused --execute
  postrider dead-letters retry 0:17 --to orders --execute  another topic")]
pub struct RetryArgs {
    /// Dead letters, by position or by id of their rows [default: all]
    #[arg(value_name = "PARTITION:OFFSET|ID")]
    pub targets: Vec<String>,

    /// Send to this topic instead of the original topics
    #[arg(long, value_name = "TOPIC", value_parser = legal_topic)]
    pub to: Option<String>,

    /// Maximum records per second
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,

    /// Send; without it, only print the plan
    #[arg(long)]
    pub execute: bool,

    /// Which dead letters.
    #[command(flatten)]
    pub filter: FilterArgs,

    #[command(flatten)]
    pub source: SourceArgs,
}

fn legal_topic(text: &str) -> Result<String, &'static str> {
    check_topic(text).map(|()| text.to_owned())
}

pub(super) fn run(args: &RetryArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let source = Source::of(&args.source, context)?;
    if args.to.as_deref() == Some(source.topic.name.as_str()) {
        return Err(DeadLettersError::Circular(source.topic.name).into());
    }
    if let Some(topic) = args.to.clone()
        && let Err(reason) = source.topics.check_reserved(&topic)
    {
        return Err(DeadLettersError::Reserved { topic, reason }.into());
    }
    let targets = args.targets.iter().map(|text| Target::parse(text)).collect();
    let survey = source.survey(&args.filter.filter(targets), context)?;
    let plan = RetryPlan::of(&survey.letters, args, &source);
    if !args.execute {
        print(&plan, None, context)?;
        return Ok(ExitCode::Ok);
    }
    if let Some(topic) = &args.to {
        refuse_absent(&source.topic.kafka, topic)?;
    }
    let (sent, outcome) = execute(&source, &plan, args.rate, context)?;
    print(&plan, Some(sent), context)?;
    outcome?;
    let is_success = args.targets.is_empty() && !plan.jobs.is_empty();
    if !is_success && !plan.hindered.is_empty() {
        return Err(DeadLettersError::Hindered { count: plan.hindered.len() }.into());
    }
    Ok(ExitCode::Ok)
}

fn execute(
    source: &Source,
    plan: &RetryPlan,
    rate: u32,
    context: &Context,
) -> Result<(u64, Result<(), DeadLetterError>), CommandFailure> {
    let stop = StopSignal::default();
    let (signals, listener) = (runtime()?, stop.clone());
    std::thread::spawn(move || signals.block_on(async { run::listen_for_signals(listener).await }));
    let interrupt = || match stop.most_urgent() {
        ControlRequest::Run | ControlRequest::Reconfigure | ControlRequest::ServerShutdown => {
            Interrupt::None
        }
        ControlRequest::Drain => Interrupt::Drain,
        ControlRequest::Abort => Interrupt::Abort,
    };
    let (meter, total) = (Meter::default(), plan.jobs.len() as u64);
    meter.begin("sending dead letters", Unit::Records, Total::Exactly(total));
    let read = meter.clone();
    let _display = ProgressDisplay::start(context, move || read.reading());
    let control = RedriveControl { rate, interrupt: &interrupt };
    let (sent, outcome) =
        source.topic.redrive(&plan.jobs, control, &mut |done| meter.set_done(done));
    meter.set_done(sent);
    if sent < total && interrupt() != Interrupt::None {
        tell_interrupted(meter.reading(), "sent letters are not sent again", (&[], &[]));
    }
    Ok((sent, outcome))
}

fn print(plan: &RetryPlan, sent: Option<u64>, context: &Context) -> Result<(), CommandFailure> {
    if context.json() {
        return context.print_json(&plan.to_json(sent));
    }
    let last = match sent {
        None if plan.jobs.is_empty() => String::new(),
        None => "nothing was sent; --execute sends them\n".to_owned(),
        Some(sent) => format!("sent again and stored: {sent} of {}\n", plan.jobs.len()),
    };
    context.print(&(plan.to_text() + &last))
}
