//! Learns the brokers' capabilities from librdkafka's log (contexts `feature` and `broker`),
//! because rdkafka does not expose ApiVersions. The library retries missing transaction requests
//! forever. Its own notice of uncompressed batches is missing in the first day of uptime
//! (`rd_interval`, librdkafka 2.12).
//!
//! Invariant: a coordinator whose answer was not read completely lacks nothing.

use std::collections::BTreeSet;

/// Connection for a producer's transactions.
const COORDINATOR: &str = "[thrd:TxnCoordinator]";

/// InitProducerId is omitted, because the library reports it. Progress is a record, so no group
/// offsets are sent.
const OF_TRANSACTIONS: [(i16, &str); 2] = [(24, "AddPartitionsToTxn"), (26, "EndTxn")];

/// Older codecs need no feature.
const OF_CODECS: [(&str, &str); 2] =
    [("zstd", "Disabling feature ZSTD"), ("lz4", "Disabling feature LZ4")];

#[derive(Debug, Default)]
pub(super) struct OfferedRequests {
    /// The codec and its line; cleared once reported.
    codec: Option<(&'static str, &'static str)>,
    /// Requests of an answer that is being logged.
    named: BTreeSet<i16>,
    /// Last answer on a connection that came up.
    offered: Option<BTreeSet<i16>>,
}

impl OfferedRequests {
    pub(super) fn of_codec(codec: &str) -> Self {
        let codec = OF_CODECS.into_iter().find(|(name, _)| *name == codec);
        Self { codec, ..Self::default() }
    }

    /// Returns the unused codec, once. A connection's lines come in order.
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

    pub(super) fn lacking_for_transactions(&self) -> Vec<&'static str> {
        let Some(offered) = &self.offered else { return Vec::new() };
        let is_missing = |(key, _): &(i16, &str)| !offered.contains(key);
        OF_TRANSACTIONS.into_iter().filter(is_missing).map(|(_, name)| name).collect()
    }
}

/// Reads `NAME (NUMBER) Versions ..`; an unknown name contains parentheses, too.
fn number(request: &str) -> Option<i16> {
    let (name, _) = request.split_once(") Versions ")?;
    name.rsplit_once('(')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // A connection that comes up again without an answer keeps the previous one's.
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
