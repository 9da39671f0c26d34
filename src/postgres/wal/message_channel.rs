//! Protocol messages over a transport, shared by login, queries and streaming.
//!
//! Invariant: the number of stored notices and parameters is bounded (G3); nothing waits past its
//! deadline.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{ErrorFields, Message};

use super::buffer::{Head, ReadBuffer};
use super::error::{ServerMessage, WalError};
use super::transport::Transport;
use postrider_core::pgoutput::Charset;

/// libpq's own limit is 30,000 bytes.
const MESSAGE_BYTES_MAX_BEFORE_LOGIN: usize = 64 * 1024;

/// The oldest notices are dropped.
const NOTICES_MAX: usize = 64;

/// A server reports about fifteen.
const PARAMETERS_MAX: usize = 64;

const WAIT_MAX: Duration = Duration::from_hours(1);

pub(super) fn remaining(
    deadline: Option<Instant>,
    doing: &'static str,
) -> Result<Duration, WalError> {
    let Some(deadline) = deadline else { return Ok(WAIT_MAX) };
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(WalError::TimedOut { doing }) } else { Ok(left) }
}

pub(super) enum Incoming {
    /// postgres-protocol does not support CopyBothResponse.
    CopyBoth,
    Message(Message),
}

#[derive(Debug)]
pub(super) struct MessageChannel<T> {
    pub(super) transport: T,
    pub(super) buffer: ReadBuffer,
    /// Including framing.
    pub(super) bytes_read: u64,
    outgoing: VecDeque<u8>,
    /// The peer no longer listens.
    unheard: bool,
    pub(super) charset: Option<Arc<Charset>>,
    notices: VecDeque<ServerMessage>,
    pub(super) is_notified: bool,
    parameters: BTreeMap<String, String>,
}

impl<T: Transport> MessageChannel<T> {
    pub(super) fn new(transport: T) -> Self {
        Self {
            transport,
            buffer: ReadBuffer::new(MESSAGE_BYTES_MAX_BEFORE_LOGIN),
            bytes_read: 0,
            outgoing: VecDeque::new(),
            unheard: false,
            charset: None,
            notices: VecDeque::new(),
            is_notified: false,
            parameters: BTreeMap::new(),
        }
    }

    /// Returns 0 if nothing is available or fits.
    pub(super) fn read_available(&mut self) -> Result<usize, WalError> {
        let room = self.buffer.room()?;
        if room.is_empty() {
            return Ok(0);
        }
        match self.transport.read(room) {
            Ok(0) => Err(WalError::Closed),
            Ok(bytes) => {
                self.buffer.filled(bytes);
                self.bytes_read += bytes as u64;
                Ok(bytes)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(0),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Err(WalError::Closed),
                _ => Err(WalError::Io(error.to_string())),
            },
        }
    }

    /// Waits for input, or for room to write if output is queued.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<(), WalError> {
        let writing = !self.outgoing.is_empty();
        self.transport.wait(writing, limit).map_err(|error| WalError::Io(error.to_string()))
    }

    /// Queues bytes; `push_out` sends them.
    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.outgoing.extend(bytes);
    }

    pub(super) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// True if nothing is left, or if the peer no longer listens. The peer's last message then
    /// gives the reason. If the caller has not read it by its next write, that write fails.
    pub(super) fn push_out(&mut self) -> Result<bool, WalError> {
        if self.unheard && self.outgoing.is_empty() {
            return Ok(true);
        }
        while !self.outgoing.is_empty() {
            let (front, _) = self.outgoing.as_slices();
            match self.transport.write(front) {
                Ok(sent) => {
                    self.outgoing.drain(..sent.min(front.len()));
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => {
                        self.flush()?;
                        return Ok(false);
                    }
                    _ => return self.unheard(&error),
                },
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<bool, WalError> {
        match self.transport.flush() {
            Ok(flushed) => Ok(flushed),
            Err(error) => self.unheard(&error),
        }
    }

    fn unheard(&mut self, error: &std::io::Error) -> Result<bool, WalError> {
        if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) {
            self.outgoing.clear();
            if std::mem::replace(&mut self.unheard, true) {
                return Err(WalError::Closed);
            }
            return Ok(true);
        }
        Err(WalError::Io(error.to_string()))
    }

    pub(super) fn send(
        &mut self,
        bytes: &[u8],
        deadline: Option<Instant>,
        doing: &'static str,
    ) -> Result<(), WalError> {
        self.queue(bytes);
        while !self.push_out()? {
            let limit = remaining(deadline, doing)?;
            self.transport.wait(true, limit).map_err(|error| WalError::Io(error.to_string()))?;
        }
        Ok(())
    }

    pub(super) fn next(
        &mut self,
        deadline: Option<Instant>,
        doing: &'static str,
    ) -> Result<Incoming, WalError> {
        loop {
            let Some(head) = self.buffer.head()? else {
                if self.read_available()? == 0 {
                    let limit = remaining(deadline, doing)?;
                    self.wait(limit)?;
                    remaining(deadline, doing)?;
                }
                continue;
            };
            if self.set_aside(head)? {
                continue;
            }
            if head.tag == b'W' {
                self.buffer.consume(head);
                return Ok(Incoming::CopyBoth);
            }
            let message = parse(self.buffer.whole(head))?;
            self.buffer.consume(head);
            return Ok(Incoming::Message(message));
        }
    }

    /// Notices, parameters, notifications; false for others.
    pub(super) fn set_aside(&mut self, head: Head) -> Result<bool, WalError> {
        match head.tag {
            b'A' => self.is_notified = true,
            b'N' | b'S' => {}
            // The client requests protocol 3.0 without extensions, so nothing is denied.
            b'v' => {
                self.buffer.consume(head);
                return Ok(true);
            }
            _ => return Ok(false),
        }
        match parse(self.buffer.whole(head))? {
            Message::NoticeResponse(body) => {
                if self.notices.len() == NOTICES_MAX {
                    self.notices.pop_front();
                }
                let notice = self.server_message(body.fields());
                self.notices.push_back(notice);
            }
            Message::ParameterStatus(body) => {
                if let (Ok(name), Ok(value)) = (body.name(), body.value())
                    && (self.parameters.len() < PARAMETERS_MAX
                        || self.parameters.contains_key(name))
                {
                    self.parameters.insert(name.to_owned(), value.to_owned());
                }
            }
            _ => {}
        }
        self.buffer.consume(head);
        Ok(true)
    }

    pub(super) fn last_notice(&self) -> Option<&ServerMessage> {
        self.notices.back()
    }

    pub(super) fn take_notices(&mut self) -> Vec<ServerMessage> {
        self.notices.drain(..).collect()
    }

    pub(super) fn server_message(&self, mut fields: ErrorFields<'_>) -> ServerMessage {
        let mut message = ServerMessage::default();
        while let Ok(Some(field)) = fields.next() {
            let text = || match &self.charset {
                None => String::from_utf8_lossy(field.value_bytes()).into_owned(),
                Some(charset) => charset.text(field.value_bytes()),
            };
            match field.type_() {
                b'S' if message.severity.is_empty() => message.severity = text(),
                b'V' => message.severity = text(),
                b'C' => message.code = text(),
                b'M' => message.message = text(),
                b'H' => message.hint = text(),
                b'R' => message.routine = text(),
                _ => {}
            }
        }
        message
    }

    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }
}

pub(super) fn parse(whole: &[u8]) -> Result<Message, WalError> {
    match Message::parse(&mut BytesMut::from(whole)) {
        Ok(Some(message)) => Ok(message),
        _ => Err(WalError::Protocol("a message whose body does not fit its tag")),
    }
}
