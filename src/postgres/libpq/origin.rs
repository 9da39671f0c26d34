//! Names the source of each connection parameter: the string, a file, a variable or a default.
//! Invariant: the output contains no values, and so no password.

use std::path::PathBuf;

use super::ConnectInfo;
use super::secret::NamedBy;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParameterOrigin {
    Text,
    Service,
    Environment(&'static str),
    PasswordFile(PathBuf),
    /// A command, or a service that issues passwords.
    Asked,
    Default,
}

/// Parts that determine server, user and security.
const PARTS: [&str; 5] = ["host", "port", "user", "dbname", "sslmode"];

impl ConnectInfo {
    /// The password comes last, if there is one.
    pub fn origins(&self) -> Vec<(&'static str, ParameterOrigin)> {
        let of = |name: &str| self.origins.get(name).cloned().unwrap_or(ParameterOrigin::Default);
        let part = |name: &'static str| match (name, self.origins.contains_key(name)) {
            ("host", false) => (name, of("hostaddr")),
            _ => (name, of(name)),
        };
        let has_password = self.endpoints.iter().any(|endpoint| endpoint.password.is_some());
        let password = match (&self.secrets.asked, &self.secrets.named_by) {
            (Some(_), _) => Some(ParameterOrigin::Asked),
            (None, NamedBy::PasswordFile(path)) if has_password => {
                path.clone().map(ParameterOrigin::PasswordFile)
            }
            (None, _) if has_password => Some(of("password")),
            (None, _) => None,
        };
        PARTS.into_iter().map(part).chain(password.map(|origin| ("password", origin))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_the_place_that_it_came_from() {
        let env = |name: &str| match name {
            "PGHOST" | "PGUSER" => Some("other".to_owned()),
            "PGPASSWORD" => Some("hunter2".to_owned()),
            "PGSSLMODE" => Some("require".to_owned()),
            _ => None,
        };
        let (info, _) = ConnectInfo::resolve("postgres://app@db/", &env).unwrap();
        let expected = [
            ("host", ParameterOrigin::Text),
            ("port", ParameterOrigin::Default),
            ("user", ParameterOrigin::Text),
            ("dbname", ParameterOrigin::Default),
            ("sslmode", ParameterOrigin::Environment("PGSSLMODE")),
            ("password", ParameterOrigin::Environment("PGPASSWORD")),
        ];
        assert_eq!(info.origins(), expected);
        let (info, _) = ConnectInfo::resolve("user=a passfile=/no/such", &|_| None).unwrap();
        assert!(!info.origins().iter().any(|(part, _)| *part == "password"));
    }
}
