//! A Redis that fails over while requests come: a Cluster of six that loses a master, and a master under
//! three Sentinels. Each key has one effect, no request fails, and the guard goes on with the new master
//! by itself.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use postrider::idempotency::{Guard, GuardSettings, OwnerUpdate, Request, StoredResponse};
use postrider::sandbox::redis_group::{RedisCluster, RedisSentinels};
use tokio::task::{JoinSet, block_in_place};

use crate::idempotency::fixture::{begin_when_redis_is_back, lease, replayed, request, response};
use crate::idempotency::storm::{Outcome, Service};
use support::task::{let_pass, wait_for};

/// In each wave, so many keys with so many equal requests each, all at once.
const KEYS: usize = 20;
const EQUAL: usize = 5;
const PACE: Duration = Duration::from_millis(200);
/// How long a server must be silent to be taken for dead: shorter than Redis's defaults of 15 s and 30 s, so
/// that the tests end sooner.
const SILENCE: Duration = Duration::from_secs(3);

/// The default of 100 ms is too short where much else runs, and a late answer is an update whose end is unknown.
fn settings() -> GuardSettings {
    GuardSettings::default().response_timeout(Duration::from_secs(2))
}

fn key(wave: usize, number: usize) -> Request {
    request(&format!("{wave}-{number}"))
}

/// The responses by key; the other requests were told to wait. `place` panics if a request fails.
type Responses = HashMap<String, Vec<StoredResponse>>;

async fn storm(service: &Arc<Service>, waves: Range<usize>, responses: &mut Responses) {
    for wave in waves {
        let mut tasks = JoinSet::new();
        for number in 0..KEYS * EQUAL {
            let (service, request) = (Arc::clone(service), key(wave, number % KEYS));
            tasks.spawn(async move {
                let outcome = service.place(number, &request).await;
                (request.key().as_str().to_owned(), outcome)
            });
        }
        for (key, outcome) in tasks.join_all().await {
            if let Outcome::Made(response) | Outcome::Replayed(response) = outcome {
                responses.entry(key).or_default().push(response);
            }
        }
        let_pass(PACE, "between two waves").await;
    }
}

/// Each key had one effect, whose response all its requests had.
async fn assert_one_effect_each(service: &Service, waves: usize, responses: &Responses) {
    assert_eq!(responses.len(), waves * KEYS, "each key has a response");
    for (key, responses) in responses {
        let expected = vec![responses[0].clone(); responses.len()];
        assert_eq!(responses, &expected, "{key}");
    }
    assert_eq!(service.database.effects().await, i64::try_from(waves * KEYS).unwrap());
    assert_eq!(service.database.keys_with_effects().await, i64::try_from(waves * KEYS).unwrap());
}

/// Over the whole life of the key.
async fn assert_redis_decides(guard: &Guard, request: &Request) {
    let owner = lease(begin_when_redis_is_back(guard, request).await);
    let completed = async || match guard.complete(&owner, &response("{}")).await {
        OwnerUpdate::Unsure => None,
        decided => Some(decided),
    };
    assert_eq!(wait_for("Redis to complete", completed).await, OwnerUpdate::Applied);
    assert_eq!(replayed(begin_when_redis_is_back(guard, request).await), response("{}"));
}

/// Waves before the master ends, and waves in a row that Redis decides on afterwards.
const BEFORE: usize = 3;
const AFTER: usize = 3;
/// Waves for which a failover is waited.
const WAVES_MAX: usize = 600;

/// The master has just ended: waves of requests until another one has taken over.
async fn storm_until_redis_is_back(service: &Arc<Service>, mut responses: Responses) {
    let (mut waves, mut decided) = (BEFORE, 0);
    while decided < AFTER {
        assert!(waves < WAVES_MAX, "a new master decides");
        let before = service.guard.counts().unsure;
        storm(service, waves..waves + 1, &mut responses).await;
        waves += 1;
        let is_decided = before > 0 && service.guard.counts().unsure == before;
        decided = if is_decided { decided + 1 } else { 0 };
    }
    assert_one_effect_each(service, waves, &responses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_that_loses_a_master_costs_no_request_and_no_second_effect() {
    let mut cluster = block_in_place(|| RedisCluster::start(SILENCE).unwrap());
    let guard = Guard::connect(&cluster.url(), &settings()).unwrap();
    let service = Service::new(guard, [Duration::ZERO; 2]).await;
    assert_redis_decides(&service.guard, &request("before")).await;
    let mut responses = Responses::new();
    storm(&service, 0..BEFORE, &mut responses).await;

    let lost = request("on-the-master-that-is-lost");
    let redis_key = "idem:tenant-7 on-the-master-that-is-lost";
    block_in_place(|| cluster.kill_master_of(redis_key).unwrap());
    storm_until_redis_is_back(&service, responses).await;
    assert_redis_decides(&service.guard, &lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_master_that_sentinels_replace_costs_no_request_and_no_second_effect() {
    replaced_by_sentinels(RedisSentinels::kill_master).await;
}

/// Its connections stay, so that only silence says that it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_master_that_hangs_until_sentinels_replace_it_costs_no_request_and_no_second_effect() {
    replaced_by_sentinels(|group| group.stop_master().unwrap()).await;
}

async fn replaced_by_sentinels(end_master: impl FnOnce(&mut RedisSentinels)) {
    let mut group = block_in_place(|| RedisSentinels::start(SILENCE).unwrap());
    let guard = Guard::connect(&group.url(), &settings()).unwrap();
    let service = Service::new(guard, [Duration::ZERO; 2]).await;
    assert_redis_decides(&service.guard, &request("before")).await;
    let mut responses = Responses::new();
    storm(&service, 0..BEFORE, &mut responses).await;

    block_in_place(|| end_master(&mut group));
    storm_until_redis_is_back(&service, responses).await;
    assert_redis_decides(&service.guard, &request("afterwards")).await;
}
