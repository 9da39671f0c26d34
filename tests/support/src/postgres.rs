//! The PostgreSQL clusters that the tests share: the one that is installed, and version 18 from
//! the package that `docker/postgres/fetch` unpacks. One cluster each per run of the binary;
//! tests keep apart by databases and slots of their own ([`Database`]).

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use postrider_sandbox::account::Account;
use postrider_sandbox::postgres::{Address, Cluster, Options, Stop};
use postrider_sandbox::watchdog::Watchdog;

use super::sql::Sql;
use super::{root, skip, unique};

/// What ALTER SYSTEM writes.
const AUTO_CONF: &str = "postgresql.auto.conf";

/// Every version at hand: the installed one, and 18 unless this machine cannot have it.
pub fn versions() -> Vec<&'static Cluster> {
    std::iter::once(installed()).chain(eighteen()).collect()
}

/// The installed PostgreSQL; without it no test here can do anything.
pub fn installed() -> &'static Cluster {
    static INSTALLED: OnceLock<Cluster> = OnceLock::new();
    INSTALLED.get_or_init(|| start(&Options::default()))
}

/// PostgreSQL 18, or `None` after saying why not.
pub fn eighteen() -> Option<&'static Cluster> {
    static EIGHTEEN: OnceLock<Option<Cluster>> = OnceLock::new();
    EIGHTEEN.get_or_init(|| Some(start(&eighteen_options()?))).as_ref()
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

/// A database of the test's own.
#[derive(Debug, Clone)]
pub struct Database {
    address: Address,
}

impl Database {
    /// Creates an empty database; `stem` says whose it is.
    pub fn create(cluster: &Cluster, stem: &str) -> Self {
        Self::create_with(cluster, &unique(stem), "")
    }

    /// The same with a name of its own and options of CREATE DATABASE.
    fn create_with(cluster: &Cluster, name: &str, options: &str) -> Self {
        Sql::connect(&cluster.unix_url()).run(&format!("CREATE DATABASE \"{name}\" {options}"));
        Self { address: cluster.address().database(name) }
    }

    /// Creates one with the outbox table and the publication `postrider`: what `migrations` says.
    pub fn migrated(cluster: &Cluster, stem: &str) -> Self {
        Self::create(cluster, stem).migrate()
    }

    /// The same under a name that another cluster's database has.
    pub fn migrated_named(cluster: &Cluster, name: &str) -> Self {
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
        Self { address: Address { port, socket_folder, ..self.address() } }
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
        Sql::connect(&self.address.unix_url())
    }
}
