//! Those who order: each request until it has an answer, whoever dies meanwhile.
//!
//! Enters: wishes with their sendings, and where the two order services answer. Leaves: what each key
//! was told, and a [`Tally`] of how. What always holds: a request that is repeated is the same request
//! with the same key; nobody gives up before [`PATIENCE`] is over.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::shop_chaos::audit::{self, Told};
use crate::shop_chaos::http::{self, Answer};
use crate::shop_chaos::wishes::{Sending, Wish};
use support::chance::Chance;
use support::task::let_pass;

/// Where a service answers, while it does.
pub(crate) type Door = Arc<Mutex<Option<SocketAddr>>>;

/// Who has no answer by then never gets one: everything that was killed or frozen is long back.
const PATIENCE: Duration = Duration::from_mins(3);

/// How long a request may take: a frozen service accepts connections and says nothing.
const REQUEST_LIMIT: Duration = Duration::from_secs(8);

/// Before a request is sent again, in ms. `Retry-After` counts whole seconds; these are in a hurry.
const PAUSE_MS: (u64, u64) = (50, 600);

/// How requests went.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    /// Answers that an earlier request had got.
    pub(crate) replays: u64,
    /// 409: another request with the key was at work.
    pub(crate) conflicts: u64,
    /// 503.
    pub(crate) unavailable: u64,
    /// Connections that were refused, broke or said nothing.
    pub(crate) broken: u64,
}

/// The crowd, on a thread of its own.
pub(crate) struct Clients {
    thread: JoinHandle<(Vec<(Wish, Told)>, Tally)>,
    answered: Arc<AtomicUsize>,
}

impl Clients {
    /// Begins to order.
    pub(crate) fn start(wishes: Vec<(Wish, Vec<Sending>)>, doors: [Door; 2], seed: u64) -> Self {
        let answered = Arc::new(AtomicUsize::new(0));
        let shared = Arc::clone(&answered);
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            LocalSet::new().block_on(&runtime, order_all(wishes, doors, seed, shared))
        });
        Self { thread, answered }
    }

    /// Keys that have an answer.
    pub(crate) fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Whether everybody has got an answer, or given up.
    pub(crate) fn are_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// What they were told.
    pub(crate) fn finish(self) -> (Vec<(Wish, Told)>, Tally) {
        self.thread.join().unwrap()
    }
}

/// What the sendings of all keys share.
struct Crowd {
    wishes: Vec<(Wish, Mutex<Told>)>,
    doors: [Door; 2],
    tally: Mutex<Tally>,
    chance: Mutex<Chance>,
    answered: Arc<AtomicUsize>,
}

async fn order_all(
    wishes: Vec<(Wish, Vec<Sending>)>,
    doors: [Door; 2],
    seed: u64,
    answered: Arc<AtomicUsize>,
) -> (Vec<(Wish, Told)>, Tally) {
    let begun = Instant::now();
    let (wishes, sendings): (Vec<_>, Vec<_>) =
        wishes.into_iter().map(|(wish, sendings)| ((wish, Mutex::default()), sendings)).unzip();
    let crowd = Rc::new(Crowd {
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

impl Crowd {
    /// One sending, again and again until it is answered.
    async fn order(&self, number: usize, sending: Sending) {
        let (wish, told) = &self.wishes[number];
        let headers = [("content-type", "application/json"), ("idempotency-key", &wish.key)];
        let request = http::post("/orders", &headers, &wish.body());
        let deadline = Instant::now() + PATIENCE;
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
            let_pass(pause, "a client's patience before it asks again").await;
            // The same one or the other: who asks again may meet either.
            door = usize::from(self.draw((0, 1)) == 1);
        }
        told.lock().unwrap().unanswered += 1;
    }

    async fn ask(&self, door: usize, request: &str) -> Option<Answer> {
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

    fn note(&self, answer: &Answer, told: &Mutex<Told>) {
        let mut told = told.lock().unwrap();
        let order = answer.header("location").and_then(|path| path.strip_prefix("/orders/"));
        match (answer.status, order) {
            (201, Some(order)) => {
                if told.answers.is_empty() {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                let (order, body) = (order.to_owned(), answer.body.clone());
                told.answers.insert(audit::Answer { order, body });
            }
            _ => told.refusals.push(format!("{answer:?}")),
        }
    }

    fn draw(&self, (low, high): (u64, u64)) -> u64 {
        self.chance.lock().unwrap().between(low, high)
    }
}
