//! The table of libpq's connection parameters (used, ignored or refused here), and their given
//! values.
//!
//! Invariant: a weaker source never replaces a value. A name or path that looks like a connection
//! string is an error. Source: PostgreSQL's documentation, "Database Connection Control Functions"
//! and "Environment Variables".

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use super::ParameterOrigin;
use super::error::ConnectInfoError;
use postrider_secrets::mask::mask_text;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParameterSupport {
    Used,
    /// No effect here, and nothing is weakened.
    Ignored,
    /// A parameter that matters and is not implemented, with the reason.
    Refused(&'static str),
}

use ParameterSupport::{Ignored, Refused, Used};

/// Name, environment variable (empty: none), treatment.
type Parameter = (&'static str, &'static str, ParameterSupport);

const PARAMETERS: &[Parameter] = &[
    ("service", "PGSERVICE", Used),
    ("servicefile", "PGSERVICEFILE", Used),
    ("host", "PGHOST", Used),
    ("hostaddr", "PGHOSTADDR", Used),
    ("port", "PGPORT", Used),
    ("dbname", "PGDATABASE", Used),
    ("user", "PGUSER", Used),
    ("password", "PGPASSWORD", Used),
    ("passfile", "PGPASSFILE", Used),
    ("channel_binding", "PGCHANNELBINDING", Used),
    ("require_auth", "PGREQUIREAUTH", Used),
    ("connect_timeout", "PGCONNECT_TIMEOUT", Used),
    ("options", "PGOPTIONS", Used),
    ("application_name", "PGAPPNAME", Used),
    ("fallback_application_name", "", Used),
    ("keepalives", "", Used),
    ("keepalives_idle", "", Used),
    ("keepalives_interval", "", Used),
    ("keepalives_count", "", Used),
    ("tcp_user_timeout", "", Used),
    ("sslmode", "PGSSLMODE", Used),
    ("sslnegotiation", "PGSSLNEGOTIATION", Used),
    ("sslcert", "PGSSLCERT", Used),
    ("sslkey", "PGSSLKEY", Used),
    ("sslcertmode", "PGSSLCERTMODE", Used),
    ("sslrootcert", "PGSSLROOTCERT", Used),
    ("sslsni", "PGSSLSNI", Used),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Used),
    ("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Used),
    ("target_session_attrs", "PGTARGETSESSIONATTRS", Used),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS", Used),
    ("gssencmode", "PGGSSENCMODE", Used),
    ("client_encoding", "PGCLIENTENCODING", Ignored),
    ("sslcompression", "PGSSLCOMPRESSION", Ignored),
    ("krbsrvname", "PGKRBSRVNAME", Ignored),
    ("gsslib", "PGGSSLIB", Ignored),
    ("gssdelegation", "PGGSSDELEGATION", Ignored),
    ("min_protocol_version", "PGMINPROTOCOLVERSION", Ignored),
    ("max_protocol_version", "PGMAXPROTOCOLVERSION", Ignored),
    ("replication", "", Refused("the relay sets it itself")),
    ("sslpassword", "", Refused("use a key file without a passphrase")),
    ("sslcrl", "PGSSLCRL", Refused("revocation lists are not checked")),
    ("sslcrldir", "PGSSLCRLDIR", Refused("revocation lists are not checked")),
    ("sslkeylogfile", "", Refused("session keys are never written out")),
    ("requirepeer", "PGREQUIREPEER", Refused("protect the socket's directory instead")),
];

/// Parameters with their expected content; none is a secret.
const SHOWN: [(&str, &str); 10] = [
    ("service", "a service's name"),
    ("servicefile", "a path"),
    ("host", "a name, an address or a directory"),
    ("hostaddr", "a numeric address"),
    ("dbname", "a database's name"),
    ("user", "a role's name"),
    ("passfile", "a path"),
    ("sslcert", "a path"),
    ("sslkey", "a path"),
    ("sslrootcert", "a path"),
];

/// Jaro-Winkler, 0 to 1. A less similar word might be part of a password.
const RESEMBLANCE_MIN: f64 = 0.85;

/// `Debug` shows only the names.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Settings {
    values: BTreeMap<&'static str, String>,
    /// Values from other sources than the connection string.
    filled: BTreeMap<&'static str, ParameterOrigin>,
}

impl Settings {
    /// A later value replaces an earlier one, as in libpq.
    pub(super) fn put(&mut self, name: &str, value: String) -> Result<(), ConnectInfoError> {
        let Some((known, _, treatment)) = PARAMETERS.iter().find(|(known, ..)| *known == name)
        else {
            return Err(unknown(name));
        };
        match treatment {
            Used => {
                self.values.insert(known, value);
            }
            Ignored => {}
            Refused(_) if value.is_empty() => {}
            Refused(reason) => {
                return Err(ConnectInfoError::Unsupported { parameter: known, reason });
            }
        }
        Ok(())
    }

    /// `origin` receives the parameter's variable.
    pub(super) fn fill(&mut self, weaker: Self, origin: fn(&'static str) -> ParameterOrigin) {
        for (name, value) in weaker.values {
            if let Entry::Vacant(vacant) = self.values.entry(name) {
                vacant.insert(value);
                let known = PARAMETERS.iter().find(|(known, ..)| *known == name);
                self.filled.insert(name, origin(known.map_or("", |(_, variable, _)| variable)));
            }
        }
    }

    pub(super) fn origins(&self) -> BTreeMap<&'static str, ParameterOrigin> {
        let given = self.values.iter().filter(|(_, value)| !value.is_empty());
        let origin = |name| self.filled.get(name).cloned().unwrap_or(ParameterOrigin::Text);
        given.map(|(name, _)| (*name, origin(name))).collect()
    }

    pub(super) fn of_environment(
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConnectInfoError> {
        let mut settings = Self::default();
        for (name, variable, _) in PARAMETERS {
            if let Some(value) = Some(variable).filter(|v| !v.is_empty()).and_then(|v| env(v)) {
                settings.put(name, value)?;
            }
        }
        Ok(settings)
    }

    pub(super) fn check_shown(&self) -> Result<(), ConnectInfoError> {
        self.values.iter().try_for_each(|(parameter, value)| check_shown(parameter, value))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values.keys()).finish()
    }
}

/// A shown parameter must not contain a password.
pub(super) fn check_shown(parameter: &'static str, value: &str) -> Result<(), ConnectInfoError> {
    let Some((_, expected)) = SHOWN.iter().find(|(shown, _)| *shown == parameter) else {
        return Ok(());
    };
    // Masking changes a text that contains a secret.
    if !value.contains("://") && mask_text(value) == value {
        return Ok(());
    }
    let Some((_, variable, _)) = PARAMETERS.iter().find(|(known, ..)| *known == parameter) else {
        unreachable!("what is shown is a parameter: {parameter}");
    };
    Err(ConnectInfoError::NotAName { parameter, variable, expected })
}

/// An unknown name may be part of a password: `user:p=w@host` starts with `user:p`.
fn unknown(name: &str) -> ConnectInfoError {
    let is_name = name.chars().all(|char| char.is_ascii_alphanumeric() || "_-.".contains(char));
    let known = PARAMETERS.iter().map(|(known, ..)| *known);
    let suggestion = is_name.then(|| resembling(name, known)).flatten();
    ConnectInfoError::UnknownParameter { name: suggestion.map(|_| name.to_owned()), suggestion }
}

pub(super) fn resembling(
    typed: &str,
    known: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    known
        .map(|word| (strsim::jaro_winkler(typed, word), word))
        .filter(|(likeness, _)| *likeness >= RESEMBLANCE_MIN)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_gets_a_suggestion_and_a_strange_one_is_not_repeated() {
        let error = Settings::default().put("sslmod", String::new()).unwrap_err();
        assert_eq!(error.hint().unwrap(), "did you mean `sslmode`?");
        assert!(error.to_string().contains("`sslmod`"));
        let error = Settings::default().put("qzxwvk", String::new()).unwrap_err();
        assert!(!error.to_string().contains("qzxwvk"), "{error}");
    }

    #[test]
    fn neglect_that_would_weaken_is_refused() {
        let error = Settings::default().put("sslcrl", "x".to_owned()).unwrap_err();
        assert!(matches!(error, ConnectInfoError::Unsupported { parameter: "sslcrl", .. }));
        Settings::default().put("sslcrl", String::new()).unwrap();
        Settings::default().put("sslcompression", "1".to_owned()).unwrap();
    }

    #[test]
    fn the_environment_is_read_by_its_names() {
        let env = |name: &str| (name == "PGHOST").then(|| "db".to_owned());
        let settings = Settings::of_environment(&env).unwrap();
        assert_eq!(settings.get("host"), Some("db"));
        assert_eq!(settings.get("port"), None);
    }
}
