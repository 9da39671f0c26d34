//! A primary and a standby that streams from it; the standby can be cut off, and take over without what the
//! primary wrote since.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use postrider::sandbox::postgres::{Cluster, Options, Stop};
use support::postgres;
use support::sql::Sql;
use support::wait::wait_until;

/// Two servers, of which one is the primary at any time.
pub(crate) struct Pair {
    primary: Cluster,
    /// Stopped until it follows.
    standby: Cluster,
}

impl Pair {
    /// A primary without a standby.
    pub(crate) fn start(options: &Options) -> Self {
        let mut standby = postgres::start(options);
        standby.stop(Stop::Fast).unwrap();
        Self { primary: postgres::start(options), standby }
    }

    pub(crate) fn primary(&self) -> &Cluster {
        &self.primary
    }

    /// Where a client finds the one that is the primary.
    pub(crate) fn url(&self, database: &str) -> String {
        let (one, other) = (self.primary.address(), self.standby.address());
        format!(
            "host={},{} port={},{} user=postgres dbname={database} target_session_attrs=read-write",
            one.socket_folder.display(),
            other.socket_folder.display(),
            one.port,
            other.port
        )
    }

    /// Makes the standby anew from the primary, which is down for a moment, and starts it.
    pub(crate) fn follow(&mut self) {
        let backup = postgres::back_up(&mut self.primary);
        let data = self.standby.folder().join("data");
        fs::remove_dir_all(&data).unwrap();
        move_folder(&backup, &data);
        let (folder, origin) = (self.standby.folder().display(), self.primary.folder().display());
        let settings = format!(
            "unix_socket_directories = '{folder}'\n\
             primary_conninfo = 'host={origin} port={} user=postgres'\n",
            self.primary.port()
        );
        let conf = data.join("postgresql.auto.conf");
        let mut conf = OpenOptions::new().write(true).truncate(true).open(conf).unwrap();
        conf.write_all(settings.as_bytes()).unwrap();
        fs::write(data.join("standby.signal"), "").unwrap();
        self.standby.start_again().unwrap();
    }

    /// Waits until the standby has all that the primary has now.
    pub(crate) fn wait_caught_up(&self) {
        let end = Sql::connect(&self.primary.unix_url()).value("SELECT pg_current_wal_lsn()");
        let standby = self.standby();
        let has = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'");
        wait_until("the standby to catch up", || standby.value(&has) == "t");
    }

    /// The standby receives nothing from now on.
    pub(crate) fn cut(&self) {
        let standby = self.standby();
        standby.run("ALTER SYSTEM SET primary_conninfo = ''");
        standby.run("SELECT pg_reload_conf()");
        let receivers = "SELECT count(*) FROM pg_stat_wal_receiver";
        wait_until("the standby to be cut off", || standby.value(receivers) == "0");
    }

    /// The primary is killed, and the standby takes over.
    pub(crate) fn fail_over(&mut self) {
        self.primary.stop(Stop::Kill).unwrap();
        assert_eq!(self.standby().value("SELECT pg_promote()"), "t");
        std::mem::swap(&mut self.primary, &mut self.standby);
    }

    fn standby(&self) -> Sql {
        Sql::connect(&self.standby.unix_url())
    }
}

fn move_folder(from: &Path, to: &Path) {
    let status = Command::new("mv").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "cannot move {}", from.display());
}
