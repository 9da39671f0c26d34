//! Options of a temporary PostgreSQL cluster, and the files made from them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of a temporary cluster. Default: logical decoding, no fsync, TCP with a password.
#[derive(Debug, Clone)]
pub struct Options {
    /// Folder with `initdb` and `postgres`; `None` searches ([`crate::binaries::find`]).
    pub binaries: Option<PathBuf>,
    /// Folder for the dynamic linker, for binaries that no package installed.
    pub libraries: Option<PathBuf>,
    /// Encoding of every database, such as `UTF8`, `SQL_ASCII` or `LATIN1`.
    pub encoding: String,
    /// True if commits survive a power cut. They always survive a kill -9.
    pub fsync: bool,
    /// Certificate and key of the server; turns TLS on.
    pub tls: Option<Tls>,
    /// Lines of `pg_hba.conf` before the default ones.
    pub hba: Vec<String>,
    /// Settings of `postgresql.conf`, name and value, after the default ones.
    pub settings: Vec<(String, String)>,
    /// Maximum time for the start, and for the stop.
    pub limit: Duration,
}

/// PEM texts for the server's side of TLS.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Certificate chain.
    pub certificate: String,
    /// Private key.
    pub key: String,
    /// Authority of client certificates, for `cert` lines in `hba`.
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

    /// Appended to initdb's file; the later of two lines wins.
    pub(super) fn postgresql_conf(&self, socket_folder: &Path) -> String {
        let mut conf = String::from("\n# added by postrider's sandbox\n");
        let mut set = |name: &str, value: &str| {
            let _ = writeln!(conf, "{name} = '{}'", value.replace('\'', "''"));
        };
        set("listen_addresses", "127.0.0.1");
        set("unix_socket_directories", &socket_folder.to_string_lossy());
        set("wal_level", "logical");
        // A cluster serves many tests, each with its own database and slot.
        set("max_wal_senders", "64");
        set("max_replication_slots", "200");
        set("max_connections", "400");
        set("max_prepared_transactions", "16");
        set("max_wal_size", "4GB");
        // A server counts inherited descriptors, such as the pipes of Kafka clients.
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

    /// `all` covers logical replication connections, because they name a database. The unix socket
    /// trusts every process, because only the server's account reaches its folder.
    pub(super) fn pg_hba_conf(&self) -> String {
        let mut lines = self.hba.clone();
        lines.push("local all all trust".to_owned());
        lines.push("local replication all trust".to_owned());
        lines.push("host all all 127.0.0.1/32 scram-sha-256".to_owned());
        lines.push("host replication all 127.0.0.1/32 scram-sha-256".to_owned());
        lines.join("\n") + "\n"
    }

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
