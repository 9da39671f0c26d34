//! The flat read buffer of the replication connection: lends whole messages in place.
//!
//! A message over the size limit is an error, or passes piece by piece on request. Invariant: a
//! message's declared length is compared with the limit before room is made for it. Room grows with
//! the received bytes, at most doubling. Upholds G3 and G7.

use super::error::WalError;

/// Output of a busy walsender in 30 ms, so that a burst of rows does not hold the server back.
/// Unused pages stay untouched.
pub(super) const BASE_BYTES: usize = 2 * 1024 * 1024;

/// Room below which the unread rest moves to the front, if it is not longer than the part already
/// read. Each byte moves at most once. Moving for each 16 KiB read took a tenth of a backlog's CPU
/// time.
const ROOM_BYTES_MIN: usize = 64 * 1024;

/// Tag and length.
pub(super) const HEADER_BYTES: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) tag: u8,
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    message_bytes_max: usize,
    passing: usize,
}

impl ReadBuffer {
    pub(super) fn new(message_bytes_max: usize) -> Self {
        Self { bytes: vec![0; BASE_BYTES], start: 0, end: 0, message_bytes_max, passing: 0 }
    }

    pub(super) fn set_limit(&mut self, message_bytes_max: usize) {
        self.message_bytes_max = message_bytes_max;
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    #[inline]
    fn unread(&self) -> &[u8] {
        self.bytes.split_at(self.end).0.split_at(self.start).1
    }

    /// Head of the first message, whole or not; `None` while a message passes.
    #[inline]
    fn declared(&self) -> Result<Option<Head>, WalError> {
        if self.passing > 0 {
            return Ok(None);
        }
        let [tag, a, b, c, d, ..] = *self.unread() else { return Ok(None) };
        // Every length of the protocol is signed.
        let Ok(length) = usize::try_from(i32::from_be_bytes([a, b, c, d])) else {
            return Err(WalError::Protocol("a negative length"));
        };
        if length < HEADER_BYTES - 1 {
            return Err(WalError::Protocol("a length below its own size"));
        }
        Ok(Some(Head { tag, bytes: length + 1 }))
    }

    /// Head of a whole message. An oversized one is an error until [`ReadBuffer::pass`] is called.
    #[inline]
    pub(super) fn head(&self) -> Result<Option<Head>, WalError> {
        let Some(head) = self.declared()? else { return Ok(None) };
        if head.bytes > self.message_bytes_max {
            return Err(self.too_large(head));
        }
        Ok((head.bytes <= self.len()).then_some(head))
    }

    #[cold]
    fn too_large(&self, Head { tag, bytes }: Head) -> WalError {
        WalError::MessageTooLarge { tag, bytes, limit: self.message_bytes_max }
    }

    pub(super) fn beginning(&self, bytes: usize) -> Option<&[u8]> {
        self.unread().get(HEADER_BYTES..HEADER_BYTES + bytes)
    }

    /// Passes the message in pieces, without the unwanted bytes at the start.
    pub(super) fn pass(&mut self, bytes: usize, unwanted: usize) {
        let skipped = HEADER_BYTES + unwanted;
        assert!(skipped <= self.len() && skipped <= bytes, "only what is there is passed over");
        self.start += skipped;
        self.passing = bytes - skipped;
    }

    pub(super) const fn passing(&self) -> usize {
        self.passing
    }

    pub(super) fn piece(&self) -> &[u8] {
        self.unread().split_at(self.passing.min(self.len())).0
    }

    /// True once the whole message has passed.
    pub(super) fn pass_piece(&mut self) -> bool {
        let passed = self.passing.min(self.len());
        self.start += passed;
        self.passing -= passed;
        self.passing == 0
    }

    #[inline]
    pub(super) fn body(&self, head: Head) -> &[u8] {
        assert!(head.bytes <= self.len(), "a message is read when it is there as a whole");
        self.unread().split_at(head.bytes).0.split_at(HEADER_BYTES).1
    }

    pub(super) fn whole(&self, head: Head) -> &[u8] {
        self.unread().split_at(head.bytes).0
    }

    #[inline]
    pub(super) fn consume(&mut self, head: Head) {
        assert!(head.bytes <= self.len(), "a message is consumed when it is there as a whole");
        self.start += head.bytes;
    }

    /// Empty if the buffer is full and starts with a whole message (back-pressure).
    pub(super) fn room(&mut self) -> Result<&mut [u8], WalError> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.bytes.len() - self.end < ROOM_BYTES_MIN && self.start > 0 && self.is_worth_moving()
        {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.bytes.len()
            && let Some(head) = self.declared()?
            && head.bytes > self.len()
            && head.bytes <= self.message_bytes_max
        {
            let grown = head.bytes.min(self.bytes.len() * 2);
            self.bytes.resize(grown, 0);
        }
        Ok(self.bytes.split_at_mut(self.end).1)
    }

    /// The rest is short, or nothing can be read without moving it.
    fn is_worth_moving(&self) -> bool {
        self.len() <= self.start || !matches!(self.head(), Ok(Some(_)))
    }

    pub(super) fn filled(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes.len() - self.end, "what was read fits the room");
        self.end += bytes;
    }

    /// Releases the capacity of a large message.
    pub(super) fn shrink(&mut self) {
        if self.start == self.end && self.bytes.len() > BASE_BYTES {
            (self.start, self.end) = (0, 0);
            self.bytes.truncate(BASE_BYTES);
            self.bytes.shrink_to_fit();
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: usize) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend(u32::try_from(body + 4).unwrap().to_be_bytes());
        bytes.extend((0..body).map(|i| u8::try_from(i % 251).unwrap()));
        bytes
    }

    fn feed(buffer: &mut ReadBuffer, bytes: &[u8]) -> usize {
        let room = buffer.room().unwrap();
        let taken = room.len().min(bytes.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        buffer.filled(taken);
        taken
    }

    #[test]
    fn messages_survive_any_split_growth_and_compaction() {
        let sizes = [0, 1, 100_000, 700_000, 3, 250_000, 60_000, 2_000_000, 5];
        let wire: Vec<u8> = sizes.iter().flat_map(|size| message(b'd', *size)).collect();
        for chunk in [1_009, 65_536, 300_000] {
            let mut buffer = ReadBuffer::new(4 << 20);
            let (mut offset, mut seen) = (0, Vec::new());
            while seen.len() < sizes.len() {
                let end = (offset + chunk).min(wire.len());
                offset += feed(&mut buffer, &wire[offset..end]);
                while let Some(head) = buffer.head().unwrap() {
                    assert_eq!(buffer.whole(head), message(b'd', buffer.body(head).len()));
                    seen.push(buffer.body(head).len());
                    buffer.consume(head);
                }
            }
            assert_eq!(seen, sizes);
            buffer.shrink();
            assert_eq!((buffer.len(), buffer.capacity()), (0, BASE_BYTES));
        }
    }

    #[test]
    fn g7_a_length_over_the_limit_is_refused_before_room_is_made() {
        let mut buffer = ReadBuffer::new(1_000_000);
        feed(&mut buffer, &[b'd', 0x7F, 0xFF, 0xFF, 0xFF]);
        let (tag, bytes, limit) = (b'd', 0x8000_0000, 1_000_000);
        assert_eq!(buffer.head(), Err(WalError::MessageTooLarge { tag, bytes, limit }));
        while !buffer.room().unwrap().is_empty() {
            feed(&mut buffer, &[0; 4096]);
        }
        assert_eq!(buffer.capacity(), BASE_BYTES);
        for length in [3, 0x8000_0000_u32, u32::MAX] {
            let mut buffer = ReadBuffer::new(1_000_000);
            feed(&mut buffer, &[&b"d"[..], &length.to_be_bytes()].concat());
            assert!(matches!(buffer.head(), Err(WalError::Protocol(_))), "{length}");
        }
    }

    #[test]
    fn g3_a_message_over_the_limit_passes_in_pieces_and_the_next_one_is_whole() {
        let wire = [message(b'd', 5 << 20), message(b'x', 7)].concat();
        for chunk in [1_009, 65_536, 3 << 20] {
            let mut buffer = ReadBuffer::new(1_000_000);
            let (mut offset, mut passed) = (0, Vec::new());
            let last = loop {
                let end = (offset + chunk).min(wire.len());
                offset += feed(&mut buffer, &wire[offset..end]);
                match buffer.head() {
                    Ok(Some(head)) => break head,
                    Ok(None) => {}
                    Err(WalError::MessageTooLarge { bytes, .. }) => {
                        if buffer.beginning(10).is_some() {
                            buffer.pass(bytes, 10);
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
                passed.extend_from_slice(buffer.piece());
                buffer.pass_piece();
                assert_eq!(buffer.capacity(), BASE_BYTES);
            };
            assert_eq!(passed, wire[15..(5 << 20) + 5]);
            assert_eq!(buffer.whole(last), message(b'x', 7));
        }
    }

    #[test]
    fn a_buffer_full_of_whole_messages_offers_no_room() {
        let mut buffer = ReadBuffer::new(4 << 20);
        let one = message(b'd', BASE_BYTES - 5);
        assert_eq!(feed(&mut buffer, &one), one.len());
        assert!(buffer.room().unwrap().is_empty());
    }

    #[test]
    fn a_backlog_is_moved_no_more_than_once() {
        let mut buffer = ReadBuffer::new(1 << 20);
        let (one, step) = (message(b'd', 400), 16 * 1024);
        let (mut wire, mut consumed, mut moved) = (Vec::new(), 0, 0);
        while consumed < 8 * BASE_BYTES {
            // The server is always ahead.
            while wire.len() < BASE_BYTES {
                wire.extend_from_slice(&one);
            }
            let (start, rest) = (buffer.start, buffer.len());
            let taken = feed(&mut buffer, &wire);
            wire.drain(..taken);
            moved += if start > 0 && rest > 0 && buffer.start == 0 { rest } else { 0 };
            let until = consumed + step;
            while consumed < until {
                let head = buffer.head().unwrap().expect("a backlog never runs dry");
                assert_eq!(buffer.whole(head), one);
                buffer.consume(head);
                consumed += head.bytes;
            }
        }
        assert!(moved <= consumed, "{moved} bytes were moved for {consumed} that were read");
    }

    #[test]
    fn room_grows_only_as_bytes_arrive() {
        let mut buffer = ReadBuffer::new(1 << 30);
        let mut header = vec![b'd'];
        header.extend((900_u32 << 20).to_be_bytes());
        feed(&mut buffer, &header);
        assert_eq!(buffer.capacity(), BASE_BYTES);
        feed(&mut buffer, &vec![0; BASE_BYTES]);
        buffer.room().unwrap();
        assert_eq!(buffer.capacity(), 2 * BASE_BYTES);
    }
}
