//! Handles a row that exceeds the message limit: makes an excerpt, so that the row becomes a dead
//! letter and blocks nothing. Invariant: only the excerpt's part is held (G3).

use super::PollStream;
use super::batch::{self, Place};
use crate::wal::{Transport, WalError};
use postrider_core::pgoutput::Excerpt;

/// A row's metadata lies within this many bytes of its beginning.
const BEGINNING: usize = 128;

#[derive(Debug)]
pub(super) struct LargeRow {
    pub(super) place: Place,
    /// A row whose id was not read is identified by its place, which is stable until it is marked.
    pub(super) identity: u32,
    pub(super) made_us: Option<i64>,
    excerpt: Excerpt,
    /// Remaining bytes of a value, and received bytes of a length.
    left: usize,
    length: Vec<u8>,
}

impl LargeRow {
    fn begin(
        (table_oid, columns): (u32, usize),
        (place, made_us): (Place, Option<i64>),
        mut excerpt: Excerpt,
    ) -> Result<Self, WalError> {
        excerpt.take(&batch::insert_head(table_oid, columns)?)?;
        let identity = batch::identity_of_place(table_oid, place);
        Ok(Self { place, identity, made_us, excerpt, left: 0, length: Vec::new() })
    }

    fn take(&mut self, mut piece: &[u8]) -> Result<(), WalError> {
        while !piece.is_empty() {
            if self.left > 0 {
                let (value, rest) = piece.split_at(self.left.min(piece.len()));
                self.excerpt.take(value)?;
                self.left -= value.len();
                piece = rest;
                continue;
            }
            let (length, rest) = piece.split_at((4 - self.length.len()).min(piece.len()));
            self.length.extend(length);
            piece = rest;
            let Ok(length) = <[u8; 4]>::try_from(self.length.as_slice()) else { continue };
            self.length.clear();
            match i32::from_be_bytes(length) {
                -1 => self.excerpt.take(b"n")?,
                count => {
                    self.left = usize::try_from(count).map_err(|_| batch::MALFORMED)?;
                    self.excerpt.take(b"t")?;
                    self.excerpt.take(&length)?;
                }
            }
        }
        Ok(())
    }

    /// The excerpt, once the whole row has passed.
    pub(super) fn excerpt(&self) -> Result<&Excerpt, WalError> {
        if self.excerpt.is_whole() { Ok(&self.excerpt) } else { Err(batch::MALFORMED) }
    }
}

impl<T: Transport> PollStream<T> {
    /// Starts passing an oversized row; false if its beginning is not buffered yet.
    pub(super) fn begin_large(&mut self, bytes: usize) -> Result<bool, WalError> {
        let Some(table) = self.tables.get(self.table) else { unreachable!("a row is of a table") };
        let shape = (table.table_oid, table.columns.len());
        let charset = self.connection.charset();
        let buffer = &mut self.connection.channel().buffer;
        let Some(beginning) = buffer.beginning(BEGINNING) else { return Ok(false) };
        let (about, taken) = batch::about_of_beginning(beginning)?;
        buffer.pass(bytes, taken);
        let Some(place) = about.place else {
            self.polled.hold_back(about);
            return Ok(true);
        };
        // A NULL takes fewer bytes than counted here, but is not known in advance.
        let whole = batch::insert_head(shape.0, shape.1)?.len() + buffer.passing() + shape.1;
        let excerpt = Excerpt::begin(whole).in_charset(charset);
        let large = LargeRow::begin(shape, (place, about.made_us), excerpt)?;
        self.large = Some(Box::new(large));
        Ok(true)
    }

    /// True once the passing row, if any, has arrived completely.
    pub(super) fn pass_large(&mut self) -> Result<bool, WalError> {
        let buffer = &mut self.connection.channel().buffer;
        while buffer.passing() > 0 {
            if buffer.piece().is_empty() {
                return Ok(false);
            }
            if let Some(large) = &mut self.large {
                large.take(buffer.piece())?;
            }
            buffer.pass_piece();
        }
        Ok(true)
    }
}
