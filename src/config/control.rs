//! The options of `[http.control]`: access to the control of a running relay.
//!
//! Invariant: without either option nobody may control it. The configuration only holds the file of
//! a token, never the token.

use std::path::PathBuf;

use super::options::{OptionSpec, text};
use super::reader::SettingsReader;
use postrider_service::units::InvalidValue;

pub(super) const SOCKET: OptionSpec = text(
    "http.control.socket",
    "\"\"",
    "Unix socket for `postrider ctl` and the control API: pause, resume, drain, reload, log \
     level. Its mode is 0600: only the relay's user and root may connect. If empty, none.",
);
pub(super) const TOKEN_FILE: OptionSpec = text(
    "http.control.token_file",
    "\"\"",
    "File with the bearer token, at least 16 characters, of the control API at `http.bind`. \
     The relay reads the file at each request, so that a new token needs no restart. If \
     empty, `http.bind` is read-only.",
);

/// Bytes; the system's limit is 107, and the socket is first created under a longer name.
const SOCKET_BYTES_MAX: usize = 95;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlSection {
    /// Path of the socket; `None` opens none.
    pub socket: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
}

impl SettingsReader<'_> {
    pub(super) fn control(&mut self) -> Option<ControlSection> {
        let socket = self.text(SOCKET.key, socket);
        let token_file = self.text(TOKEN_FILE.key, |text| Ok(path(text)));
        Some(ControlSection { socket: socket?, token_file: token_file? })
    }
}

fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

fn socket(text: &str) -> Result<Option<PathBuf>, InvalidValue> {
    if text.len() > SOCKET_BYTES_MAX {
        let reason = format!("a socket's path has {SOCKET_BYTES_MAX} bytes at most");
        return Err(InvalidValue::new(reason).help("name a shorter one: /run/postrider/control"));
    }
    Ok(path(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileChoice, Inputs, load};

    #[test]
    fn nobody_may_unless_asked_for_and_the_variable_names_the_file() {
        let control = |variables: &[(&str, &str)]| {
            let user = [("PGUSER", "app")];
            let variables = user.iter().chain(variables);
            let variables = variables.map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            let inputs = Inputs { file: FileChoice::Absent, variables, ..Inputs::default() };
            load(&inputs, &|_| Vec::new()).map(|loaded| loaded.config.http.control)
        };
        assert_eq!(control(&[]).unwrap(), ControlSection::default());
        // The path itself, unlike other variables that end in _FILE.
        let named = control(&[("POSTRIDER_HTTP__CONTROL__TOKEN_FILE", "/nowhere/token")]).unwrap();
        assert_eq!(named.token_file, Some(PathBuf::from("/nowhere/token")));
        let long = "/".repeat(SOCKET_BYTES_MAX + 1);
        assert!(control(&[("POSTRIDER_HTTP__CONTROL__SOCKET", &long)]).is_err());
    }
}
