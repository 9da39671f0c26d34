//! The command line as a user meets it: the built binary, its output, its exit codes.
//!
//! No server is touched here; what needs one is in `tests/relay`.

mod commands;
mod import;
mod package;

use std::path::Path;
use std::process::Command;

/// The binary in this folder, with no environment but a user's name for Postgres.
fn postrider(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.env_clear().env("PGUSER", "tester").env("HOME", folder).current_dir(folder);
    command
}
