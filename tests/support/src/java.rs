//! Java programs that tests start: their jars, and flags that keep them small and quick to start.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use postrider_sandbox::account::Account;

use super::{postgres, root};

/// None of them changes what a program does.
const FLAGS: [&str; 5] =
    ["-Xms64m", "-XX:+UseSerialGC", "-Xshare:auto", "-XX:-UsePerfData", "-Djava.awt.headless=true"];

/// What Kafka's own scripts start a program with (`bin/kafka-run-class.sh`, `bin/connect-standalone.sh`), but for the
/// largest heap.
pub const SCRIPT_FLAGS: [&str; 7] = [
    "-server",
    "-Xms256m",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
];

/// Starts sooner, and stays slow.
const ONE_COMPILER: &str = "-XX:TieredStopAtLevel=1";

/// What a program is started for.
#[derive(Debug, Clone, Copy)]
pub enum Purpose {
    /// To be there soon.
    Test,
    /// To be measured, as it would run in earnest.
    Measurement,
    /// To be compared with, as its own script starts it.
    Script,
}

/// How a program logs; it looks for it in its home.
const LOGGING: &str = "docker/kafka/log4j2.properties";

/// The jars that `docker/FOLDER/fetch` copied, readable for the account of the servers; or why this
/// machine cannot have or use them. `POSTRIDER_KAFKA_JARS` names the folder of another Apache Kafka.
pub fn jars(folder: &str) -> Result<PathBuf, String> {
    if !Command::new("java").arg("-version").output().is_ok_and(|out| out.status.success()) {
        return Err("Java is not installed (apt-get install default-jre-headless)".to_owned());
    }
    if folder == "kafka"
        && let Some(other) = std::env::var_os("POSTRIDER_KAFKA_JARS")
    {
        return Ok(postgres::readable(Path::new(&other)));
    }
    let script = root().join("docker").join(folder).join("fetch");
    let output = Command::new(&script).stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let last =
            words.lines().last().map_or_else(|| format!("docker/{folder}/fetch"), Into::into);
        return Err(last);
    }
    Ok(postgres::readable(&script.with_file_name("libs")))
}

/// `java` as `account` in `home`, with a heap of up to `heap_mib`; the caller adds the main class
/// and its arguments.
pub fn command(
    purpose: Purpose,
    account: Account,
    home: &Path,
    jars: &Path,
    heap_mib: u32,
) -> Command {
    let logging = home.join("log4j2.properties");
    if !logging.exists() {
        let source = root().join(LOGGING);
        std::fs::copy(source, &logging).unwrap();
    }
    let mut command = Command::new("java");
    account.apply(&mut command);
    let flags = if matches!(purpose, Purpose::Script) { &SCRIPT_FLAGS[..] } else { &FLAGS };
    command
        .args(flags)
        .args(matches!(purpose, Purpose::Test).then_some(ONE_COMPILER))
        .arg(format!("-Xmx{heap_mib}m"))
        .arg(format!("-Dlog4j2.configurationFile={}", logging.display()))
        .arg(format!("-Djava.io.tmpdir={}", home.display()))
        .arg("-cp")
        .arg(jars.join("*"))
        .current_dir(home)
        .env_remove("JAVA_TOOL_OPTIONS")
        .stdin(Stdio::null())
        .process_group(0);
    command
}
