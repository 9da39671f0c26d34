//! Asks a running relay for its metrics and its readiness, over the HTTP that it serves.
//!
//! Input: `http.bind`, and the slot that is meant. Output: [`RelayFacts`], or a [`Silence`]. Invariant: an answer is awaited
//! for a bounded time and up to a bounded size; the relay of another slot is none of ours; a standby and a paused relay read
//! nothing, so that their age of the oldest transaction is not known.

use std::fmt;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

/// How long the relay may take.
const LIMIT: Duration = Duration::from_secs(2);
/// The page of metrics of a relay with 1,000 topics is smaller.
const BYTES_MAX: u64 = 4 << 20;

/// What a relay says of itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RelayFacts {
    /// Every check of its readiness holds.
    pub(crate) is_ready: bool,
    /// Such as `streaming`.
    pub(crate) state: String,
    /// The checks that do not hold, with what they say.
    pub(crate) failing: Vec<String>,
    /// What it says of its pause, if it is paused.
    pub(crate) paused: Option<String>,
    /// Records that the brokers have confirmed since it was started.
    pub(crate) confirmed: u64,
    /// Age of the oldest transaction that is not acknowledged, in seconds; `None`: it does not read the slot, or is paused,
    /// and does not know.
    pub(crate) oldest_seconds: Option<f64>,
    /// Seconds since it was started.
    pub(crate) uptime_seconds: f64,
    /// Whether it is the one that reads the slot, or polls.
    pub(crate) reads_slot: bool,
    /// Only of a relay that is not ready, and serves its dashboard.
    pub(crate) status: Option<RelayStatus>,
}

/// State of a relay in its own sentences: `status` of `/api/v1/state`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct RelayStatus {
    /// `ok`, `waiting`, `failed` or `unknown`.
    pub(crate) level: String,
    headline: String,
    cause: Option<String>,
    help: Option<String>,
    command: Option<String>,
}

impl RelayStatus {
    /// Headline and cause.
    pub(crate) fn what(&self) -> String {
        let cause = self.cause.as_ref().map(|cause| format!(" {cause}")).unwrap_or_default();
        format!("{}.{cause}", self.headline)
    }

    /// Advice, which may hold the command.
    pub(crate) fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Command to run next, unless the advice holds it.
    pub(crate) fn command(&self) -> Option<&str> {
        let help = self.help().unwrap_or_default();
        self.command.as_deref().filter(|command| !help.contains(command))
    }

    /// Advice and command, each on a line.
    pub(crate) fn steps(&self) -> Vec<String> {
        let command = self.command().map(|command| format!("Run: {command}"));
        self.help().map(str::to_owned).into_iter().chain(command).collect()
    }
}

/// Why there are no [`RelayFacts`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Silence {
    /// No address to ask is configured.
    Nowhere(String),
    /// No relay of this slot is there.
    None(String),
    /// Something took the connection, and does not answer.
    Hangs(String),
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Nowhere(why) | Self::None(why) | Self::Hangs(why)) = self;
        f.write_str(why)
    }
}

/// Asks. `slot`: that of the relay; `None`: rows are polled. `stream`: its name, if it has one.
pub(crate) fn relay_facts(
    bind: Option<SocketAddr>,
    slot: Option<&str>,
    stream: Option<&str>,
) -> Result<RelayFacts, Silence> {
    let nowhere = |why: &str| Silence::Nowhere(why.to_owned());
    let bind = bind.ok_or_else(|| nowhere("http.bind is empty: a relay cannot be asked"))?;
    let address = reachable(bind);
    if address.port() == 0 {
        return Err(nowhere("http.bind has port 0: a relay cannot be asked"));
    }
    let foreign = || Silence::None(format!("what answers at {address} is no relay"));
    let mut readiness = get(address, "/readyz")?;
    let is_of_several = readiness.contains("\"streams\":[");
    let stream = stream.filter(|_| is_of_several);
    let page = match stream {
        Some(name) => {
            readiness = get(address, &format!("/readyz?stream={name}"))?;
            of_stream(&get(address, &format!("/metrics?stream={name}"))?, name)
        }
        None => get(address, "/metrics")?,
    };
    let health: Value = serde_json::from_str(&readiness).map_err(|_| foreign())?;
    let value = |name: &str| metric(&page, name).ok_or_else(foreign);
    let reads_slot = match slot {
        None => true,
        Some(slot) => {
            let other = || {
                Silence::None(format!(
                    "the relay that answers at {address} is not of slot `{slot}`"
                ))
            };
            let active = format!("postrider_slot_active{{slot_name=\"{slot}\"}}");
            metric(&page, &active).ok_or_else(other)? > 0.0
        }
    };
    let checks = health.get("checks").and_then(Value::as_array).ok_or_else(foreign)?;
    let holds = |value: &Value| value.get("ok").and_then(Value::as_bool) == Some(true);
    let text = |value: &Value, name: &str| Some(value.get(name)?.as_str()?.to_owned());
    let is_paused = |check: &&Value| check.get("name").is_some_and(|name| name == "paused");
    let failing = checks.iter().filter(|check| !holds(check));
    let paused = checks.iter().find(is_paused).and_then(|check| text(check, "detail"));
    let oldest = value("postrider_oldest_unacknowledged_age_seconds")?;
    let oldest_seconds = (reads_slot && paused.is_none()).then_some(oldest);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count below 2^53"
    )]
    let confirmed = value("postrider_records_confirmed_total")? as u64;
    let is_ready = holds(&health);
    Ok(RelayFacts {
        is_ready,
        state: text(&health, "state").ok_or_else(foreign)?,
        failing: failing.filter_map(|check| text(check, "detail")).collect(),
        paused,
        confirmed,
        oldest_seconds,
        uptime_seconds: value("postrider_uptime_seconds")?,
        reads_slot,
        status: if is_ready { None } else { status(address, stream) },
    })
}

/// `None` if the relay serves no dashboard.
fn status(address: SocketAddr, stream: Option<&str>) -> Option<RelayStatus> {
    let query = stream.map(|name| format!("?stream={name}")).unwrap_or_default();
    let mut state: Value =
        serde_json::from_str(&get(address, &format!("/api/v1/state{query}")).ok()?).ok()?;
    serde_json::from_value(state.get_mut("status")?.take()).ok()
}

/// Where one connects to what listens there.
pub(crate) const fn reachable(bind: SocketAddr) -> SocketAddr {
    let host = match bind.ip() {
        IpAddr::V4(any) if any.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(any) if any.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        host => host,
    };
    SocketAddr::new(host, bind.port())
}

/// The body of an answer, whatever its status.
fn get(address: SocketAddr, path: &str) -> Result<String, Silence> {
    answer(address, path).map(|(_, body)| body)
}

/// Status and body of an answer. HTTP/1.0: it ends with the connection.
pub(crate) fn answer(address: SocketAddr, path: &str) -> Result<(u16, String), Silence> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)
        .map_err(|error| Silence::None(format!("no relay answers at {address}: {error}")))?;
    let answer = ask(&mut stream, address, path).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Silence::Hangs(format!(
            "what listens at {address} took the connection and has not answered for {} s",
            LIMIT.as_secs()
        )),
        _ => Silence::None(format!("no relay answers at {address}: {error}")),
    })?;
    let read = || {
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    };
    read().ok_or_else(|| Silence::None(format!("what answers at {address} is no relay")))
}

fn ask(stream: &mut TcpStream, address: SocketAddr, path: &str) -> std::io::Result<String> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// The lines of one of several streams, as a relay of its own would have them.
fn of_stream(page: &str, name: &str) -> String {
    let label = format!("stream=\"{name}\"");
    let lines = page.lines().filter_map(|line| {
        let (before, after) = line.split_once(&label)?;
        let (before, after) = match (before.strip_suffix(','), after.strip_prefix(',')) {
            (Some(before), _) => (before, after),
            (None, Some(after)) => (before, after),
            (None, None) => (before.strip_suffix('{')?, after.strip_prefix('}')?),
        };
        Some(format!("{before}{after}\n"))
    });
    lines.collect()
}

/// The value of a metric, by its name and labels as they are printed.
fn metric(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let page = "# HELP a_total x\na_total_more 7\na_total 3.5\nb{c=\"d\"} 1\n";
        assert_eq!((metric(page, "a_total"), metric(page, "b")), (Some(3.5), None));
        assert_eq!(metric(page, "b{c=\"d\"}"), Some(1.0));
        let page = "a{stream=\"x\"} 1\na{stream=\"y\"} 2\nb{c=\"d\",stream=\"y\"} 3\nb{stream=\"y\",e=\"f\"} 4\n";
        assert_eq!(of_stream(page, "y"), "a 2\nb{c=\"d\"} 3\nb{e=\"f\"} 4\n");
    }

    #[test]
    fn what_listens_everywhere_is_asked_on_this_machine() {
        let reached = |bind: &str| reachable(bind.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:9464"), "127.0.0.1:9464");
        assert_eq!(reached("[::]:9464"), "[::1]:9464");
        assert_eq!(reached("10.0.0.1:9464"), "10.0.0.1:9464");
        let why = relay_facts(None, None, None).unwrap_err();
        assert!(matches!(&why, Silence::Nowhere(why) if why.contains("http.bind is empty")));
    }

    #[test]
    fn what_takes_the_connection_and_says_nothing_hangs() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let silent = relay_facts(Some(address), Some("s"), None);
        assert!(matches!(silent, Err(Silence::Hangs(_))), "{silent:?}");
        drop(listener);
        let gone = relay_facts(Some(address), Some("s"), None);
        assert!(matches!(gone, Err(Silence::None(_))), "{gone:?}");
    }
}
