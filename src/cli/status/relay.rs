//! Asks a running relay for its metrics and its readiness over HTTP. Time and size of an answer are
//! bounded; the relay of another slot is ignored.

use std::fmt;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(2);
/// The metrics of a relay with 1,000 topics are smaller.
const BYTES_MAX: u64 = 4 << 20;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RelayFacts {
    pub(crate) is_ready: bool,
    /// For example `streaming`.
    pub(crate) state: String,
    pub(crate) failing: Vec<String>,
    pub(crate) paused: Option<String>,
    pub(crate) confirmed: u64,
    /// In seconds; `None` if the relay is paused or does not read the slot.
    pub(crate) oldest_seconds: Option<f64>,
    pub(crate) uptime_seconds: f64,
    /// Whether the relay reads the slot or polls, and is not a standby.
    pub(crate) reads_slot: bool,
    /// If the relay is not ready and serves its dashboard.
    pub(crate) status: Option<RelayStatus>,
}

/// State in the relay's own sentences: `status` of `/api/v1/state`.
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
    pub(crate) fn what(&self) -> String {
        let cause = self.cause.as_ref().map(|cause| format!(" {cause}")).unwrap_or_default();
        format!("{}.{cause}", self.headline)
    }

    pub(crate) fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    pub(crate) fn command(&self) -> Option<&str> {
        let help = self.help().unwrap_or_default();
        self.command.as_deref().filter(|command| !help.contains(command))
    }

    pub(crate) fn steps(&self) -> Vec<String> {
        let command = self.command().map(|command| format!("Run: {command}"));
        self.help().map(str::to_owned).into_iter().chain(command).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Silence {
    /// No address is configured.
    Nowhere(String),
    /// No relay of this slot answers.
    None(String),
    /// A process accepted the connection and does not answer.
    Hangs(String),
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Nowhere(why) | Self::None(why) | Self::Hangs(why)) = self;
        f.write_str(why)
    }
}

/// `slot` is `None` if rows are polled.
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
    let foreign = || Silence::None(format!("the server at {address} is not a relay"));
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

/// Address to connect to: `bind`, with loopback instead of an unspecified address.
pub(crate) const fn reachable(bind: SocketAddr) -> SocketAddr {
    let host = match bind.ip() {
        IpAddr::V4(any) if any.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(any) if any.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        host => host,
    };
    SocketAddr::new(host, bind.port())
}

fn get(address: SocketAddr, path: &str) -> Result<String, Silence> {
    answer(address, path).map(|(_, body)| body)
}

/// HTTP/1.0: the body ends with the connection.
pub(crate) fn answer(address: SocketAddr, path: &str) -> Result<(u16, String), Silence> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)
        .map_err(|error| Silence::None(format!("no relay answers at {address}: {error}")))?;
    let answer = ask(&mut stream, address, path).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Silence::Hangs(format!(
            "the server at {address} accepted the connection and has not answered for {} s",
            LIMIT.as_secs()
        )),
        _ => Silence::None(format!("no relay answers at {address}: {error}")),
    })?;
    let read = || {
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    };
    read().ok_or_else(|| Silence::None(format!("the server at {address} is not a relay")))
}

fn ask(stream: &mut TcpStream, address: SocketAddr, path: &str) -> std::io::Result<String> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// Metrics of one of several streams, without its label.
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
