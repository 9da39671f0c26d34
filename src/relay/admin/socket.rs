//! The unix socket of the control API.
//!
//! Input: a path. Output: a socket there, with mode 0600 before anybody can connect to it by that name. Invariant: one that
//! a process listens at is left alone, and what is left of a process that has ended is replaced; what is no socket is
//! never touched; the file goes with the relay that made it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use super::{Access, Admin};
use postrider_service::http;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A process listens there.
    #[error("another process listens at the control socket `{}`", .0.display())]
    Taken(PathBuf),
    /// Something else has the name.
    #[error("the control socket cannot be `{}`: that is a file or folder, and no socket", .0.display())]
    NoSocket(PathBuf),
    /// The system says no.
    #[error("cannot make the control socket `{}`", path.display())]
    Failed {
        /// As configured.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl SocketError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Taken(_) => {
                "give each relay of this machine a socket of its own in http.control.socket"
                    .to_owned()
            }
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

/// A socket that nobody answers yet.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    made: Made,
}

/// The file, which is removed with it.
#[derive(Debug)]
struct Made {
    path: PathBuf,
    inode: u64,
}

impl Drop for Made {
    fn drop(&mut self) {
        // Another relay may have made its own there, if somebody removed ours.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl ControlSocket {
    /// Makes it, within a runtime.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Failed { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(SocketError::NoSocket(path.to_owned()));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(SocketError::Taken(path.to_owned()));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        // Under a name of its own until only its owner may connect.
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let name = PathBuf::from(name);
        let _ = fs::remove_file(&name);
        let listener = UnixListener::bind(&name).map_err(failed)?;
        let inode = fs::symlink_metadata(&name).map_err(failed)?.ino();
        let first = Made { path: name, inode };
        fs::set_permissions(&first.path, Permissions::from_mode(0o600)).map_err(failed)?;
        fs::rename(&first.path, path).map_err(failed)?;
        Ok(Self { listener, made: Made { path: path.to_owned(), inode } })
    }

    /// Answers requests until `shutdown` completes.
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
