//! Learns from librdkafka's log what the brokers can do, since rdkafka hands out no answer to ApiVersions: which
//! requests the coordinator of transactions offers, since the library asks again without end for what is not offered;
//! and whether a broker is older than the codec of our batches, which the library then sends uncompressed. The library
//! says that in a notice, but on no machine that has been up for less than a day (`rd_interval`, librdkafka 2.12).
//!
//! Input: lines of its debug context `feature`, one for each request that a broker names, such as
//! `ApiKey EndTxn (26) Versions 0..5`, and for each of its own features; and of `broker`, that a connection is up.
//! Output: the requests without which no transaction can be; the codec that is left out, once. Invariant: nothing is
//! missing of a coordinator whose answer was not read to its end. No I/O.

use std::collections::BTreeSet;

/// In the name of the connection that the library keeps for a producer's transactions.
const COORDINATOR: &str = "[thrd:TxnCoordinator]";

/// What a transaction is made of, after InitProducerId, of which the library tells by itself. Progress is a record,
/// so that no offsets of groups are sent (AddOffsetsToTxn, TxnOffsetCommit).
const OF_TRANSACTIONS: [(i16, &str); 2] = [(24, "AddPartitionsToTxn"), (26, "EndTxn")];

/// librdkafka's names of what its codecs need; the older ones need nothing.
const OF_CODECS: [(&str, &str); 2] =
    [("zstd", "Disabling feature ZSTD"), ("lz4", "Disabling feature LZ4")];

/// What the brokers can do.
#[derive(Debug, Default)]
pub(super) struct OfferedRequests {
    /// The codec of our batches, and how the library says that a broker does not know it; until it is told.
    codec: Option<(&'static str, &'static str)>,
    /// Of an answer that is being logged.
    named: BTreeSet<i16>,
    /// Of the last answer on a connection that came up.
    offered: Option<BTreeSet<i16>>,
}

impl OfferedRequests {
    /// For a producer of such batches.
    pub(super) fn of_codec(codec: &str) -> Self {
        let codec = OF_CODECS.into_iter().find(|(name, _)| *name == codec);
        Self { codec, ..Self::default() }
    }

    /// Takes in one line; the lines of a connection come in their order. Returns the codec that is left out, when it
    /// becomes known.
    pub(super) fn observe(&mut self, line: &str) -> Option<&'static str> {
        if line.starts_with(COORDINATOR) {
            self.observe_coordinator(line);
        }
        let left_out = self.codec.take_if(|(_, words)| line.ends_with(*words))?;
        Some(left_out.0)
    }

    fn observe_coordinator(&mut self, line: &str) {
        if line.ends_with("Broker API support:") {
            self.named.clear();
        } else if let Some((_, request)) = line.split_once(" ApiKey ") {
            self.named.extend(number(request));
        } else if line.ends_with(" -> UP") && !self.named.is_empty() {
            self.offered = Some(std::mem::take(&mut self.named));
        }
    }

    /// The names of the requests that transactions need and the coordinator does not offer, as far as it has said.
    pub(super) fn lacking_for_transactions(&self) -> Vec<&'static str> {
        let Some(offered) = &self.offered else { return Vec::new() };
        let is_missing = |(key, _): &(i16, &str)| !offered.contains(key);
        OF_TRANSACTIONS.into_iter().filter(is_missing).map(|(_, name)| name).collect()
    }
}

/// The number of a request, in `NAME (NUMBER) Versions ..`; a name that the library does not know has parentheses, too.
fn number(request: &str) -> Option<i16> {
    let (name, _) = request.split_once(") Versions ")?;
    name.rsplit_once('(')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As logged by librdkafka 2.12.
    fn lines(thread: &str, requests: &[&str]) -> Vec<String> {
        let of = |words: &str| format!("[thrd:{thread}]: {thread}/1: {words}");
        let mut lines = vec![of("Broker API support:")];
        lines.extend(requests.iter().map(|request| of(&format!("  ApiKey {request}"))));
        lines.push(of(" Feature MsgVer2: Produce (3..3) supported by broker"));
        lines
    }

    fn lacking(lines: &[String]) -> Vec<&'static str> {
        let mut requests = OfferedRequests::default();
        assert!(lines.iter().all(|line| requests.observe(line).is_none()));
        requests.lacking_for_transactions()
    }

    const UP: &str =
        "[thrd:TxnCoordinator]: TxnCoordinator/1: Broker changed state APIVERSION_QUERY -> UP";
    const ALL: [&str; 4] = [
        "Produce (0) Versions 3..12",
        "AddPartitionsToTxn (24) Versions 0..5",
        "EndTxn (26) Versions 0..5",
        "Unknown (99)-99? (99) Versions 0..0",
    ];

    #[test]
    fn what_a_coordinator_does_not_name_is_missing() {
        let with = |requests| [lines("TxnCoordinator", requests), vec![UP.to_owned()]].concat();
        assert_eq!(lacking(&with(&ALL)), [""; 0]);
        assert_eq!(lacking(&with(&ALL[..2])), ["EndTxn"]);
        assert_eq!(lacking(&with(&ALL[..1])), ["AddPartitionsToTxn", "EndTxn"]);
        let later = [with(&ALL[..1]), with(&ALL)].concat();
        assert_eq!(lacking(&later), [""; 0], "the last answer counts");
        assert_eq!(number(ALL[3]), Some(99));
    }

    #[test]
    fn nothing_is_missing_before_the_answer_is_whole_nor_of_other_connections() {
        assert_eq!(lacking(&[]), [""; 0]);
        assert_eq!(lacking(&lines("TxnCoordinator", &ALL[..1])), [""; 0]);
        assert_eq!(lacking(&[UP.to_owned()]), [""; 0]);
        let another = lines("a:9092/1", &ALL[..1]);
        assert_eq!(lacking(&[another, vec![UP.to_owned()]].concat()), [""; 0]);
        // A connection that comes up again before it has said anything leaves what the one before it said.
        let again = [lines("TxnCoordinator", &ALL), vec![UP.to_owned(), UP.to_owned()]].concat();
        assert_eq!(lacking(&again), [""; 0]);
    }

    #[test]
    fn a_codec_that_a_broker_does_not_know_is_told_once() {
        let line = |feature| format!("[thrd:a:9092/1]: a:9092/1: Disabling feature {feature}");
        for (codec, feature) in [("zstd", "ZSTD"), ("lz4", "LZ4")] {
            let mut requests = OfferedRequests::of_codec(codec);
            assert_eq!(requests.observe(&line("SaslAuthReq")), None);
            assert_eq!(requests.observe(&line(feature)), Some(codec));
            assert_eq!(requests.observe(&line(feature)), None);
            assert_eq!(OfferedRequests::of_codec("gzip").observe(&line(feature)), None);
        }
        assert_eq!(OfferedRequests::of_codec("lz4").observe(&line("ZSTD")), None);
    }
}
