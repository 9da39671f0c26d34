//! A server that lets the relay in, then does not for a while: its certificate expires, or pg_hba.conf rejects the role.

use std::fs;
use std::path::PathBuf;

use postrider::sandbox::postgres::{Cluster, Options, Tls};
use rdkafka::mocking::MockCluster;

use crate::stage::Stage;
use support::postgres;
use support::relay::Relay;
use support::relay_http::RelayHttp;
use support::secured::{Authority, authority, issue, issue_for_days};
use support::wait::wait_until;

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];
/// Rejects every role over TCP; the tests themselves come over the socket.
const REJECT: &str = "host all all all reject\n";

/// A server with TLS whose certificate and pg_hba.conf can be replaced.
struct Server {
    stage: Stage,
    cluster: Cluster,
    authority: Authority,
    folder: tempfile::TempDir,
}

impl Server {
    fn start(bootstrap: &str) -> Self {
        let authority = authority("authority of the server");
        let (certificate, key) = issue(&authority, "db.example", &NAMES);
        let tls = Some(Tls { certificate, key, client_authority: None });
        let cluster = postgres::start(&Options { tls, ..Options::default() });
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("root.crt"), authority.pem()).unwrap();
        let stage = Stage::new(&cluster, bootstrap, "barred");
        stage.sql().run("ALTER TABLE outbox ADD processed_at timestamptz");
        Self { stage, cluster, authority, folder }
    }

    fn relay(&self, is_polled: bool) -> Relay {
        let root = self.folder.path().join("root.crt").display().to_string();
        let url = self.stage.database.address().url();
        let joint = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{joint}sslmode=verify-full&sslrootcert={root}");
        let relay = self.stage.relay().set("source.url", &url).set("retry.max", "500ms");
        let relay = relay.set("kafka.delivery", "at_least_once").allow_log("");
        if is_polled { relay.set("source.mode", "poll") } else { relay }
    }

    fn file(&self, setting: &str) -> PathBuf {
        let sql = self.stage.sql();
        let folder = PathBuf::from(sql.value("SHOW data_directory"));
        folder.join(sql.value(&format!("SHOW {setting}")))
    }

    fn present(&self, (certificate, key): (String, String)) {
        fs::write(self.file("ssl_cert_file"), certificate).unwrap();
        fs::write(self.file("ssl_key_file"), key).unwrap();
    }

    /// The server reads its files again, and all sessions over TCP end.
    fn reload(&self) {
        self.stage.sql().run("SELECT pg_reload_conf()");
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE client_addr IS NOT NULL";
        self.stage.sql().run(end);
    }
}

/// What is done to the server, how it is undone, and what is said meanwhile.
struct Fault {
    begin: fn(&Server),
    end: fn(&Server),
    words: &'static [&'static str],
    exit: i32,
}

const EXPIRED: Fault = Fault {
    begin: |server| server.present(issue_for_days(&server.authority, "db.example", &NAMES, -1)),
    end: |server| server.present(issue(&server.authority, "db.example", &NAMES)),
    words: &["certificate `CN=db.example` of", "expired on 2", "(UTC)", "pg_reload_conf()"],
    exit: 78,
};

const REJECTED: Fault = Fault {
    begin: |server| {
        let file = server.file("hba_file");
        let rules = fs::read_to_string(&file).unwrap();
        fs::write(file, format!("{REJECT}{rules}")).unwrap();
    },
    end: |server| {
        let file = server.file("hba_file");
        let rules = fs::read_to_string(&file).unwrap();
        fs::write(file, rules.replace(REJECT, "")).unwrap();
    },
    words: &["pg_hba.conf rejects connection", "pg_hba.conf needs a line"],
    exit: 77,
};

fn outlives(fault: &Fault, is_polled: bool) {
    let mock = MockCluster::new(1).unwrap();
    let server = Server::start(&mock.bootstrap_servers());
    let relay = server.relay(is_polled);
    let begins = if is_polled { "polling" } else { "\"streaming\"" };
    let mut running = relay.run();
    let face = RelayHttp::of(&mut running);
    running.wait_for_log(begins);
    server.stage.insert("A", 1);
    server.stage.wait_for_records(1);

    (fault.begin)(&server);
    server.reload();
    let line = running.wait_for_log(fault.words[0]);
    for word in fault.words.iter().chain(&["trying again"]) {
        assert!(line.contains(word), "{word}: {line}");
    }
    // Of several workers each tells its cause, one after the other.
    wait_until("the cause to be shown", || {
        let (status, health) = face.probe("/readyz");
        status == 503 && fault.words.iter().all(|word| health.to_string().contains(word))
    });

    // A command that starts now ends at once, and says the same.
    let of_slots = [&["prune", "--older-than", "1d"][..], &["lag"]];
    let of_slots = of_slots.into_iter().filter(|_| !is_polled);
    for command in [&["run"][..], &["verify"], &["setup"]].into_iter().chain(of_slots) {
        let outcome = relay.start(command).outcome();
        let told = outcome.log.join("\n");
        assert_eq!(outcome.status.code(), Some(fault.exit), "{command:?}: {told}");
        assert!(fault.words.iter().all(|word| told.contains(word)), "{command:?}: {told}");
    }

    server.stage.insert("A", 1);
    (fault.end)(&server);
    server.reload();
    server.stage.wait_for_records(2);
    face.wait_ready(200);
    assert!(!running.has_ended());
    running.stop();
    drop(server.stage);
    drop(server.cluster);
}

#[test]
fn a_certificate_that_expires_under_a_stream_is_waited_for() {
    outlives(&EXPIRED, false);
}

#[test]
fn a_stream_outlasts_a_pg_hba_conf_that_rejects_it() {
    outlives(&REJECTED, false);
}

#[test]
fn a_certificate_that_expires_under_polling_is_waited_for() {
    outlives(&EXPIRED, true);
}

#[test]
fn a_refusal_that_lasts_ends_the_relay() {
    let mock = MockCluster::new(1).unwrap();
    let server = Server::start(&mock.bootstrap_servers());
    let mut running = server.relay(false).set("retry.login_give_up_after", "2s").run();
    running.wait_for_log("\"streaming\"");
    (REJECTED.begin)(&server);
    server.reload();
    let outcome = running.outcome();
    let log = outcome.log.join("\n");
    assert_eq!(outcome.status.code(), Some(77), "{log}");
    assert!(log.contains("trying again") && log.contains("PR-P021"), "{log}");
}
