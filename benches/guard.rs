//! What a guarded request costs in Redis: one script to begin and one to complete, against the six
//! commands of the version that is usually published ([`setnx`]).
//!
//! Both run on the same private Redis, each on one multiplexed connection, in rounds that take turns;
//! every request has a key of its own and stores the same response. Leaves a line of JSON for each number
//! of concurrent requests, with the median of its rounds: `cargo bench --bench guard -- figures`. A
//! plain `cargo bench` runs nothing of it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this crate is a bench; what goes wrong should stop it"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::idempotency::{
    BeginOutcome, Fingerprint, Guard, GuardSettings, Key, OwnerUpdate, Request, StoredResponse,
};
use postrider::sandbox::redis::Redis;
use redis::IntoConnectionInfo as _;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use serde_json::json;
use support::setnx::{Setnx, SetnxBegin};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

/// What has to be said for it to run.
const WORD: &str = "figures";
/// Of each side, for each number of concurrent requests.
const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(1_200);
const CONCURRENCIES: [u64; 3] = [1, 16, 64];
/// As an order service responds.
const BODY: &str =
    r#"{"id":"01936d3e-7c1a-7b90-a6a1-1f0c3c1f5a10","status":"placed","total_cents":1990}"#;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    if arguments.next().is_none_or(|word| word != WORD) {
        return;
    }
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Redis::start().unwrap();
    for concurrency in CONCURRENCIES {
        println!("{}", runtime.block_on(measure(&redis, concurrency)));
    }
}

async fn measure(redis: &Redis, concurrency: u64) -> serde_json::Value {
    let settings = GuardSettings::default().response_timeout(Duration::from_secs(5));
    let guard = Arc::new(Guard::connect(&redis.url(), &settings).unwrap());
    let guard = Side::Guard(guard, Arc::new(response()));
    let setnx = Side::Setnx(Setnx { connection: session(redis).await });
    let mut session = session(redis).await;

    let (mut of_guard, mut of_setnx) = (Vec::new(), Vec::new());
    // The first round of each warms up and is not counted.
    for round in 0..=ROUNDS {
        for (side, figures) in [(&guard, &mut of_guard), (&setnx, &mut of_setnx)] {
            let () = redis::cmd("FLUSHALL").query_async(&mut session).await.unwrap();
            let per_s = per_s(side, concurrency).await;
            if round > 0 {
                figures.push(per_s);
            }
        }
    }
    let (guard_per_s, setnx_per_s) = (median(of_guard), median(of_setnx));
    let (pending_bytes, completed_bytes) = memory(&guard, &mut session).await;
    json!({
        "guard_per_s": guard_per_s.round(), "setnx_per_s": setnx_per_s.round(),
        "ratio": (guard_per_s / setnx_per_s * 100.0).round() / 100.0, "concurrency": concurrency,
        "pending_bytes": pending_bytes, "completed_bytes": completed_bytes,
    })
}

/// Who is measured.
#[derive(Clone)]
enum Side {
    Guard(Arc<Guard>, Arc<StoredResponse>),
    Setnx(Setnx),
}

impl Side {
    /// Begins and completes one request, the first of its key.
    async fn run(&mut self, key: &str) {
        match self {
            Self::Guard(guard, response) => {
                let request = request(key);
                let BeginOutcome::New(lease) = guard.begin(&request).await else {
                    panic!("not new")
                };
                let completed = guard.complete(&lease, response).await;
                assert_eq!(completed, OwnerUpdate::Applied);
            }
            Self::Setnx(setnx) => {
                assert_eq!(setnx.begin(key).await.unwrap(), SetnxBegin::New);
                setnx.complete(key, BODY.as_bytes()).await.unwrap();
            }
        }
    }
}

fn request(key: &str) -> Request {
    let fingerprint = Fingerprint::of("POST", "/orders", BODY.as_bytes());
    Request::new("tenant-7 POST /orders", Key::parse(key).unwrap(), fingerprint).unwrap()
}

fn response() -> StoredResponse {
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    StoredResponse::new(201, headers, BODY).unwrap()
}

fn key(task: u64, number: u64) -> String {
    format!("8e03978e-40d5-43dd-{task:04x}-{number:012x}")
}

/// Requests per second of so many tasks, each of which makes one after the other.
async fn per_s(side: &Side, concurrency: u64) -> f64 {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..concurrency {
        let mut side = side.clone();
        tasks.spawn(async move {
            let mut done = 0;
            while start.elapsed() < ROUND {
                side.run(&key(task, done.into())).await;
                done += 1_u32;
            }
            done
        });
    }
    let done: u32 = tasks.join_all().await.iter().sum();
    f64::from(done) / start.elapsed().as_secs_f64()
}

/// Bytes of one key, as Redis counts them, while a request is at work and when it is answered.
async fn memory(side: &Side, session: &mut MultiplexedConnection) -> (u64, u64) {
    let Side::Guard(guard, response) = side else { panic!("the guard's") };
    let () = redis::cmd("FLUSHALL").query_async(session).await.unwrap();
    let BeginOutcome::New(lease) = guard.begin(&request(&key(0, 0))).await else {
        panic!("not new")
    };
    let pending = usage(session).await;
    guard.complete(&lease, response).await;
    (pending, usage(session).await)
}

async fn usage(session: &mut MultiplexedConnection) -> u64 {
    let key: Vec<u8> = redis::cmd("RANDOMKEY").query_async(session).await.unwrap();
    redis::cmd("MEMORY").arg("USAGE").arg(key).query_async(session).await.unwrap()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// A connection with the same settings as the guard's.
async fn session(redis: &Redis) -> MultiplexedConnection {
    let tcp = TcpSettings::default().set_nodelay(true);
    let info = redis.url().into_connection_info().unwrap().set_tcp_settings(tcp);
    let client = redis::Client::open(info).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}
