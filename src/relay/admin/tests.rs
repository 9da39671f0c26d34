//! Tests of the control API over real connections. A stub replaces the program that runs the relay.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use super::*;
use crate::telemetry::{BuildInfo, Listener, serve};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

struct Scene {
    folder: tempfile::TempDir,
    stop: StopSignal,
    telemetry: Telemetry,
    admin: Admin,
}

/// Stub program that accepts the filters `info` and `debug`, and refuses to reload.
fn scene() -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let (stop, telemetry) = (StopSignal::default(), Telemetry::new(BuildInfo::default()));
    let (orders, mut ordered) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut filter = "info".to_owned();
        while let Some(order) = ordered.recv().await {
            match order {
                Order::Reload(answer) => {
                    let outcome = ReloadOutcome::Refused;
                    let report = ReloadReport { outcome, ..ReloadReport::unchanged() };
                    let _ = answer.send(report);
                }
                Order::LogLevel(wanted, answer) => {
                    let known = wanted.is_none_or(|wanted| {
                        filter.clone_from(&wanted);
                        ["info", "debug"].contains(&wanted.as_str())
                    });
                    let _ = answer.send(if known { Ok(filter.clone()) } else { Err("no".into()) });
                }
            }
        }
    });
    let grace = Duration::from_secs(25);
    let admin = Admin::new(stop.clone(), telemetry.clone(), orders, grace);
    Scene { folder, stop, telemetry, admin }
}

impl Scene {
    fn token_file(&self) -> PathBuf {
        let file = self.folder.path().join("token");
        std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
        file
    }

    async fn at_http(&self, access: Access) -> SocketAddr {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address();
        let admin = Some((self.admin.clone(), access));
        let tap = Some(postrider_kafka::DeliveredTap::default());
        tokio::spawn(serve(listener, self.telemetry.clone(), tap, admin, std::future::pending()));
        address
    }
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> (u16, String) {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

fn request(what: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{what} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}

async fn ask(address: SocketAddr, what: &str, headers: &str, body: &str) -> (u16, String) {
    let stream = TcpStream::connect(address).await.unwrap();
    exchange(stream, &request(what, headers, body)).await
}

const CHANGES: [&str; 5] = [
    "POST /api/v1/pause",
    "POST /api/v1/resume",
    "POST /api/v1/drain",
    "POST /api/v1/reload",
    "PUT /api/v1/log-level",
];

#[tokio::test(flavor = "current_thread")]
async fn without_a_socket_and_a_token_nobody_changes_anything_and_is_told_how() {
    let scene = scene();
    let address = scene.at_http(Access::at_http(None, None)).await;
    for what in CHANGES {
        let (status, answer) = ask(address, what, "", "").await;
        assert!(status == 403 && answer.contains("http.control.socket"), "{what}: {answer}");
    }
    assert_eq!(ask(address, "GET /readyz", "", "").await.0, 503, "questions are answered");
    let socket = PathBuf::from("/run/x");
    let address = scene.at_http(Access::at_http(None, Some(&socket))).await;
    let (status, answer) = ask(address, "POST /api/v1/drain", "", "").await;
    assert!(status == 403 && answer.contains("--unix-socket /run/x"), "{answer}");
    assert_eq!(scene.stop.most_urgent(), ControlRequest::Run);
    assert!(!scene.stop.control().is_paused());
}

#[tokio::test(flavor = "current_thread")]
async fn a_token_lets_in_and_nothing_like_it_does() {
    let scene = scene();
    let file = scene.token_file();
    let address = scene.at_http(Access::at_http(Some(&file), None)).await;
    let right = format!("authorization: Bearer {TOKEN}\r\n");
    let wrong = [
        String::new(),
        format!("authorization: {TOKEN}\r\n"),
        format!("authorization: Basic {TOKEN}\r\n"),
        format!("authorization: Bearer {TOKEN}0\r\n"),
        format!("authorization: Bearer {}\r\n", &TOKEN[1..]),
        "authorization: Bearer \r\n".to_owned(),
    ];
    for headers in wrong {
        for what in CHANGES {
            let (status, answer) = ask(address, what, &headers, "").await;
            assert!(status == 401 && answer.contains("www-authenticate: Bearer"), "{answer}");
            assert!(!answer.contains(TOKEN), "{answer}");
        }
    }
    for browser in ["origin: http://127.0.0.1", "origin: null", "sec-fetch-site: same-origin"] {
        let headers = format!("{right}{browser}\r\n");
        let (status, answer) = ask(address, "POST /api/v1/pause", &headers, "").await;
        assert!(status == 403 && answer.contains("no browser"), "{answer}");
    }
    assert!(!scene.stop.control().is_paused());
    assert_eq!(ask(address, "POST /api/v1/pause", &right, "").await.0, 200);
    assert!(scene.stop.control().is_paused());
    // A new token does not need a restart, and an empty file refuses every caller.
    std::fs::write(&file, "another-token-of-enough-characters").unwrap();
    assert_eq!(ask(address, "POST /api/v1/resume", &right, "").await.0, 401);
    std::fs::write(&file, "").unwrap();
    assert_eq!(ask(address, "POST /api/v1/resume", &right, "").await.0, 403);
    let empty = "authorization: Bearer \r\n";
    assert_eq!(ask(address, "POST /api/v1/resume", empty, "").await.0, 403);
}

#[tokio::test(flavor = "current_thread")]
async fn what_is_malformed_too_large_or_slow_is_refused() {
    let scene = scene();
    let address = scene.at_http(Access::Socket).await;
    for (what, body, status) in [
        ("POST /api/v1/pause", "{}", 400),
        ("PUT /api/v1/log-level", "", 400),
        ("PUT /api/v1/log-level", "loud", 400),
        ("PUT /api/v1/log-level", " \u{0} ", 400),
        ("GET /api/v1/pause", "", 405),
        ("DELETE /api/v1/log-level", "", 405),
        ("POST /api/v1/status", "", 405),
        ("POST /api/v1/nothing", "", 404),
        ("POST /api/v1/pause/", "", 404),
        ("NONSENSE /api/v1/pause", "", 405),
    ] {
        assert_eq!(ask(address, what, "", body).await.0, status, "{what} {body:?}");
    }
    let large = "x".repeat(BODY_BYTES_MAX + 1);
    assert_eq!(ask(address, "PUT /api/v1/log-level", "", &large).await.0, 413);
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "PUT /api/v1/log-level HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nde";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    let limit = BODY_LIMIT + Duration::from_secs(20);
    tokio::time::timeout(limit, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    let (status, answer) = ask(address, "GET /api/v1/log-level", "", "").await;
    assert!(status == 200 && !scene.stop.control().is_paused(), "{answer}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_socket_is_its_owners_and_does_what_it_says() {
    let scene = scene();
    let path = scene.folder.path().join("control");
    let socket = ControlSocket::bind(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (end, ended) = oneshot::channel::<()>();
    let served = tokio::spawn(socket.serve(scene.admin.clone(), async {
        let _ = ended.await;
    }));
    let ask = async |what: &str, body: &str| {
        let stream = UnixStream::connect(&path).await.unwrap();
        exchange(stream, &request(what, "", body)).await
    };
    let (status, answer) = ask("POST /api/v1/pause", "").await;
    assert!(status == 200 && answer.contains("\"paused\":true"), "{answer}");
    assert!(scene.telemetry.view().operated.paused_since_us.is_some());
    let (_, answer) = ask("GET /api/v1/status", "").await;
    assert!(answer.contains("paused since"), "{answer}");
    let (_, answer) = ask("POST /api/v1/resume", "").await;
    assert!(answer.contains("\"paused\":false") && !scene.stop.control().is_paused(), "{answer}");
    let (status, answer) = ask("PUT /api/v1/log-level", "debug\n").await;
    assert!(status == 200 && answer.ends_with("{\"filter\":\"debug\"}"), "{answer}");
    assert_eq!(ask("POST /api/v1/reload", "").await.0, 422);
    let (status, answer) = ask("POST /api/v1/drain", "").await;
    assert!(status == 202 && answer.contains("waits_for"), "{answer}");
    assert_eq!(scene.stop.most_urgent(), ControlRequest::Drain);
    assert_eq!(ask("POST /api/v1/drain", "").await.0, 202, "again: nothing changes");
    assert_eq!(scene.stop.most_urgent(), ControlRequest::Drain);
    assert_eq!(ask("POST /api/v1/pause", "").await.0, 409);
    assert!(matches!(ControlSocket::bind(&path), Err(SocketError::Taken(_))));
    end.send(()).unwrap();
    served.await.unwrap().unwrap();
    assert!(!path.exists(), "the file goes with the relay");
}

#[tokio::test(flavor = "current_thread")]
async fn what_is_left_of_a_socket_is_replaced_and_other_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let socket = ControlSocket::bind(&path).unwrap();
    drop(socket);
    std::fs::write(&path, "mine").unwrap();
    assert!(matches!(ControlSocket::bind(&path), Err(SocketError::NoSocket(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    let nowhere = Path::new("/nowhere/control");
    let error = ControlSocket::bind(nowhere).unwrap_err();
    assert!(error.hint().contains("/nowhere"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
}

#[tokio::test(flavor = "current_thread")]
async fn the_document_is_what_there_is() {
    let scene = scene();
    let address = scene.at_http(Access::Socket).await;
    let (_, answer) = ask(address, "GET /api/v1/openapi.json", "", "").await;
    assert!(answer.ends_with(OPENAPI), "it is served as it is");
    let document: Document = from_json(OPENAPI);
    let methods = ["get", "put", "post", "delete", "patch"];
    let mut named = BTreeSet::new();
    // The operations that end the relay come last, because they change later responses.
    for (path, operations) in &document.paths {
        for method in methods {
            let what = format!("{} {path}", method.to_uppercase());
            let status = ask(address, &what, "", "").await.0;
            let exists = ![404, 405].contains(&status);
            assert_eq!(exists, operations.contains_key(method), "{what}: {status}");
            if exists {
                let known = operations[method].responses.get(&status.to_string());
                let told = known.map(|response| response.description.as_str()).unwrap_or_default();
                assert!(
                    !told.is_empty(),
                    "{what} answers {status}, of which the document says nothing"
                );
                named.insert(what);
            }
        }
    }
    for what in CHANGES {
        assert!(named.contains(what), "{what}");
    }
}

#[derive(serde::Deserialize)]
struct Document {
    paths: std::collections::BTreeMap<String, std::collections::BTreeMap<String, Operation>>,
}

#[derive(serde::Deserialize)]
struct Operation {
    responses: std::collections::BTreeMap<String, Described>,
}

#[derive(serde::Deserialize)]
struct Described {
    description: String,
}

fn from_json(text: &str) -> Document {
    Json::from_bytes(text.as_bytes()).map(|Json(document)| document).unwrap()
}
