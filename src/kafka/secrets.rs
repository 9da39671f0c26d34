//! Reads the passwords and keys for the brokers again for each new client. `Debug` shows no secret.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::KafkaSpec;
use postrider_credentials::TokenKeeper;
use postrider_secrets::{PasswordCommand, SecretError, read_secret};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KafkaSecrets {
    /// By property.
    pub files: BTreeMap<String, PathBuf>,
    /// Prints `sasl.password`.
    pub password_command: Option<PasswordCommand>,
    /// For OAUTHBEARER.
    pub tokens: Option<TokenKeeper>,
}

impl KafkaSecrets {
    pub fn can_change(&self) -> bool {
        !self.files.is_empty() || self.password_command.is_some() || self.tokens.is_some()
    }

    /// Reads files and runs the command, so it blocks.
    pub(super) fn now(&self) -> Result<Vec<(String, String)>, SecretError> {
        let mut found = Vec::new();
        for (property, path) in &self.files {
            found.push((property.clone(), read_secret(path)?));
        }
        if let Some(command) = &self.password_command {
            found.push(("sasl.password".to_owned(), command.run()?.reveal().to_owned()));
        }
        Ok(found)
    }
}

/// librdkafka reads these files for each client.
const CERTIFICATE_FILES: [&str; 3] =
    ["ssl.certificate.location", "ssl.key.location", "ssl.keystore.location"];
/// Text, possibly from a file.
const CERTIFICATE_TEXTS: [&str; 2] = ["ssl.certificate.pem", "ssl.key.pem"];

impl KafkaSpec {
    pub(super) fn has_certificate_files(&self) -> bool {
        let files = &self.secrets.files;
        CERTIFICATE_FILES.iter().any(|name| self.properties.contains_key(*name))
            || CERTIFICATE_FILES
                .iter()
                .chain(&CERTIFICATE_TEXTS)
                .any(|name| files.contains_key(*name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Producer;

    #[test]
    fn every_client_gets_what_holds_when_it_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        std::fs::write(&path, "first\n").unwrap();
        let mut spec = KafkaSpec::default();
        spec.properties.insert("sasl.password".into(), "first".into());
        spec.secrets.files.insert("sasl.password".into(), path.clone());
        std::fs::write(&path, "second\n").unwrap();
        assert_eq!(spec.common_config().unwrap().get("sasl.password"), Some("second"));
        let words = ["printf", "third"].map(str::to_owned).to_vec();
        spec.secrets.password_command = PasswordCommand::new(words);
        assert_eq!(spec.common_config().unwrap().get("sasl.password"), Some("third"));
        std::fs::remove_file(&path).unwrap();
        assert!(spec.common_config().is_err());
        assert_eq!(spec.validate(), Ok(()), "a check runs nothing");
        assert!(!format!("{spec:?}").contains("first"));
    }
    #[test]
    fn a_command_alone_is_a_password_to_every_check() {
        let mut spec = KafkaSpec::of_brokers("127.0.0.1:1");
        for (name, value) in [
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.username", "relay"),
        ] {
            spec.properties.insert(name.to_owned(), value.to_owned());
        }
        assert!(Producer::rehearse(&spec).is_err(), "there is no password");
        spec.secrets.password_command = PasswordCommand::new(vec!["false".to_owned()]);
        assert_eq!(spec.validate().and_then(|()| Producer::rehearse(&spec)), Ok(()));
    }
}
