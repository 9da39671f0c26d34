//! Watches the configuration file for changes.
//!
//! Invariant: a file has changed once two checks in a row find the same new content, so that a file
//! being written is ignored. A pipe is not opened. Size and time of a read are limited.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use postrider_config::FILE_BYTES_MAX;

/// Maximum time of a read, during which orders wait.
const READ_LIMIT: Duration = Duration::from_secs(1);

/// Compares contents, because editors and Kubernetes replace the file, or the folder behind a
/// symbolic link.
pub(super) struct FileWatch {
    path: PathBuf,
    /// Content in effect, or refused.
    seen: Option<Vec<u8>>,
    /// New content from the last check.
    found: Option<Vec<u8>>,
    /// Time to retry a configuration that could not be checked.
    pub(super) again: Option<Instant>,
    looking: Option<JoinHandle<Option<Vec<u8>>>>,
}

impl FileWatch {
    pub(super) fn of(path: PathBuf) -> Self {
        let seen = read(&path).ok();
        Self { path, seen, found: None, again: None, looking: None }
    }

    pub(super) async fn look(&mut self) -> bool {
        if self.again.take_if(|at| *at <= Instant::now()).is_some() {
            return true;
        }
        let content = self.content().await;
        self.judge(content)
    }

    /// Returns true if the file has changed. An unreadable file is being replaced.
    fn judge(&mut self, content: Option<Vec<u8>>) -> bool {
        if content.is_none() || content == self.seen {
            self.found = None;
            return false;
        }
        if content != self.found {
            self.found = content;
            return false;
        }
        self.seen = self.found.take();
        true
    }

    pub(super) async fn read_again(&mut self) {
        let content = self.content().await;
        if content.is_some() {
            (self.seen, self.found) = (content, None);
        }
    }

    /// Reads in another thread, because a file system may hang.
    async fn content(&mut self) -> Option<Vec<u8>> {
        let path = self.path.clone();
        let look = || tokio::task::spawn_blocking(move || read(&path).ok());
        let looking = self.looking.get_or_insert_with(look);
        let content = tokio::time::timeout(READ_LIMIT, looking).await.ok()?;
        self.looking = None;
        content.ok().flatten()
    }
}

/// At most a byte more than a configuration may have.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    refuse_other(path)?;
    let mut content = Vec::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut content)?;
    Ok(content)
}

/// Refuses pipes: to open one would wait for a writer.
fn refuse_other(path: &Path) -> io::Result<()> {
    let is_file = std::fs::metadata(path)?.is_file();
    let kind = io::ErrorKind::InvalidInput;
    is_file
        .then_some(())
        .ok_or_else(|| io::Error::new(kind, "it is not a file that can be read again"))
}

/// Also refuses a file that is too large.
pub(super) fn refuse_unfit(path: &Path) -> io::Result<()> {
    refuse_other(path)?;
    let is_small = std::fs::metadata(path)?.len() <= FILE_BYTES_MAX;
    let kind = io::ErrorKind::FileTooLarge;
    is_small.then_some(()).ok_or_else(|| io::Error::new(kind, "it has more than 1 MiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_changed_once_its_new_content_stays() {
        let mut watch = FileWatch { seen: Some(b"one".to_vec()), ..FileWatch::of(PathBuf::new()) };
        let mut judge =
            |content: Option<&str>| watch.judge(content.map(|it| it.as_bytes().to_vec()));
        // Written in place: empty, half, whole; or missing for a moment.
        for content in [Some("one"), Some(""), Some("tw"), None, Some("two")] {
            assert!(!judge(content), "{content:?}");
        }
        assert!(judge(Some("two")));
        assert!(!judge(Some("two")) && !judge(Some("two")), "once");
        assert!(!judge(Some("one")) && !judge(Some("two")), "and back again");
        assert!(!judge(Some("one")) && judge(Some("one")));
    }

    #[test]
    fn what_is_no_file_is_not_opened_and_a_large_one_is_not_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let mkfifo = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(mkfifo.success());
        assert_eq!(read(&pipe).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(read(Path::new("/dev/zero")).is_err() && read(folder.path()).is_err());
        let large = folder.path().join("large");
        std::fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read(&large).unwrap().len() as u64, FILE_BYTES_MAX + 1);
    }
}
