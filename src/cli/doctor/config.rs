//! Checks of `postrider doctor` for the configuration and the machine. Reads `/proc` and
//! `/sys/fs/cgroup` if they exist.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Gid, Resource, getegid, geteuid, getgroups, getrlimit};

use super::check::{Check, bytes};
use super::fix::{Fix, Place, StepKind};
use crate::status::relay::{RelayFacts, Silence};
use postrider_config::Loaded;
use postrider_secrets::mask;
use postrider_service::shell::shell_word;

/// File descriptors that a relay may need: servers, files, about a hundred brokers.
const DESCRIPTORS_MIN: u64 = 1_024;
/// Memory besides rows in flight: 16 MiB idle, and buffers of the Kafka client.
const BASE_BYTES: u64 = 64 << 20;
const PORTS_TRIED: u16 = 50;
/// Kubernetes and systemd kill a process that takes longer to end (30 s and 90 s by default).
const GRACE_MAX: Duration = Duration::from_secs(30);

pub(super) fn checks(
    loaded: &Loaded,
    relay: &Result<RelayFacts, Silence>,
    in_flight: u64,
) -> Vec<Check> {
    let config = &loaded.config;
    let memory = memory_limit();
    let mut checks = vec![valid(loaded), passed_over(loaded)];
    checks.extend(file_modes(loaded));
    checks.extend([
        http_port(config.http.bind, relay),
        grace(config.shutdown.grace),
        descriptors(getrlimit(Resource::Nofile).current),
        memory_suffices(in_flight, memory),
    ]);
    checks
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

/// Files with secrets: the configuration, and the token of the control API.
fn file_modes(loaded: &Loaded) -> Vec<Check> {
    let token = loaded.config.http.control.token_file.as_deref();
    let mut checks: Vec<_> = token.map(|file| file_mode(file, |_| true)).into_iter().collect();
    checks.extend(loaded.file.as_deref().map(|file| file_mode(file, has_secret)));
    if checks.is_empty() {
        checks.push(Check::pass(FILE_MODE, "there is no configuration file"));
    }
    checks
}

fn has_secret(text: &str) -> bool {
    text.lines().any(|line| !names_file(line) && mask::mask_text(line) != line)
}

/// Whether a line such as `client_secret_file = ..` only names a file.
fn names_file(line: &str) -> bool {
    let name = line.split_once('=').map(|(name, _)| name.trim().trim_matches('"'));
    name.is_some_and(|name| name.ends_with("_file"))
}

const FILE_MODE: &str = "config.file_mode";

fn file_mode(file: &Path, is_secret: impl Fn(&str) -> bool) -> Check {
    let shown = file.display();
    let (Ok(facts), Ok(text)) = (fs::metadata(file), fs::read_to_string(file)) else {
        return Check::unknown(FILE_MODE, format!("{shown} cannot be read"));
    };
    if !is_secret(&text) {
        return Check::pass(FILE_MODE, format!("{shown} holds no secret"));
    }
    let (owner, group) = (facts.uid(), facts.gid());
    let access = FileAccess { mode: facts.mode() & 0o777, owner, group };
    let us = (geteuid().as_raw(), our_groups());
    let Some(commands) = access.closed(&us, &shell_word(&file.display().to_string())) else {
        let finding =
            format!("{shown} holds a secret, and only its owner and those who need it may read it");
        return Check::pass(FILE_MODE, finding);
    };
    let mut fix = Fix::default();
    for command in commands {
        fix = fix.then(StepKind::Shell, Place::Relay, command);
    }
    Check::warn(
        FILE_MODE,
        format!("{shown} holds a secret, and others may read it (mode {:o})", access.mode),
        fix.say("; or keep the secret in a file of its own (see _file in docs/configuration.md)"),
    )
}

fn our_groups() -> Vec<u32> {
    let others = getgroups().unwrap_or_default();
    others.into_iter().chain([getegid()]).map(Gid::as_raw).collect()
}

struct FileAccess {
    mode: u32,
    owner: u32,
    group: u32,
}

impl FileAccess {
    /// Commands that close the file to others but not to this user; `None` if it is closed.
    fn closed(&self, (user, groups): &(u32, Vec<u32>), file: &str) -> Option<Vec<String>> {
        // A service may read a file of root through its group, for example with the Debian package.
        let is_shared = self.owner != *user || self.owner == 0;
        let open = self.mode & if is_shared { 0o007 } else { 0o077 };
        if open == 0 {
            return None;
        }
        let by_group = self.mode & 0o040 != 0 && self.group != 0 && groups.contains(&self.group);
        Some(match (self.owner == *user, by_group) {
            (true, _) if !is_shared || self.group == 0 => vec![format!("chmod 600 {file}")],
            (true, _) | (false, true) => vec![format!("chmod 640 {file}")],
            (false, false) => vec![format!("chown {user} {file}"), format!("chmod 600 {file}")],
        })
    }
}

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

/// Lowest limit of the cgroups above this process, `u64::MAX` without one; `None` if unreadable.
pub(crate) fn memory_limit() -> Option<u64> {
    let of_process = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_of(Path::new("/sys/fs/cgroup"), &of_process)
}

/// Reads both versions of cgroups: `0::PATH` is version 2, `N:..,memory,..:PATH` version 1.
fn limit_of(mounts: &Path, of_process: &str) -> Option<u64> {
    /// Version 1 writes the largest multiple of the page size if there is no limit.
    const NONE_MIN: u64 = 1 << 62;
    let mut files = vec![
        (mounts.to_path_buf(), "memory.max", "/"),
        (mounts.join("memory"), "memory.limit_in_bytes", "/"),
    ];
    files.extend(of_process.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        if controllers.is_empty() {
            return Some((mounts.to_path_buf(), "memory.max", path));
        }
        let is_memory = controllers.split(',').any(|name| name == "memory");
        is_memory.then(|| (mounts.join("memory"), "memory.limit_in_bytes", path))
    }));
    let limits = files.iter().flat_map(|(mount, file, path)| {
        let folders = Path::new(path).ancestors().filter_map(|each| each.strip_prefix("/").ok());
        folders.filter_map(move |folder| {
            let limit = fs::read_to_string(mount.join(folder).join(file)).ok()?;
            Some(limit.trim().parse().ok().filter(|limit| *limit < NONE_MIN).unwrap_or(u64::MAX))
        })
    });
    limits.min()
}

/// Why memory may run out while brokers are away and rows wait.
pub(crate) fn too_large_together(streams: &[Loaded]) -> Option<String> {
    exceeds(in_flight(streams).saturating_add(BASE_BYTES), streams.len(), memory_limit()?)
}

pub(super) fn in_flight(streams: &[Loaded]) -> u64 {
    let each = streams.iter().map(|stream| stream.config.kafka.in_flight_bytes_max);
    each.fold(0, u64::saturating_add)
}

fn exceeds(needed: u64, streams: usize, limit: u64) -> Option<String> {
    let shown = |amount: u64| bytes(i64::try_from(amount).unwrap_or(i64::MAX));
    (needed > limit).then(|| {
        format!(
            "{} of memory are allowed, and the rows that {streams} streams have in flight may need {}: all of them end with \
             this process if it is killed for that",
            shown(limit),
            shown(needed)
        )
    })
}

/// `rows`: bytes in flight of all streams of the process.
fn memory_suffices(rows: u64, limit: Option<u64>) -> Check {
    const ID: &str = "host.memory";
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
                "{} are allowed, and {} may be needed with {} in flight (kafka.max_in_flight of each stream)",
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
    use std::os::unix::fs::PermissionsExt as _;

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
        assert_eq!(file_mode(&file, has_secret).outcome, Outcome::Warn);
        mode(0o600);
        assert_eq!(file_mode(&file, has_secret).outcome, Outcome::Pass);
        for url in ["postgres://app@db/shop", "postgres://app@db/shop?passfile=/run/pw"] {
            fs::write(&file, format!("[source]\nurl = \"{url}\"\n")).unwrap();
            mode(0o644);
            assert_eq!(file_mode(&file, has_secret).outcome, Outcome::Pass, "{url}");
        }
        let elsewhere = "[kafka.oauth]\nclient_secret_file = \"/run/secrets/a\"\n\
                         [kafka.properties]\n\"sasl.password_file\" = \"/run/secrets/b\"\n";
        fs::write(&file, elsewhere).unwrap();
        assert_eq!(file_mode(&file, has_secret).outcome, Outcome::Pass, "where secrets are");
        assert_eq!(file_mode(&file, |_| true).outcome, Outcome::Warn, "a token");
        assert_eq!(file_mode(folder.path(), has_secret).outcome, Outcome::Unknown);
    }

    #[test]
    fn streams_that_may_need_more_memory_than_there_is_are_told_at_the_start() {
        const MIB: u64 = 1 << 20;
        assert_eq!(memory_suffices(96 * MIB, Some(256 * MIB)).outcome, Outcome::Pass);
        assert_eq!(memory_suffices(97 * MIB, Some(256 * MIB)).outcome, Outcome::Warn);
        assert_eq!(exceeds(224 * MIB, 5, 256 * MIB), None);
        assert_eq!(exceeds(u64::MAX - 1, 5, u64::MAX), None, "no limit");
        let told = exceeds(1_664 * MIB, 50, 256 * MIB).unwrap();
        assert!(
            told.contains("256 MiB of memory are allowed") && told.contains("50 streams"),
            "{told}"
        );
    }

    #[test]
    fn memory_limits_of_both_versions_of_cgroups_are_read() {
        let mounts = tempfile::tempdir().unwrap();
        let write = |file: &str, limit: &str| {
            let file = mounts.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, limit).unwrap();
        };
        let limit = |of_process| limit_of(mounts.path(), of_process);
        assert_eq!(limit("0::/pod/a\n"), None);
        write("pod/memory.max", "268435456\n");
        write("pod/a/memory.max", "max\n");
        assert_eq!(limit("0::/pod/a\n"), Some(256 << 20));
        assert_eq!(limit("0::/\n"), None);
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit("4:memory:/docker/b\n0::/\n"), Some(u64::MAX));
        write("memory/docker/b/memory.limit_in_bytes", "67108864\n");
        assert_eq!(limit("5:cpu,memory:/docker/b\n0::/\n"), Some(64 << 20));
        assert_eq!(limit("5:cpuset:/docker/b\n0::/pod/a\n"), Some(256 << 20));
        // A container sees its own cgroup at the mount, under the path of the host.
        write("memory/memory.limit_in_bytes", "1048576\n");
        assert_eq!(limit("4:memory:/elsewhere\n"), Some(1 << 20));
    }

    #[test]
    fn a_file_that_is_closed_to_others_stays_open_to_whom_it_was() {
        const ROOT: u32 = 0;
        const US: u32 = 7;
        const OTHER: u32 = 9;
        let closed = |mode, owner, group, user| {
            let commands = FileAccess { mode, owner, group }.closed(&(user, vec![user]), "f");
            commands.map(|commands| commands.join("; "))
        };
        // The Debian package's file, for the service's user and for root.
        assert_eq!(closed(0o640, ROOT, US, US), None);
        assert_eq!(closed(0o640, ROOT, US, ROOT), None);
        assert_eq!(closed(0o644, ROOT, US, US).as_deref(), Some("chmod 640 f"));
        assert_eq!(closed(0o644, ROOT, US, ROOT).as_deref(), Some("chmod 640 f"));
        // The user's own file.
        assert_eq!(closed(0o600, US, US, US), None);
        assert_eq!(closed(0o640, US, US, US).as_deref(), Some("chmod 600 f"));
        assert_eq!(closed(0o644, ROOT, ROOT, ROOT).as_deref(), Some("chmod 600 f"));
        // A file that is readable only because everybody may read it.
        assert_eq!(closed(0o644, ROOT, ROOT, US).as_deref(), Some("chown 7 f; chmod 600 f"));
        assert_eq!(closed(0o644, OTHER, OTHER, US).as_deref(), Some("chown 7 f; chmod 600 f"));
    }
}
