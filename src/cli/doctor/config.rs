//! Checks of `postrider doctor` that need neither Postgres nor Kafka: the configuration, and the machine.
//!
//! Input: the configuration in effect, limits of this process, files. Output: checks. Reads `/proc` and
//! `/sys/fs/cgroup` where they exist; what is not there is unknown.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::check::{Check, bytes};
use super::fix::{Fix, Place, StepKind};
use crate::status::relay::{RelayFacts, Silence};
use postrider_config::{Config, Loaded};
use postrider_secrets::mask;

/// Descriptors that a relay may need: for its servers, files, and some hundred brokers.
const DESCRIPTORS_MIN: u64 = 1_024;
/// What the relay takes besides rows under way: 16 MiB idle, and buffers of the Kafka client.
const BASE_BYTES: u64 = 64 << 20;
/// How many ports are tried for one that is free.
const PORTS_TRIED: u16 = 50;
/// Kubernetes and systemd kill a process that takes longer to end (30 s and 90 s by default).
const GRACE_MAX: Duration = Duration::from_secs(30);

/// See the module.
pub(super) fn checks(loaded: &Loaded, relay: &Result<RelayFacts, Silence>) -> Vec<Check> {
    let config = &loaded.config;
    let memory = memory_limit();
    vec![
        valid(loaded),
        passed_over(loaded),
        file_mode(loaded.file.as_deref()),
        http_port(config.http.bind, relay),
        grace(config.shutdown.grace),
        descriptors(getrlimit(Resource::Nofile).current),
        memory_suffices(config, memory),
    ]
}

fn valid(loaded: &Loaded) -> Check {
    let file = match &loaded.file {
        Some(file) => format!("{} is valid", file.display()),
        None => "valid, without a file".to_owned(),
    };
    Check::pass("config.valid", file)
}

fn passed_over(loaded: &Loaded) -> Check {
    const ID: &str = "config.connection_string";
    let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    if warnings.is_empty() {
        return Check::pass(ID, "every parameter of source.url is understood");
    }
    Check::warn(ID, warnings.join("; "), "remove those parameters from source.url")
}

/// Whether others may read a file that holds a secret.
fn file_mode(file: Option<&Path>) -> Check {
    const ID: &str = "config.file_mode";
    let Some(file) = file else { return Check::pass(ID, "there is no configuration file") };
    let (Ok(facts), Ok(text)) = (fs::metadata(file), fs::read_to_string(file)) else {
        return Check::unknown(ID, format!("{} cannot be read again", file.display()));
    };
    let shown = file.display();
    let has_secret = text.lines().any(|line| mask::mask_text(line) != line);
    let mode = facts.permissions().mode() & 0o777;
    match (has_secret, mode & 0o077) {
        (false, _) => Check::pass(ID, format!("{shown} holds no secret")),
        (true, 0) => Check::pass(ID, format!("{shown} holds a secret, and is its owner's alone")),
        (true, _) => Check::warn(
            ID,
            format!("{shown} holds a secret, and others may read it (mode {mode:o})"),
            Fix::default()
                .then(StepKind::Shell, Place::Relay, format!("chmod 600 {}", word_of_shell(file)))
                .say("; or keep the secret in a file of its own (see _FILE in docs/configuration.md)"),
        ),
    }
}

/// A path as a shell takes it for one word.
fn word_of_shell(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if path.chars().all(is_plain) { path } else { format!("'{}'", path.replace('\'', "'\\''")) }
}

/// Another port of that address, which is free now.
fn another_port(bind: SocketAddr) -> Fix {
    const WORDS: &str = "set http.bind to another port, or end what has this one";
    let ports = (1..=PORTS_TRIED).filter_map(|next| bind.port().checked_add(next));
    let free = ports
        .map(|port| SocketAddr::new(bind.ip(), port))
        .find(|bind| TcpListener::bind(bind).is_ok());
    free.map_or_else(
        || WORDS.into(),
        |free| Fix::config(format!("http.bind = \"{free}\"")).told_as(WORDS),
    )
}

fn http_port(bind: Option<SocketAddr>, relay: &Result<RelayFacts, Silence>) -> Check {
    const ID: &str = "http.port";
    let Some(bind) = bind else { return Check::pass(ID, "http.bind is empty") };
    if relay.is_ok() {
        return Check::pass(ID, format!("a relay that runs has {bind}"));
    }
    if let Err(Silence::Hangs(why)) = relay {
        return Check::warn(ID, why.clone(), another_port(bind));
    }
    match TcpListener::bind(bind) {
        Ok(_) => Check::pass(ID, format!("{bind} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let finding = format!("{bind} is in use, by no relay of this slot");
            Check::warn(ID, finding, another_port(bind))
        }
        Err(error) => Check::fail(
            ID,
            format!("{bind} cannot be listened on: {error}"),
            "set http.bind to an address of this machine, with a port above 1023",
        ),
    }
}

fn grace(grace: Duration) -> Check {
    const ID: &str = "config.grace";
    let seconds = grace.as_secs();
    if grace < GRACE_MAX {
        return Check::pass(ID, format!("a clean stop takes at most {seconds} s"));
    }
    Check::warn(
        ID,
        format!("a clean stop may take {seconds} s, and Kubernetes kills after 30 s by default"),
        Fix::config(format!("shutdown.grace = \"{}s\"", GRACE_MAX.as_secs() - 5)).told_as(format!(
            "set shutdown.grace below it, or terminationGracePeriodSeconds above {seconds}"
        )),
    )
}

fn descriptors(limit: Option<u64>) -> Check {
    const ID: &str = "host.descriptors";
    match limit {
        None => Check::pass(ID, "open files are not limited"),
        Some(limit) if limit >= DESCRIPTORS_MIN => {
            Check::pass(ID, format!("{limit} files may be open"))
        }
        Some(limit) => Check::warn(
            ID,
            format!("only {limit} files may be open, connections to brokers included"),
            Fix::default()
                .then(StepKind::Shell, Place::Relay, format!("ulimit -n {DESCRIPTORS_MIN}"))
                .say(" before the relay is started (LimitNOFILE= of systemd)"),
        ),
    }
}

/// What the process may use: the least limit of the cgroups above it, `u64::MAX` without one; `None` if there is none that
/// we can see.
fn memory_limit() -> Option<u64> {
    let of_process = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = of_process.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let folders = Path::new(path).ancestors().filter_map(|folder| folder.strip_prefix("/").ok());
    let limits = folders.filter_map(|folder| {
        let file = Path::new("/sys/fs/cgroup").join(folder).join("memory.max");
        let limit = fs::read_to_string(file).ok()?;
        Some(limit.trim().parse().unwrap_or(u64::MAX))
    });
    limits.min()
}

fn memory_suffices(config: &Config, limit: Option<u64>) -> Check {
    const ID: &str = "host.memory";
    let rows = config.kafka.in_flight_bytes_max;
    let needed = rows.saturating_mul(2).saturating_add(BASE_BYTES);
    let shown = |amount: u64| bytes(i64::try_from(amount).unwrap_or(i64::MAX));
    match limit {
        None => Check::unknown(
            ID,
            format!("no limit of a cgroup can be read; {} may be needed", shown(needed)),
        ),
        Some(u64::MAX) => {
            Check::pass(ID, format!("memory is not limited; {} may be needed", shown(needed)))
        }
        Some(limit) if limit >= needed => Check::pass(
            ID,
            format!("{} are allowed, {} may be needed", shown(limit), shown(needed)),
        ),
        Some(limit) => Check::warn(
            ID,
            format!(
                "{} are allowed, and {} may be needed with kafka.max_in_flight at {}",
                shown(limit),
                shown(needed),
                shown(rows)
            ),
            "raise the limit of the container, or lower kafka.max_in_flight",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Outcome;
    use super::*;

    #[test]
    fn few_descriptors_and_a_long_grace_are_told() {
        assert_eq!(descriptors(Some(256)).outcome, Outcome::Warn);
        assert_eq!(descriptors(Some(1_024)).outcome, Outcome::Pass);
        assert_eq!(descriptors(None).outcome, Outcome::Pass);
        assert_eq!(grace(Duration::from_secs(29)).outcome, Outcome::Pass);
        assert_eq!(grace(Duration::from_mins(1)).outcome, Outcome::Warn);
    }

    #[test]
    fn a_port_that_is_taken_is_told() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let bind = taken.local_addr().unwrap();
        let of = |bind| http_port(Some(bind), &Err(Silence::None(String::new()))).outcome;
        assert_eq!(of(bind), Outcome::Warn);
        drop(taken);
        assert_eq!(of(bind), Outcome::Pass);
        assert_eq!(of("192.0.2.1:1".parse().unwrap()), Outcome::Fail);
        let hangs = Err(Silence::Hangs(String::new()));
        assert_eq!(http_port(Some(bind), &hangs).outcome, Outcome::Warn);
    }

    #[test]
    fn a_secret_that_others_may_read_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("postrider.toml");
        fs::write(&file, "[source]\nurl = \"postgres://app:hunter2@db/shop\"\n").unwrap();
        let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        assert_eq!(file_mode(Some(&file)).outcome, Outcome::Warn);
        mode(0o600);
        assert_eq!(file_mode(Some(&file)).outcome, Outcome::Pass);
        fs::write(&file, "[source]\nurl = \"postgres://app@db/shop\"\n").unwrap();
        mode(0o644);
        assert_eq!(file_mode(Some(&file)).outcome, Outcome::Pass);
        assert_eq!(file_mode(None).outcome, Outcome::Pass);
    }
}
