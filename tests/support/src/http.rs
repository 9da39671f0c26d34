//! A client of HTTP that sends what it is told, right or wrong.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// What came back.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }
}

/// How long an answer may take on a machine that does much else.
const ANSWER_LIMIT: Duration = Duration::from_mins(1);

/// Sends a request; `None` where the connection broke.
pub fn send(address: &str, head: &str, body: &[u8]) -> Option<Response> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).unwrap();
    exchange(stream, head, body)
}

/// Sends a request to a local socket; `None` where the connection broke.
pub fn send_local(socket: &Path, head: &str) -> Option<Response> {
    let stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).unwrap();
    exchange(stream, head, b"")
}

fn exchange(mut stream: impl Read + Write, head: &str, body: &[u8]) -> Option<Response> {
    let length = body.len();
    let head =
        format!("{head}\r\nhost: shop\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    // A server that refuses a body need not read it.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header = |line: &str| {
        line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
    };
    Some(Response { status, headers: lines.filter_map(header).collect(), body: body.to_owned() })
}

/// `POST /orders` with a key.
pub fn place(address: &str, key: &str, body: &str) -> Option<Response> {
    let head = format!(
        "POST /orders HTTP/1.1\r\ncontent-type: application/json\r\nidempotency-key: {key}"
    );
    send(address, &head, body.as_bytes())
}

/// `GET`.
pub fn get(address: &str, path: &str) -> Response {
    send(address, &format!("GET {path} HTTP/1.1"), b"").unwrap()
}
