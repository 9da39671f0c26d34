//! What `make package` makes of a program: the same bytes each time, and a Debian package that installs.

use std::path::Path;
use std::process::{Command, Stdio};

use support::skip::skip;

#[test]
fn packages_are_the_same_twice_and_are_installed_upgraded_and_removed() {
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("docker/package/check");
    let output = Command::new(check)
        .arg(env!("CARGO_BIN_EXE_postrider"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    for line in said.lines().filter_map(|line| line.strip_prefix("SKIPPED packages: ")) {
        skip("packages", line);
    }
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 77)), "{said}{complaints}");
}
