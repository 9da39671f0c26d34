//! Authorises requests to the control API.
//!
//! Invariant: the time to compare a token depends only on its length. The token file is read for
//! each request, so a change does not need a restart.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::problem;
use crate::blocking::run_blocking;

/// A shorter token can be guessed.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: u64 = 4 << 10;

const HELP_NONE: &str = "set http.control.socket to use `postrider ctl` on this machine, or http.control.token_file to \
                         allow it here, and restart the relay";

#[derive(Debug, Clone)]
pub enum Access {
    /// Accepts every caller that can connect, because the socket belongs to the relay's user.
    Socket,
    Token(Arc<Path>),
    /// The path is the control socket, if one is configured.
    Nobody(Option<Arc<Path>>),
}

impl Access {
    pub fn at_http(token_file: Option<&PathBuf>, socket: Option<&PathBuf>) -> Self {
        match token_file {
            Some(file) => Self::Token(file.as_path().into()),
            None => Self::Nobody(socket.map(|socket| socket.as_path().into())),
        }
    }

    pub(super) async fn refusal(&self, headers: &HeaderMap) -> Option<Response> {
        // Every browser sends one of these headers with the requests of any page.
        let is_page = headers.contains_key(header::ORIGIN)
            || headers.keys().any(|name| name.as_str().starts_with("sec-fetch-"));
        if is_page {
            let error = "the control API answers no browser";
            let help = "use `postrider ctl`, or curl";
            return Some(problem(StatusCode::FORBIDDEN, error, Some(help)));
        }
        let file = match self {
            Self::Socket => return None,
            Self::Nobody(None) => {
                let error = "nobody may control this relay";
                return Some(problem(StatusCode::FORBIDDEN, error, Some(HELP_NONE)));
            }
            Self::Nobody(Some(socket)) => {
                let error = "the relay is controlled by its socket alone";
                let help =
                    format!("use `postrider ctl`, or curl --unix-socket {}", socket.display());
                return Some(problem(StatusCode::FORBIDDEN, error, Some(&help)));
            }
            Self::Token(file) => Arc::clone(file),
        };
        let token = match run_blocking(move || read_token(&file)).await {
            Ok(Ok(token)) => token,
            Ok(Err(why)) => {
                tracing::warn!("the control API refuses every request: {why}");
                let error = "the relay has no token to compare with";
                let help = "its log says why";
                return Some(problem(StatusCode::FORBIDDEN, error, Some(help)));
            }
            Err(_) => {
                return Some(problem(StatusCode::SERVICE_UNAVAILABLE, "the relay is ending", None));
            }
        };
        let given = headers.get(header::AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        let is_right = bearer(given).is_some_and(|given| is_same(given, token.as_bytes()));
        (!is_right).then(|| {
            let error = "the request does not have the relay's bearer token";
            let help =
                "send `Authorization: Bearer TOKEN`, with what is in http.control.token_file";
            let mut response = problem(StatusCode::UNAUTHORIZED, error, Some(help));
            let scheme = axum::http::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
            response.into_response()
        })
    }
}

/// A trailing line end is not part of the token.
pub fn read_token(file: &Path) -> Result<String, String> {
    // The setting may contain the token itself.
    let is_path = file.as_os_str().as_encoded_bytes().contains(&b'/');
    let name = if is_path {
        file.display().to_string()
    } else {
        "(not shown, because it is not a path)".to_owned()
    };
    let mut text = String::new();
    // Opening a pipe would block, and every request opens the file.
    let read = std::fs::metadata(file).and_then(|found| {
        if !found.is_file() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a file"));
        }
        std::fs::File::open(file)?.take(TOKEN_BYTES_MAX).read_to_string(&mut text)
    });
    read.map_err(|error| format!("cannot read http.control.token_file `{name}`: {error}"))?;
    let token = text.trim_end_matches(['\r', '\n']);
    if token.len() < TOKEN_BYTES_MIN
        || token.contains(|c: char| c.is_whitespace() || c.is_control())
    {
        return Err(format!(
            "http.control.token_file `{name}` contains no token: one line of at least \
             {TOKEN_BYTES_MIN} characters, without spaces, as `openssl rand -hex 32` prints"
        ));
    }
    Ok(token.to_owned())
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(rest)
}

/// Compares every byte, so that the time does not depend on the first difference.
fn is_same(given: &[u8], wanted: &[u8]) -> bool {
    let differs =
        given.iter().zip(wanted).fold(0_u8, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    given.len() == wanted.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_and_nothing_else() {
        assert!(is_same(b"0123456789abcdef", b"0123456789abcdef"));
        for other in [&b""[..], b"0123456789abcde", b"0123456789abcdeF", b"0123456789abcdef0"] {
            assert!(!is_same(other, b"0123456789abcdef"), "{other:?}");
        }
        assert_eq!(bearer(b"Bearer x"), Some(&b"x"[..]));
        assert_eq!(bearer(b"bearer x"), Some(&b"x"[..]));
        assert_eq!((bearer(b"Basic xx"), bearer(b"Bear")), (None, None));
    }

    #[test]
    fn what_is_too_short_or_has_spaces_is_no_token_and_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        for (text, is_token) in [
            ("0123456789abcdef\n", true),
            ("0123456789abcdef\r\n", true),
            ("short", false),
            ("", false),
            ("0123456789 abcdef", false),
            ("0123456789abcdef\nmore", false),
        ] {
            std::fs::write(&file, text).unwrap();
            let read = read_token(&file);
            assert_eq!(read.is_ok(), is_token, "{text:?}");
            let told = read.err().unwrap_or_default();
            assert!(text.is_empty() || !told.contains(text.trim_end()), "{told}");
        }
        assert!(read_token(&folder.path().join("none")).unwrap_err().contains("cannot read"));
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(read_token(&pipe).unwrap_err().contains("not a file"));
        let token = "0123456789abcdef";
        assert!(!read_token(Path::new(token)).unwrap_err().contains(token));
    }
}
