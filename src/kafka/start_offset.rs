//! The start position of a reader, in the syntax of kcat's `-o`. End offsets are looked up before
//! reading starts, so that all later records are read.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use super::reader::ReaderError;

const SLICE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartOffset {
    #[default]
    Beginning,
    /// The next record to arrive.
    End,
    /// Number of records before the end, or all if there are fewer.
    Last(i64),
    Offset(i64),
    /// First record at or after this time, in milliseconds since the Unix epoch.
    Time(i64),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an offset: use beginning, end, N, -N or @MILLISECONDS")]
pub struct StartOffsetSyntax(String);

impl FromStr for StartOffset {
    type Err = StartOffsetSyntax;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| digits.parse::<i64>().ok()).flatten()
        };
        let start = match text {
            "beginning" | "earliest" => Some(Self::Beginning),
            "end" | "latest" => Some(Self::End),
            _ => match (text.strip_prefix('-'), text.strip_prefix('@')) {
                (Some(digits), _) => number(digits).filter(|count| *count > 0).map(Self::Last),
                (_, Some(digits)) => number(digits).map(Self::Time),
                _ => number(text).map(Self::Offset),
            },
        };
        start.ok_or_else(|| StartOffsetSyntax(text.to_owned()))
    }
}

impl fmt::Display for StartOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beginning => f.write_str("beginning"),
            Self::End => f.write_str("end"),
            Self::Last(count) => write!(f, "-{count}"),
            Self::Offset(offset) => write!(f, "{offset}"),
            Self::Time(ms) => write!(f, "@{ms}"),
        }
    }
}

fn client(error: &KafkaError) -> ReaderError {
    ReaderError::Client(error.to_string())
}

pub(super) fn place<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    mut wanted: TopicPartitionList,
    start: StartOffset,
    deadline: Instant,
) -> Result<TopicPartitionList, ReaderError> {
    let offset = match start {
        StartOffset::Beginning => Offset::Beginning,
        StartOffset::Last(count) => Offset::OffsetTail(count),
        StartOffset::Offset(offset) => Offset::Offset(offset),
        StartOffset::End => return at_the_end(consumer, wanted, deadline),
        StartOffset::Time(ms) => return from_time(consumer, wanted, ms, deadline),
    };
    wanted.set_all_offsets(offset).map_err(|error| client(&error))?;
    Ok(wanted)
}

fn at_the_end<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    wanted: TopicPartitionList,
    deadline: Instant,
) -> Result<TopicPartitionList, ReaderError> {
    for mut element in wanted.elements() {
        let (topic, partition) = (element.topic().to_owned(), element.partition());
        let end = loop {
            let rest = deadline.saturating_duration_since(Instant::now()).max(SLICE);
            match consumer.fetch_watermarks(&topic, partition, rest) {
                Ok((_, end)) => break end,
                Err(error) if Instant::now() > deadline => return Err(client(&error)),
                // A new topic may have no leader yet.
                Err(_) => std::thread::sleep(SLICE),
            }
        };
        element.set_offset(Offset::Offset(end)).map_err(|error| client(&error))?;
    }
    Ok(wanted)
}

fn from_time<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    mut wanted: TopicPartitionList,
    ms: i64,
    deadline: Instant,
) -> Result<TopicPartitionList, ReaderError> {
    wanted.set_all_offsets(Offset::Offset(ms)).map_err(|error| client(&error))?;
    let rest = deadline.saturating_duration_since(Instant::now()).max(SLICE);
    let mut found = consumer.offsets_for_times(wanted, rest).map_err(|error| client(&error))?;
    let later: Vec<(String, i32)> = found
        .elements()
        .iter()
        .filter(|element| !matches!(element.offset(), Offset::Offset(_)))
        .map(|element| (element.topic().to_owned(), element.partition()))
        .collect();
    for (topic, partition) in later {
        found
            .set_partition_offset(&topic, partition, Offset::End)
            .map_err(|error| client(&error))?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_round_trips(number in 0..=i64::MAX, kind in 0..3) {
            let start = match kind {
                0 => StartOffset::Last(number),
                1 => StartOffset::Offset(number),
                _ => StartOffset::Time(number),
            };
            prop_assert_eq!(start.to_string().parse(), Ok(start));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[-@]?.{0,24}") {
            if let Ok(start) = text.parse::<StartOffset>() {
                prop_assert_eq!(start.to_string().parse(), Ok(start));
            }
        }
    }

    #[test]
    fn words_and_mistakes() {
        assert_eq!("beginning".parse(), Ok(StartOffset::Beginning));
        assert_eq!("end".parse(), Ok(StartOffset::End));
        assert_eq!("-5".parse(), Ok(StartOffset::Last(5)));
        for wrong in
            ["", "-", "-0", "@", "--1", "+1", "1.5", "begin", "@-1", "99999999999999999999"]
        {
            assert!(wrong.parse::<StartOffset>().is_err(), "{wrong}");
        }
    }
}
