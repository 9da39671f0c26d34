//! The two servers: which of them is the primary, and how the other one becomes its standby.
//!
//! Invariant: a primary that was killed never comes back as one; a standby is made of a backup of the primary, as
//! pg_basebackup makes it, without WAL and slots of its own.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use postrider::sandbox::postgres::{Address, Cluster, Options, Stop};
use rustix::process::{Pid, Signal, kill_process};

use crate::failover::settings::Standby;
use support::postgres;
use support::sql::Sql;
use support::wait::{let_pass, wait_for, wait_until};

/// The physical slot that the standby reads.
const SLOT: &str = "standby";

/// See the module.
pub(crate) struct Servers {
    nodes: [Cluster; 2],
    primary: usize,
}

impl Servers {
    /// A primary, and a server that waits to be its standby.
    pub(crate) fn start(options: &Options) -> Self {
        let nodes = [postgres::start(options), postgres::start(options)];
        let mut servers = Self { nodes, primary: 0 };
        servers.nodes[1].stop(Stop::Fast).unwrap();
        servers
    }

    pub(crate) fn primary(&self) -> &Cluster {
        &self.nodes[self.primary]
    }

    fn standby(&self) -> &Cluster {
        &self.nodes[1 - self.primary]
    }

    /// Where writers find the primary: at one of these.
    pub(crate) fn unix_urls(&self, database: &str) -> [String; 2] {
        [0, 1].map(|node: usize| self.nodes[node].address().database(database).unix_url())
    }

    /// A URL that names both servers.
    pub(crate) fn url_of_both(&self, address: &Address) -> String {
        let host = |cluster: &Cluster| format!("127.0.0.1:{}", cluster.port());
        let [one, other] = [0, 1].map(|node: usize| host(&self.nodes[node]));
        address.url().replace(&host(self.primary()), &format!("{one},{other}"))
    }

    /// Makes the server that is down a standby of the one that is up.
    pub(crate) fn rebuild(&mut self) {
        let sql = Sql::connect(&self.primary().unix_url());
        sql.run(&format!("SELECT pg_create_physical_replication_slot('{SLOT}', true)"));
        sql.run("SELECT pg_backup_start('rebuild', fast => true)");
        let data = self.standby().folder().join("data");
        fs::remove_dir_all(&data).unwrap();
        copy(&self.primary().folder().join("data"), &data);
        let label = sql.value("SELECT labelfile FROM pg_backup_stop(wait_for_archive => false)");
        write_as_owner(&data, "backup_label", &label);
        write_as_owner(&data, "standby.signal", "");
        let (folder, origin) = (self.standby().folder().display(), self.primary());
        let settings = format!(
            "unix_socket_directories = '{folder}'\n\
             primary_conninfo = 'host={} port={} user=postgres dbname=postgres'\n\
             primary_slot_name = '{SLOT}'\nhot_standby_feedback = on\nsync_replication_slots = on\n",
            origin.folder().display(),
            origin.port()
        );
        let conf = data.join("postgresql.auto.conf");
        let mut conf = OpenOptions::new().write(true).truncate(true).open(conf).unwrap();
        conf.write_all(settings.as_bytes()).unwrap();
        self.nodes[1 - self.primary].start_again().unwrap();
    }

    /// Waits until the standby could be promoted: it streams, has a copy of the slot, and what is delivered.
    pub(crate) fn await_standby(&self, form: Standby, slot: &str) {
        let (primary, standby) =
            (Sql::connect(&self.primary().unix_url()), Sql::connect(&self.standby().unix_url()));
        let streams = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'");
        wait_until("the standby to stream", || primary.value(&streams) == "t");
        if form == Standby::Synchronous {
            for (setting, value) in
                [("synchronized_standby_slots", SLOT), ("synchronous_standby_names", "*")]
            {
                primary.run(&format!("ALTER SYSTEM SET {setting} = '{value}'"));
            }
            primary.run("SELECT pg_reload_conf()");
            let is_sync = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            wait_until("the standby to be waited for", || primary.value(is_sync) == "1");
        }
        let copied = format!(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}' AND synced \
             AND NOT temporary AND invalidation_reason IS NULL"
        );
        wait_until("the standby's copy of the slot", || {
            primary.run("SELECT pg_log_standby_snapshot()");
            let_pass(Duration::from_millis(100), "the standby's worker looks now and then");
            standby.value(&copied) == "1"
        });
        // What was delivered before anybody waited.
        let end = primary.value("SELECT pg_current_wal_lsn()");
        let has = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'");
        wait_until("the standby to have what was delivered", || standby.value(&has) == "t");
    }

    /// Lets the standby fall behind for a while, kills the primary, and promotes the standby.
    pub(crate) fn fail_over(&mut self, lag: Duration) {
        let receiver = (!lag.is_zero()).then(|| self.receiver());
        if let Some(receiver) = receiver {
            kill_process(receiver, Signal::STOP).unwrap();
            let_pass(lag, "the standby falls behind");
        }
        self.nodes[self.primary].stop(Stop::Kill).unwrap();
        if let Some(receiver) = receiver {
            // It ends before it reads what came meanwhile.
            kill_process(receiver, Signal::TERM).unwrap();
            kill_process(receiver, Signal::CONT).unwrap();
        }
        let standby = Sql::connect(&self.standby().unix_url());
        assert_eq!(standby.value("SELECT pg_promote()"), "t");
        self.primary = 1 - self.primary;
    }

    /// The process of the standby that receives WAL.
    fn receiver(&self) -> Pid {
        let sql = Sql::connect(&self.standby().unix_url());
        let pid = wait_for("a receiver", || {
            let rows = sql.rows("SELECT pid FROM pg_stat_wal_receiver");
            rows.into_iter().next()?.into_iter().next()?
        });
        Pid::from_raw(pid.parse().unwrap()).unwrap()
    }
}

/// A file of the account that the server runs as.
fn write_as_owner(data: &Path, name: &str, text: &str) {
    let (file, owner) = (data.join(name), fs::metadata(data).unwrap());
    fs::write(&file, text).unwrap();
    chown(file, Some(owner.uid()), Some(owner.gid())).unwrap();
}

/// The files of a server that runs, between the begin and the end of a backup.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    let script = "tar -C \"$1\" --exclude='./pg_wal/0*' --exclude='./pg_replslot/*' --exclude='./postmaster.*' \
                  --exclude='./pg_logical/snapshots/*' -cf - . | tar -C \"$2\" -xpf -";
    let copied = Command::new("sh").args(["-c", script, "copy"]).arg(from).arg(to).status();
    // What changes or vanishes while it is read is written in the log.
    assert!(copied.unwrap().success(), "cannot copy {}", from.display());
}
