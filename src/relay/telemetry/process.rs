//! Memory, CPU time and open files of this process for the `process_*` metrics. Empty on systems
//! without /proc.

use std::fs;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Usage {
    pub(super) resident_bytes: Option<u64>,
    pub(super) resident_bytes_max: Option<u64>,
    /// User and system time in clock ticks of 10 ms: USER_HZ is 100 on every supported Linux.
    pub(super) cpu_ticks: Option<u64>,
    pub(super) open_files: Option<u64>,
}

pub(super) fn usage() -> Usage {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let files = fs::read_dir("/proc/self/fd").ok();
    Usage {
        resident_bytes: status_bytes(&status, "VmRSS:"),
        resident_bytes_max: status_bytes(&status, "VmHWM:"),
        cpu_ticks: cpu_ticks(&stat),
        open_files: files.and_then(|files| files.count().try_into().ok()),
    }
}

fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Fields 14 and 15 of stat in proc(5). The name in field 2 may contain spaces and parentheses.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_lines_are_read() {
        assert_eq!(status_bytes("VmPeak:\t 9 kB\nVmRSS:\t   12 kB\n", "VmRSS:"), Some(12 * 1024));
        let stat = "1 (a ) b) S 1 1 1 0 -1 4194560 10 20 30 40 7 5 0 0 20 0 1 0 100";
        assert_eq!(cpu_ticks(stat), Some(12));
        assert_eq!(cpu_ticks("nonsense"), None);
    }
}
