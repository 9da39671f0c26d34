//! Percent-encoded URLs of a temporary PostgreSQL cluster.

use std::fmt::Write as _;
use std::path::PathBuf;

/// Address with changeable user, password and database.
#[derive(Clone)]
pub struct Address {
    /// TCP port on 127.0.0.1, also part of the socket's name.
    pub port: u16,
    /// Folder of the unix socket.
    pub socket_folder: PathBuf,
    /// Role name.
    pub user: String,
    /// Password for TCP. Keep it and [`Self::url`] off command lines.
    pub password: Option<String>,
    /// Database name.
    pub database: String,
}

impl Address {
    /// `postgres://USER[:PASSWORD]@127.0.0.1:PORT/DATABASE`.
    pub fn url(&self) -> String {
        format!("postgres://{}@127.0.0.1:{}/{}", self.login(), self.port, escape(&self.database))
    }

    /// `postgres://USER@/DATABASE?host=FOLDER&port=PORT`: the socket does not need a password.
    pub fn unix_url(&self) -> String {
        let folder = escape(&self.socket_folder.to_string_lossy());
        let (user, database) = (escape(&self.user), escape(&self.database));
        format!("postgres://{user}@/{database}?host={folder}&port={}", self.port)
    }

    /// Changes the database.
    #[must_use]
    pub fn database(mut self, name: &str) -> Self {
        name.clone_into(&mut self.database);
        self
    }

    /// Changes the role and its password.
    #[must_use]
    pub fn login_as(mut self, user: &str, password: Option<&str>) -> Self {
        user.clone_into(&mut self.user);
        self.password = password.map(str::to_owned);
        self
    }

    fn login(&self) -> String {
        match &self.password {
            Some(password) => format!("{}:{}", escape(&self.user), escape(password)),
            None => escape(&self.user),
        }
    }
}

/// Keeps the password out of logs and panics.
impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Address({}@127.0.0.1:{}/{})", self.user, self.port, self.database)
    }
}

/// Keeps RFC 3986's unreserved characters and `/`.
fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        Address {
            port: 5432,
            socket_folder: "/tmp/a b".into(),
            user: "postgres".into(),
            password: Some("p@ss/word".into()),
            database: "postgres".into(),
        }
    }

    #[test]
    fn urls_escape_what_a_url_parser_would_take_for_syntax() {
        let shop = address().database("shop");
        assert_eq!(shop.url(), "postgres://postgres:p%40ss/word@127.0.0.1:5432/shop");
        let relay = address().login_as("relay", Some("secret"));
        assert_eq!(relay.unix_url(), "postgres://relay@/postgres?host=/tmp/a%20b&port=5432");
    }

    #[test]
    fn debug_output_has_no_password() {
        assert_eq!(format!("{:?}", address()), "Address(postgres@127.0.0.1:5432/postgres)");
    }
}
