//! `dead-letters retry`: sends dead letters to the topics they were meant for.
//!
//! Enters: filters and names. Leaves: the plan, and with `--execute` the records in their topics.
//! What always holds: without `--execute` nothing is written anywhere; partitions are worked off one
//! after another and each in offset order, so records of one key keep theirs.

use std::ops::ControlFlow;

use super::error::DeadLettersError;
use super::filter::{Filter, FilterArgs, Target};
use super::letter::Explained;
use super::plan::{Errand, Plan, Terms};
use super::progress::Progress;
use super::redrive::Redrive;
use super::survey::{Survey, place_of, walk};
use super::{Source, SourceArgs};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::{run, runtime};
use crate::kafka::{Producer, Sink, SinkError, Start};
use crate::relay::Stop;
use crate::route::check_topic;

/// `dead-letters retry [filters] [PARTITION:OFFSET|ID ..] [--to TOPIC] [--rate N] [--execute]`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A record that was sent again keeps its id, and has a last header postrider-retried with the place of
its dead letter. Once it is stored a receipt is written to the dead-letter topic: what has a receipt
is not sent twice. An interruption in between repeats a record.

Examples:
  postrider dead-letters retry --code refused              the plan; nothing is sent
  postrider dead-letters retry --code refused --execute
  postrider dead-letters retry 0:17 --to orders --execute  another topic")]
pub struct RetryArgs {
    /// Dead letters by place or by their row's id [default: all]
    #[arg(value_name = "PARTITION:OFFSET|ID")]
    pub targets: Vec<String>,

    /// Send to this topic instead of the ones they were meant for
    #[arg(long, value_name = "TOPIC", value_parser = legal_topic)]
    pub to: Option<String>,

    /// Records per second, at most
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,

    /// Do it; otherwise only the plan is printed
    #[arg(long)]
    pub execute: bool,

    /// Which dead letters.
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Where from.
    #[command(flatten)]
    pub source: SourceArgs,
}

fn legal_topic(text: &str) -> Result<String, &'static str> {
    check_topic(text).map(|()| text.to_owned())
}

/// Runs it.
pub(super) fn run(args: &RetryArgs, context: &Context) -> Result<ExitCode, Failure> {
    let source = Source::of(&args.source, context)?;
    if args.to.as_deref() == Some(source.topic.as_str()) {
        return Err(DeadLettersError::Circular(source.topic).into());
    }
    if let Some(topic) = args.to.clone()
        && let Err(reason) = source.topics.check_reserved(&topic)
    {
        return Err(DeadLettersError::Reserved { topic, reason }.into());
    }
    let targets: Vec<Target> = args.targets.iter().map(|text| Target::parse(text)).collect();
    let mut progress = Progress::new();
    let plan = plan(args, &source, &targets, &mut progress)?;
    if !args.execute {
        print(&plan, None, context)?;
        return Ok(ExitCode::Ok);
    }
    let mut sent = 0;
    let outcome = execute(args, &source, &plan, &mut progress, &mut sent);
    progress.clear();
    print(&plan, Some(sent), context)?;
    outcome?;
    if !targets.is_empty() && !plan.hindered.is_empty() {
        return Err(DeadLettersError::Hindered { count: plan.hindered.len() }.into());
    }
    Ok(ExitCode::Ok)
}

fn plan(
    args: &RetryArgs,
    source: &Source,
    targets: &[Target],
    progress: &mut Progress,
) -> Result<Plan, DeadLettersError> {
    let mut filter = Filter::new(&args.filter, targets, super::now_ms());
    let survey = Survey::take(&mut source.open(None, Start::Beginning)?, &mut filter, progress)?;
    let terms = Terms {
        to: args.to.as_deref(),
        dead_letter_topic: &source.topic,
        topics: &source.topics,
        most: args.filter.most(),
        again: args.filter.all,
        formatted: source.formatted,
    };
    Ok(Plan::of(&survey.letters, terms))
}

fn execute(
    args: &RetryArgs,
    source: &Source,
    plan: &Plan,
    progress: &mut Progress,
    sent: &mut u64,
) -> Result<(), Failure> {
    if plan.errands.is_empty() {
        return Ok(());
    }
    let stop = Stop::default();
    let (signals, listener) = (runtime()?, stop.clone());
    std::thread::spawn(move || signals.block_on(async { run::listen_for_signals(listener).await }));
    let sink = Producer::open(&source.producer()).map_err(DeadLettersError::Sink)?;
    let mut redrive = Redrive::new(sink, &source.topic, args.rate, stop);
    let total = plan.errands.len();
    let mut result = Ok(true);
    for of_one in plan.errands.chunk_by(|a, b| a.place.partition == b.place.partition) {
        result = send(source, of_one, &mut redrive, &mut |done| {
            progress.show(|| format!("{done} of {total} sent again"));
        });
        if !matches!(result, Ok(true)) {
            break;
        }
    }
    // What is under way when reading fails is confirmed all the same.
    let finished = match &result {
        Err(error) if error.is_of_the_sink() => Ok(()),
        _ => redrive.finish(),
    };
    *sent = redrive.done();
    Ok(result.and(finished)?)
}

/// Sends the dead letters of one partition. False: it was stopped.
fn send<S: Sink<Error = SinkError>>(
    source: &Source,
    errands: &[Errand],
    redrive: &mut Redrive<S>,
    progress: &mut dyn FnMut(u64),
) -> Result<bool, DeadLettersError> {
    let mut ahead = errands.iter().peekable();
    let Some(first) = errands.first() else { return Ok(true) };
    let start = Start::Offset(first.place.offset);
    let mut reader = source.open(Some(first.place.partition), start)?;
    let mut goes_on = true;
    walk(&mut reader, |record| {
        let place = place_of(record);
        let Some(errand) = ahead.next_if(|errand| errand.place <= place) else {
            return Ok(ControlFlow::Continue(()));
        };
        let explained = Explained::read(record.headers()).filter(|_| errand.place == place);
        let Some(explained) = explained else { return Err(DeadLettersError::Gone(errand.place)) };
        let again = explained.again(&record.to_stored(), &errand.topic, super::now_ms());
        goes_on = redrive.send(place, &again)?;
        progress(redrive.done());
        let is_last = ahead.peek().is_none();
        Ok(if goes_on && !is_last { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    match ahead.next() {
        Some(errand) if goes_on => Err(DeadLettersError::Gone(errand.place)),
        _ => Ok(goes_on),
    }
}

fn print(plan: &Plan, sent: Option<u64>, context: &Context) -> Result<(), Failure> {
    if context.json() {
        return context.print_json(&plan.to_json(sent));
    }
    let last = match sent {
        None if plan.errands.is_empty() => String::new(),
        None => "nothing was sent; --execute sends them\n".to_owned(),
        Some(sent) => format!("sent again and stored: {sent} of {}\n", plan.errands.len()),
    };
    context.print(&(plan.to_text() + &last))
}
