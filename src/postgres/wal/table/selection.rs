//! Selects rows of a scan by their numbers in a file, counted from 1 over all tables of a stream.
//! Invariant: memory does not grow with the numbers.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read as _, Seek as _, Write as _};

use crate::wal::WalError;

/// Writes numbers in ascending order.
#[derive(Debug)]
pub struct RowNumbersWriter {
    file: BufWriter<File>,
    last: u64,
    count: u64,
}

impl RowNumbersWriter {
    pub fn new(file: File) -> Self {
        Self { file: BufWriter::new(file), last: 0, count: 0 }
    }

    /// Adds a number.
    ///
    /// # Panics
    ///
    /// If it is not above the last one.
    pub fn push(&mut self, number: u64) -> io::Result<()> {
        assert!(number > self.last, "row {number} comes after row {}", self.last);
        self.last = number;
        self.count += 1;
        self.file.write_all(&number.to_be_bytes())
    }

    pub fn finish(self) -> io::Result<RowNumbers> {
        let count = self.count;
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        let mut numbers = RowNumbers { file: BufReader::new(file), left: count, next: None };
        numbers.advance()?;
        Ok(numbers)
    }
}

#[derive(Debug)]
pub struct RowNumbers {
    file: BufReader<File>,
    left: u64,
    next: Option<u64>,
}

impl RowNumbers {
    /// Number of selected rows still to come.
    pub fn left(&self) -> u64 {
        self.left + u64::from(self.next.is_some())
    }

    /// True if this row is selected. Test each row in turn.
    ///
    /// # Panics
    ///
    /// If a selected row was skipped.
    pub(super) fn wants(&mut self, number: u64) -> Result<bool, WalError> {
        if self.next.is_some_and(|next| next < number) {
            let unreadable = |_| WalError::Protocol("the file with the rows to send is unreadable");
            self.advance().map_err(unreadable)?;
            assert!(self.next.is_none_or(|next| next >= number), "a wanted row was passed over");
        }
        Ok(self.next == Some(number))
    }

    /// True if no later row is selected.
    pub(super) fn is_done(&self, number: u64) -> bool {
        self.left == 0 && self.next.is_none_or(|next| next <= number)
    }

    fn advance(&mut self) -> io::Result<()> {
        self.next = None;
        if let Some(left) = self.left.checked_sub(1) {
            let mut number = [0; 8];
            self.file.read_exact(&mut number)?;
            (self.left, self.next) = (left, Some(u64::from_be_bytes(number)));
        }
        Ok(())
    }
}
