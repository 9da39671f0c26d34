//! The README's five minutes: from an empty database to a record that another Kafka client reads, with one role that owns
//! everything and with two. The second role and exactly-once delivery have their own pages.

use std::path::Path;
use std::process::{Command, Stdio};

use postrider::sandbox::binaries;
use postrider::sandbox::postgres::{Cluster, Options};

use support::sql::Sql;
use support::{kafka, postgres, skip, topic};

/// The section of the README that is run.
const README: (&str, &str) = ("README.md", "## Your own database, in five minutes");

/// The section about two roles.
const TWO_ROLES: (&str, &str) = ("docs/operations/setup.md", "### Two roles");

/// The section about exactly-once delivery.
const EXACTLY_ONCE: (&str, &str) =
    ("docs/operations/kafka.md", "### Switch a relay to exactly-once delivery");

/// Topics that the section makes, with their names as a reader sees them.
const TOPICS: [&str; 3] = ["OrderPaid", "postrider.dead-letters", "postrider.progress.postrider"];

/// `run` stays in the foreground of a reader's first terminal; here it goes on beside the rest. `tail`
/// prints for a terminal, as the README shows it.
const BESIDE: &str = "
postrider() {
  case \"$1\" in
    run) command postrider \"$@\" & ;;
    tail) script --quiet --return --command \"postrider $*\" /dev/null ;;
    *) command postrider \"$@\" ;;
  esac
}
stop() { kill $(jobs -p) && wait; }
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
";

/// A fenced block: its language and its text.
type Block = (String, String);

fn blocks((page, heading): (&str, &str)) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once(heading).unwrap();
    let end = format!("\n{} ", heading.split_once(' ').unwrap().0);
    let section = section.split(&end).next().unwrap();
    let mut parts = section.split("```");
    let mut blocks = Vec::new();
    while let (Some(_), Some(block)) = (parts.next(), parts.next()) {
        let (language, text) = block.split_once('\n').unwrap();
        blocks.push((language.to_owned(), text.to_owned()));
    }
    blocks
}

/// The only block with these words in it.
fn block<'a>(blocks: &'a [Block], language: &str, words: &str) -> &'a str {
    let mut found = blocks.iter().filter(|(of, text)| of == language && text.contains(words));
    let (_, text) = found.next().unwrap_or_else(|| panic!("the page has no `{words}`"));
    assert!(found.next().is_none(), "`{words}` twice");
    text
}

/// Words, but for what differs in every run: times, ids and positions.
fn shape(text: &str) -> Vec<&str> {
    let is_time = |word: &&str| word.starts_with("20") && word.ends_with('Z');
    text.split_whitespace().filter(|word| !is_time(word)).map(steady).collect()
}

fn steady(word: &str) -> &str {
    let varies = ["id=", "postrider-lsn="];
    varies.into_iter().find(|varying| word.starts_with(varying)).unwrap_or(word)
}

/// Which of the README's two ways to share the rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rights {
    One,
    Two,
}

impl Rights {
    /// Who owns the database and its tables.
    const fn owner(self) -> &'static str {
        match self {
            Self::One => "postrider",
            Self::Two => "owner",
        }
    }
}

/// The section as a script, with the reader's own servers in the place of the README's.
fn script(rights: Rights) -> String {
    let (two_roles, exactly_once) = (blocks(TWO_ROLES), blocks(EXACTLY_ONCE));
    let blocks = blocks(README);
    let install = block(&blocks, "sh", "cargo install");
    assert!(install.contains("--locked") && install.contains("--path ."), "{install}");
    let export = block(&blocks, "sh", "export PGHOST");
    for variable in [
        "PGHOST=",
        "PGUSER=postrider",
        "PGDATABASE=shop",
        "POSTRIDER_KAFKA__BROKERS=",
        "POSTRIDER_PROGRESS__AT_LEAST_ONCE=true",
    ] {
        assert!(export.contains(variable), "{export}");
    }
    let setup = match rights {
        Rights::One => block(&blocks, "sh", "postrider setup --topics=OrderPaid # "),
        Rights::Two => block(&two_roles, "sh", "PGUSER=owner postrider setup"),
    };
    let run = block(&blocks, "sh", "# Until it is told to stop");
    let insert = block(&blocks, "sql", "INSERT INTO outbox");
    let read = block(&blocks, "sh", "kcat");
    let exactly = block(&exactly_once, "sh", "postrider adopt --execute");
    // The application writes, which is the owner here.
    let owner = rights.owner();
    let psql = format!("PGUSER={owner} psql --quiet --set ON_ERROR_STOP=1");
    format!(
        "{BESIDE}{setup}\n{run}\n{psql} <<'SQL'\n{insert}SQL\n{read}\nstop\n{exactly}\n\
         {psql} <<'SQL'\n{insert}SQL\n\
         kcat -C -b \"$POSTRIDER_KAFKA__BROKERS\" -t OrderPaid -o beginning -c 2 -f 'again %k %s\\n'\n\
         stop\n"
    )
}

fn prepare(cluster: &Cluster, rights: Rights) {
    let sql = Sql::connect(&cluster.unix_url());
    let owner = rights.owner();
    sql.run("CREATE ROLE postrider LOGIN REPLICATION; CREATE ROLE owner LOGIN");
    sql.run(&format!("CREATE DATABASE shop OWNER {owner}"));
}

fn follow(cluster: &Cluster, bootstrap: &str, rights: Rights) {
    prepare(cluster, rights);
    let address = cluster.address();
    let folder = tempfile::tempdir().unwrap();
    let own = Path::new(env!("CARGO_BIN_EXE_postrider")).parent().unwrap();
    let programs = [own.to_path_buf(), binaries::find().unwrap()];
    let path = std::env::var_os("PATH").unwrap();
    let path = programs.into_iter().chain(std::env::split_paths(&path));
    let output = Command::new("timeout")
        .args(["240", "bash", "-e", "-u", "-o", "pipefail", "-c", &script(rights)])
        .env_clear()
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("HOME", folder.path())
        .env("NO_COLOR", "1")
        .env("PGHOST", &address.socket_folder)
        .env("PGPORT", address.port.to_string())
        .env("PGUSER", "postrider")
        .env("PGDATABASE", "shop")
        .env("POSTRIDER_KAFKA__BROKERS", bootstrap)
        .env("POSTRIDER_PROGRESS__AT_LEAST_ONCE", "true")
        .env("POSTRIDER_HTTP__BIND", "127.0.0.1:0")
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{rights:?}: {}\n{said}\n{log}", output.status);
    // The record as the README shows it, read by two clients, and once more exactly once.
    let blocks = blocks(README);
    let (shown, printed) = (shape(block(&blocks, "", "postrider-lsn")), shape(&said));
    assert!(printed.windows(shown.len()).any(|part| part == shown), "no {shown:?} in {said}");
    assert!(said.contains("\n42 {\"amount\": 1.50}\n"), "{said}");
    assert_eq!(said.matches("again 42 {\"amount\": 1.50}").count(), 2, "{said}");
}

#[test]
fn the_five_minutes_of_the_readme_end_in_a_record() {
    let options = kafka::Options { auto_create: false, ..kafka::Options::default() };
    let Some(kafka) = kafka::start(&options) else { return };
    if Command::new("kcat").arg("-V").output().is_err() {
        skip::skip("the README's five minutes", "kcat is not installed");
        return;
    }
    let mut versions = vec![Options::default()];
    versions.extend(postgres::eighteen_options());
    for options in versions {
        for rights in [Rights::One, Rights::Two] {
            let cluster = postgres::start(&options);
            follow(&cluster, &kafka.bootstrap(), rights);
            for name in TOPICS {
                topic::delete(&kafka.bootstrap(), name);
            }
        }
    }
}
