//! `postrider tail`: prints records of topics, with kcat's options. No offset is committed; a
//! closed pipe ends the command quietly.

mod format;
mod json;
pub(crate) mod pretty;

use std::io::{self, BufWriter, ErrorKind, IsTerminal, StdoutLock, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use postrider_kafka::{
    Isolation, KafkaSpec, Reader, ReaderError, ReaderEvent, ReaderSpec, Received, StartOffset,
};

use format::Template;

const CONNECT_LIMIT: Duration = Duration::from_secs(15);

/// Interval of checks for a closed pipe.
const IDLE_WAIT: Duration = Duration::from_millis(500);

/// Arguments of `postrider tail`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
FORMAT of -f, as kcat's: %t topic, %p partition, %o offset, %k key, %s value, %h headers,
%T time in ms, %S and %K length of value and key (-1 for null), %% and \\n \\r \\t \\\\ \\xNN.

Examples:
  postrider tail orders                        follow from the beginning
  postrider tail orders -o -10 -e              the last ten offsets of each partition
  postrider tail orders -o end -f '%k %s\\n'    new records, key and value
  postrider tail orders -J -n 1 | jq .payload")]
pub struct TailArgs {
    /// Topics to read
    #[arg(required = true, value_name = "TOPIC")]
    pub topics: Vec<String>,

    /// Kafka brokers, comma-separated [default: as configured]
    #[arg(short = 'b', long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,

    /// Start: beginning, end, N, -N (N offsets before the end of each partition, including
    /// hidden transaction markers), @MILLISECONDS
    #[arg(
        short = 'o',
        long,
        value_name = "OFFSET",
        default_value = "beginning",
        allow_hyphen_values = true
    )]
    pub offset: StartOffset,

    /// Only this partition
    #[arg(short, long, value_name = "N")]
    pub partition: Option<i32>,

    /// Exit at the end instead of following. Topics are then read one after another.
    #[arg(short = 'e', long)]
    pub exit: bool,

    /// Stop after this many records
    #[arg(short = 'n', short_alias = 'c', long, value_name = "N")]
    pub count: Option<u64>,

    /// Print each record in this format, see below
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "json", allow_hyphen_values = true)]
    pub format: Option<Template>,

    /// Print each record as one line of JSON, in kcat's layout
    #[arg(short = 'J', long)]
    pub json: bool,

    /// Which records of transactions to show
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "read_committed")]
    pub isolation: IsolationArg,
}

/// Kafka's names of its isolation levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum IsolationArg {
    /// Only records of committed transactions
    #[value(name = "read_committed")]
    ReadCommitted,
    /// All records
    #[value(name = "read_uncommitted")]
    ReadUncommitted,
}

#[derive(Debug, thiserror::Error)]
pub enum TailError {
    #[error(transparent)]
    Reader(#[from] ReaderError),
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

impl TailError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Reader(error) => error.hint(),
            Self::Output(_) => None,
        }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Reader(ReaderError::Settings(_)) => 78,
            Self::Reader(ReaderError::NoEntry(_) | ReaderError::Unauthorised(_)) => 77,
            Self::Reader(ReaderError::Unreachable { .. } | ReaderError::Client(_)) => 69,
            Self::Reader(_) | Self::Output(_) => 1,
        }
    }
}

pub(crate) fn run(args: &TailArgs, mut kafka: KafkaSpec, color: bool) -> Result<(), TailError> {
    "postrider-tail".clone_into(&mut kafka.client_id);
    let spec = ReaderSpec {
        topics: args.topics.clone(),
        partition: args.partition,
        start: args.offset,
        stop_at_end: args.exit,
        isolation: match args.isolation {
            IsolationArg::ReadCommitted => Isolation::Committed,
            IsolationArg::ReadUncommitted => Isolation::Uncommitted,
        },
        fetch_wait_ms: 100,
        may_create: false,
    };
    let reader = Reader::open(&kafka, spec, CONNECT_LIMIT)?;
    let out = TailOutput::new(args, color);
    match copy(reader, out, args.count.unwrap_or(u64::MAX)) {
        Err(TailError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn copy(mut reader: Reader, mut out: TailOutput, most: u64) -> Result<(), TailError> {
    let mut written = 0;
    let mut wait = Duration::ZERO;
    while written < most {
        match reader.next(wait)? {
            ReaderEvent::Record(record) => {
                out.write(&record)?;
                written += 1;
                wait = Duration::ZERO;
            }
            ReaderEvent::Idle => {
                out.flush()?;
                if out.is_abandoned() {
                    return Ok(());
                }
                wait = IDLE_WAIT;
            }
            ReaderEvent::End => break,
        }
    }
    Ok(out.flush()?)
}

enum Layout {
    Pretty { color: bool },
    Json,
    Template(Template),
}

struct TailOutput {
    stdout: BufWriter<StdoutLock<'static>>,
    layout: Layout,
}

impl TailOutput {
    fn new(args: &TailArgs, color: bool) -> Self {
        let stdout = io::stdout().lock();
        let layout = match &args.format {
            _ if args.json => Layout::Json,
            Some(template) => Layout::Template(template.clone()),
            None if stdout.is_terminal() => Layout::Pretty { color },
            None => Layout::Template(Template::value_lines()),
        };
        Self { stdout: BufWriter::with_capacity(64 << 10, stdout), layout }
    }

    fn write(&mut self, record: &Received<'_>) -> io::Result<()> {
        match &self.layout {
            Layout::Pretty { color } => pretty::write(&mut self.stdout, record, *color),
            Layout::Json => json::write(&mut self.stdout, record),
            Layout::Template(template) => template.write(&mut self.stdout, record),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }

    /// An idle follower does not write, so it must ask.
    fn is_abandoned(&self) -> bool {
        let mut fds = [PollFd::new(self.stdout.get_ref(), PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok()
            && fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};

    fn parse(words: &str) -> Result<TailArgs, clap::Error> {
        let command = TailArgs::augment_args(Command::new("tail").no_binary_name(true));
        TailArgs::from_arg_matches(&command.try_get_matches_from(words.split(' '))?)
    }

    #[test]
    fn kcats_habits_are_understood() {
        let args = parse("orders payments -b a:1,b:2 -o -5 -e -c 3 -p 0 -J").unwrap();
        assert_eq!(args.topics, ["orders", "payments"]);
        assert_eq!((args.offset, args.exit, args.count), (StartOffset::Last(5), true, Some(3)));
        assert_eq!((args.partition, args.json), (Some(0), true));
        assert_eq!(parse("t").unwrap().isolation, IsolationArg::ReadCommitted);
        assert_eq!(parse("t -o @17").unwrap().offset, StartOffset::Time(17));
        let isolation = parse("t --isolation read_uncommitted").unwrap().isolation;
        assert_eq!(isolation, IsolationArg::ReadUncommitted);
    }

    #[test]
    fn nonsense_is_refused() {
        for wrong in ["t -o soon", "t -f %q", "t -f %s -J", "t --isolation none", "-e"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
