//! Reads libpq's service file and password file. Invariant: a password file that other users may
//! read is ignored with a warning, and errors contain none of its lines.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::Password;
use super::error::{ConnectInfoError, ConnectInfoWarning};
use super::parameters::Settings;

/// Finds a service; the first match wins. A missing file is skipped, unless it is the only one
/// (then it was named on purpose).
pub(super) fn service(name: &str, files: &[PathBuf]) -> Result<Settings, ConnectInfoError> {
    for path in files {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound && files.len() > 1 => continue,
            Err(error) => {
                return Err(ConnectInfoError::Unreadable {
                    path: path.clone(),
                    reason: error.kind().to_string(),
                });
            }
        };
        if let Some(settings) = service_in(&text, name, path)? {
            return Ok(settings);
        }
    }
    Err(ConnectInfoError::UnknownService { service: name.to_owned(), files: files.to_vec() })
}

fn service_in(text: &str, name: &str, path: &Path) -> Result<Option<Settings>, ConnectInfoError> {
    let mut found: Option<Settings> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if found.is_some() {
                break;
            }
            found = (section == name).then(Settings::default);
            continue;
        }
        let Some(settings) = &mut found else { continue };
        let syntax = |problem| ConnectInfoError::ServiceSyntax {
            path: path.to_owned(),
            line: number + 1,
            problem,
        };
        let (key, value) = line.split_once('=').ok_or_else(|| syntax("expected name=value"))?;
        if key.trim() == "service" || key.trim() == "servicefile" {
            return Err(syntax("a service cannot name another service"));
        }
        settings.put(key.trim(), value.trim().to_owned())?;
    }
    Ok(found)
}

/// Lines of a password file, read at most once.
#[derive(Default)]
pub(super) struct PasswordFile(Vec<PasswordLine>);

struct PasswordLine {
    host: String,
    port: String,
    database: String,
    user: String,
    password: String,
}

impl PasswordFile {
    /// A missing file is empty; one that is exposed or unreadable is empty with a warning.
    /// `/dev/null` is the usual way to name none.
    pub(super) fn read(path: &Path) -> (Self, Option<ConnectInfoWarning>) {
        // An inaccessible home directory counts as missing.
        const MISSING: [ErrorKind; 3] =
            [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::PermissionDenied];
        let unreadable = |error: &io::Error| {
            let (path, reason) = (path.to_owned(), error.to_string());
            let warning = ConnectInfoWarning::PasswordFileUnreadable { path, reason };
            (Self::default(), Some(warning))
        };
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if MISSING.contains(&error.kind()) => return (Self::default(), None),
            Err(error) => return unreadable(&error),
        };
        if !metadata.is_file() {
            let plain = path == Path::new("/dev/null");
            let warning = ConnectInfoWarning::PasswordFileNotPlain { path: path.to_owned() };
            return (Self::default(), (!plain).then_some(warning));
        }
        let mode = metadata.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            let warning = ConnectInfoWarning::PasswordFileExposed { path: path.to_owned(), mode };
            return (Self::default(), Some(warning));
        }
        match fs::read(path) {
            Ok(text) => (Self::parse(&String::from_utf8_lossy(&text)), None),
            Err(error) => unreadable(&error),
        }
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self(lines.filter_map(line).collect())
    }

    /// Password of the first matching line; `*` matches everything.
    pub(super) fn password(
        &self,
        host: &str,
        port: u16,
        database: &str,
        user: &str,
    ) -> Option<Password> {
        let port = port.to_string();
        let matches = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        let line = self.0.iter().find(|line| {
            matches(&line.host, host)
                && matches(&line.port, &port)
                && matches(&line.database, database)
                && matches(&line.user, user)
        })?;
        Some(Password::new(line.password.clone()))
    }
}

/// Splits `host:port:database:user:password`; `\:` and `\\` are escapes. `\*` is not special in
/// libpq either.
fn line(text: &str) -> Option<PasswordLine> {
    let mut fields = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let escaped = if c == '\\' { chars.next() } else { None };
        if c == ':' && fields.len() < 5 {
            fields.push(String::new());
        } else {
            fields.last_mut()?.push(escaped.unwrap_or(c));
        }
    }
    let mut fields = fields.into_iter();
    Some(PasswordLine {
        host: fields.next()?,
        port: fields.next()?,
        database: fields.next()?,
        user: fields.next()?,
        password: fields.next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_line_wins() {
        let file = PasswordFile::parse(
            "# comment\nshort:line\ndb:5432:shop:alice:one\n*:*:shop:*:two\\:three\\\\:four\n",
        );
        let password = |host, database| {
            file.password(host, 5432, database, "alice").map(|p| p.reveal().to_owned())
        };
        assert_eq!(password("db", "shop").as_deref(), Some("one"));
        assert_eq!(password("other", "shop").as_deref(), Some("two:three\\:four"));
        assert_eq!(password("other", "mail"), None);
    }

    #[test]
    fn a_file_that_others_may_read_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pgpass");
        fs::write(&path, "*:*:*:*:secret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let (file, warning) = PasswordFile::read(&path);
        assert!(file.password("h", 1, "d", "u").is_none());
        assert!(warning.unwrap().to_string().contains("chmod 0600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let (file, warning) = PasswordFile::read(&path);
        assert_eq!(file.password("h", 1, "d", "u").unwrap().reveal(), "secret");
        assert_eq!(warning, None);
        assert_eq!(PasswordFile::read(&dir.path().join("none")).1, None);
        assert_eq!(PasswordFile::read(&path.join("below a file")).1, None);
        let circle = dir.path().join("circle");
        std::os::unix::fs::symlink(&circle, &circle).unwrap();
        let warning = PasswordFile::read(&circle).1.unwrap().to_string();
        assert!(warning.contains("circle cannot be read: "), "{warning}");
        assert!(PasswordFile::read(dir.path()).1.is_some());
    }

    #[test]
    fn services_are_sections() {
        let text = "[a]\nhost=one\n# c\n[b]\nhost = two\nport=6000\n[c]\nnonsense\n";
        let path = Path::new("pg_service.conf");
        let settings = service_in(text, "b", path).unwrap().unwrap();
        assert_eq!((settings.get("host"), settings.get("port")), (Some("two"), Some("6000")));
        assert!(service_in(text, "z", path).unwrap().is_none());
        let error = service_in(text, "c", path).unwrap_err();
        assert!(matches!(error, ConnectInfoError::ServiceSyntax { line: 8, .. }));
        let error = service("b", &[PathBuf::from("/nonexistent/x"), "/nonexistent/y".into()]);
        assert!(error.unwrap_err().to_string().contains("/nonexistent/x or /nonexistent/y"));
    }
}
