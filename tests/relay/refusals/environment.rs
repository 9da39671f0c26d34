//! How psql would be told where Postgres is: variables, the password file, a service, a socket, and
//! more hosts than one. Each way delivers with the real binary.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use postrider::sandbox::port;

use super::attempt::{assert_no_secret, refused};
use super::outbox::Outbox;
use support::postgres;
use support::relay::Relay;
use support::secured::{PASSWORD, secured_server};

/// An outbox on a server that asks for a password, and a relay that is told nothing of it but the
/// role and the database.
struct Place {
    outbox: Outbox,
    relay: Relay,
    port: String,
    folder: tempfile::TempDir,
}

fn place(stem: &str) -> Place {
    let cluster = &secured_server().cluster;
    let outbox = Outbox::ready(cluster, stem);
    outbox.write();
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_str().unwrap();
    let relay = outbox.relay().unset("source.url").variable("HOME", home);
    Place { outbox, relay, port: cluster.port().to_string(), folder }
}

impl Place {
    /// Writes a file that only its owner may read, into the home folder.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn database(&self) -> &str {
        self.outbox.database.name()
    }

    /// `.pgpass` as libpq wants it quoted.
    fn pgpass(&self) -> String {
        let password = PASSWORD.replace('\\', "\\\\").replace(':', "\\:");
        format!("127.0.0.1:{}:*:scram_role:{password}\n", self.port)
    }

    fn with_variables(&self) -> Relay {
        self.relay
            .clone()
            .variable("PGHOST", "127.0.0.1")
            .variable("PGPORT", &self.port)
            .variable("PGUSER", "scram_role")
            .variable("PGDATABASE", self.database())
    }
}

#[test]
fn variables_alone_are_enough() {
    let place = place("variables");
    let relay = place.with_variables();
    let refusal = refused(&relay, &["run"], 77);
    refusal.assert("PR-P006", &["asks for a password", "PGPASSWORD", "/.pgpass"]);
    place.outbox.assert_delivered_by(&relay.variable("PGPASSWORD", PASSWORD));
}

#[test]
fn the_password_file_is_read_unless_others_may_read_it() {
    let place = place("pgpass");
    let relay = place.with_variables();
    let file = place.write(".pgpass", &place.pgpass());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let refusal = refused(&relay, &["run"], 77);
    assert_eq!(refusal.code, "PR-P006", "{}", refusal.text);
    let [warning] = refusal.warnings.as_slice() else { panic!("{:#?}", refusal.warnings) };
    assert!(warning["message"].as_str().unwrap().contains("chmod 0600"), "{warning}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    place.outbox.assert_delivered_by(&relay);
    // Another place for it.
    let moved = place.folder.path().join("elsewhere");
    fs::rename(&file, &moved).unwrap();
    place.outbox.write();
    place.outbox.assert_delivered_by(&relay.variable("PGPASSFILE", moved.to_str().unwrap()));
}

#[test]
fn a_service_names_everything() {
    let place = place("service");
    let service = format!(
        "[other]\nhost=nowhere.invalid\n\n[shop]\nhost=127.0.0.1\nport={}\nuser=scram_role\n\
         dbname={}\npassword={PASSWORD}\n",
        place.port,
        place.database()
    );
    let file = place.write(".pg_service.conf", &service);
    place.outbox.assert_delivered_by(&place.relay.clone().variable("PGSERVICE", "shop"));
    place.outbox.write();
    place.outbox.assert_delivered_by(&place.relay.clone().set("source.url", "service=shop"));
    let relay = place.relay.clone().variable("PGSERVICE", "shpo");
    let refusal = refused(&relay, &["run"], 78);
    assert!(refusal.text.contains("service `shpo` is not defined in"), "{}", refusal.text);
    assert!(refusal.text.contains(file.to_str().unwrap()), "{}", refusal.text);
}

#[test]
fn a_socket_is_found_by_its_folder() {
    let outbox = Outbox::ready(postgres::installed(), "socket");
    outbox.write();
    outbox.assert_delivered_by(
        &outbox.relay().set("source.url", &outbox.database.address().unix_url()),
    );
    outbox.write();
    let folder = postgres::installed().folder().to_str().unwrap();
    let relay = outbox
        .relay()
        .unset("source.url")
        .variable("PGHOST", folder)
        .variable("PGPORT", &postgres::installed().port().to_string())
        .variable("PGUSER", "postgres")
        .variable("PGDATABASE", outbox.database.name());
    outbox.assert_delivered_by(&relay);
}

#[test]
fn a_dead_host_is_passed_over() {
    let outbox = Outbox::ready(postgres::installed(), "hosts");
    let (dead, alive) = (port::free().unwrap(), postgres::installed().port());
    let address = outbox.database.address();
    let (name, password) = (outbox.database.name(), address.password.unwrap());
    let url = |extra: &str| {
        format!("postgres://postgres:{password}@127.0.0.1:{dead},127.0.0.1:{alive}/{name}{extra}")
    };
    for extra in ["", "?target_session_attrs=primary", "?load_balance_hosts=random"] {
        outbox.write();
        outbox.assert_delivered_by(&outbox.relay().set("source.url", &url(extra)));
    }
    // All of them dead: each is named.
    let relay = outbox
        .relay()
        .set("source.url", &format!("postgres://postgres@127.0.0.1:{dead},127.0.0.1:1/{name}"))
        .set("retry.give_up_after", "1s");
    let refusal = refused(&relay, &["run"], 69);
    assert!(refusal.text.contains(&format!("127.0.0.1:{dead} (")), "{}", refusal.text);
    assert!(refusal.text.contains("127.0.0.1:1 ("), "{}", refusal.text);
}

#[test]
fn a_password_from_a_file_stays_in_it() {
    let place = place("secret_file");
    let url = secured_server().address("scram", &format!("dbname={}", place.database()));
    let file = place.write("url", &url);
    let relay = place.relay.clone().variable("POSTRIDER_SOURCE__URL_FILE", file.to_str().unwrap());
    place.outbox.assert_delivered_by(&relay);
    let shown = relay.start(&["config", "show"]).outcome();
    assert_no_secret(&shown);
    assert!(shown.stdout.contains("scram_role"), "{}", shown.stdout);
}
