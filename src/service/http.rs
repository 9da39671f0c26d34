//! An HTTP/1 server with limits, so that clients cannot exhaust the process's file descriptors.
//!
//! Invariant: at most [`connections_max`] connections are open. A connection that does not send a
//! request within [`HEADER_LIMIT`] is closed. At the maximum, the next connection replaces the
//! oldest one without a request in progress.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::prometheus::{Format, Label, Metrics, render, render_all};

/// Time for the head of a request, the first or the next one. Exceeds the 15 s between two scrapes,
/// so that they share one connection.
pub const HEADER_LIMIT: Duration = Duration::from_secs(20);
/// Probes and scrapes need a handful, and a shop's clients are pooled.
const CONNECTIONS_MAX: u64 = 256;
/// Incoming connections get a quarter of all descriptors. The rest is for Postgres, Kafka (a few
/// per broker) and files.
const SHARE: u64 = 4;
/// Pause while the system has no descriptor.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

pub fn connections_max() -> usize {
    share_of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

pub fn metrics_response(metrics: impl Metrics, headers: &HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let about = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
    (about, render(metrics, format)).into_response()
}

pub fn metrics_response_of_all(
    parts: Vec<(Option<Label>, impl Metrics)>,
    headers: &HeaderMap,
) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let about = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
    (about, render_all(parts, format)).into_response()
}

fn share_of(descriptors: u64) -> usize {
    usize::try_from((descriptors / SHARE).clamp(1, CONNECTIONS_MAX)).unwrap_or(1)
}

pub trait Accept: Send {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// After `shutdown` completes, finishes the requests that have begun.
pub async fn serve(
    listener: impl Accept,
    routes: Router,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let bounds = Bounds { connections_max: connections_max(), header_limit: HEADER_LIMIT };
    serve_within(listener, routes, shutdown, bounds).await
}

#[derive(Clone, Copy)]
struct Bounds {
    connections_max: usize,
    header_limit: Duration,
}

async fn serve_within(
    listener: impl Accept,
    routes: Router,
    shutdown: impl Future<Output = ()>,
    bounds: Bounds,
) -> io::Result<()> {
    let mut server = Server {
        routes,
        bounds,
        open: VecDeque::new(),
        tasks: JoinSet::new(),
        stopping: watch::Sender::new(false),
    };
    tokio::pin!(shutdown);
    loop {
        let stream = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.next() => match accepted {
                Ok(stream) => stream,
                // The peer has gone, or descriptors ran out. Neither ends the server.
                Err(error) => {
                    if !is_of_peer(&error) {
                        tokio::time::sleep(EXHAUSTED_PAUSE).await;
                    }
                    continue;
                }
            },
        };
        tokio::select! {
            () = &mut shutdown => break,
            () = server.make_room() => server.take(stream),
        }
    }
    drop(listener);
    server.finish().await;
    Ok(())
}

fn is_of_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

struct Server {
    routes: Router,
    bounds: Bounds,
    /// In the order in which they were accepted.
    open: VecDeque<Open>,
    tasks: JoinSet<()>,
    stopping: watch::Sender<bool>,
}

struct Open {
    task: AbortHandle,
    is_busy: Arc<AtomicBool>,
}

impl Server {
    /// Closes the connection that has been silent for longest, or waits until one ends.
    async fn make_room(&mut self) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            self.open.retain(|open| !open.task.is_finished());
            if self.open.len() < self.bounds.connections_max {
                return;
            }
            let silent = self.open.iter().position(|open| !open.is_busy.load(Ordering::Acquire));
            if let Some(open) = silent.and_then(|at| self.open.remove(at)) {
                open.task.abort();
            }
            // A connection's descriptor is free after its task has ended.
            let _ = self.tasks.join_next().await;
        }
    }

    fn take(&mut self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let is_busy = Arc::new(AtomicBool::new(false));
        let stopping = self.stopping.subscribe();
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.bounds.header_limit);
        let (routes, busy) = (self.routes.clone(), Arc::clone(&is_busy));
        let task =
            self.tasks.spawn(async move { answer(&http, stream, routes, busy, stopping).await });
        self.open.push_back(Open { task, is_busy });
    }

    async fn finish(mut self) {
        for open in &self.open {
            if !open.is_busy.load(Ordering::Acquire) {
                open.task.abort();
            }
        }
        self.stopping.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn answer(
    http: &http1::Builder,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    routes: Router,
    is_busy: Arc<AtomicBool>,
    mut stopping: watch::Receiver<bool>,
) {
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(move |request: Request<Incoming>| {
        is_busy.store(true, Ordering::Release);
        let (answer, is_busy) = (routes.call(request), Arc::clone(&is_busy));
        async move {
            let answer = answer.await;
            is_busy.store(false, Ordering::Release);
            answer
        }
    });
    let connection = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let told = async {
        // The sender outlives every connection.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    };
    // Errors of the peer: it went away, was silent, or did not speak HTTP.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = told => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Instant;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::{Notify, oneshot};

    use super::*;

    /// `begun`: a slow request has started; `enough` ends it.
    struct Started {
        address: SocketAddr,
        begun: Arc<Notify>,
        enough: Arc<Notify>,
        stop: oneshot::Sender<()>,
    }

    async fn started(connections_max: usize) -> Started {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let begun = Arc::new(Notify::new());
        let enough = Arc::new(Notify::new());
        let (begins, ends) = (Arc::clone(&begun), Arc::clone(&enough));
        let slow = move || async move {
            begins.notify_one();
            ends.notified().await;
            "slow"
        };
        let routes = Router::new().route("/", get(|| async { "here" })).route("/slow", get(slow));
        let shutdown = async move { drop(stopped.await) };
        let bounds = Bounds { connections_max, header_limit: Duration::from_millis(500) };
        tokio::spawn(serve_within(listener, routes, shutdown, bounds));
        Started { address, begun, enough, stop }
    }

    async fn fetch(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn silent_connections_make_room_and_busy_ones_do_not() {
        let Started { address, begun, enough, stop: _stop } = started(4).await;
        let slow = tokio::spawn(async move { fetch(address, "/slow").await });
        begun.notified().await;
        let mut silent = Vec::new();
        for _ in 0..50 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let asked = Instant::now();
        assert!(fetch(address, "/").await.ends_with("here"));
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        enough.notify_one();
        assert!(slow.await.unwrap().ends_with("slow"));
        assert_eq!(silent[0].read(&mut [0; 8]).await.unwrap_or(0), 0);
    }

    #[tokio::test]
    async fn who_says_nothing_or_half_a_head_is_closed() {
        let Started { address, stop: _stop, .. } = started(64).await;
        for head in ["", "GET / HTTP/1.1\r\nhost:"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let closed = stream.read_to_end(&mut answer);
            let closed = tokio::time::timeout(Duration::from_secs(20), closed);
            assert!(closed.await.is_ok(), "`{head}` is open");
        }
    }

    #[tokio::test]
    async fn a_shutdown_lets_a_request_end_and_waits_for_nobody_else() {
        let Started { address, begun, enough, stop } = started(8).await;
        let _silent = TcpStream::connect(address).await.unwrap();
        let slow = tokio::spawn(async move { fetch(address, "/slow").await });
        begun.notified().await;
        let asked = Instant::now();
        stop.send(()).unwrap();
        enough.notify_one();
        assert!(slow.await.unwrap().ends_with("slow"));
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    }

    #[test]
    fn three_quarters_of_the_descriptors_are_for_others() {
        let shares = [0, 3, 256, 1_024, u64::MAX].map(share_of);
        assert_eq!(shares, [1, 1, 64, 256, 256]);
    }
}
