//! `sslnegotiation=direct`: TLS from the first byte, as PostgreSQL 17 and later take it, with channel binding and
//! `require_auth`.

use std::fs;
use std::path::Path;

use postrider::sandbox::postgres::{Cluster, Options, Tls};

use super::login::{log_in, resolve};
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::secured::{authority, issue};

/// A server whose certificate is for `localhost` and its address, and the file of its authority.
pub(super) fn encrypted(options: Options, folder: &Path) -> (Cluster, String) {
    let authority = authority("authority of the server");
    let (certificate, key) = issue(&authority, "db.example", &["localhost", "127.0.0.1"]);
    let root = folder.join("root.crt");
    fs::write(&root, authority.pem()).unwrap();
    let tls = Some(Tls { certificate, key, client_authority: None });
    (postgres::start(&Options { tls, ..options }), root.display().to_string())
}

#[test]
fn the_relay_begins_with_tls_where_the_server_takes_that() {
    let Some(options) = postgres::eighteen_options() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (cluster, root) = encrypted(options, folder.path());
    let broker = Broker::embedded();
    let stage = Stage::new(&cluster, &broker.bootstrap(), "direct");
    stage.insert("A", 3);
    let strict = "sslmode=verify-full&sslnegotiation=direct&channel_binding=require\
                  &require_auth=scram-sha-256";
    let url = format!("{}?{strict}&sslrootcert={root}", stage.database.address().url());
    assert_eq!(log_in(&resolve(&url)), Ok(true));
    stage.relay().set("source.url", &url).run_once();
    stage.wait_for_records(3);
}
