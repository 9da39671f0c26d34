//! A role whose password is changed while the relay runs: a secret that can change is asked for again.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use rdkafka::mocking::MockCluster;

use crate::stage::Stage;
use support::relay::{Relay, Running};
use support::relay_http::RelayHttp;
use support::secured::secured_server;

/// What the log says of each attempt.
const AGAIN: &str = "reading the secret again";

/// A stage whose relay logs in as a role of its own, and the file that its password is in.
struct Rotation {
    stage: Stage,
    folder: tempfile::TempDir,
}

impl Rotation {
    fn new(bootstrap: &str) -> Self {
        let stage = Stage::new(&secured_server().cluster, bootstrap, "rotation");
        let role = stage.slot();
        stage.sql().run(&format!(
            "CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON outbox TO {role}"
        ));
        let rotation = Self { stage, folder: tempfile::tempdir().unwrap() };
        rotation.change_role("first");
        rotation.change_file("first");
        rotation
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("password")
    }

    fn change_role(&self, password: &str) {
        let role = self.stage.slot();
        self.stage.sql().run(&format!("ALTER ROLE {role} PASSWORD '{password}'"));
    }

    /// The way secrets are replaced: another file takes the name.
    fn change_file(&self, password: &str) {
        let next = self.folder.path().join("next");
        fs::write(&next, format!("*:*:*:*:{password}\n")).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(next, self.file()).unwrap();
    }

    fn end_sessions(&self) {
        let role = self.stage.slot();
        self.stage.sql().run(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
        ));
    }

    fn relay(&self, password: Option<&str>) -> Relay {
        let address = self.stage.database.address().login_as(self.stage.slot(), password);
        self.stage.relay_at(&address).set("retry.max", "500ms").allow_log("trying again")
    }

    fn delivers(&self, running: &mut Running, rows: usize) {
        self.stage.insert("A", 1);
        self.stage.wait_for_records(rows);
        assert!(!running.has_ended());
    }
}

/// The password changes, the sessions end, the secret comes late: nothing but a delay.
fn outlives_a_change(rotation: &Rotation, relay: &Relay, begins: &str) {
    let mut running = relay.run();
    let face = RelayHttp::of(&mut running);
    running.wait_for_log(begins);
    rotation.delivers(&mut running, 1);
    rotation.change_role("second");
    rotation.end_sessions();
    running.wait_for_log(AGAIN);
    rotation.change_file("second");
    running.wait_for_log(begins);
    rotation.delivers(&mut running, 2);
    assert!(face.count("postrider_restarts_total{reason=\"login_refused\"}") > Some(0));
    running.stop();
}

#[test]
fn a_password_file_that_is_updated_is_read_again() {
    let mock = MockCluster::new(1).unwrap();
    let rotation = Rotation::new(&mock.bootstrap_servers());
    let file = rotation.file();
    let relay = rotation.relay(None).variable("PGPASSFILE", file.to_str().unwrap());
    outlives_a_change(&rotation, &relay, "streaming");
}

#[test]
fn where_rows_are_polled_a_password_file_is_read_again_too() {
    let mock = MockCluster::new(1).unwrap();
    let rotation = Rotation::new(&mock.bootstrap_servers());
    let role = rotation.stage.slot();
    rotation.stage.sql().run(&format!(
        "ALTER TABLE outbox ADD processed_at timestamptz; GRANT UPDATE ON outbox TO {role}"
    ));
    let file = rotation.file();
    let relay = rotation.relay(None).variable("PGPASSFILE", file.to_str().unwrap());
    let relay = relay.set("source.mode", "poll").set("kafka.delivery", "at_least_once");
    outlives_a_change(&rotation, &relay, "polling");
}

#[test]
fn a_password_command_is_run_at_every_connect() {
    let mock = MockCluster::new(1).unwrap();
    let rotation = Rotation::new(&mock.bootstrap_servers());
    let command = format!("sed,s/.*://,{}", rotation.file().display());
    let relay = rotation.relay(None).set("source.password_command", &command);
    outlives_a_change(&rotation, &relay, "streaming");
}

#[test]
fn a_connection_string_in_a_file_is_read_again() {
    let mock = MockCluster::new(1).unwrap();
    let rotation = Rotation::new(&mock.bootstrap_servers());
    let write = |password: &str| {
        let address = rotation.stage.database.address();
        let address = address.login_as(rotation.stage.slot(), Some(password));
        fs::write(rotation.folder.path().join("url"), address.url()).unwrap();
    };
    write("first");
    let file = rotation.folder.path().join("url");
    let relay = rotation.relay(None).unset("source.url");
    let relay = relay.variable("POSTRIDER_SOURCE__URL_FILE", file.to_str().unwrap());
    let mut running = relay.run();
    running.wait_for_log("streaming");
    rotation.change_role("second");
    rotation.end_sessions();
    running.wait_for_log(AGAIN);
    write("second");
    running.wait_for_log("streaming");
    rotation.delivers(&mut running, 1);
    running.stop();
}

#[test]
fn a_secret_that_stays_wrong_is_final_in_the_end_and_one_that_was_typed_at_once() {
    let mock = MockCluster::new(1).unwrap();
    let rotation = Rotation::new(&mock.bootstrap_servers());
    rotation.change_role("second");
    let file = rotation.file();
    let relay = rotation.relay(None).variable("PGPASSFILE", file.to_str().unwrap());
    let wrong = relay.set("retry.login_give_up_after", "1s").run().outcome();
    assert_eq!(wrong.status.code(), Some(77), "{:#?}", wrong.log);
    assert!(wrong.log.iter().any(|line| line.contains(AGAIN)), "{:#?}", wrong.log);
    let typed = rotation.relay(Some("first")).run().outcome();
    assert_eq!(typed.status.code(), Some(77), "{:#?}", typed.log);
    let log = typed.log.join("\n");
    assert!(!log.contains(AGAIN) && log.contains("PR-P021"), "{log}");
    assert!(!log.contains("first"), "{log}");
}
