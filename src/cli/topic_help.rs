//! Help for a topic that does not exist: the intended name, and the command that lists all topics.
//! Pure.

use postrider_config::typo;

/// Letters of a name per letter that may be wrong.
const LETTERS_PER_ERROR: usize = 4;

pub(super) fn missing_topic_help<'a>(
    topic: &str,
    there: impl IntoIterator<Item = &'a String>,
    brokers: &[String],
) -> String {
    let list =
        format!("list the topics: kafka-topics.sh --bootstrap-server {} --list", brokers.join(","));
    match nearest(topic, there) {
        Some(name) => format!("did you mean `{name}`?\n{list}"),
        None => list,
    }
}

fn nearest<'a>(topic: &str, there: impl IntoIterator<Item = &'a String>) -> Option<&'a str> {
    let most = topic.chars().count().div_ceil(LETTERS_PER_ERROR);
    let typed = topic.to_lowercase();
    let near = |name: &'a String| {
        Some((typo::distance(&name.to_lowercase(), &typed, most)?, name.as_str()))
    };
    there.into_iter().filter_map(near).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topic_that_was_meant_is_named_if_there_is_one() {
        let there = ["OrderPaid", "OrderPlaced", "a"].map(str::to_owned);
        let meant = |topic| nearest(topic, &there);
        assert_eq!(meant("OrderPiad"), Some("OrderPaid"));
        assert_eq!(meant("orderplaced"), Some("OrderPlaced"));
        assert_eq!((meant("Shipments"), meant("bc")), (None, None));
        let brokers = ["k1:9092", "k2:9092"].map(str::to_owned);
        assert_eq!(
            missing_topic_help("OrderPiad", &there, &brokers),
            "did you mean `OrderPaid`?\nlist the topics: kafka-topics.sh --bootstrap-server k1:9092,k2:9092 --list"
        );
    }
}
