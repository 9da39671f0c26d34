//! Reads a connection's user and password again at every connect, so that they can be rotated.
//!
//! Invariant: servers, database and TLS settings stay unchanged after the start; `Debug` and errors
//! contain no secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use postrider_secrets::{Password, PasswordCommand, SecretError, read_secret};

use super::{ConnectInfo, Endpoint, HostAddress};

/// Issuer of passwords, for example a cloud's identity service.
pub trait PasswordIssuer: Send + Sync {
    /// Blocks. `host` is the connection string's name.
    fn issue(&self, user: &str, host: &str, port: u16) -> Result<Password, SecretError>;

    /// Name for hints.
    fn describe(&self) -> String;
}

#[derive(Clone)]
pub(super) enum AskedAtConnect {
    Command(PasswordCommand),
    Issuer(Arc<dyn PasswordIssuer>),
}

impl PartialEq for AskedAtConnect {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Command(one), Self::Command(other)) => one == other,
            (Self::Issuer(one), Self::Issuer(other)) => one.describe() == other.describe(),
            _ => false,
        }
    }
}

impl Eq for AskedAtConnect {}

impl AskedAtConnect {
    fn describe(&self) -> String {
        match self {
            Self::Command(command) => format!("what the command `{}` prints", command.program()),
            Self::Issuer(issuer) => issuer.describe(),
        }
    }
}

fn issued(
    issuer: &dyn PasswordIssuer,
    user: &str,
    endpoint: &Endpoint,
) -> Result<Password, SecretError> {
    match &endpoint.address {
        HostAddress::Tcp { host, .. } => issuer.issue(user, host, endpoint.port),
        HostAddress::Unix(_) => Err(SecretError::NotIssued(format!(
            "{} is for hosts, and the connection is a Unix socket",
            issuer.describe()
        ))),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NamedBy {
    Text,
    Service,
    Environment,
    /// `None`: there is no home directory.
    PasswordFile(Option<PathBuf>),
}

/// `Debug` shows only whether user and password can change.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SecretSource {
    pub(super) text: ConnectionText,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) asked: Option<AskedAtConnect>,
    pub(super) named_by: NamedBy,
    pub(super) can_change: bool,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum ConnectionText {
    Typed(String),
    File(PathBuf),
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretSource").field("can_change", &self.can_change).finish_non_exhaustive()
    }
}

impl ConnectInfo {
    #[must_use]
    pub fn read_from(mut self, path: PathBuf) -> Self {
        self.secrets.text = ConnectionText::File(path);
        self.secrets.can_change = true;
        self
    }

    #[must_use]
    pub fn ask(mut self, command: PasswordCommand) -> Self {
        self.secrets.asked = Some(AskedAtConnect::Command(command));
        self.secrets.can_change = true;
        self
    }

    #[must_use]
    pub fn issued_by(mut self, issuer: Arc<dyn PasswordIssuer>) -> Self {
        self.secrets.asked = Some(AskedAtConnect::Issuer(issuer));
        self.secrets.can_change = true;
        self
    }

    pub fn wrong_password_hint(&self) -> String {
        let SecretSource { text, asked, named_by, .. } = &self.secrets;
        let place = match (asked, named_by, text) {
            (Some(asked), ..) => asked.describe(),
            (None, NamedBy::Text, ConnectionText::File(path)) => {
                format!("the connection string in {}", path.display())
            }
            (None, NamedBy::Text, ConnectionText::Typed(_)) => "the connection string".to_owned(),
            (None, NamedBy::Service, _) => "the service file".to_owned(),
            (None, NamedBy::Environment, _) => "PGPASSWORD".to_owned(),
            (None, NamedBy::PasswordFile(path), _) => format!(
                "the first line that fits in {}",
                path.as_deref()
                    .map_or("the password file".into(), std::path::Path::to_string_lossy)
            ),
        };
        format!(
            "the password is wrong, the role has none, or there is no such role; the password came from \
             {place}"
        )
    }

    pub fn missing_password_hint(&self) -> String {
        match &self.secrets.named_by {
            NamedBy::PasswordFile(Some(path)) => format!(
                "set PGPASSWORD, or add a line for user `{}` to {}",
                self.user,
                path.display()
            ),
            _ => "set PGPASSWORD".to_owned(),
        }
    }

    /// True if the password comes from a file, a service or a command.
    pub fn secret_can_change(&self) -> bool {
        self.secrets.can_change
    }

    pub fn user_can_change(&self) -> bool {
        let SecretSource { text, named_by, can_change, .. } = &self.secrets;
        *can_change && (matches!(text, ConnectionText::File(_)) || *named_by == NamedBy::Service)
    }

    /// Blocks.
    pub fn renewed(&self) -> Result<Self, SecretError> {
        if !self.secrets.can_change {
            return Ok(self.clone());
        }
        let text = match &self.secrets.text {
            ConnectionText::Typed(text) => text.clone(),
            ConnectionText::File(path) => read_secret(path)?,
        };
        let environment = |name: &str| self.secrets.environment.get(name).cloned();
        let (now, _) = Self::resolve(&text, &environment)
            .map_err(|error| SecretError::Settings(error.to_string()))?;
        let mut info = Self { user: now.user, ..self.clone() };
        let printed = match &self.secrets.asked {
            Some(AskedAtConnect::Command(command)) => Some(command.run()?),
            Some(AskedAtConnect::Issuer(_)) | None => None,
        };
        for endpoint in &mut info.endpoints {
            let same = |other: &&Endpoint| {
                other.port == endpoint.port && has_same_name(&other.address, &endpoint.address)
            };
            let found = now.endpoints.iter().find(same).and_then(|it| it.password.clone());
            endpoint.password = match &self.secrets.asked {
                Some(AskedAtConnect::Issuer(issuer)) => {
                    Some(issued(issuer.as_ref(), &info.user, endpoint)?)
                }
                Some(AskedAtConnect::Command(_)) => printed.clone(),
                None => found,
            };
        }
        Ok(info)
    }
}

/// True for one name in the password file, whether or not addresses are resolved.
fn has_same_name(one: &HostAddress, other: &HostAddress) -> bool {
    match (one, other) {
        (HostAddress::Tcp { host: one, .. }, HostAddress::Tcp { host: other, .. }) => one == other,
        (HostAddress::Unix(one), HostAddress::Unix(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn shell(script: &str) -> PasswordCommand {
        PasswordCommand::new(vec!["sh".into(), "-c".into(), script.into()]).unwrap()
    }

    #[test]
    fn files_are_read_again_and_what_was_typed_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgpass");
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        let password = |info: &ConnectInfo| info.endpoints[0].password.clone().unwrap();
        write("*:*:*:*:first");
        let text = format!("host=db user=u passfile={}", path.display());
        let (info, _) = ConnectInfo::resolve(&text, &|_| None).unwrap();
        write("*:*:*:*:second");
        assert!(info.secret_can_change());
        assert_eq!(password(&info.renewed().unwrap()).reveal(), "second");

        let (typed, _) = ConnectInfo::resolve(&format!("{text} password=x"), &|_| None).unwrap();
        assert!(!typed.secret_can_change());
        assert_eq!(password(&typed.renewed().unwrap()).reveal(), "x");
        let asked = typed.ask(shell("echo third")).renewed().unwrap();
        assert_eq!(password(&asked).reveal(), "third");

        write("postgres://other:fourth@db/shop\n");
        let info = info.read_from(path.clone()).renewed().unwrap();
        assert_eq!((info.user.as_str(), password(&info).reveal()), ("other", "fourth"));
        fs::remove_file(&path).unwrap();
        assert!(info.renewed().unwrap_err().to_string().contains("cannot be read"));
        assert!(!format!("{info:?}").contains("fourth"));
    }

    #[test]
    fn a_service_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("service");
        fs::write(&path, "[shop]\nhost=db\npassword=first\n").unwrap();
        let file = path.display().to_string();
        let environment = move |name: &str| match name {
            "PGSERVICE" => Some("shop".to_owned()),
            "PGSERVICEFILE" => Some(file.clone()),
            "PGUSER" => Some("u".to_owned()),
            _ => None,
        };
        let (info, _) = ConnectInfo::resolve("", &environment).unwrap();
        fs::write(&path, "[shop]\nhost=db\npassword=second\n").unwrap();
        let info = info.renewed().unwrap();
        assert_eq!(info.endpoints[0].password.as_ref().unwrap().reveal(), "second");
    }
}
