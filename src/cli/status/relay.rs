//! Asks a running relay for its metrics and its readiness, over the HTTP that it serves.
//!
//! Input: `http.bind`. Output: [`RelayFacts`], or why there are none. Invariant: an answer is awaited for a bounded time
//! and up to a bounded size.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

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
    /// Records that the brokers have confirmed since it was started.
    pub(crate) confirmed: f64,
    /// Age of the oldest transaction that is not acknowledged, in seconds.
    pub(crate) oldest_seconds: f64,
    /// Seconds since it was started.
    pub(crate) uptime_seconds: f64,
}

/// Asks.
pub(crate) fn relay_facts(bind: Option<SocketAddr>) -> Result<RelayFacts, String> {
    let bind = bind.ok_or("http.bind is empty: a relay that runs serves no metrics")?;
    let address = reachable(bind);
    if address.port() == 0 {
        return Err("http.bind names no port".to_owned());
    }
    let readiness = get(address, "/readyz")
        .map_err(|error| format!("no relay answers at {address}: {error}"))?;
    let foreign = || format!("what answers at {address} is no relay");
    let health: Value = serde_json::from_str(&readiness).map_err(|_| foreign())?;
    let page = get(address, "/metrics").map_err(|error| error.to_string())?;
    let value = |name: &str| metric(&page, name).ok_or_else(foreign);
    let checks = health.get("checks").and_then(Value::as_array).ok_or_else(foreign)?;
    let holds = |value: &Value| value.get("ok").and_then(Value::as_bool) == Some(true);
    let text = |value: &Value, name: &str| Some(value.get(name)?.as_str()?.to_owned());
    let failing = checks.iter().filter(|check| !holds(check));
    Ok(RelayFacts {
        is_ready: holds(&health),
        state: text(&health, "state").ok_or_else(foreign)?,
        failing: failing.filter_map(|check| text(check, "detail")).collect(),
        confirmed: value("postrider_records_confirmed_total")?,
        oldest_seconds: value("postrider_oldest_unacknowledged_age_seconds")?,
        uptime_seconds: value("postrider_uptime_seconds")?,
    })
}

/// Where one connects to what listens there.
const fn reachable(bind: SocketAddr) -> SocketAddr {
    let host = match bind.ip() {
        IpAddr::V4(any) if any.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(any) if any.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        host => host,
    };
    SocketAddr::new(host, bind.port())
}

/// The body of an answer. HTTP/1.0: it ends with the connection.
fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(BYTES_MAX).read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    body.ok_or_else(|| std::io::Error::other("an answer without a body"))
}

/// The value of a metric without labels.
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
    }

    #[test]
    fn what_listens_everywhere_is_asked_on_this_machine() {
        let reached = |bind: &str| reachable(bind.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:9464"), "127.0.0.1:9464");
        assert_eq!(reached("[::]:9464"), "[::1]:9464");
        assert_eq!(reached("10.0.0.1:9464"), "10.0.0.1:9464");
        assert!(relay_facts(None).unwrap_err().contains("http.bind is empty"));
    }
}
