//! The password of the relay's role is replaced again and again, and the server ends the role's sessions more often: the
//! relay comes back each time, with the password that holds then.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use support::relay_http::RelayHttp;
use support::wait::let_pass;
use support::{kafka, unique, wait_for};

use super::Finding;
use super::streamed::{Streamed, restarts};

/// How long a file has the old password while the server has the new one, at every second change.
const LATE: Duration = Duration::from_millis(200);
/// What 99 of 100 reconnects must not take.
const RECONNECT_LIMIT_MS: u64 = 3_000;

struct Scale {
    lasts: Duration,
    /// Between two ends of the sessions.
    ends: Duration,
    /// At each such end of them the password is another one.
    ends_per_change: usize,
}

pub(super) fn run(is_full: bool) -> Option<Finding> {
    let seconds = Duration::from_secs;
    let scale = if is_full {
        Scale { lasts: seconds(600), ends: seconds(5), ends_per_change: 4 }
    } else {
        Scale { lasts: seconds(20), ends: seconds(2), ends_per_change: 2 }
    };
    let kafka = kafka::shared()?;
    let mut streamed = Streamed::new("passwords", &kafka.bootstrap());
    let role = unique("replaced");
    let create = "LOGIN REPLICATION PASSWORD 'password0'; GRANT SELECT ON outbox TO";
    streamed.sql.run(&format!("CREATE ROLE {role} {create} {role}"));
    let folder = tempfile::tempdir().unwrap();
    write_password(folder.path(), "password0");
    let file = folder.path().join("password");
    let source = streamed.database.address().login_as(&role, None);
    let relay = streamed
        .relay(&source, &kafka.bootstrap())
        .set("source.password_command", &format!("cat,{}", file.display()))
        .allow_log("");
    let mut running = relay.run();
    let http = RelayHttp::of(&mut running);
    http.wait_ready(200);
    let (begun, mut took_ms, mut changes) = (Instant::now(), Vec::new(), 0);
    while begun.elapsed() < scale.lasts && !running.has_ended() {
        let round = Instant::now();
        let password = (took_ms.len() % scale.ends_per_change == 0).then(|| {
            changes += 1;
            format!("password{changes}")
        });
        let replaced =
            password.as_deref().map(|password| Replaced { password, folder: folder.path() });
        // The server has it first, or the relay.
        took_ms.push(reconnect(&streamed, &role, replaced.as_ref(), changes % 2 == 0));
        streamed.write_while((10, 100), |_| round.elapsed() < scale.ends);
    }
    let is_alive = !running.has_ended();
    streamed.wait_acknowledged();
    let restarts = restarts(&http);
    running.stop();
    let (mut figures, is_delivered) = streamed.account();
    took_ms.sort_unstable();
    let part = |percent: usize| took_ms.get((took_ms.len() * percent).div_ceil(100) - 1);
    let p99 = part(99).copied().unwrap_or_default();
    figures["changes"] = json!(changes);
    figures["ends"] = json!(took_ms.len());
    figures["restarts"] = json!(restarts);
    figures["exits"] = json!(u8::from(!is_alive));
    figures["reconnect_ms"] = json!({"p50": part(50), "p99": p99, "max": took_ms.last()});
    let is_soon = !is_full || p99 < RECONNECT_LIMIT_MS;
    Some(Finding { figures, is_sound: is_alive && is_delivered && is_soon })
}

/// A password that comes with an end of the sessions, and the folder of its file.
struct Replaced<'a> {
    password: &'a str,
    folder: &'a Path,
}

/// Ends the role's sessions, perhaps with a new password, which the relay may get late; milliseconds until the slot is in
/// use again.
fn reconnect(
    streamed: &Streamed,
    role: &str,
    replaced: Option<&Replaced<'_>>,
    is_late: bool,
) -> u64 {
    let sql = &streamed.sql;
    let in_use = "SELECT coalesce(active_pid, 0) FROM pg_replication_slots WHERE slot_name = current_database()";
    let before =
        wait_for("the slot to be in use", || Some(sql.value(in_use)).filter(|pid| pid != "0"));
    if let Some(Replaced { password, folder }) = replaced {
        sql.run(&format!("ALTER ROLE {role} PASSWORD '{password}'"));
        if !is_late {
            write_password(folder, password);
        }
    }
    sql.rows(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
    ));
    let ended = Instant::now();
    if let (Some(Replaced { password, folder }), true) = (replaced, is_late) {
        let_pass(LATE, "the password is late");
        write_password(folder, password);
    }
    wait_for("the slot to be in use again", || {
        let pid = sql.value(in_use);
        (pid != "0" && pid != before).then_some(())
    });
    u64::try_from(ended.elapsed().as_millis()).unwrap()
}

/// The way secrets are replaced: another file takes the name.
fn write_password(folder: &Path, password: &str) {
    let next = folder.join("next");
    fs::write(&next, password).unwrap();
    fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(next, folder.join("password")).unwrap();
}
