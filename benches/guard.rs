//! What a guarded request costs in Redis: one command to begin and one to complete, against both forms in
//! which a lock in Redis is published: three round trips ([`SetNxEx`]) and six ([`Setnx`]).
//!
//! Input: the word `figures`: `cargo bench --bench guard -- figures`; a plain `cargo bench` runs nothing of
//! it. Output: a line of JSON for each number of concurrent requests, on Redis and on a server whose SET has
//! IFEQ, which lets the guard do without a script. Requests per second, the ratios
//! of rounds that followed each other, and the processor time that a request took in Redis and in the client
//! are each `[median, least, most]` of the rounds. Invariant: all run on the same private server, each on
//! one multiplexed connection, in rounds that take turns; every request has a key of its own and stores
//! the same response.

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
use serde_json::{Value, json};
use support::setnx::{SetNxEx, Setnx, SetnxBegin};
use support::valkey;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// What has to be said for it to run.
const WORD: &str = "figures";
/// Of each side, for each number of concurrent requests.
const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_secs(1);
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
    run(&runtime, "redis", &Redis::start().unwrap());
    if let Some(server) = valkey::start() {
        run(&runtime, "valkey", &server);
    }
}

fn run(runtime: &Runtime, name: &str, server: &Redis) {
    for concurrency in CONCURRENCIES {
        let figures = runtime.block_on(measure(server, concurrency));
        println!("{}", json!({ "server": name, "at_once": concurrency, "figures": figures }));
    }
}

async fn measure(redis: &Redis, concurrency: u64) -> Value {
    let settings = GuardSettings::default().response_timeout(Duration::from_secs(5));
    let guard = Arc::new(Guard::connect(&redis.url(), &settings).unwrap());
    let sides = [
        Side::Guard(Arc::clone(&guard), Arc::new(response())),
        Side::Three(SetNxEx { connection: session(redis).await }),
        Side::Six(Setnx { connection: session(redis).await }),
    ];
    let mut session = session(redis).await;

    let mut rounds = Vec::new();
    for _ in 0..=ROUNDS {
        let mut figures = Vec::new();
        for side in &sides {
            let () = redis::cmd("FLUSHALL").query_async(&mut session).await.unwrap();
            figures.push(round(side, concurrency, &mut session).await);
        }
        rounds.push(figures);
    }
    // It warmed up.
    rounds.remove(0);
    let of = |figure: &dyn Fn(&[Figures]) -> f64| {
        spread(rounds.iter().map(|round| figure(round)).collect())
    };
    let each = |figure: &dyn Fn(&Figures) -> f64| {
        json!({
            "guard": of(&|round| figure(&round[0])),
            "three": of(&|round| figure(&round[1])),
            "six": of(&|round| figure(&round[2])),
        })
    };
    let (pending_bytes, completed_bytes) = memory(&guard, &mut session).await;
    json!({
        "ratio_to_three": of(&|round| round[0].per_s / round[1].per_s),
        "ratio_to_six": of(&|round| round[0].per_s / round[2].per_s),
        "per_s": each(&|side| side.per_s),
        "redis_us": each(&|side| side.redis_us),
        "client_us": each(&|side| side.client_us),
        "pending_bytes": pending_bytes, "completed_bytes": completed_bytes,
    })
}

/// Who is measured.
#[derive(Clone)]
enum Side {
    Guard(Arc<Guard>, Arc<StoredResponse>),
    Three(SetNxEx),
    Six(Setnx),
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
            Self::Three(three) => {
                assert_eq!(three.begin(key).await.unwrap(), SetnxBegin::New);
                three.complete(key, BODY.as_bytes()).await.unwrap();
            }
            Self::Six(six) => {
                assert_eq!(six.begin(key).await.unwrap(), SetnxBegin::New);
                six.complete(key, BODY.as_bytes()).await.unwrap();
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

/// Of one round of one side.
struct Figures {
    per_s: f64,
    /// Processor time of the server and of this thread, per request.
    redis_us: f64,
    client_us: f64,
}

/// So many tasks, each of which makes one request after the other.
async fn round(side: &Side, concurrency: u64, session: &mut MultiplexedConnection) -> Figures {
    let (redis_us, client_us) = (redis_us(session).await, client_us());
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
    let (done, seconds) = (f64::from(done), start.elapsed().as_secs_f64());
    Figures {
        per_s: done / seconds,
        client_us: (self::client_us() - client_us) / done,
        redis_us: (self::redis_us(session).await - redis_us) / done,
    }
}

async fn redis_us(session: &mut MultiplexedConnection) -> f64 {
    let text: String = redis::cmd("INFO").arg("cpu").query_async(session).await.unwrap();
    let seconds = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    (seconds("used_cpu_sys:") + seconds("used_cpu_user:")) * 1e6
}

/// This thread runs the client, and nothing else.
fn client_us() -> f64 {
    // Nanoseconds on a processor, in the first field: `man 5 proc_pid_schedstat`.
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e3
}

/// Bytes of one key, as Redis counts them, while a request is at work and when it is answered.
async fn memory(guard: &Guard, session: &mut MultiplexedConnection) -> (u64, u64) {
    let () = redis::cmd("FLUSHALL").query_async(session).await.unwrap();
    let BeginOutcome::New(lease) = guard.begin(&request(&key(0, 0))).await else {
        panic!("not new")
    };
    let pending = usage(session).await;
    guard.complete(&lease, &response()).await;
    (pending, usage(session).await)
}

async fn usage(session: &mut MultiplexedConnection) -> u64 {
    let key: Vec<u8> = redis::cmd("RANDOMKEY").query_async(session).await.unwrap();
    redis::cmd("MEMORY").arg("USAGE").arg(key).query_async(session).await.unwrap()
}

/// Median, least and most, with three digits or more.
fn spread(mut figures: Vec<f64>) -> [f64; 3] {
    figures.sort_by(f64::total_cmp);
    [figures[figures.len() / 2], figures[0], figures[figures.len() - 1]].map(|figure| {
        let scale = if figure < 100.0 { 100.0 } else { 1.0 };
        (figure * scale).round() / scale
    })
}

/// A connection with the same settings as the guard's.
async fn session(redis: &Redis) -> MultiplexedConnection {
    let tcp = TcpSettings::default().set_nodelay(true);
    let info = redis.url().into_connection_info().unwrap().set_tcp_settings(tcp);
    let client = redis::Client::open(info).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}
