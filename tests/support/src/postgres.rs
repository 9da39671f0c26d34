//! The PostgreSQL clusters that the tests share: the one that is installed, and version 18 from
//! the package that `docker/postgres/fetch` unpacks. One cluster each per run of the binary;
//! tests keep apart by databases and slots of their own ([`Database`]), which end with the test.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

use postrider_sandbox::account::Account;
use postrider_sandbox::postgres::{Address, Cluster, Options, Stop};
use postrider_sandbox::watchdog::Watchdog;

use super::sql::Sql;
use super::{is_full, root, skip, unique};

/// The database that those of tests are copies of.
const MIGRATED: &str = "migrated";

/// What ALTER SYSTEM writes.
const AUTO_CONF: &str = "postgresql.auto.conf";

/// Every version at hand: the installed one, and 18 unless this machine cannot have it.
pub fn versions() -> Vec<&'static Cluster> {
    std::iter::once(installed()).chain(eighteen()).collect()
}

/// The installed PostgreSQL for what no version does otherwise; with `FULL=1` every version at hand.
pub fn representative() -> Vec<&'static Cluster> {
    if is_full() { versions() } else { vec![installed()] }
}

/// The installed PostgreSQL; without it no test here can do anything.
pub fn installed() -> &'static Cluster {
    static INSTALLED: OnceLock<Cluster> = OnceLock::new();
    INSTALLED.get_or_init(|| shared(&Options::default()))
}

/// PostgreSQL 18, or `None` after saying why not.
pub fn eighteen() -> Option<&'static Cluster> {
    static EIGHTEEN: OnceLock<Option<Cluster>> = OnceLock::new();
    EIGHTEEN.get_or_init(|| Some(shared(&eighteen_options()?))).as_ref()
}

/// Ports of the clusters in which many tests have their databases.
static SHARED: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// A cluster for many tests. A copy of its template takes half of the time that the migrations take.
pub fn shared(options: &Options) -> Cluster {
    let cluster = start(options);
    Database::create_with(&cluster, MIGRATED, "").migrate();
    // A session in it, also one of autovacuum, would hold up copies.
    let closed = format!("ALTER DATABASE {MIGRATED} ALLOW_CONNECTIONS false");
    Sql::connect(&cluster.unix_url()).run(&closed);
    SHARED.lock().unwrap().push(cluster.port());
    cluster
}

fn is_shared(cluster: &Cluster) -> bool {
    SHARED.lock().unwrap().contains(&cluster.port())
}

/// Where version 18 lies, for a test that wants a cluster of its own.
pub fn eighteen_options() -> Option<Options> {
    let root = root();
    let script = root.join("docker/postgres/fetch");
    let output = Command::new(script).arg("18").stdin(Stdio::null()).output().unwrap();
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        skip::skip("PostgreSQL 18", words.lines().last().unwrap_or("docker/postgres/fetch failed"));
        return None;
    }
    let home = readable(&root.join(".servers/postgres-18"));
    Some(Options {
        binaries: Some(home.join("bin")),
        libraries: Some(home.join("lib")),
        ..Options::default()
    })
}

/// A cluster of the test's own.
///
/// # Panics
/// With the reason and its remedy, when it does not start.
pub fn start(options: &Options) -> Cluster {
    Cluster::start(options).unwrap_or_else(|error| {
        panic!("{error}\nhelp: {}", error.hint().unwrap_or_default());
    })
}

/// Takes the cluster down and up again as a standby of nobody, and promotes it: what a failover
/// leaves behind, with a new timeline.
pub fn promote(cluster: &mut Cluster) {
    cluster.stop(Stop::Fast).unwrap();
    std::fs::write(cluster.folder().join("data/standby.signal"), "").unwrap();
    cluster.start_again().unwrap();
    assert_eq!(Sql::connect(&cluster.unix_url()).value("SELECT pg_promote()"), "t");
}

/// A standby that follows the cluster by a physical slot, and copies those of its logical slots that were
/// made for that (17 and later). The cluster is taken down and up for it, and sends to logical slots only
/// what the standby has.
pub fn standby_of(primary: &mut Cluster, options: &Options) -> Cluster {
    let mut standby = start(options);
    standby.stop(Stop::Fast).unwrap();
    let run = |primary: &Cluster, sql: &str| Sql::connect(&primary.unix_url()).run(sql);
    run(primary, "SELECT pg_create_physical_replication_slot('standby')");
    run(primary, "ALTER SYSTEM SET synchronized_standby_slots = 'standby'");
    let backup = back_up(primary);
    let data = standby.folder().join("data");
    std::fs::remove_dir_all(&data).unwrap();
    copy(&backup, &data);
    // As pg_basebackup has it: slots are the primary's own.
    let slots = data.join("pg_replslot");
    for slot in slots.read_dir().unwrap() {
        std::fs::remove_dir_all(slot.unwrap().path()).unwrap();
    }
    let (folder, origin) = (standby.folder().display(), primary.folder().display());
    let settings = format!(
        "unix_socket_directories = '{folder}'\n\
         primary_conninfo = 'host={origin} port={} user=postgres dbname=postgres'\n\
         primary_slot_name = 'standby'\nhot_standby_feedback = on\nsync_replication_slots = on\n",
        primary.port()
    );
    // What ALTER SYSTEM wrote comes last; the standby keeps no standby waiting.
    let mut conf =
        OpenOptions::new().write(true).truncate(true).open(data.join(AUTO_CONF)).unwrap();
    conf.write_all(settings.as_bytes()).unwrap();
    std::fs::write(data.join("standby.signal"), "").unwrap();
    standby.start_again().unwrap();
    standby
}

/// Takes the cluster down, copies its data, and takes it up again. The copy goes with the cluster.
pub fn back_up(cluster: &mut Cluster) -> PathBuf {
    let backup = cluster.folder().join(unique("backup"));
    cluster.stop(Stop::Fast).unwrap();
    copy(&cluster.folder().join("data"), &backup);
    cluster.start_again().unwrap();
    backup
}

/// Puts a backup in the place of the cluster's data, as somebody does who restores it.
pub fn restore(cluster: &mut Cluster, backup: &Path) {
    cluster.stop(Stop::Fast).unwrap();
    let data = cluster.folder().join("data");
    std::fs::remove_dir_all(&data).unwrap();
    copy(backup, &data);
    cluster.start_again().unwrap();
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "cannot copy {}", from.display());
}

/// The folder itself, or a copy of it where the account of the servers cannot reach it, as in a
/// clone below root's home. Copies go with this process.
pub fn readable(folder: &Path) -> PathBuf {
    static COPIES: OnceLock<Watchdog> = OnceLock::new();
    let account = Account::unprivileged().unwrap();
    if account.reaches(folder) {
        return folder.to_path_buf();
    }
    let copies = COPIES
        .get_or_init(|| Watchdog::new(&account.make_folder("postrider-copy-").unwrap()).unwrap());
    let copy = copies.folder().join(unique("copy"));
    self::copy(folder, &copy);
    copy
}

/// A database of the test's own. In a shared cluster, it and its slots end with its last copy: a slot that stays
/// keeps the log of all later tests, and 700 tests write more than a disk has.
#[derive(Debug, Clone)]
pub struct Database {
    address: Address,
    _end: Option<Arc<End>>,
}

/// What drops a database of a shared cluster.
#[derive(Debug)]
struct End {
    server: String,
    name: String,
}

impl Drop for End {
    fn drop(&mut self) {
        let (server, name) = (std::mem::take(&mut self.server), std::mem::take(&mut self.name));
        // A session has a runtime of its own, and the test may be within another one.
        let dropped = std::thread::spawn(move || drop_database(&server, &name)).join();
        assert!(dropped.is_ok() || std::thread::panicking(), "a database could not be dropped");
    }
}

fn drop_database(server: &str, name: &str) {
    // After a failed test the server may be down.
    let Ok(sql) = Sql::try_connect(server) else { return };
    let slots = format!(
        "FROM pg_replication_slots \
         WHERE (database = '{name}' OR slot_name = '{name}' OR slot_name LIKE '{name}\\_%')"
    );
    for statement in [
        format!("SELECT pg_terminate_backend(active_pid, 5000) {slots} AND active"),
        format!("SELECT pg_drop_replication_slot(slot_name) {slots} AND NOT active"),
        format!("DROP DATABASE IF EXISTS \"{name}\" WITH (FORCE)"),
    ] {
        // A relay of a failed test may take the slot again. It is said, since what stays fills the disk.
        if let Err(error) = sql.try_run(&statement) {
            eprintln!("cannot drop what a test made: {statement}: {error}");
        }
    }
}

impl Database {
    /// Creates an empty database; `stem` says whose it is.
    pub fn create(cluster: &Cluster, stem: &str) -> Self {
        Self::create_with(cluster, &unique(stem), "")
    }

    /// The same with a name of its own and options of CREATE DATABASE.
    fn create_with(cluster: &Cluster, name: &str, options: &str) -> Self {
        let server = cluster.unix_url();
        Sql::connect(&server).run(&format!("CREATE DATABASE \"{name}\" {options}"));
        let end = is_shared(cluster).then(|| Arc::new(End { server, name: name.to_owned() }));
        Self { address: cluster.address().database(name), _end: end }
    }

    /// Creates one with the outbox table and the publication `postrider`: what `migrations` says.
    pub fn migrated(cluster: &Cluster, stem: &str) -> Self {
        Self::migrated_named(cluster, &unique(stem))
    }

    /// The same under a name that another cluster's database has.
    pub fn migrated_named(cluster: &Cluster, name: &str) -> Self {
        if is_shared(cluster) {
            return Self::create_with(cluster, name, &format!("TEMPLATE {MIGRATED}"));
        }
        Self::create_with(cluster, name, "").migrate()
    }

    /// The same in another encoding than the cluster's.
    pub fn encoded(cluster: &Cluster, stem: &str, encoding: &str) -> Self {
        let options = format!("ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'");
        Self::create_with(cluster, &unique(stem), &options).migrate()
    }

    fn migrate(self) -> Self {
        let folder = root().join("migrations");
        let mut files: Vec<PathBuf> =
            folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let sql = self.sql();
        for file in files {
            sql.run(&std::fs::read_to_string(file).unwrap());
        }
        self
    }

    /// Its name; unique, so that it also serves as the name of its slot.
    pub fn name(&self) -> &str {
        &self.address.database
    }

    /// The same database as a copy of its cluster has it.
    #[must_use]
    pub fn at(&self, copy: &Cluster) -> Self {
        let Address { port, socket_folder, .. } = copy.address();
        Self { address: Address { port, socket_folder, ..self.address() }, _end: None }
    }

    /// Its address, to build other URLs from.
    pub fn address(&self) -> Address {
        self.address.clone()
    }

    /// Makes a role with these further attributes, such as `REPLICATION`, that logs in with the
    /// cluster's own password; its address.
    pub fn create_role(&self, name: &str, attributes: &str) -> Address {
        let address = self.address().login_as(name, self.address.password.as_deref());
        let password = address.password.as_deref().unwrap();
        self.sql().run(&format!("CREATE ROLE {name} LOGIN {attributes} PASSWORD '{password}'"));
        address
    }

    /// Moves the outbox into a schema of its own, which is published as a whole; the table's name.
    pub fn publish_schema(&self) -> &'static str {
        let path = format!("ALTER DATABASE \"{}\" SET search_path = sales, public", self.name());
        self.sql().run(&path);
        self.sql().run(
            "CREATE SCHEMA sales; ALTER TABLE outbox SET SCHEMA sales; \
             ALTER PUBLICATION postrider SET TABLES IN SCHEMA sales",
        );
        "sales.outbox"
    }

    /// A session in it, as the superuser.
    pub fn sql(&self) -> Sql {
        Sql::of(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_of_a_shared_cluster_leaves_neither_slots_nor_files() {
        let server = Sql::connect(&installed().unix_url());
        let database = Database::create(installed(), "ends");
        let name = database.name().to_owned();
        let copy = database.clone();
        database.sql().run(&format!(
            "SELECT pg_create_logical_replication_slot('{name}', 'pgoutput'); \
             SELECT pg_create_logical_replication_slot('of_another_name', 'pgoutput'); \
             SELECT pg_create_physical_replication_slot('{name}_physical', true)"
        ));
        let left = format!(
            "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = '{name}' OR slot_name LIKE '{name}%') \
             + (SELECT count(*) FROM pg_database WHERE datname = '{name}')"
        );
        drop(database);
        assert_eq!(server.value(&left), "4");
        drop(copy);
        assert_eq!(server.value(&left), "0");
    }
}
