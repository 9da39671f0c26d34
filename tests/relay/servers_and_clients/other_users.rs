//! What the servers that demo, benchmarks and tests start are to other users of the machine: closed. A
//! superuser's session would be a shell of whoever runs the server (`COPY .. TO PROGRAM`).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use postrider::sandbox::password::RandomPassword;
use postrider::sandbox::postgres::Options;
use postrider::sandbox::redis::Redis;

use support::postgres;
use support::sql::Sql;
use support::wait::let_pass;

/// How often the command lines are read: initdb runs for much longer, and a connection too.
const POLL: Duration = Duration::from_millis(5);

/// All command lines on this machine from now on, which is what any user can read.
struct CommandLines {
    stop: Arc<AtomicBool>,
    reader: JoinHandle<BTreeSet<String>>,
}

impl CommandLines {
    fn read() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let reader = std::thread::spawn(move || {
            let mut seen = BTreeSet::new();
            while !stopped.load(Ordering::SeqCst) {
                for process in fs::read_dir("/proc").unwrap().map_while(Result::ok) {
                    // No process, or one that has ended meanwhile.
                    let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
                    seen.insert(String::from_utf8_lossy(&line).replace('\0', " "));
                }
                let_pass(POLL, "until the next reading");
            }
            seen
        });
        Self { stop, reader }
    }

    fn until_now(self) -> BTreeSet<String> {
        self.stop.store(true, Ordering::SeqCst);
        self.reader.join().unwrap()
    }
}

/// Of the command lines that contain `of`, none contains `secret`; and there were some.
fn assert_hidden(lines: &BTreeSet<String>, of: &str, secret: &str) {
    let mut found = lines.iter().filter(|line| line.contains(of)).peekable();
    assert!(found.peek().is_some(), "no command line with `{of}` was seen");
    assert!(!found.any(|line| line.contains(secret)), "a command line of `{of}` shows `{secret}`");
}

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_private_postgres_lets_in_by_its_password_alone() {
    for cluster in postgres::versions() {
        let login =
            |password| Sql::try_connect(&cluster.address().login_as("postgres", password).url());
        let wrong = login(Some("postgres")).unwrap_err();
        assert_eq!(wrong.code().unwrap().code(), "28P01", "{wrong:?}");
        // The server asks for one, and the client has none.
        let none = login(None).unwrap_err();
        assert!(format!("{none:?}").contains("password missing"), "{none:?}");
        Sql::connect(&cluster.url()).run("SELECT 1");
        // The socket asks for none: it lies where its account alone can go.
        Sql::connect(&cluster.unix_url()).run("SELECT 1");
        assert_eq!(mode(cluster.folder()), 0o700);
    }
}

#[test]
fn a_private_redis_lets_in_by_its_password_alone() {
    let redis = Redis::start().unwrap();
    let url = redis.url();
    let ping = |url: &str| -> redis::RedisResult<String> {
        let mut connection = redis::Client::open(url)?.get_connection()?;
        redis::cmd("PING").query(&mut connection)
    };
    assert_eq!(ping(&url).unwrap(), "PONG");
    let (_, place) = url.split_once('@').unwrap();
    let none = ping(&format!("redis://{place}")).unwrap_err();
    assert!(none.to_string().contains("NOAUTH"), "{none}");
    let other = RandomPassword::draw().unwrap();
    let wrong = ping(&format!("redis://:{}@{place}", other.as_str())).unwrap_err();
    assert_eq!(wrong.kind(), redis::ErrorKind::AuthenticationFailed, "{wrong}");
}

#[test]
fn no_command_line_of_a_server_has_its_password() {
    let all = [Some(Options::default()), postgres::eighteen_options()];
    for options in all.into_iter().flatten() {
        let lines = CommandLines::read();
        let cluster = postgres::start(&options);
        let sql = Sql::connect(&cluster.url());
        let redis = Redis::start().unwrap();
        let lines = lines.until_now();
        assert_eq!(sql.value("SELECT 1"), "1");
        let folder = cluster.folder().to_str().unwrap();
        let password = cluster.address().password.unwrap();
        // Who makes the cluster, who serves it, and whoever else there is.
        for of in ["initdb", folder, ""] {
            assert_hidden(&lines, of, &password);
        }
        let url = redis.url();
        let secret = url.trim_start_matches("redis://:").split('@').next().unwrap();
        assert_hidden(&lines, "redis-server", secret);
        assert_hidden(&lines, "", secret);
    }
}

#[test]
fn no_command_line_that_demo_and_bench_start_has_an_address_of_a_database() {
    let relay = concat!(env!("CARGO_BIN_EXE_postrider"), " run");
    // With few rows `pg_recvlogical` may have come and gone between two readings.
    let ceiling = ["bench", "ceiling", "--rows", "50000", "--transport", "tcp"];
    for (arguments, children) in [
        (&["demo", "--count", "100", "--output", "json"] as &[&str], &[relay] as &[&str]),
        (&ceiling, &[relay, "pg_recvlogical"]),
    ] {
        let lines = CommandLines::read();
        let output = Command::new(env!("CARGO_BIN_EXE_postrider"))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let lines = lines.until_now();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for child in children {
            assert_hidden(&lines, child, "source.url");
            assert_hidden(&lines, child, "postgres://postgres:");
        }
    }
}
