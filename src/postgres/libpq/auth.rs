//! The connection parameter `require_auth`: authentication methods that a server may use.
//!
//! Invariant: the method is checked before the connection answers. A list that no connection could
//! satisfy is refused when it is parsed.

use std::fmt;

use super::error::ConnectInfoError;
use super::options::Words;
use super::parameters::resembling;

const PARAMETER: &str = "require_auth";

words! {
    pub AuthMethod,
    /// `trust`, or a client certificate, which the protocol does not mention.
    None = "none";
    Password = "password";
    Md5 = "md5";
    /// SCRAM with or without channel binding.
    Scram = "scram-sha-256";
    Gss = "gss";
    Sspi = "sspi";
    /// OAUTHBEARER of PostgreSQL 18 (not supported).
    OAuth = "oauth";
    /// Unix socket credentials, requested by servers before 9.1.
    Creds = "creds";
}

impl AuthMethod {
    /// `None` for an unknown kind, and for later steps of an exchange.
    pub fn of_request(kind: u32) -> Option<Self> {
        Some(match kind {
            0 => Self::None,
            3 => Self::Password,
            5 => Self::Md5,
            6 => Self::Creds,
            7 => Self::Gss,
            9 => Self::Sspi,
            10 => Self::Scram,
            _ => return None,
        })
    }

    const fn is_spoken(self) -> bool {
        matches!(self, Self::None | Self::Password | Self::Md5 | Self::Scram)
    }
}

/// Text for an error after the server's name.
impl fmt::Display for AuthMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "asks for no authentication",
            Self::Password => "asks for the password in clear text",
            Self::Md5 => "asks for an MD5 hash of the password",
            Self::Scram => "asks for SCRAM authentication",
            Self::Gss => "asks for GSSAPI authentication",
            Self::Sspi => "asks for SSPI authentication",
            Self::OAuth => "asks for OAuth authentication",
            Self::Creds => "asks for the credentials of the unix socket",
        })
    }
}

/// The accepted methods; all by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequireAuth {
    typed: String,
    methods: Vec<AuthMethod>,
    negated: bool,
}

impl RequireAuth {
    /// Permitted methods, or forbidden methods with `!` before each.
    pub(super) fn parse(typed: &str) -> Result<Self, ConnectInfoError> {
        let mut read = Self { typed: typed.to_owned(), ..Self::default() };
        read.negated = typed.starts_with('!');
        for item in typed.split(',') {
            let word = item.strip_prefix('!').unwrap_or(item);
            let known = AuthMethod::WORDS.iter().find(|(known, _)| *known == word);
            let Some((_, method)) = known else {
                let suggestion = resembling(word, AuthMethod::WORDS.iter().map(|known| known.0));
                return Err(invalid(AuthMethod::EXPECTED, suggestion));
            };
            if item.starts_with('!') != read.negated {
                return Err(invalid(
                    "a list of methods that may be used, or, each with `!`, of methods that may not",
                    None,
                ));
            }
            if read.methods.contains(method) {
                return Err(invalid("a list that names each method once", None));
            }
            read.methods.push(*method);
        }
        if AuthMethod::WORDS.iter().any(|(_, method)| method.is_spoken() && read.permits(*method)) {
            return Ok(read);
        }
        Err(ConnectInfoError::Unsupported {
            parameter: PARAMETER,
            reason: "it leaves none of the methods that are supported: scram-sha-256, md5, password, \
                     none",
        })
    }

    pub fn permits(&self, method: AuthMethod) -> bool {
        self.methods.contains(&method) != self.negated || self.is_any()
    }

    pub fn is_any(&self) -> bool {
        self.methods.is_empty()
    }
}

impl fmt::Display for RequireAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.typed)
    }
}

fn invalid(expected: &'static str, suggestion: Option<&'static str>) -> ConnectInfoError {
    ConnectInfoError::InvalidValue { parameter: PARAMETER, expected, suggestion }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permitted(typed: &str) -> Vec<&'static str> {
        let read = RequireAuth::parse(typed).unwrap();
        assert_eq!(read.to_string(), typed);
        let words = AuthMethod::WORDS.iter().filter(|(_, method)| read.permits(*method));
        words.map(|(word, _)| *word).collect()
    }

    #[test]
    fn a_list_permits_what_it_names_and_a_negated_one_the_rest() {
        assert_eq!(permitted("scram-sha-256"), ["scram-sha-256"]);
        assert_eq!(permitted("gss,none,md5"), ["none", "md5", "gss"]);
        let all_but = ["password", "scram-sha-256", "gss", "sspi", "oauth", "creds"];
        assert_eq!(permitted("!none,!md5"), all_but);
        assert!(AuthMethod::WORDS.iter().all(|(_, any)| RequireAuth::default().permits(*any)));
    }

    #[test]
    fn what_libpq_refuses_is_refused() {
        for (typed, words) in [
            ("md5,!none", "each with `!`"),
            ("!none,md5", "each with `!`"),
            ("md5,md5", "once"),
            ("!md5,!none,!md5", "once"),
            ("md5,", "one of none password md5"),
            ("!", "one of none password md5"),
            ("md5, none", "one of none password md5"),
            ("SCRAM-SHA-256", "one of none password md5"),
        ] {
            let error = RequireAuth::parse(typed).unwrap_err();
            assert!(error.to_string().contains(words), "{typed}: {error}");
        }
        let error = RequireAuth::parse("scram-sha256").unwrap_err();
        assert_eq!(error.hint().unwrap(), "did you mean `scram-sha-256`?");
    }

    #[test]
    fn a_list_without_a_method_that_we_speak_is_refused() {
        for typed in ["gss", "sspi,gss,oauth,creds", "!none,!password,!md5,!scram-sha-256"] {
            let error = RequireAuth::parse(typed).unwrap_err();
            assert!(matches!(error, ConnectInfoError::Unsupported { .. }), "{typed}: {error}");
        }
        assert_eq!(permitted("gss,password"), ["password", "gss"]);
    }
}
