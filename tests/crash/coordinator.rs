//! Asks the brokers themselves which Kafka transactions are decided and not yet visible.
//!
//! A commit is final before its records are visible: the coordinator answers EndTxn once the decision
//! is in its log (`PrepareCommit`), and the markers follow. An acknowledgement in between is safe, so
//! whoever judges one waits for the markers. Librdkafka has no such request: this writes
//! ListTransactions (key 66, version 0, KIP-664) by hand. Called by `watch`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// ListTransactions, version 0, correlation id 7, client `crash`, no tags; then the body: one state,
/// no producer ids, no tags. Lengths of the flexible format are one more than what they count.
const REQUEST: &[u8] =
    b"\x00\x42\x00\x00\x00\x00\x00\x07\x00\x05crash\x00\x02\x0ePrepareCommit\x01\x00";

/// Where the response says how many transactions there are: after correlation id, tags, throttle time,
/// error code, and the states that the broker does not know.
const ERROR_AT: usize = 4 + 1 + 4;
const UNKNOWN_AT: usize = ERROR_AT + 2;
const COUNT_AT: usize = UNKNOWN_AT + 1;

/// None, as the flexible format writes a length.
const EMPTY: u8 = 1;

/// How long one broker may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// How long markers may take.
const MARKERS_LIMIT: Duration = Duration::from_secs(30);

/// Returns when no transaction is between decision and markers.
///
/// # Panics
/// When that takes too long.
pub(crate) fn await_markers(bootstrap: &str) {
    let deadline = Instant::now() + MARKERS_LIMIT;
    while !bootstrap.split(',').all(is_at_rest) {
        assert!(Instant::now() < deadline, "a decided transaction never became visible");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a broker coordinates nothing that is under way. One that is down coordinates nothing; one
/// that is still loading does not know yet.
fn is_at_rest(broker: &str) -> bool {
    let Ok(answer) = ask(broker) else { return true };
    assert_eq!(answer[UNKNOWN_AT], EMPTY, "a broker without the state PrepareCommit");
    answer[ERROR_AT..UNKNOWN_AT] == [0, 0] && answer[COUNT_AT] == EMPTY
}

fn ask(broker: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(broker)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let length = u32::try_from(REQUEST.len()).unwrap();
    stream.write_all(&[&length.to_be_bytes(), REQUEST].concat())?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
    stream.read_exact(&mut answer)?;
    assert!(answer.len() > COUNT_AT, "an answer of {} bytes", answer.len());
    Ok(answer)
}
