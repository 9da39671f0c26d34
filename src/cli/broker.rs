//! `postrider broker`, a hidden command: runs the embedded broker (librdkafka's mock cluster) as a
//! process, so that benchmarks do not measure its CPU time. The broker ends when stdin closes, and
//! so with its parent.

use std::io::{self, Read, Write};

use postrider_kafka::embedded::{Broker, BrokerError};

/// Arguments of `postrider broker`.
#[derive(Debug, Clone, clap::Args)]
pub struct BrokerArgs {
    /// Brokers in the cluster, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=16))]
    pub brokers: u32,

    /// A topic to create, with its partitions if they differ from --partitions; repeatable
    #[arg(long = "topic", value_name = "NAME[:PARTITIONS]", value_parser = topic)]
    pub topics: Vec<TopicArg>,

    /// Partitions of the topics named here (topics created by their first use get four)
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub partitions: i32,
}

/// A topic as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicArg {
    /// Its name.
    pub name: String,
    /// Its partitions, if given.
    pub partitions: Option<i32>,
}

#[derive(Debug, thiserror::Error)]
pub enum BrokerCommandError {
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error("cannot talk to the process that started the broker: {0}")]
    Pipe(#[from] io::Error),
}

impl BrokerCommandError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Broker(error) => error.hint(),
            Self::Pipe(_) => None,
        }
    }
}

pub(crate) fn run(args: &BrokerArgs) -> Result<(), BrokerCommandError> {
    let topics: Vec<(&str, i32)> = args
        .topics
        .iter()
        .map(|topic| (topic.name.as_str(), topic.partitions.unwrap_or(args.partitions)))
        .collect();
    let broker = Broker::start(args.brokers, &topics)?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", serde_json::json!({ "bootstrap": broker.bootstrap() }))?;
    stdout.flush()?;
    let mut stdin = io::stdin().lock();
    let mut ignored = [0; 64];
    while stdin.read(&mut ignored)? > 0 {}
    Ok(())
}

fn topic(text: &str) -> Result<TopicArg, String> {
    let (name, partitions) = match text.rsplit_once(':') {
        Some((name, count)) => {
            let count: i32 = count.parse().map_err(|_| format!("`{count}` is not a number"))?;
            if !(1..=10_000).contains(&count) {
                return Err("a topic has 1 to 10000 partitions".into());
            }
            (name, Some(count))
        }
        None => (text, None),
    };
    if name.is_empty() {
        return Err("a topic needs a name".into());
    }
    Ok(TopicArg { name: name.to_owned(), partitions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_come_with_or_without_partitions() {
        let arg = |name: &str, partitions| Ok(TopicArg { name: name.into(), partitions });
        assert_eq!(topic("orders"), arg("orders", None));
        assert_eq!(topic("orders:7"), arg("orders", Some(7)));
        for wrong in ["", ":3", "a:", "a:0", "a:x", "a:10001"] {
            assert!(topic(wrong).is_err(), "{wrong}");
        }
    }
}
