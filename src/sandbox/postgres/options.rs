//! Options of a temporary PostgreSQL cluster, and the files made from them.
//!
//! Input: encoding, settings, TLS certificates and lines of `pg_hba.conf` that a test requires.
//! Output: the text of `postgresql.conf` and `pg_hba.conf`, and the TLS files. Defaults: logical
//! decoding, no fsync, TCP with a password.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of a temporary cluster. The default is a fast disposable cluster with logical decoding.
#[derive(Debug, Clone)]
pub struct Options {
    /// Folder with `initdb` and `postgres`; `None` searches ([`crate::binaries::find`]).
    pub binaries: Option<PathBuf>,
    /// Extra folder for the dynamic linker, for binaries that no package installed.
    pub libraries: Option<PathBuf>,
    /// Encoding of every database: `UTF8`, unless a test needs `SQL_ASCII` or `LATIN1`.
    pub encoding: String,
    /// Whether commits survive a power cut. They always survive a kill -9 of the server.
    pub fsync: bool,
    /// Certificate and key of the server. Setting this turns TLS on.
    pub tls: Option<Tls>,
    /// Lines of `pg_hba.conf` before the default ones, so that they take precedence.
    pub hba: Vec<String>,
    /// Settings of `postgresql.conf`, name and value. They take precedence over the default ones.
    pub settings: Vec<(String, String)>,
    /// Maximum time for the cluster to become ready, and to stop.
    pub limit: Duration,
}

/// PEM texts for the server's side of TLS.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The server's certificate chain.
    pub certificate: String,
    /// The server's private key.
    pub key: String,
    /// Authority of accepted client certificates, for `cert` lines in `hba`.
    pub client_authority: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            binaries: None,
            libraries: None,
            encoding: "UTF8".to_owned(),
            fsync: false,
            tls: None,
            hba: Vec::new(),
            settings: Vec::new(),
            limit: Duration::from_mins(1),
        }
    }
}

impl Options {
    /// Adds a setting of `postgresql.conf`.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the lines to append to initdb's `postgresql.conf`. The later of two lines wins.
    pub(super) fn postgresql_conf(&self, socket_folder: &Path) -> String {
        let mut conf = String::from("\n# added by postrider's sandbox\n");
        let mut set = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(conf, "{name} = '{}'", value.replace('\'', "''"));
        };
        set("listen_addresses", "127.0.0.1");
        set("unix_socket_directories", &socket_folder.to_string_lossy());
        set("wal_level", "logical");
        // One cluster serves many tests, each with its own database and slot.
        set("max_wal_senders", "64");
        set("max_replication_slots", "200");
        set("max_connections", "400");
        set("max_prepared_transactions", "16");
        set("max_wal_size", "4GB");
        // A server counts inherited descriptors, and it inherits the pipes of Kafka clients.
        set("max_files_per_process", "16384");
        set("logging_collector", "off");
        set("log_line_prefix", "%m [%p] %q%a ");
        if !self.fsync {
            set("fsync", "off");
            set("full_page_writes", "off");
        }
        if let Some(tls) = &self.tls {
            set("ssl", "on");
            set("ssl_cert_file", CERTIFICATE);
            set("ssl_key_file", KEY);
            if tls.client_authority.is_some() {
                set("ssl_ca_file", CLIENT_AUTHORITY);
            }
        }
        for (name, value) in &self.settings {
            set(name, value);
        }
        conf
    }

    /// Returns the whole `pg_hba.conf`. `all` covers logical replication connections, because they
    /// name a database. The unix socket trusts every process that reaches it; only the server's
    /// account can reach its folder.
    pub(super) fn pg_hba_conf(&self) -> String {
        let mut lines = self.hba.clone();
        lines.push("local all all trust".to_owned());
        lines.push("local replication all trust".to_owned());
        lines.push("host all all 127.0.0.1/32 scram-sha-256".to_owned());
        lines.push("host replication all 127.0.0.1/32 scram-sha-256".to_owned());
        lines.join("\n") + "\n"
    }

    /// Returns the names and contents of the TLS files beside the configuration.
    pub(super) fn tls_files(&self) -> Vec<(&'static str, &str)> {
        let Some(tls) = &self.tls else { return Vec::new() };
        let mut files = vec![(CERTIFICATE, tls.certificate.as_str()), (KEY, tls.key.as_str())];
        if let Some(authority) = &tls.client_authority {
            files.push((CLIENT_AUTHORITY, authority));
        }
        files
    }
}

const CERTIFICATE: &str = "server.crt";
const KEY: &str = "server.key";
const CLIENT_AUTHORITY: &str = "client-authority.crt";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asked_for_settings_come_last_and_quotes_are_doubled() {
        let conf = Options::default()
            .with("wal_level", "replica")
            .with("application_name", "it's")
            .postgresql_conf(Path::new("/tmp/x"));
        let last = conf.lines().rfind(|line| line.starts_with("wal_level")).unwrap();
        assert_eq!(last, "wal_level = 'replica'");
        assert!(conf.contains("application_name = 'it''s'"));
    }

    #[test]
    fn tcp_wants_a_password_and_own_lines_win() {
        let options = Options {
            hba: vec!["host all md5_user 127.0.0.1/32 md5".into()],
            ..Options::default()
        };
        let hba = options.pg_hba_conf();
        assert!(hba.starts_with("host all md5_user"));
        assert!(hba.contains("host all all 127.0.0.1/32 scram-sha-256"));
        assert!(hba.lines().all(|line| line.starts_with("local") || !line.contains("trust")));
    }
}
