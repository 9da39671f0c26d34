//! Reads fields of a message with bounds checks.
//!
//! An error has field and offset; nothing panics or allocates (G7).

use super::error::DecodeError;

#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    whole: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message, whole: message.len() }
    }

    pub(super) fn offset(&self) -> usize {
        self.whole.saturating_sub(self.rest.len())
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(super) fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        self.array(field).map(i32::from_be_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.array(field).map(u64::from_be_bytes)
    }

    pub(super) fn i64(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        self.array(field).map(i64::from_be_bytes)
    }

    /// Signed in the protocol.
    pub(super) fn length(&mut self, field: &'static str) -> Result<usize, DecodeError> {
        usize::try_from(self.i32(field)?).map_err(|_| DecodeError::NegativeLength { field })
    }

    pub(super) fn bytes(
        &mut self,
        length: usize,
        field: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(self.truncated(field))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Ends with a zero byte.
    pub(super) fn string(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(self.truncated(field))?;
        let text = self.bytes(end, field)?;
        self.u8(field)?;
        Ok(text)
    }

    /// The bytes that `skip` passes.
    pub(super) fn span(
        &mut self,
        skip: impl FnOnce(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<&'a [u8], DecodeError> {
        let before = self.rest;
        skip(self)?;
        let (passed, _) = before.split_at(before.len() - self.rest.len());
        Ok(passed)
    }

    pub(super) fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(DecodeError::Trailing { bytes }),
        }
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(self.truncated(field))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn truncated(&self, field: &'static str) -> DecodeError {
        DecodeError::Truncated { field, offset: self.offset() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_big_endian_and_end_exactly() {
        let mut cursor = Cursor::new(&[1, 0, 2, 0xFF, 0xFF, 0xFF, 0xFE, b'a', b'b', 0, 9]);
        assert_eq!(cursor.u8("a"), Ok(1));
        assert_eq!(cursor.u16("b"), Ok(2));
        assert_eq!(cursor.i32("c"), Ok(-2));
        assert_eq!(cursor.string("d"), Ok(&b"ab"[..]));
        assert_eq!(cursor.finish(), Err(DecodeError::Trailing { bytes: 1 }));
        assert_eq!(cursor.u64("e"), Err(DecodeError::Truncated { field: "e", offset: 10 }));
        assert_eq!(cursor.string("f"), Err(DecodeError::Truncated { field: "f", offset: 10 }));
        assert_eq!(cursor.bytes(1, "g"), Ok(&[9][..]));
        assert_eq!(cursor.finish(), Ok(()));
    }

    #[test]
    fn negative_lengths_are_refused() {
        let mut cursor = Cursor::new(&[0x80, 0, 0, 0]);
        assert_eq!(cursor.length("size"), Err(DecodeError::NegativeLength { field: "size" }));
    }
}
