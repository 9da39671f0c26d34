//! Asks Kafka itself whether the relay's transaction is decided and not yet visible.
//!
//! A commit is final before its records are visible: the coordinator answers EndTxn once the decision
//! is in its log (`PrepareCommit`), and the markers follow. An acknowledgement in between is safe, so
//! whoever judges one waits for the markers. Librdkafka has no such request: this writes
//! DescribeTransactions (key 65, version 0, KIP-664) by hand.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// DescribeTransactions, version 0, correlation id 7, client `crash`, no tags. An array of one string
/// follows, and no tags. Lengths of the flexible format are one more than what they count.
const HEAD: &[u8] = b"\x00\x41\x00\x00\x00\x00\x00\x07\x00\x05crash\x00\x02";

/// Where the response tells of the first transaction: after correlation id, tags, throttle time and
/// the number of transactions. Its error code comes first, then its id, then its state.
const ERROR_AT: usize = 4 + 1 + 4 + 1;
const ID_AT: usize = ERROR_AT + 2;

/// TRANSACTIONAL_ID_NOT_FOUND: the coordinator knows of none.
const UNKNOWN: [u8; 2] = 105_u16.to_be_bytes();

/// How long one broker may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// How long it may take until a coordinator is there and its markers are written.
const MARKERS_LIMIT: Duration = Duration::from_mins(2);

/// What a broker knows of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Decided; the records will become visible.
    Decided,
    /// Anything else.
    AtRest,
}

/// Returns when the coordinator of the transactional id has no commit under way. A coordinator that
/// is down, or does not know yet, is waited for: it may have decided and not marked.
///
/// # Panics
/// When that takes too long.
pub(crate) fn await_markers(bootstrap: &str, id: &str) {
    let deadline = Instant::now() + MARKERS_LIMIT;
    // The coordinator alone answers; the others say that they are not.
    while bootstrap.split(',').find_map(|broker| ask(broker, id)) != Some(State::AtRest) {
        assert!(Instant::now() < deadline, "no coordinator, or its markers are never written");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ask(broker: &str, id: &str) -> Option<State> {
    let answer = exchange(broker, id).ok()?;
    let error = answer.get(ERROR_AT..ID_AT)?;
    if error == UNKNOWN {
        return Some(State::AtRest);
    }
    if error != [0, 0] {
        return None;
    }
    let (_, rest) = string(answer.get(ID_AT..)?)?;
    let (state, _) = string(rest)?;
    Some(if state == b"PrepareCommit" { State::Decided } else { State::AtRest })
}

/// A string at the beginning, shorter than 127 bytes, and what follows it.
fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(length).checked_sub(1)?)
}

fn exchange(broker: &str, id: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(broker)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let length = u8::try_from(id.len() + 1).unwrap();
    let request = [HEAD, &[length], id.as_bytes(), &[0]].concat();
    let size = u32::try_from(request.len()).unwrap();
    stream.write_all(&[&size.to_be_bytes(), &*request].concat())?;
    let mut size = [0; 4];
    stream.read_exact(&mut size)?;
    let mut answer = vec![0; usize::try_from(u32::from_be_bytes(size)).unwrap()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}
