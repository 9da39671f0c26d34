//! Holds a page of metrics against Prometheus's own rules, by `promtool check metrics`.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use crate::skip::skip;

/// Whether the program is there, or why not.
static FETCHED: LazyLock<Result<(), String>> = LazyLock::new(|| {
    let fetched = Command::new(crate::root().join("docker/prometheus/fetch")).output();
    let fetched = fetched.map_err(|error| error.to_string())?;
    let why = || String::from_utf8_lossy(&fetched.stderr).trim().to_owned();
    if fetched.status.success() { Ok(()) } else { Err(why()) }
});

/// Fails unless the page, in the text format, is clean.
pub fn check_metrics(page: &str) {
    if let Err(why) = &*FETCHED {
        return skip("promtool check metrics", why);
    }
    let mut promtool = Command::new(crate::root().join(".servers/prometheus/promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    let faults = [said.stdout, said.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(said.status.success() && faults.concat().is_empty(), "{faults:?}\n{page}");
}
