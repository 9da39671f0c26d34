//! The unprivileged operating system account that temporary servers run as. PostgreSQL refuses to
//! run as root.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::SandboxError;

/// If this process is root, best first.
const ACCOUNTS: [&str; 2] = ["postgres", "nobody"];

/// Account of a temporary server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Account {
    /// Account of this process, which is not root.
    Own,
    /// Another account, because this process is root.
    Other {
        /// User id; never 0.
        uid: u32,
        /// Group id.
        gid: u32,
    },
}

impl Account {
    /// Finds the account. Errors: [`SandboxError::NoAccount`], or /etc/passwd cannot be read.
    pub fn unprivileged() -> Result<Self, SandboxError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Own);
        }
        let passwd =
            fs::read_to_string("/etc/passwd").map_err(SandboxError::file("read", "/etc/passwd"))?;
        ACCOUNTS.iter().find_map(|name| look_up(&passwd, name)).ok_or(SandboxError::NoAccount)
    }

    /// Runs `command` as this account, without the caller's groups.
    pub fn apply(self, command: &mut Command) {
        if let Self::Other { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
    }

    /// Makes this account the owner of a file or folder.
    pub fn own(self, path: &Path) -> Result<(), SandboxError> {
        match self {
            Self::Own => Ok(()),
            Self::Other { uid, gid } => {
                chown(path, Some(uid), Some(gid)).map_err(SandboxError::file("chown", path))
            }
        }
    }

    /// True if this account can enter every folder above `path`, and `path` is open to all. Checks
    /// only the permission bits for others.
    pub fn reaches(self, path: &Path) -> bool {
        if self == Self::Own {
            return true;
        }
        let Ok(path) = path.canonicalize() else { return false };
        path.ancestors().all(|folder| {
            fs::metadata(folder).is_ok_and(|meta| {
                let needed = if meta.is_dir() { 0o001 } else { 0o004 };
                meta.mode() & needed != 0
            })
        })
    }

    /// Makes a temporary folder that only this account can enter. The path is short, because a unix
    /// socket's path may not exceed 107 bytes (unix(7)).
    pub fn make_folder(self, prefix: &str) -> Result<PathBuf, SandboxError> {
        let mut parent = std::env::temp_dir();
        if !self.reaches(&parent) || parent.as_os_str().len() > 60 {
            parent = PathBuf::from("/tmp");
        }
        let folder = tempfile::Builder::new()
            .prefix(prefix)
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(&parent)
            .map_err(SandboxError::file("make a folder in", &parent))?
            .keep();
        self.own(&folder)?;
        Ok(folder)
    }
}

fn look_up(passwd: &str, name: &str) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let uid: u32 = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        (uid != 0).then_some(Account::Other { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
                          toor:x:0:7::/:/bin/sh\n\
                          postgres:x:101:104:PostgreSQL,,,:/var/lib/postgresql:/bin/bash\n";

    #[test]
    fn accounts_are_found_by_name_and_root_is_never_one() {
        assert_eq!(look_up(PASSWD, "postgres"), Some(Account::Other { uid: 101, gid: 104 }));
        assert_eq!(look_up(PASSWD, "nobody"), None);
        assert_eq!(look_up(PASSWD, "toor"), None);
    }

    #[test]
    fn a_new_folder_is_closed_to_others() {
        let account = Account::unprivileged().unwrap();
        let folder = account.make_folder("postrider-test-").unwrap();
        let mode = fs::metadata(&folder).unwrap().mode();
        fs::remove_dir(&folder).unwrap();
        assert_eq!(mode & 0o777, 0o700);
    }
}
