//! Clients that hang up in the midst of the work, over HTTP: the work goes on, and the next attempt has its
//! response soon after.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::post;
use postrider::idempotency::tower::IdempotencyLayer;
use postrider::idempotency::{Attempt, Guard};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_postgres::Transaction;

use crate::idempotency::dropped::lasting;
use crate::idempotency::execute::{Failed, Pool, record};
use crate::idempotency::fixture::{Database, guarded, response};
use crate::idempotency::layer::send;
use support::task::let_pass;

/// So many hang up; another number in the environment.
const HANG_UPS: usize = 50;
const HANG_UPS_VARIABLE: &str = "POSTRIDER_HANG_UPS";
/// So many at a time, each with a session of its own.
const AT_ONCE: usize = 25;
/// After its client has hung up.
const WORK: Duration = Duration::from_millis(600);
/// Far less than the lease and the wait for the response, and enough for a machine that does much else.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// What the work says to its client's test, and hears.
struct Hooks {
    begun: oneshot::Sender<()>,
    hung_up: oneshot::Receiver<()>,
}

/// A service whose work is slow.
#[derive(Clone)]
struct Slow {
    pool: Arc<Pool>,
    /// By key.
    hooks: Arc<Mutex<HashMap<String, Hooks>>>,
    ended: Arc<Mutex<HashMap<String, Instant>>>,
}

async fn work(
    State(slow): State<Slow>,
    Extension(attempt): Extension<Attempt>,
) -> Result<Response, Failed> {
    let key = attempt.request().unwrap().key().as_str().to_owned();
    let number = key.parse().unwrap();
    let mut client = slow.pool.session(number).lock().await;
    let effect = async |transaction: &Transaction<'_>| {
        record(transaction, attempt.request().unwrap()).await?;
        let hooks = slow.hooks.lock().unwrap().remove(&key);
        let Hooks { begun, hung_up } = hooks.unwrap();
        begun.send(()).unwrap();
        hung_up.await.unwrap();
        let_pass(WORK, "the work is slow").await;
        let response = response(&key);
        slow.ended.lock().unwrap().insert(key, Instant::now());
        Ok::<_, Failed>(response)
    };
    Ok(attempt.run(&mut client, effect).await?.into_http())
}

async fn serve(slow: Slow, guard: Guard) -> SocketAddr {
    let guarded = IdempotencyLayer::new(guard, "POST /", |_: &Parts| Some("all".to_owned()));
    let router = Router::new().route("/", post(work).layer(guarded)).with_state(slow);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Hangs up, comes again; how long after the end of the work it had the response.
async fn hang_up(address: SocketAddr, slow: &Slow, number: usize) -> Duration {
    let key = number.to_string();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\ncontent-length: 0\r\n\r\n"
    );
    let (begun, has_begun) = oneshot::channel();
    let (gone, hung_up) = oneshot::channel();
    slow.hooks.lock().unwrap().insert(key.clone(), Hooks { begun, hung_up });
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    has_begun.await.unwrap();
    drop(stream);
    gone.send(()).unwrap();
    let response = send(address, &format!("POST / HTTP/1.1\r\nidempotency-key: {key}"), "").await;
    let answered = Instant::now();
    assert_eq!((response.status, response.body.as_str()), (201, key.as_str()), "{response:?}");
    assert_eq!(response.header("idempotent-replayed"), Some("true"), "the work has gone on");
    let ended = slow.ended.lock().unwrap()[&key];
    answered.saturating_duration_since(ended)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_hang_up_the_next_attempt_has_its_answer_soon_after_the_works_end() {
    let hang_ups = std::env::var(HANG_UPS_VARIABLE).map_or(HANG_UPS, |all| all.parse().unwrap());
    let (_redis, guard) = guarded(&lasting());
    let database = Database::migrated().await;
    let pool = Pool::of(&database, AT_ONCE).await;
    let slow = Slow { pool, hooks: Arc::default(), ended: Arc::default() };
    let address = serve(slow.clone(), guard.with_waiting(Duration::from_mins(1), AT_ONCE)).await;
    let mut tasks = JoinSet::new();
    for client in 0..AT_ONCE {
        let slow = slow.clone();
        tasks.spawn(async move {
            let mut longest = Duration::ZERO;
            for number in (client..hang_ups).step_by(AT_ONCE) {
                longest = longest.max(hang_up(address, &slow, number).await);
            }
            longest
        });
    }
    let longest = tasks.join_all().await.into_iter().max().unwrap();
    assert!(longest <= ANSWER_MAX, "{longest:?}");
    assert_eq!(database.effects().await, i64::try_from(hang_ups).unwrap(), "one effect each");
}
