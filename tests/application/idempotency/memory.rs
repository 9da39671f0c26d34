//! What a key costs in Redis, against the formula of `docs/patterns/idempotency-key-redis.md`.

use std::sync::Arc;

use postrider::idempotency::{Fingerprint, Guard, Key, OwnerUpdate, Request, StoredResponse};
use postrider::sandbox::redis::Redis;
use tokio::task::JoinSet;

use crate::idempotency::fixture::{guarded, lease, only_key, response, session, settings};

/// `dictEntry`, and `robj` before a string.
const ENTRY: usize = 24;
const OBJECT: usize = 16;
/// The longest prefix of a string below 64 KiB, and the zero at its end.
const STRING: usize = 5 + 1;
/// With its state and fingerprint, and the token or the beginning of a response.
const PENDING: usize = 41;
const COMPLETED: usize = 33 + 2 + 1;

/// Bytes asked of the allocator for PENDING; `key` is prefix + scope + space + key.
fn pending_bytes(key: usize) -> usize {
    ENTRY + (key + STRING) + (OBJECT + PENDING + STRING)
}

/// The same for COMPLETED; each text shorter than 128 bytes takes one for its length, others two.
fn memory_bytes(key: usize, headers: &[(String, String)], body: usize) -> usize {
    let text = |text: &str| text.len() + if text.len() < 128 { 1 } else { 2 };
    let headers: usize = headers.iter().map(|(name, value)| text(name) + text(value)).sum();
    ENTRY + (key + STRING) + OBJECT + (COMPLETED + headers + body + STRING)
}

/// jemalloc rounds each of the three allocations up to a class. Classes are 16 bytes apart up to 128,
/// and from there on four to a doubling, so that less than a quarter is added.
/// <https://jemalloc.net/jemalloc.3.html#size_classes>
fn most(bytes: usize) -> usize {
    bytes + bytes / 4 + 3 * 16
}

/// A string's prefix may be four bytes shorter than assumed, twice.
fn least(bytes: usize) -> usize {
    bytes - 2 * 4
}

async fn usage(redis: &Redis) -> usize {
    let key = only_key(redis).await;
    let mut session = session(redis).await;
    redis::cmd("MEMORY").arg("USAGE").arg(key).query_async(&mut session).await.unwrap()
}

fn headers(bytes: usize) -> Vec<(String, String)> {
    vec![("location".to_owned(), "v".repeat(bytes)), ("etag".to_owned(), "\"1\"".to_owned())]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_takes_the_memory_that_the_formula_says() {
    for (key, header, body) in [
        (1, 0, 0),
        (36, 45, 83),
        (36, 127, 300),
        (36, 128, 1_000),
        (100, 300, 4_000),
        (255, 1_000, 15_000),
    ] {
        let (redis, guard) = guarded(&settings());
        let fingerprint = Fingerprint::of("POST", "/orders", b"{}");
        let parsed = Key::parse("k".repeat(key)).unwrap();
        let request = Request::new("tenant-7", parsed, fingerprint).unwrap();
        let length = "idem:tenant-7 ".len() + key;

        let owner = lease(guard.begin(&request).await);
        let (measured, formula) = (usage(&redis).await, pending_bytes(length));
        let range = least(formula)..=most(formula);
        assert!(range.contains(&measured), "pending: {measured}, {formula}");

        let mine = StoredResponse::new(201, headers(header), vec![b'x'; body]).unwrap();
        assert_eq!(guard.complete(&owner, &mine).await, OwnerUpdate::Applied);
        let formula = memory_bytes(length, mine.headers(), body);
        let (measured, range) = (usage(&redis).await, least(formula)..=most(formula));
        assert!(range.contains(&measured), "completed: {measured}, {formula}");
    }
}

/// The two figures of the page, within a tenth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_typical_key_takes_what_the_page_says() {
    let page = include_str!("../../../docs/patterns/idempotency-key-redis.md");
    let (_, text) = page.split_once("A key of 36 characters in that scope takes ").unwrap();
    let mut told = text.split_whitespace().filter_map(|word| word.parse::<usize>().ok());
    let mut check = |measured: usize| {
        let told = told.next().unwrap();
        assert!(told.abs_diff(measured) * 10 <= measured, "{measured}, and the page says {told}");
    };
    let (redis, guard) = guarded(&settings());
    let key = Key::parse("8e03978e-40d5-43dd-bc93-000000000001").unwrap();
    let fingerprint = Fingerprint::of("POST", "/orders", b"{}");
    let request = Request::new("tenant-7", key, fingerprint).unwrap();
    let owner = lease(guard.begin(&request).await);
    check(usage(&redis).await);
    let json = vec![("content-type".to_owned(), "application/json".to_owned())];
    let mine = StoredResponse::new(201, json, vec![b'x'; 83]).unwrap();
    assert_eq!(guard.complete(&owner, &mine).await, OwnerUpdate::Applied);
    check(usage(&redis).await);
}

/// MEMORY USAGE leaves out what the time to live takes, and the slots of the two tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_take_what_one_takes_and_their_times_to_live() {
    const KEYS: usize = 8_000;
    let (redis, guard) = guarded(&settings());
    let guard = Arc::new(guard);
    fill(&guard, 0..1).await;
    let one = usage(&redis).await;
    let before = used(&redis).await;
    fill(&guard, 1..KEYS + 1).await;
    let each = (used(&redis).await - before) / KEYS;
    // An entry of 24 bytes in a class of 32; two to four slots of 8 bytes a key, and as many again
    // while a table grows.
    assert!((one..=one + 32 + 2 * 16 + 2 * 16).contains(&each), "{each} each, {one} alone");
}

async fn fill(guard: &Arc<Guard>, numbers: std::ops::Range<usize>) {
    let mut tasks = JoinSet::new();
    for number in numbers {
        let guard = Arc::clone(guard);
        tasks.spawn(async move {
            let request = crate::idempotency::fixture::request(&format!(
                "8e03978e-40d5-43dd-bc93-{number:012}"
            ));
            let owner = lease(guard.begin(&request).await);
            assert_eq!(guard.complete(&owner, &response("{}")).await, OwnerUpdate::Applied);
        });
    }
    tasks.join_all().await;
}

async fn used(redis: &Redis) -> usize {
    let mut session = session(redis).await;
    let text: String = redis::cmd("INFO").arg("memory").query_async(&mut session).await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    line.trim().parse().unwrap()
}
