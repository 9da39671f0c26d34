//! Any bytes from a server, cut anywhere, are frames or an error (G7); no room is made beyond the
//! largest frame allowed (G3), and nothing is acknowledged that was not received (G1).
//!
//! The first bytes choose the limit, the sizes of the reads, and how many zeros follow the rest, in most
//! cases few: a header may promise more than a fuzzer writes.

use std::io;
use std::time::Duration;

use postrider::lsn::Lsn;
use postrider::wal::{Stream, Transport};

/// Room that the buffer has from the beginning.
const BASE_BYTES: usize = 2 << 20;

/// Tries one input.
pub(crate) fn run(data: &[u8]) {
    let Some((&[limit, piece, zeros], wire)) = data.split_first_chunk::<3>() else { return };
    let frame_bytes_max = 1 << (limit % 24);
    let server = Server {
        wire,
        zeros: (1 << (zeros % 23)) - 1,
        piece: usize::from(piece).pow(2) + 1,
        room_max: frame_bytes_max.max(BASE_BYTES),
    };
    let mut stream = Stream::over(server, frame_bytes_max);
    let mut told = Lsn::ZERO;
    loop {
        loop {
            match stream.peek() {
                Ok(Some(_)) => stream.consume(),
                Ok(None) => break,
                Err(error) => return assert!(!error.to_string().is_empty()),
            }
        }
        let before = told;
        told = stream.acknowledge(Lsn::new(u64::MAX), false).expect("the server listens");
        assert!((before..=stream.received()).contains(&told), "{told} after {before}");
        if let Err(error) = stream.fill(Duration::ZERO) {
            return assert!(!error.to_string().is_empty());
        }
    }
}

/// Says what the fuzzer wrote, and hangs up.
struct Server<'a> {
    wire: &'a [u8],
    zeros: usize,
    piece: usize,
    room_max: usize,
}

impl Transport for Server<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        assert!(into.len() <= self.room_max, "room for {} bytes", into.len());
        if self.wire.is_empty() {
            let bytes = self.zeros.min(into.len());
            into[..bytes].fill(0);
            self.zeros -= bytes;
            return Ok(bytes);
        }
        let bytes = self.wire.len().min(self.piece).min(into.len());
        let (now, later) = self.wire.split_at(bytes);
        into[..bytes].copy_from_slice(now);
        self.wire = later;
        Ok(bytes)
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn wait(&mut self, _: bool, _: Duration) -> io::Result<()> {
        Ok(())
    }
}
