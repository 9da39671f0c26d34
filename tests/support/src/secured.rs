//! A server with TLS and a role for every way to log in, and the files that its clients need.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use postrider_sandbox::postgres::{Cluster, Options, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};

use super::postgres;
use super::sql::Sql;

/// The password of every role; full of what a connection string must quote. It is known to all, so
/// none of these roles is a superuser.
pub const PASSWORD: &str = "p@ss:w/örd '1'";

/// See the module. A role is named after its method: `scram_role`, `md5_role`, `cert_role`, ...
pub struct SecuredServer {
    pub cluster: Cluster,
    folder: tempfile::TempDir,
}

/// The one that the tests share.
pub fn secured_server() -> &'static SecuredServer {
    static FORTRESS: OnceLock<SecuredServer> = OnceLock::new();
    FORTRESS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let authority = authority("postrider test authority");
        let server = issue(&authority, "db.example", &["localhost", "127.0.0.1"]);
        let client = issue(&authority, "cert_role", &[]);
        let stranger = self::authority("somebody else");
        for (name, text) in [
            ("root.crt", authority.pem()),
            ("stranger.crt", stranger.pem()),
            ("client.crt", client.0),
            ("client.key", client.1),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let key = fs::Permissions::from_mode(0o600);
        fs::set_permissions(folder.path().join("client.key"), key).unwrap();
        let rule = |method: &str| format!("hostssl all {method}_role 127.0.0.1/32 {method}");
        let options = Options {
            tls: Some(Tls {
                certificate: server.0,
                key: server.1,
                client_authority: Some(authority.pem()),
            }),
            hba: vec![
                rule("scram-sha-256").replace("scram-sha-256_role", "scram_role"),
                rule("md5"),
                rule("password"),
                rule("trust"),
                rule("cert"),
                rule("reject"),
                "hostnossl all plain_role 127.0.0.1/32 scram-sha-256".to_owned(),
                "hostssl all plain_role 127.0.0.1/32 reject".to_owned(),
                "host all reject_role 127.0.0.1/32 reject".to_owned(),
            ],
            ..Options::default()
        };
        let cluster = postgres::start(&options);
        let sql = Sql::connect(&cluster.unix_url());
        let quoted = PASSWORD.replace('\'', "''");
        for (role, encryption) in [
            ("scram", "scram-sha-256"),
            ("md5", "md5"),
            ("password", "scram-sha-256"),
            ("trust", "scram-sha-256"),
            ("cert", "scram-sha-256"),
            ("plain", "scram-sha-256"),
            ("reject", "scram-sha-256"),
        ] {
            sql.run(&format!("SET password_encryption = '{encryption}'"));
            sql.run(&format!("CREATE ROLE {role}_role LOGIN REPLICATION PASSWORD '{quoted}'"));
        }
        SecuredServer { cluster, folder }
    })
}

/// Who issues certificates.
pub type Authority = CertifiedIssuer<'static, KeyPair>;

/// An authority that signs itself.
pub fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificate and key, PEM.
pub fn issue(authority: &Authority, common_name: &str, names: &[&str]) -> (String, String) {
    signed(authority, &params_of(common_name, names))
}

/// The same, good for some days from now; below 0 it has expired.
pub fn issue_for_days(
    authority: &Authority,
    common_name: &str,
    names: &[&str],
    days: i64,
) -> (String, String) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let end = now.checked_add_signed(days * 86_400).unwrap();
    let mut params = params_of(common_name, names);
    params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(end);
    signed(authority, &params)
}

fn params_of(common_name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

fn signed(authority: &Authority, params: &CertificateParams) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    (certificate.pem(), key.serialize_pem())
}

impl SecuredServer {
    /// A file in its folder: `root.crt`, `stranger.crt`, `client.crt`, `client.key`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A connection string for `ROLE_role`; `$` in `extra` stands for the folder of the files.
    pub fn address(&self, role: &str, extra: &str) -> String {
        let password = PASSWORD.replace('\\', "\\\\").replace('\'', "\\'");
        let extra = extra.replace('$', &format!("{}/", self.folder.path().display()));
        format!(
            "host=localhost hostaddr=127.0.0.1 port={} user={role}_role dbname=postgres \
             password='{password}' {extra}",
            self.cluster.port()
        )
    }
}
