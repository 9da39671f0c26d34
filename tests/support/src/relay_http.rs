//! A client of the relay's HTTP face.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;

use crate::relay::Running;
use crate::wait_for;

/// How long an answer may take, on a machine busy with other tests.
const ANSWER_LIMIT: Duration = Duration::from_mins(1);

/// Where a running relay answers.
#[derive(Debug, Clone)]
pub struct RelayHttp(String);

impl RelayHttp {
    /// Learns the address from the relay's log.
    pub fn of(relay: &mut Running) -> Self {
        let line = relay.wait_for_log("health and metrics over HTTP");
        let line: Value = serde_json::from_str(&line).unwrap();
        Self(line["address"].as_str().unwrap().to_owned())
    }

    /// Of an address, `HOST:PORT`, that is known.
    pub fn at(address: &str) -> Self {
        Self(address.to_owned())
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.0
    }

    /// Status and body.
    pub fn get(&self, path: &str) -> (u16, String) {
        let (head, body) = self.ask(path, &[]);
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
    }

    /// Head and body, asked for with further headers.
    pub fn ask(&self, path: &str, headers: &[(&str, &str)]) -> (String, String) {
        let mut stream = TcpStream::connect(&self.0).unwrap();
        stream.set_read_timeout(Some(ANSWER_LIMIT)).unwrap();
        let named = headers.iter().any(|(name, _)| *name == "host");
        let host = Some(("host", self.0.as_str())).filter(|_| !named);
        let mut lines = String::new();
        for (name, value) in host.iter().chain(headers) {
            write!(lines, "{name}: {value}\r\n").unwrap();
        }
        let request = format!("GET {path} HTTP/1.1\r\n{lines}connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    /// Status and the word for the state of a probe.
    pub fn probe(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.get(path);
        (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("{path}: {body}")))
    }

    /// A connection that says nothing.
    pub fn silent(&self) -> TcpStream {
        TcpStream::connect(&self.0).unwrap()
    }

    /// Whether anybody answers there.
    pub fn answers(&self) -> bool {
        TcpStream::connect(&self.0).is_ok()
    }

    /// Waits until `/readyz` has this status.
    pub fn wait_ready(&self, status: u16) -> Value {
        wait_for(&format!("/readyz {status}"), || {
            let (found, health) = self.probe("/readyz");
            (found == status).then_some(health)
        })
    }

    /// One sample of `/metrics`, such as `postrider_state{state="standby"}`.
    pub fn count(&self, series: &str) -> Option<u64> {
        self.sample(series)
    }

    /// A sample that may be no whole number.
    pub fn metric(&self, series: &str) -> Option<f64> {
        self.sample(series)
    }

    fn sample<T: FromStr>(&self, series: &str) -> Option<T> {
        let (status, page) = self.get("/metrics");
        assert_eq!(status, 200);
        let sample = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
        page.lines().find_map(sample)
    }

    /// Waits until a sample is this number.
    pub fn wait_count(&self, series: &str, number: u64) {
        wait_for(&format!("{series} {number}"), || {
            (self.count(series) == Some(number)).then_some(())
        });
    }

    /// Waits until a sample is what `wanted` says, and returns it.
    pub fn wait_metric(&self, series: &str, wanted: impl Fn(f64) -> bool) -> f64 {
        let mut last = None;
        let what = format!("{series} to be as wanted");
        wait_for(&what, || {
            let value = self.metric(series);
            if value != std::mem::replace(&mut last, value) {
                eprintln!("{series} {value:?}");
            }
            value.filter(|&value| wanted(value))
        })
    }
}
