//! Sorts more entries than fit into memory: writes sorted runs to an unnamed file, and merges them
//! on each read.
//!
//! Invariant: [`BUFFER_BYTES`] and [`MERGE_BYTES`] bound the memory for any input. The file
//! disappears with the process.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::entry::{ENTRY_BYTES, Entry, ORDERED_BYTES, Ordered};

/// Bytes of entries that are sorted in memory.
const BUFFER_BYTES: usize = 4 << 20;

/// Read-ahead bytes for all runs together, up to 1,024 runs or about 50 million entries.
const MERGE_BYTES: usize = 4 << 20;

/// A disk does not read less.
const AHEAD_BYTES_MIN: usize = 4 << 10;

/// Larger reads are not faster.
const AHEAD_BYTES_MAX: usize = 256 << 10;

pub trait Spilled: Copy + Ord {
    /// Size on disk.
    const BYTES: usize;
    fn write(self, out: &mut Vec<u8>);
    /// `None`: the bytes are not valid.
    fn read(bytes: &[u8]) -> Option<Self>;
}

impl Spilled for Entry {
    const BYTES: usize = ENTRY_BYTES;

    fn write(self, out: &mut Vec<u8>) {
        out.extend(self.to_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        Self::of_bytes(bytes.try_into().ok()?)
    }
}

impl Spilled for Ordered {
    const BYTES: usize = ORDERED_BYTES;

    fn write(self, out: &mut Vec<u8>) {
        out.extend(self.to_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        Self::of_bytes(bytes.try_into().ok()?)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} a temporary file in {}", .folder.display())]
pub struct SpillError {
    folder: PathBuf,
    doing: &'static str,
    #[source]
    source: io::Error,
}

impl SpillError {
    pub fn new(folder: &Path, doing: &'static str, source: io::Error) -> Self {
        Self { folder: folder.to_owned(), doing, source }
    }

    pub fn hint(&self) -> String {
        let folder = "name a writable folder with --work-dir, on a disk with room for about 210 \
                      bytes per row";
        match self.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!(
                    "the disk is full: {folder}; or look at less at once with --since and --until"
                )
            }
            _ => folder.to_owned(),
        }
    }
}

#[derive(Debug)]
pub struct Sorter<T> {
    folder: PathBuf,
    file: File,
    /// Number of entries per run. The runs are consecutive in the file.
    runs: Vec<u64>,
    buffer: Vec<T>,
    /// Maximum number of entries per run.
    most: usize,
}

impl<T: Spilled> Sorter<T> {
    pub fn new(folder: &Path) -> Result<Self, SpillError> {
        Self::with_runs_of(folder, BUFFER_BYTES / size_of::<T>())
    }

    fn with_runs_of(folder: &Path, most: usize) -> Result<Self, SpillError> {
        let failed = |source| SpillError { folder: folder.to_owned(), doing: "create", source };
        let file = tempfile::tempfile_in(folder).map_err(failed)?;
        Ok(Self { folder: folder.to_owned(), file, runs: Vec::new(), buffer: Vec::new(), most })
    }

    pub fn push(&mut self, entry: T) -> Result<(), SpillError> {
        if self.buffer.capacity() == 0 {
            self.buffer.reserve_exact(self.most);
        }
        self.buffer.push(entry);
        if self.buffer.len() == self.most { self.spill() } else { Ok(()) }
    }

    pub fn bytes(&self) -> u64 {
        self.runs.iter().sum::<u64>() * T::BYTES as u64
    }

    /// Passes every entry to `take`, in order.
    pub fn read<E: From<SpillError>>(
        &mut self,
        mut take: impl FnMut(T) -> Result<(), E>,
    ) -> Result<(), E> {
        self.spill()?;
        // The merge needs the memory of the buffer.
        self.buffer = Vec::new();
        let ahead = (MERGE_BYTES / self.runs.len().max(1)).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
        let mut at = 0;
        let mut runs = Vec::with_capacity(self.runs.len());
        for count in &self.runs {
            let end = at + count * T::BYTES as u64;
            runs.push(Run { at, end, ahead: Vec::new(), next: 0 });
            at = end;
        }
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for (number, run) in runs.iter_mut().enumerate() {
            let first = self.next(run, ahead)?;
            heads.extend(first.map(|entry: T| Reverse((entry, number))));
        }
        while let Some(Reverse((entry, number))) = heads.pop() {
            take(entry)?;
            if let Some(run) = runs.get_mut(number) {
                heads.extend(self.next(run, ahead)?.map(|entry| Reverse((entry, number))));
            }
        }
        Ok(())
    }

    fn next(&self, run: &mut Run, ahead: usize) -> Result<Option<T>, SpillError> {
        if run.next == run.ahead.len() {
            let most = (ahead / T::BYTES).max(1) * T::BYTES;
            let rest = usize::try_from(run.end - run.at).unwrap_or(usize::MAX);
            run.ahead.resize(rest.min(most), 0);
            self.file
                .read_exact_at(&mut run.ahead, run.at)
                .map_err(|error| self.failed("read", error))?;
            run.at += run.ahead.len() as u64;
            run.next = 0;
        }
        let Some(bytes) = run.ahead.get(run.next..run.next + T::BYTES) else { return Ok(None) };
        run.next += T::BYTES;
        match T::read(bytes) {
            Some(entry) => Ok(Some(entry)),
            None => Err(self.failed("read", io::ErrorKind::InvalidData.into())),
        }
    }

    fn spill(&mut self) -> Result<(), SpillError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.buffer.sort_unstable();
        let mut bytes = Vec::with_capacity(AHEAD_BYTES_MAX);
        for chunk in self.buffer.chunks(AHEAD_BYTES_MAX / T::BYTES) {
            bytes.clear();
            for entry in chunk {
                entry.write(&mut bytes);
            }
            self.file.write_all(&bytes).map_err(|error| self.failed("write", error))?;
        }
        self.runs.push(self.buffer.len() as u64);
        self.buffer.clear();
        Ok(())
    }

    fn failed(&self, doing: &'static str, source: io::Error) -> SpillError {
        SpillError { folder: self.folder.clone(), doing, source }
    }
}

#[derive(Debug)]
struct Run {
    at: u64,
    end: u64,
    ahead: Vec<u8>,
    next: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ordered(number: u64) -> Ordered {
        Ordered { topic: 0, partition: 0, key: number, offset: 0, position: None, number: None }
    }

    fn read(sorter: &mut Sorter<Ordered>) -> Vec<u64> {
        let mut all = Vec::new();
        let done: Result<(), SpillError> = sorter.read(|entry| {
            all.push(entry.key);
            Ok(())
        });
        done.unwrap();
        all
    }

    proptest! {
        #[test]
        fn entries_come_in_order_as_often_as_they_are_read(
            batches in prop::collection::vec(prop::collection::vec(0..100_u64, 0..40), 0..4),
            most in 1..9_usize,
        ) {
            let mut sorter = Sorter::with_runs_of(&std::env::temp_dir(), most).unwrap();
            let mut wanted = Vec::new();
            for batch in batches {
                for number in &batch {
                    sorter.push(ordered(*number)).unwrap();
                }
                wanted.extend(batch);
                wanted.sort_unstable();
                prop_assert_eq!(&read(&mut sorter), &wanted);
                prop_assert_eq!(sorter.bytes(), (wanted.len() * ORDERED_BYTES) as u64);
            }
        }
    }

    #[test]
    fn a_folder_that_does_not_serve_is_told_with_what_to_do() {
        let error = Sorter::<Entry>::new(Path::new("/nowhere/at/all")).unwrap_err();
        assert_eq!(error.to_string(), "cannot create a temporary file in /nowhere/at/all");
        assert!(error.hint().contains("--work-dir"));
        let source = io::ErrorKind::StorageFull.into();
        assert!(SpillError { source, ..error }.hint().starts_with("the disk is full"));
    }
}
