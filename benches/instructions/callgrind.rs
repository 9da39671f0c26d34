//! Counts the instructions of a workload with valgrind's callgrind.
//!
//! Input: a workload's name and a number of rows. Output: instructions from the start of the process to its end, or
//! [`Unavailable`]. Invariant: the workload runs in an environment of its own, the same on every machine.

use std::process::{Command, Stdio};

/// Vector instructions that glibc is not to choose its functions by: those that it then takes are in every x86-64
/// processor. glibc ignores names that it does not know; before 2.33 they ended in `_Usable`.
const GLIBC: &str = "glibc.cpu.hwcaps=-AVX512VL,-AVX512F,-AVX512BW,-AVX2,-AVX,-BMI2,-ERMS,-FSRM,-RTM,-SSSE3,-SSE4_1,\
                     -SSE4_2,-MOVBE,-LZCNT,-AVX_Fast_Unaligned_Load,-AVX2_Usable,-AVX512F_Usable,-AVX512VL_Usable";

/// What precedes the count on standard error.
const COLLECTED: &str = "Collected :";

/// Why there is no count.
#[derive(Debug)]
pub(crate) enum Unavailable {
    /// There is no valgrind.
    NotInstalled,
    /// It did not come to an end, with what it said.
    Failed(String),
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotInstalled => f.write_str("valgrind is not installed"),
            Self::Failed(said) => write!(f, "callgrind counted nothing: {said}"),
        }
    }
}

impl std::error::Error for Unavailable {}

/// Instructions of the whole process.
pub(crate) fn instructions(workload: &str, rows: usize) -> Result<u64, Unavailable> {
    let failed = |error: std::io::Error| Unavailable::Failed(error.to_string());
    let this = std::env::current_exe().map_err(failed)?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(this)
        .args(["count", workload, &rows.to_string()])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GLIBC_TUNABLES", GLIBC)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Unavailable::NotInstalled,
            _ => failed(error),
        })?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let collected = collected(&said).filter(|_| output.status.success());
    collected.ok_or(Unavailable::Failed(said))
}

/// The count in what callgrind says at its end.
fn collected(said: &str) -> Option<u64> {
    let line = said.lines().find_map(|line| line.split_once(COLLECTED))?;
    line.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::collected;

    #[test]
    fn the_count_is_found_among_what_callgrind_says() {
        let said = "==7== Callgrind, a call-graph generating cache profiler\n==7== Events    : Ir\n\
                    ==7== Collected : 482918\n==7== \n==7== I   refs:      482,918\n";
        assert_eq!(collected(said), Some(482_918));
        assert_eq!(collected("==7== Events    : Ir\n"), None);
        assert_eq!(collected("==7== Collected : \n"), None);
    }
}
