//! The clients: each request is retried until it has a response, whichever process is killed.
//!
//! Input: order requests with their attempts, and the addresses of the two order services. Output: the
//! outcome of each key, and [`RequestCounts`]. Invariant: a retry is the same request with the same
//! key; no client gives up before [`GIVE_UP_AFTER`].

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::shop_chaos::audit::{self, ClientOutcome};
use crate::shop_chaos::http::{self, Response};
use crate::shop_chaos::workload::{Attempt, OrderRequest};
use support::chance::Chance;
use support::task::let_pass;

/// The address of a service, while it is up.
pub(crate) type ServiceAddress = Arc<Mutex<Option<SocketAddr>>>;

/// After this everything that was killed or frozen is up again, so a request without a response has failed.
const GIVE_UP_AFTER: Duration = Duration::from_mins(3);

/// How long a request may take: a frozen service accepts connections and says nothing.
const REQUEST_LIMIT: Duration = Duration::from_secs(8);

/// Pause before a retry, in ms: shorter than the whole seconds of `Retry-After`.
const PAUSE_MS: (u64, u64) = (50, 600);

/// Counters of requests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestCounts {
    pub(crate) requests: u64,
    /// Stored responses.
    pub(crate) replays: u64,
    /// 409: the same key was in progress.
    pub(crate) conflicts: u64,
    /// 503.
    pub(crate) unavailable: u64,
    /// Connections that were refused, broke or said nothing.
    pub(crate) broken: u64,
}

/// All clients, on a thread of their own.
pub(crate) struct Clients {
    thread: JoinHandle<(Vec<(OrderRequest, ClientOutcome)>, RequestCounts)>,
    answered: Arc<AtomicUsize>,
}

impl Clients {
    /// Starts sending orders.
    pub(crate) fn start(
        wishes: Vec<(OrderRequest, Vec<Attempt>)>,
        doors: [ServiceAddress; 2],
        seed: u64,
    ) -> Self {
        let answered = Arc::new(AtomicUsize::new(0));
        let shared = Arc::clone(&answered);
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            LocalSet::new().block_on(&runtime, order_all(wishes, doors, seed, shared))
        });
        Self { thread, answered }
    }

    /// Keys that have a response.
    pub(crate) fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Whether all keys have a response, or were given up.
    pub(crate) fn are_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// The outcomes.
    pub(crate) fn finish(self) -> (Vec<(OrderRequest, ClientOutcome)>, RequestCounts) {
        self.thread.join().unwrap()
    }
}

/// State that all clients share.
struct ClientPool {
    wishes: Vec<(OrderRequest, Mutex<ClientOutcome>)>,
    doors: [ServiceAddress; 2],
    tally: Mutex<RequestCounts>,
    chance: Mutex<Chance>,
    answered: Arc<AtomicUsize>,
}

async fn order_all(
    wishes: Vec<(OrderRequest, Vec<Attempt>)>,
    doors: [ServiceAddress; 2],
    seed: u64,
    answered: Arc<AtomicUsize>,
) -> (Vec<(OrderRequest, ClientOutcome)>, RequestCounts) {
    let begun = Instant::now();
    let (wishes, sendings): (Vec<_>, Vec<_>) =
        wishes.into_iter().map(|(wish, sendings)| ((wish, Mutex::default()), sendings)).unzip();
    let crowd = Rc::new(ClientPool {
        wishes,
        doors,
        tally: Mutex::default(),
        chance: Mutex::new(Chance::new(seed)),
        answered,
    });
    let mut tasks = Vec::new();
    for (number, sendings) in sendings.into_iter().enumerate() {
        for sending in sendings {
            let crowd = Rc::clone(&crowd);
            tasks.push(tokio::task::spawn_local(async move {
                let early = (begun + sending.at).saturating_duration_since(Instant::now());
                let_pass(early, "it is not sent yet").await;
                crowd.order(number, sending).await;
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let tally = *crowd.tally.lock().unwrap();
    let wishes = Rc::into_inner(crowd).unwrap().wishes.into_iter();
    (wishes.map(|(wish, told)| (wish, told.into_inner().unwrap())).collect(), tally)
}

impl ClientPool {
    /// One attempt, retried until there is a response.
    async fn order(&self, number: usize, sending: Attempt) {
        let (wish, told) = &self.wishes[number];
        let headers = [("content-type", "application/json"), ("idempotency-key", &wish.key)];
        let request = http::post("/orders", &headers, &wish.body());
        let deadline = Instant::now() + GIVE_UP_AFTER;
        let mut door = sending.door;
        if sending.hangs_up {
            self.hang_up(door, &request).await;
        }
        while Instant::now() < deadline {
            match self.ask(door, &request).await {
                Some(answer) if matches!(answer.status, 409 | 503) => {}
                Some(answer) => return self.note(&answer, told),
                None => {}
            }
            let pause = Duration::from_millis(self.draw(PAUSE_MS));
            let_pass(pause, "pause before a retry").await;
            // A retry may reach either of the two services.
            door = usize::from(self.draw((0, 1)) == 1);
        }
        told.lock().unwrap().unanswered += 1;
    }

    async fn ask(&self, door: usize, request: &str) -> Option<Response> {
        let address = *self.doors[door].lock().unwrap();
        let exchanged = match address {
            Some(address) => http::exchange(address, request, REQUEST_LIMIT).await.ok(),
            None => None,
        };
        let mut tally = self.tally.lock().unwrap();
        tally.requests += 1;
        let Some(answer) = exchanged else {
            tally.broken += 1;
            return None;
        };
        match answer.status {
            409 => tally.conflicts += 1,
            503 => tally.unavailable += 1,
            _ if answer.header("idempotent-replayed").is_some() => tally.replays += 1,
            _ => {}
        }
        Some(answer)
    }

    async fn hang_up(&self, door: usize, request: &str) {
        let address = *self.doors[door].lock().unwrap();
        if let Some(address) = address {
            self.tally.lock().unwrap().requests += 1;
            drop(http::send(address, request).await);
        }
    }

    fn note(&self, answer: &Response, told: &Mutex<ClientOutcome>) {
        let mut told = told.lock().unwrap();
        let order = answer.header("location").and_then(|path| path.strip_prefix("/orders/"));
        match (answer.status, order) {
            (201, Some(order)) => {
                if told.answers.is_empty() {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                let (order, body) = (order.to_owned(), answer.body.clone());
                told.answers.insert(audit::OrderResponse { order, body });
            }
            _ => told.refusals.push(format!("{answer:?}")),
        }
    }

    fn draw(&self, (low, high): (u64, u64)) -> u64 {
        self.chance.lock().unwrap().between(low, high)
    }
}
