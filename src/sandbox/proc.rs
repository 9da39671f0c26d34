//! Reads CPU time and memory of a process from Linux's `/proc`, for benchmarks. A process that has
//! exited but was not waited for still shows its CPU time, but no memory.

use std::fs;
use std::time::Duration;

/// `USER_HZ` of `/proc/PID/stat`, fixed at 100 on every Linux port in use.
const TICKS_PER_SECOND: u64 = 100;

/// Contents of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stat {
    /// User and system time of all threads.
    pub cpu: Duration,
    /// True for an exited process that was not waited for.
    pub is_zombie: bool,
}

/// Reads `/proc/PID/stat`.
pub fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Peak resident memory in bytes (`VmHWM`).
pub fn peak_rss_bytes(pid: u32) -> Option<u64> {
    status_bytes(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmHWM:")
}

/// CPU time of a server: postmaster, current and ended processes.
pub fn server_cpu(postmaster: u32) -> Option<Duration> {
    let line = fs::read_to_string(format!("/proc/{postmaster}/stat")).ok()?;
    let ended = children_cpu(&line)?;
    let children = format!("/proc/{postmaster}/task/{postmaster}/children");
    let children = fs::read_to_string(children).ok()?;
    let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    let now: Duration = children.filter_map(|pid| Some(stat(pid)?.cpu)).sum();
    Some(parse_stat(&line)?.cpu + ended + now)
}

/// Counts only children that were waited for.
fn children_cpu(line: &str) -> Option<Duration> {
    let (_, rest) = line.rsplit_once(')')?;
    let mut times = rest.split_ascii_whitespace().skip(13);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 1_000 / TICKS_PER_SECOND))
}

/// CPU time of the child of `postmaster` that reads WAL for a client: its walsender, or a session
/// that copies a backlog. At most one of them works at a time in a private cluster.
pub fn walsender_cpu(postmaster: u32) -> Option<Duration> {
    wal_readers(postmaster).into_iter().filter_map(|pid| Some(stat(pid)?.cpu)).max()
}

/// Children of `postmaster` that read WAL for a client now.
pub fn wal_readers(postmaster: u32) -> Vec<u32> {
    let children = format!("/proc/{postmaster}/task/{postmaster}/children");
    let children = fs::read_to_string(children).unwrap_or_default();
    let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter(|pid| reads_wal(*pid)).collect()
}

fn reads_wal(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    [&b"walsender"[..], b" COPY"].iter().any(|name| line.windows(name.len()).any(|at| at == *name))
}

/// Resident memory in bytes without files (`RssAnon`), which the kernel cannot drop.
pub fn private_bytes(pid: u32) -> Option<u64> {
    status_bytes(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "RssAnon:")
}

/// Current resident memory in bytes.
pub fn rss_bytes(pid: u32) -> Option<u64> {
    status_bytes(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
}

fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The command name in field 2 may contain spaces and parentheses, so fields count after the last
/// parenthesis.
fn parse_stat(line: &str) -> Option<Stat> {
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let is_zombie = fields.next()? == "Z";
    let mut times = fields.skip(10);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    let milliseconds = (user + system) * 1_000 / TICKS_PER_SECOND;
    Some(Stat { cpu: Duration::from_millis(milliseconds), is_zombie })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_of_any_name_are_read() {
        let line = "12 (a (b) c) Z 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 99 0 0";
        let stat = parse_stat(line).unwrap();
        assert_eq!(stat, Stat { cpu: Duration::from_secs(2), is_zombie: true });
        let of_children = line.replace("150 50 0 0", "150 50 300 100");
        assert_eq!(children_cpu(&of_children), Some(Duration::from_secs(4)));
        assert_eq!(parse_stat("nonsense"), None);
    }

    #[test]
    fn our_own_figures_are_plausible() {
        let pid = std::process::id();
        assert!(!stat(pid).unwrap().is_zombie);
        assert!(peak_rss_bytes(pid).unwrap() > 100_000);
        assert!(private_bytes(pid).unwrap() < rss_bytes(pid).unwrap());
        assert_eq!(stat(u32::MAX), None);
    }
}
