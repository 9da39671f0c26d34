//! Finds PostgreSQL's server binaries for temporary servers.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::SandboxError;

/// Variable with the folder of `initdb` and `postgres`.
pub const VARIABLE: &str = "POSTRIDER_PG_BIN";

/// Has a subfolder per major version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// Folder with `initdb` and `postgres`: `$POSTRIDER_PG_BIN`, else the PATH, else Debian's highest
/// version, else `pg_config`. If the variable is set, it must be right.
pub fn find() -> Result<PathBuf, SandboxError> {
    if let Some(folder) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        let folder = PathBuf::from(folder);
        return resolve(&folder).ok_or_else(|| SandboxError::NoPostgres {
            looked_in: vec![format!("{VARIABLE}={}", folder.display())],
        });
    }
    on_path()
        .or_else(|| highest(Path::new(DEBIAN)))
        .or_else(by_pg_config)
        .ok_or_else(|| SandboxError::NoPostgres { looked_in: looked_in() })
}

fn looked_in() -> Vec<String> {
    vec![format!("${VARIABLE}"), "PATH".into(), format!("{DEBIAN}/*/bin"), "pg_config".into()]
}

/// PostgreSQL finds its libraries relative to the real folder.
fn resolve(folder: &Path) -> Option<PathBuf> {
    let initdb = folder.join("initdb").canonicalize().ok()?;
    let home = initdb.parent()?.to_path_buf();
    (initdb.is_file() && home.join("postgres").is_file()).then_some(home)
}

fn on_path() -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).find_map(|folder| resolve(&folder))
}

fn highest(root: &Path) -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir(root)
        .ok()?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, resolve(&entry.path().join("bin"))?))
        })
        .collect();
    versions.sort();
    versions.pop().map(|(_, folder)| folder)
}

fn by_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    resolve(Path::new(String::from_utf8(output.stdout).ok()?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(root: &Path, version: &str) {
        let bin = root.join(version).join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("initdb"), "").unwrap();
        std::fs::write(bin.join("postgres"), "").unwrap();
    }

    #[test]
    fn the_highest_complete_version_wins_by_number_not_by_name() {
        let root = tempfile::tempdir().unwrap();
        install(root.path(), "9");
        install(root.path(), "15");
        std::fs::create_dir_all(root.path().join("17/bin")).unwrap();
        let found = highest(root.path()).unwrap();
        assert!(found.ends_with("15/bin"), "{}", found.display());
    }

    #[test]
    fn nothing_found_names_the_debian_package() {
        let error = SandboxError::NoPostgres { looked_in: looked_in() };
        assert!(error.to_string().contains("/usr/lib/postgresql/*/bin"), "{error}");
        assert!(error.hint().unwrap().contains("apt-get install postgresql"));
    }
}
