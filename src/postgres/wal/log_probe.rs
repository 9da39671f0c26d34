//! Tests whether a slot's log can be decoded from the slot's position on.
//!
//! Invariant: nothing is acknowledged; a temporary copy of the slot is read unless the caller
//! permits otherwise. Catalog checks cannot replace this: PostgreSQL decodes a change with the
//! catalogs of its time.

use std::time::{Duration, Instant};

use super::connection::{Connection, SessionParams};
use super::error::WalError;
use super::stream::Stream;
use crate::libpq::ConnectInfo;
use postrider_core::frame::Frame;
use postrider_core::lsn::Lsn;
use postrider_core::pgoutput::{Message, decode};

const TICK: Duration = Duration::from_millis(200);
/// Time without news after which the server has sent the whole log.
const QUIET: Duration = Duration::from_secs(5);
const FINISH_LIMIT: Duration = Duration::from_secs(2);

const NO_ROOM: &str = "all replication slots of the server are in use, and a copy of the slot needs one: raise \
                       max_replication_slots by one";

/// A proxy may have damaged a message once.
const READS: u32 = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readability {
    Readable,
    /// Every session fails with this error.
    Unreadable(WalError),
    Unknown(String),
}

#[derive(Debug, Clone, Copy)]
pub struct LogProbe<'a> {
    pub server: &'a ConnectInfo,
    /// Equal to a relay's.
    pub params: &'a SessionParams,
    pub slot: &'a str,
    pub publication: &'a str,
    /// The slot itself may be read, for lack of room for a copy.
    pub takes_slot: bool,
}

impl LogProbe<'_> {
    /// Reads to the log's end, or until `goes_on(position, end)` is false.
    pub fn run(&self, goes_on: &dyn Fn(Lsn, Lsn) -> bool) -> Result<Readability, WalError> {
        agreed(|| {
            let mut at = Lsn::ZERO;
            Ok((self.read(&mut at, goes_on)?, at))
        })
    }

    /// `at` becomes the position of the last change.
    fn read(
        &self,
        at: &mut Lsn,
        goes_on: &dyn Fn(Lsn, Lsn) -> bool,
    ) -> Result<Readability, WalError> {
        let mut connection = Connection::open(self.server, self.params)?;
        let end = connection.identify_system()?.flushed;
        let copy = format!("postrider_probe_{}", connection.server_process()?.pid);
        let name = match connection.copy_slot_for_session(self.slot, &copy) {
            Ok(()) => copy.as_str(),
            Err(WalError::Server(said)) if said.code == "53400" && self.takes_slot => self.slot,
            Err(WalError::Server(said)) if said.code == "53400" => {
                return Ok(Readability::Unknown(NO_ROOM.to_owned()));
            }
            Err(WalError::Server(said)) => return Ok(Readability::Unknown(said.to_string())),
            Err(error) => return Err(error),
        };
        let mut stream = match connection.start(name, self.publication, Lsn::ZERO) {
            Ok(stream) => stream,
            Err(refused) => {
                return match refused.error {
                    error @ (WalError::SlotHeld { .. } | WalError::Server(_)) => {
                        Ok(Readability::Unknown(error.to_string()))
                    }
                    error => Err(error),
                };
            }
        };
        let found = match read_to(&mut stream, (end, at), goes_on) {
            Err(WalError::PublicationMissing { publication, .. }) => {
                let slot = self.slot.to_owned();
                Readability::Unreadable(WalError::PublicationMissing { publication, slot })
            }
            Err(error) if error.is_of_the_log() => Readability::Unreadable(error),
            found => found?,
        };
        let _ = stream.finish(FINISH_LIMIT);
        Ok(found)
    }
}

/// A message that this release cannot read counts as unreadable only if every read ends at it.
fn agreed(
    mut read: impl FnMut() -> Result<(Readability, Lsn), WalError>,
) -> Result<Readability, WalError> {
    let (mut found, first) = read()?;
    for _ in 1..READS {
        if !matches!(&found, Readability::Unreadable(error) if !error.is_said_by_server()) {
            break;
        }
        let (again, at) = read()?;
        let is_unreadable = matches!(again, Readability::Unreadable(_));
        if is_unreadable && (at == Lsn::ZERO || at != first) {
            return Err(WalError::Protocol(
                "three reads of the slot did not end at one position; the slot was left alone",
            ));
        }
        found = again;
    }
    Ok(found)
}

/// Notes the position of each change, to which an error may belong.
fn read_to(
    stream: &mut Stream,
    (end, at): (Lsn, &mut Lsn),
    goes_on: &dyn Fn(Lsn, Lsn) -> bool,
) -> Result<Readability, WalError> {
    let (mut reached, mut transactions) = (Lsn::ZERO, 0_u64);
    let (mut moved, mut asked) = (Instant::now(), None::<Instant>);
    while goes_on(reached, end) {
        stream.fill(TICK)?;
        while let Some(frame) = stream.peek()? {
            let position = match frame {
                Frame::Wal { start, data, .. } => {
                    if start > Lsn::ZERO {
                        *at = start;
                    }
                    transactions += u64::from(matches!(decode(data)?, Message::Commit(_)));
                    moved = Instant::now();
                    start
                }
                Frame::Excerpt { start, .. } | Frame::Untranslatable { start, .. } => start,
                Frame::Keepalive { end, .. } => end,
            };
            if position > reached {
                (reached, moved) = (position, Instant::now());
            }
            stream.consume();
        }
        // The end of the log may be a page header, which no change reaches.
        if reached >= end || (reached > Lsn::ZERO && moved.elapsed() >= QUIET) {
            return Ok(Readability::Readable);
        }
        if asked.is_none_or(|asked| asked.elapsed() >= TICK) {
            stream.ask_position()?;
            asked = Some(Instant::now());
        }
    }
    Ok(if transactions > 0 {
        Readability::Readable
    } else {
        Readability::Unknown("no transaction was decoded in time".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Readability = Readability::Readable;

    fn damaged() -> Readability {
        Readability::Unreadable(WalError::Protocol("a malformed message"))
    }

    fn agreed_on(reads: Vec<(Readability, u64)>) -> (Result<Readability, WalError>, usize) {
        let mut left = reads.into_iter();
        let found = agreed(|| left.next().map(|(found, at)| Ok((found, Lsn::new(at)))).unwrap());
        (found, left.len())
    }

    #[test]
    fn g1_a_slot_is_unreadable_if_three_reads_end_at_one_position() {
        let same = vec![(damaged(), 7), (damaged(), 7), (damaged(), 7)];
        assert_eq!(agreed_on(same), (Ok(damaged()), 0));
        for ends in [[7, 8, 8], [7, 7, 8], [0, 0, 0]] {
            let (found, _) = agreed_on(ends.map(|at| (damaged(), at)).to_vec());
            let error = found.unwrap_err();
            assert!(error.class().is_transient(), "{error}");
            assert!(error.to_string().contains("did not end at one position"), "{error}");
        }
        assert_eq!(agreed_on(vec![(damaged(), 7), (READ, 9)]), (Ok(READ), 0));
        let missing = || {
            let name = || "postrider".to_owned();
            WalError::PublicationMissing { publication: name(), slot: name() }
        };
        let said = vec![(Readability::Unreadable(missing()), 7), (READ, 9)];
        assert_eq!(agreed_on(said), (Ok(Readability::Unreadable(missing())), 1));
    }
}
