//! 200 identical requests at once: one effect, and one response for all that get one, whatever Redis
//! does meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use postrider::idempotency::{
    BeginOutcome, Claim, ExistingClaim, Guard, Lease, Request, StoredResponse, claim, find_claim,
};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::idempotency::fixture::{Database, command, guarded, request, response, settings};
use support::task::let_pass;

const REQUESTS: usize = 200;
const SESSIONS: usize = 32;

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Made(StoredResponse),
    Replayed(StoredResponse),
    Wait,
}

/// A service as the guard's documentation writes it.
pub(crate) struct Service {
    pub(crate) guard: Guard,
    sessions: Vec<Mutex<Client>>,
    pub(crate) database: Database,
    executions: AtomicU32,
    /// For how long each execution is paused before its transaction and inside it, without its
    /// lease being renewed.
    pauses: [Duration; 2],
}

impl Service {
    pub(crate) async fn new(guard: Guard, pauses: [Duration; 2]) -> Arc<Self> {
        let database = Database::migrated().await;
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(Mutex::new(database.client().await));
        }
        Arc::new(Self { guard, sessions, database, executions: AtomicU32::new(0), pauses })
    }

    pub(crate) async fn place(&self, number: usize, request: &Request) -> Outcome {
        let lease = match self.guard.begin(request).await {
            BeginOutcome::New(lease) => Some(lease),
            BeginOutcome::Pending { .. } => return Outcome::Wait,
            BeginOutcome::Replay(response) => return Outcome::Replayed(response),
            BeginOutcome::Mismatch => panic!("the same request"),
            BeginOutcome::Unsure => {
                let session = self.sessions[number % SESSIONS].lock().await;
                match find_claim(&*session, request).await.unwrap() {
                    Some(ExistingClaim::Done(response)) => return Outcome::Replayed(response),
                    Some(ExistingClaim::Mismatch) => panic!("the same request"),
                    None => None,
                }
            }
        };
        self.execute(number, request, lease).await
    }

    async fn execute(&self, number: usize, request: &Request, lease: Option<Lease>) -> Outcome {
        let is_first = self.executions.fetch_add(1, Ordering::Relaxed) == 0;
        let pause = async |pause| {
            if is_first {
                let_pass(pause, "the first is paused").await;
            }
        };
        pause(self.pauses[0]).await;
        let mut session = self.sessions[number % SESSIONS].lock().await;
        let transaction = session.transaction().await.unwrap();
        let mine = response(&format!("{{\"by\":{number}}}"));
        let outcome = match claim(&transaction, request, &mine).await.unwrap() {
            Claim::Won => {
                let insert = "INSERT INTO effects VALUES ($1)";
                transaction.execute(insert, &[&request.key().as_str()]).await.unwrap();
                pause(self.pauses[1]).await;
                transaction.commit().await.unwrap();
                Outcome::Made(mine)
            }
            Claim::Done(response) => Outcome::Replayed(response),
            Claim::Mismatch => panic!("the same request"),
        };
        if let (Some(lease), Outcome::Made(response) | Outcome::Replayed(response)) =
            (lease, &outcome)
        {
            self.guard.complete(&lease, response).await;
        }
        outcome
    }
}

/// All at once; with something in between the first half of them and the second.
async fn storm(service: &Arc<Service>, half_way: impl AsyncFnOnce()) -> Vec<Outcome> {
    let mut tasks = JoinSet::new();
    let place = |number| {
        let service = Arc::clone(service);
        async move { service.place(number, &request("storm")).await }
    };
    for number in 0..REQUESTS / 2 {
        tasks.spawn(place(number));
    }
    half_way().await;
    for number in REQUESTS / 2..REQUESTS {
        tasks.spawn(place(number));
    }
    tasks.join_all().await
}

/// One request had the effect, and every response is that of this request.
async fn assert_one_effect(service: &Service, outcomes: &[Outcome]) {
    let made: Vec<&StoredResponse> = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            Outcome::Made(response) => Some(response),
            _ => None,
        })
        .collect();
    let [made] = made.as_slice() else { panic!("{} were first: {outcomes:?}", made.len()) };
    for outcome in outcomes {
        assert!(
            !matches!(outcome, Outcome::Replayed(other) if other != *made),
            "{outcome:?}, {made:?}"
        );
    }
    assert_eq!(service.database.effects().await, 1);
    // A request that had to wait gets the response when it retries.
    let again = service.place(0, &request("storm")).await;
    assert_eq!(again, Outcome::Replayed((*made).clone()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_200_identical_requests_one_has_its_effect() {
    let (_redis, guard) = guarded(&settings());
    let service = Service::new(guard, [Duration::ZERO; 2]).await;
    let outcomes = storm(&service, async || ()).await;
    assert_one_effect(&service, &outcomes).await;
    assert_eq!(service.executions.load(Ordering::Relaxed), 1, "Redis lets one of them work");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_200_requests_one_has_its_effect_while_redis_is_flushed() {
    let (redis, guard) = guarded(&settings());
    // Its transaction is open while Redis loses its lease.
    let service = Service::new(guard, [Duration::ZERO, Duration::from_millis(500)]).await;
    let outcomes = storm(&service, async || {
        while service.executions.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..20 {
            command(&redis, "FLUSHALL").await;
            let_pass(Duration::from_millis(10), "between two floods").await;
        }
    })
    .await;
    assert_one_effect(&service, &outcomes).await;
    assert!(service.executions.load(Ordering::Relaxed) > 1, "the flush let others work");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_200_requests_one_has_its_effect_while_redis_is_down() {
    let (mut redis, guard) = guarded(&settings());
    redis.kill().unwrap();
    let service = Service::new(guard, [Duration::ZERO; 2]).await;
    let outcomes = storm(&service, async || ()).await;
    assert_one_effect(&service, &outcomes).await;
    assert!(!outcomes.contains(&Outcome::Wait), "no request is refused: they wait in Postgres");
    assert_eq!(service.guard.counts().unsure, REQUESTS as u64 + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_200_requests_one_has_its_effect_while_redis_dies_and_comes_back() {
    let (mut redis, guard) = guarded(&settings());
    let service = Service::new(guard, [Duration::ZERO, Duration::from_millis(300)]).await;
    let outcomes = storm(&service, async || {
        tokio::task::block_in_place(|| redis.kill().unwrap());
        let_pass(Duration::from_millis(100), "Redis is down").await;
        tokio::task::block_in_place(|| redis.restart().unwrap());
    })
    .await;
    assert_one_effect(&service, &outcomes).await;
}

/// The owner is paused before its transaction: a successor overtakes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_200_requests_one_has_its_effect_while_the_owner_is_overtaken() {
    paused_beyond_the_ttl([PAUSE, Duration::ZERO]).await;
}

/// The owner is paused inside its transaction: its successors wait for it in Postgres.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_200_requests_one_has_its_effect_while_the_owner_pauses_in_its_transaction() {
    paused_beyond_the_ttl([Duration::ZERO, PAUSE]).await;
}

const TTL: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_secs(1);

async fn paused_beyond_the_ttl(pauses: [Duration; 2]) {
    let (_redis, guard) = guarded(&settings().pending_ttl(TTL));
    let service = Service::new(guard, pauses).await;
    let mut outcomes = Vec::new();
    let owner = tokio::spawn({
        let service = Arc::clone(&service);
        async move { service.place(0, &request("storm")).await }
    });
    while service.executions.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let_pass(TTL * 2, "the owner's lease expires").await;
    outcomes.extend(storm(&service, async || ()).await);
    outcomes.push(owner.await.unwrap());
    assert_one_effect(&service, &outcomes).await;
    assert!(service.executions.load(Ordering::Relaxed) > 1, "its lease had expired");
    assert!(service.guard.counts().stale >= 1, "the owner learns that its lease expired");
}
