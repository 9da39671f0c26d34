//! A scripted transport for tests: reads come in pieces of any size, writes are recorded.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::Duration;

use super::transport::Transport;

#[derive(Debug, Default)]
pub(super) struct Script {
    incoming: Vec<u8>,
    offset: usize,
    piece: usize,
    /// True if every second call would block.
    stutter: bool,
    calls: usize,
    pub(super) accepts: usize,
    pub(super) written: Vec<u8>,
    /// True if the peer closes after the script; otherwise it falls silent.
    pub(super) closes: bool,
    answers: VecDeque<Vec<u8>>,
    answered: usize,
}

impl Script {
    pub(super) fn new(incoming: Vec<u8>, piece: usize) -> Self {
        Self { incoming, piece, accepts: usize::MAX, ..Self::default() }
    }

    pub(super) fn stuttering(incoming: Vec<u8>, piece: usize) -> Self {
        Self { stutter: true, ..Self::new(incoming, piece) }
    }

    pub(super) fn closing(incoming: Vec<u8>, piece: usize) -> Self {
        Self { closes: true, ..Self::new(incoming, piece) }
    }

    pub(super) fn answering(answers: Vec<Vec<u8>>, piece: usize) -> Self {
        Self { answers: answers.into(), ..Self::stuttering(Vec::new(), piece) }
    }

    fn blocks(&mut self) -> bool {
        self.calls += 1;
        self.stutter && self.calls.is_multiple_of(2)
    }
}

impl AsRef<[u8]> for Script {
    fn as_ref(&self) -> &[u8] {
        &self.written
    }
}

impl Transport for Script {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let blocks = self.blocks();
        let rest = &self.incoming[self.offset..];
        if blocks || (rest.is_empty() && !self.closes) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let bytes = rest.len().min(into.len()).min(self.piece);
        into[..bytes].copy_from_slice(&rest[..bytes]);
        self.offset += bytes;
        Ok(bytes)
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let bytes = from.len().min(self.piece).min(self.accepts);
        if bytes == 0 || self.blocks() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.accepts -= bytes;
        self.written.extend(&from[..bytes]);
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<bool> {
        let query = &self.written[self.answered..];
        if let [b'Q', a, b, c, d, ..] = *query
            && query.len() > usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap()
        {
            self.answered = self.written.len();
            self.incoming.extend(self.answers.pop_front().unwrap_or_default());
        }
        Ok(true)
    }

    fn wait(&mut self, _: bool, _: Duration) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    bytes.extend(body);
    bytes
}

pub(super) fn report(tag: u8, severity: &str, code: &str, text: &str) -> Vec<u8> {
    let body = format!("S{severity}\0V{severity}\0C{code}\0M{text}\0Rsome_function\0\0");
    message(tag, body.as_bytes())
}

pub(super) fn wal(start: u64, data: &[u8]) -> Vec<u8> {
    let mut body = vec![b'w'];
    body.extend([start.to_be_bytes(), start.to_be_bytes(), [0; 8]].concat());
    body.extend(data);
    message(b'd', &body)
}

pub(super) fn keepalive(end: u64, reply_now: bool) -> Vec<u8> {
    let mut body = vec![b'k'];
    body.extend([end.to_be_bytes(), [0; 8]].concat());
    body.push(u8::from(reply_now));
    message(b'd', &body)
}
