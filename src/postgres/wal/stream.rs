//! The replication stream: frames in, acknowledgements out, and an orderly end (`finish`).
//!
//! Input: CopyData from the walsender. Output: [`Frame`]s borrowed from the read buffer. Invariant:
//! an acknowledged position was received in this session and never decreases (upholds G1: the
//! server silently accepts a later position). A full buffer stops reading but not acknowledging
//! (G3). Malformed bytes are an error (G7).

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postgres_protocol::message::backend::Message;

use super::buffer::{HEADER_BYTES, Head, ReadBuffer};
use super::error::{ServerMessage, WalError};
use super::message_channel::{MessageChannel, parse, remaining};
use super::transport::{Transport, Wire};
use postrider_core::frame::Frame;
use postrider_core::lsn::Lsn;
use postrider_core::pgoutput::Excerpt;

/// Postgres's epoch: seconds from 1970 to 2000.
const POSTGRES_EPOCH_S: u64 = 946_684_800;

/// CopyData header, then: tag, three positions, a time, a flag.
const STATUS_BYTES: usize = 39;

const COPY_DONE: [u8; 5] = [b'c', 0, 0, 0, 4];
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];

const ENDING: &str = "ending the stream";

/// A tag, two positions, a time.
const XLOG_DATA_BYTES: usize = 25;

#[derive(Debug)]
pub(super) struct Names {
    pub(super) slot: String,
    pub(super) publication: String,
}

#[derive(Debug)]
pub struct Stream<T = Wire> {
    channel: MessageChannel<T>,
    names: Names,
    received: Lsn,
    bytes_before: u64,
    acknowledged: Lsn,
    /// A status that the full socket delayed; true: requests a reply.
    owed: Option<bool>,
    large: Option<Box<Large>>,
}

#[derive(Debug)]
pub(super) struct Large {
    pub(super) start: Lsn,
    pub(super) sent_us: i64,
    pub(super) excerpt: Excerpt,
}

impl Large {
    /// True once all of it has passed.
    pub(super) fn take_from(&mut self, buffer: &mut ReadBuffer) -> Result<bool, WalError> {
        if buffer.passing() == 0 {
            return Ok(true);
        }
        self.excerpt.take(buffer.piece())?;
        Ok(buffer.pass_piece())
    }

    pub(super) fn frame(&self) -> Frame<'_> {
        Frame::Excerpt { start: self.start, sent_us: self.sent_us, excerpt: &self.excerpt }
    }
}

impl<T: Transport> Stream<T> {
    /// Stream for benches and fuzzing without a server.
    pub fn over(transport: T, frame_bytes_max: usize) -> Self {
        let mut channel = MessageChannel::new(transport);
        channel.buffer.set_limit(frame_bytes_max);
        let name = "postrider".to_owned();
        Self::new(channel, Names { slot: name.clone(), publication: name })
    }

    pub(super) fn new(channel: MessageChannel<T>, names: Names) -> Self {
        let (received, acknowledged) = (Lsn::ZERO, Lsn::ZERO);
        let bytes_before = channel.bytes_read;
        Self { channel, names, received, bytes_before, acknowledged, owed: None, large: None }
    }

    /// Reads in one system call, or waits at most `wait`. Returns 0 without input or if the buffer
    /// is full of whole frames.
    pub fn fill(&mut self, wait: Duration) -> Result<usize, WalError> {
        self.push_out()?;
        let bytes = self.channel.read_available()?;
        if bytes > 0 || wait.is_zero() || self.is_full()? {
            return Ok(bytes);
        }
        self.channel.buffer.shrink();
        self.channel.wait(wait)?;
        self.push_out()?;
        self.channel.read_available()
    }

    fn is_full(&mut self) -> Result<bool, WalError> {
        Ok(self.channel.buffer.room()?.is_empty())
    }

    /// The next whole frame, unchanged until [`Stream::consume`]. Costs a few nanoseconds and no
    /// system call, unless an oversized frame passes. Returns the server's errors.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Frame<'_>>, WalError> {
        loop {
            if self.large.is_some() {
                return self.peek_large();
            }
            let head = match self.channel.buffer.head() {
                Ok(Some(head)) => head,
                Ok(None) => return Ok(None),
                Err(error) if self.begin_large(&error)? => continue,
                Err(error) if is_frame(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            if head.tag != b'd' {
                self.aside(head)?;
                continue;
            }
            let frame = parse_frame(self.channel.buffer.body(head))?;
            let position = match frame {
                Frame::Wal { start, .. }
                | Frame::Excerpt { start, .. }
                | Frame::Untranslatable { start, .. } => start,
                Frame::Keepalive { end, .. } => end,
            };
            self.received = self.received.max(position);
            return Ok(Some(frame));
        }
    }

    #[cold]
    fn begin_large(&mut self, error: &WalError) -> Result<bool, WalError> {
        let &WalError::MessageTooLarge { tag: b'd', bytes, .. } = error else { return Ok(false) };
        if bytes < HEADER_BYTES + XLOG_DATA_BYTES {
            return Err(WalError::Protocol("a frame without a row, over the limit"));
        }
        let Some(header) = self.channel.buffer.beginning(XLOG_DATA_BYTES) else { return Ok(false) };
        let Frame::Wal { start, sent_us, .. } = parse_frame(header)? else {
            return Err(WalError::Protocol("a keepalive of the size of a row"));
        };
        self.channel.buffer.pass(bytes, XLOG_DATA_BYTES);
        let excerpt =
            Excerpt::begin(self.channel.buffer.passing()).in_charset(self.channel.charset.clone());
        self.large = Some(Box::new(Large { start, sent_us, excerpt }));
        Ok(true)
    }

    #[cold]
    fn peek_large(&mut self) -> Result<Option<Frame<'_>>, WalError> {
        let Some(large) = &mut self.large else { return Ok(None) };
        if !large.take_from(&mut self.channel.buffer)? {
            return Ok(None);
        }
        self.received = self.received.max(large.start);
        Ok(Some(large.frame()))
    }

    #[inline]
    pub fn consume(&mut self) {
        if self.large.is_some() {
            self.large = None;
        } else if let Ok(Some(head)) = self.channel.buffer.head()
            && head.tag == b'd'
        {
            self.channel.buffer.consume(head);
        }
    }

    fn aside(&mut self, head: Head) -> Result<(), WalError> {
        if self.channel.set_aside(head)? {
            return match self.channel.last_notice() {
                Some(notice) if head.tag == b'N' && is_missing_publication(notice) => {
                    Err(self.publication_missing())
                }
                _ => Ok(()),
            };
        }
        match head.tag {
            // Not consumed, so every further call returns this.
            b'c' | b'C' => Err(WalError::Ended),
            b'E' => match parse(self.channel.buffer.whole(head))? {
                Message::ErrorResponse(body) => {
                    let server = self.channel.server_message(body.fields());
                    if is_missing_publication(&server) {
                        return Err(self.publication_missing());
                    }
                    Err(WalError::Server(Box::new(server)))
                }
                _ => Err(WalError::Protocol("a malformed error")),
            },
            _ => Err(WalError::Protocol("an unexpected message in the stream")),
        }
    }

    fn publication_missing(&self) -> WalError {
        let Names { slot, publication } = &self.names;
        WalError::PublicationMissing { publication: publication.clone(), slot: slot.clone() }
    }

    /// Reports the received position (write) and the settled one (flush and apply); returns the
    /// latter. With `ask_reply` the server answers with a keepalive at once. Never waits: if the
    /// socket is full, the message follows with the next `fill`. Upholds G1.
    pub fn acknowledge(&mut self, settled: Lsn, ask_reply: bool) -> Result<Lsn, WalError> {
        self.acknowledged = self.acknowledged.max(settled.min(self.received));
        self.owed = Some(self.owed.unwrap_or(false) || ask_reply);
        self.push_out()?;
        Ok(self.acknowledged)
    }

    /// Sets the position received over another connection that reads this log.
    pub(super) fn has_received(&mut self, position: Lsn) {
        self.received = self.received.max(position);
    }

    /// Another connection reads the log, so this input does not count as received.
    pub(super) fn discard(&mut self) -> Result<(), WalError> {
        let received = self.received;
        self.fill(Duration::ZERO)?;
        while self.peek()?.is_some() {
            self.consume();
        }
        self.received = received;
        Ok(())
    }

    pub(super) fn see_end(&mut self) -> Result<(), WalError> {
        if !self.channel.transport.is_over() {
            return Ok(());
        }
        loop {
            let bytes = self.fill(Duration::ZERO)?;
            while self.peek()?.is_some() {
                self.consume();
            }
            if bytes == 0 {
                return Err(WalError::Closed);
            }
        }
    }

    /// The server ends a silent stream after its `wal_sender_timeout`. Never waits.
    pub fn keep_alive(&mut self) -> Result<(), WalError> {
        self.owed.get_or_insert(false);
        self.push_out()
    }

    /// Never waits.
    pub(super) fn ask_position(&mut self) -> Result<(), WalError> {
        self.owed = Some(true);
        self.push_out()
    }

    /// A stopping server uses the received position until a settled one was reported
    /// (`WalSndDone`), and might finish too early. Until then it is reported as zero. Upholds G8.
    fn status_update(&self, ask_reply: bool) -> Vec<u8> {
        let nothing_settled = self.acknowledged == Lsn::ZERO;
        let received = if nothing_settled { Lsn::ZERO } else { self.received };
        status_update(received, self.acknowledged, ask_reply)
    }

    /// A status is queued only if the queue is empty, so that it holds at most one (G3).
    pub(super) fn push_out(&mut self) -> Result<(), WalError> {
        if !self.channel.has_outgoing()
            && let Some(ask_reply) = self.owed.take()
        {
            let status = self.status_update(ask_reply);
            self.channel.queue(&status);
        }
        self.channel.push_out()?;
        Ok(())
    }

    /// Sends a last status and CopyDone, discards input until the server agrees, and terminates.
    /// The slot is then free. A stopping server reports its end once everything sent is settled,
    /// and nothing more (`WalSndDone` in walsender.c). That is an orderly end too.
    pub fn finish(mut self, limit: Duration) -> Result<(), WalError> {
        let deadline = Instant::now().checked_add(limit);
        let status = self.status_update(false);
        let told = self.channel.send(&status, deadline, ENDING);
        let told = told.and_then(|()| self.channel.send(&COPY_DONE, deadline, ENDING));
        let mut is_done = false;
        match self.read_goodbye(deadline, &mut is_done) {
            Ok(()) => self.channel.send(&TERMINATE, deadline, ENDING),
            Err(_) if is_done && self.acknowledged > Lsn::ZERO => Ok(()),
            Err(error) => Err(told.err().unwrap_or(error)),
        }
    }

    fn read_goodbye(
        &mut self,
        deadline: Option<Instant>,
        is_done: &mut bool,
    ) -> Result<(), WalError> {
        loop {
            self.channel.buffer.pass_piece();
            let head = match self.channel.buffer.head() {
                Err(WalError::MessageTooLarge { tag: b'd', bytes, .. }) => {
                    self.channel.buffer.pass(bytes, 0);
                    continue;
                }
                head => head?,
            };
            let Some(head) = head else {
                if self.channel.read_available()? == 0 {
                    let limit = remaining(deadline, ENDING)?;
                    self.channel.wait(limit)?;
                }
                remaining(deadline, ENDING)?;
                continue;
            };
            match head.tag {
                b'E' => return self.aside(head),
                b'Z' => return Ok(()),
                tag => {
                    *is_done |= tag == b'C';
                    self.channel.buffer.consume(head);
                }
            }
            remaining(deadline, ENDING)?;
        }
    }

    pub fn received(&self) -> Lsn {
        self.received
    }

    pub fn received_bytes(&self) -> u64 {
        self.channel.bytes_read - self.bytes_before
    }

    pub fn acknowledged(&self) -> Lsn {
        self.acknowledged
    }

    pub fn buffered(&self) -> usize {
        self.channel.buffer.len()
    }

    pub fn take_notices(&mut self) -> Vec<ServerMessage> {
        self.channel.take_notices()
    }
}

impl AsFd for Stream<Wire> {
    /// Wait only after `fill` returned 0: TLS may have buffered bytes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.transport.as_fd()
    }
}

pub(super) const fn is_frame(error: &WalError) -> bool {
    matches!(error, WalError::MessageTooLarge { tag: b'd', .. })
}

/// PostgreSQL 18 skips a row without publication and only warns, earlier versions end the stream.
/// Messages are translated, function names are not.
pub(super) fn is_missing_publication(server: &ServerMessage) -> bool {
    server.message.contains("skipped loading publication")
        || (server.code == "55000" && server.routine == "LoadPublications")
        || (server.code == "42704" && server.routine == "get_publication_oid")
}

/// Protocol documentation, "Streaming Replication Protocol".
#[inline]
fn parse_frame(body: &[u8]) -> Result<Frame<'_>, WalError> {
    // A position, then: end position and time; or time and flag.
    if let Some((tag, rest)) = body.split_first()
        && let Some((position, rest)) = rest.split_first_chunk::<8>()
    {
        let position = Lsn::new(u64::from_be_bytes(*position));
        match (tag, rest) {
            (b'w', _) => {
                // The log's end at that time, and the server's clock.
                if let Some((rest, data)) = rest.split_first_chunk::<16>()
                    && let Some(clock) = rest.last_chunk::<8>()
                {
                    let sent_us = i64::from_be_bytes(*clock);
                    return Ok(Frame::Wal { start: position, sent_us, data });
                }
            }
            (b'k', [_, _, _, _, _, _, _, _, reply]) => {
                return Ok(Frame::Keepalive { end: position, reply_now: *reply != 0 });
            }
            _ => {}
        }
    }
    Err(WalError::Protocol("a replication message of unknown kind or length"))
}

/// Write, flush and apply are each the byte after the last one, which an end position already is.
fn status_update(received: Lsn, settled: Lsn, ask_reply: bool) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = now.saturating_sub(Duration::from_secs(POSTGRES_EPOCH_S)).as_micros();
    let mut status = Vec::with_capacity(STATUS_BYTES);
    status.push(b'd');
    status.extend(38_u32.to_be_bytes());
    status.push(b'r');
    for position in [received, settled, settled] {
        status.extend(position.get().to_be_bytes());
    }
    status.extend(u64::try_from(now).unwrap_or(u64::MAX).to_be_bytes());
    status.push(u8::from(ask_reply));
    status
}

#[cfg(test)]
mod tests;
