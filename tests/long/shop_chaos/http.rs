//! One HTTP request, and its response, if it is complete.
//!
//! Input: an address and a request. Output: an [`Response`], or an error where the other side is not
//! there, dies meanwhile, or says nothing in time.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::timeout;

/// A complete response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Names in small letters.
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    /// The first header of that name, which is in small letters.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn parse(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers = headers
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let answer = Self { status, headers, body: body.to_owned() };
        // A server that dies in the middle closes the connection like one that is done.
        let is_whole = answer.header("content-length")?.parse() == Ok(body.len());
        is_whole.then_some(answer)
    }
}

/// A request on a connection of its own.
pub(crate) fn post(path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let length = body.len().to_string();
    let fixed = [("host", "shop"), ("connection", "close"), ("content-length", &length)];
    let lines = fixed.iter().chain(headers).map(|(name, value)| format!("{name}: {value}"));
    let head: Vec<String> = std::iter::once(format!("POST {path} HTTP/1.1")).chain(lines).collect();
    format!("{}\r\n\r\n{body}", head.join("\r\n"))
}

/// Sends a request and waits for the answer.
pub(crate) async fn exchange(
    address: SocketAddr,
    request: &str,
    limit: Duration,
) -> Result<Response> {
    let exchange = async {
        let mut stream = send(address, request).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Response::parse(&text).ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))
    };
    timeout(limit, exchange).await.map_err(|_| Error::from(ErrorKind::TimedOut))?
}

/// Sends a request; dropping the connection disconnects.
pub(crate) async fn send(address: SocketAddr, request: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

/// Asks for a page, outside of any runtime.
pub(crate) fn get(address: SocketAddr, path: &str, limit: Duration) -> Result<Response> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n");
    runtime.block_on(exchange(address, &request, limit))
}
