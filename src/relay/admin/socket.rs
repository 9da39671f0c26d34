//! Unix socket of the control API, with mode 0600 before any other user can connect.
//!
//! Invariant: a stale socket is replaced. A socket with a listening process, or any other file,
//! stays untouched. The relay removes its socket when it ends.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _,
};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use super::{Access, Admin};
use postrider_service::http;

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("another process listens at the control socket `{}`", .0.display())]
    Taken(PathBuf),
    /// The socket belongs to another user, so this process cannot test it.
    #[error("the control socket `{}` is another user's", .0.display())]
    Foreign(PathBuf),
    #[error("the control socket cannot be `{}`: that is a file or folder, and no socket", .0.display())]
    NoSocket(PathBuf),
    #[error("cannot make the control socket `{}`", path.display())]
    Failed {
        /// From the configuration.
        path: PathBuf,
        source: io::Error,
    },
}

impl SocketError {
    pub fn hint(&self) -> String {
        match self {
            Self::Taken(_) => {
                "give each relay of this machine a socket of its own in http.control.socket"
                    .to_owned()
            }
            Self::Foreign(_) => "set another path in http.control.socket for this relay; or, if \
                                 no relay of that user runs any more, remove the file"
                .to_owned(),
            Self::NoSocket(_) => "set http.control.socket to a path that is free".to_owned(),
            Self::Failed { path, .. } => {
                let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let folder = folder.unwrap_or(Path::new("."));
                format!(
                    "the folder `{}` must be there, and the relay's user may write to it (systemd: \
                     RuntimeDirectory=postrider)",
                    folder.display()
                )
            }
        }
    }
}

#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    made: Made,
}

#[derive(Debug)]
struct Made {
    path: PathBuf,
    inode: u64,
}

impl Drop for Made {
    fn drop(&mut self) {
        // If the file was removed, another relay may have created a socket at the path.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removed on drop with its contents.
struct Folder(PathBuf);

impl Folder {
    fn make(path: PathBuf) -> io::Result<Self> {
        // A killed process may have left the folder. A symbolic link could lead to another user's
        // folder.
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            drop(Self(path.clone()));
        }
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0.join("s"));
        let _ = fs::remove_dir(&self.0);
    }
}

/// A refused connection shows that nobody listens.
fn is_left(path: &Path, answer: io::Result<()>) -> Result<(), SocketError> {
    let path = path.to_owned();
    match answer {
        Ok(()) => Err(SocketError::Taken(path)),
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(()),
            io::ErrorKind::PermissionDenied => Err(SocketError::Foreign(path)),
            _ => Err(SocketError::Failed { path, source: error }),
        },
    }
}

impl ControlSocket {
    /// Requires a Tokio runtime.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Failed { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(SocketError::NoSocket(path.to_owned()));
            }
            Ok(_) => is_left(path, UnixStream::connect(path).map(drop))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        // The socket moves to its path only after it has mode 0600.
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let folder = Folder::make(PathBuf::from(name)).map_err(failed)?;
        let first = folder.0.join("s");
        let listener = UnixListener::bind(&first).map_err(failed)?;
        fs::set_permissions(&first, Permissions::from_mode(0o600)).map_err(failed)?;
        let inode = fs::symlink_metadata(&first).map_err(failed)?.ino();
        fs::rename(&first, path).map_err(failed)?;
        Ok(Self { listener, made: Made { path: path.to_owned(), inode } })
    }

    pub async fn serve(
        self,
        admin: Admin,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let Self { listener, made } = self;
        let served = http::serve(listener, admin.routes(Access::Socket), shutdown).await;
        drop(made);
        served
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_cleared_and_no_link_is_followed() {
        let scene = tempfile::tempdir().unwrap();
        let (path, other) = (scene.path().join("control.1"), scene.path().join("other"));
        for folder in [&path, &other] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("s"), "").unwrap();
        }
        let made = Folder::make(path.clone()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(!path.join("s").exists());
        drop(made);
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(Folder::make(path.clone()).is_err() && other.join("s").exists());
    }

    #[test]
    fn only_a_socket_that_nobody_listens_at_is_replaced() {
        use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied, WouldBlock};
        let judged = |answer| is_left(Path::new("/run/x"), answer);
        let failed = |kind: io::ErrorKind| judged(Err(kind.into()));
        assert!(failed(ConnectionRefused).is_ok() && failed(NotFound).is_ok());
        assert!(matches!(judged(Ok(())), Err(SocketError::Taken(_))));
        let foreign = failed(PermissionDenied).unwrap_err();
        assert!(matches!(foreign, SocketError::Foreign(_)) && foreign.hint().contains("remove"));
        assert!(matches!(failed(WouldBlock), Err(SocketError::Failed { .. })), "its queue is full");
    }
}
