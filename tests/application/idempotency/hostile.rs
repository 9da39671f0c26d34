//! Hostile keys, headers and values.

use postrider::idempotency::{
    BeginOutcome, Claim, Fingerprint, Key, OwnerUpdate, Request, StoredResponse, claim,
};
use redis::Value;

use crate::idempotency::fixture::{
    Database, command, guarded, lease, only_key, replayed, request, response, session, settings,
};

/// Every character that a key may have, among them what means something to Redis Cluster, to SQL, to
/// Lua and to shells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_that_is_allowed_works_in_redis_and_in_postgres() {
    let (_redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let all: String = (0x21..=0x7e_u8).map(char::from).collect();
    let keys = [&all, "'; DROP TABLE effects; --", "{a}b", "*", "%00%0d%0a", "]]--", "\\0", "$1"];
    for key in keys.map(|key| key.replace(' ', "_")).into_iter().chain(["k".repeat(255)]) {
        let request = request(&key);
        let owner = lease(guard.begin(&request).await);
        let transaction = client.transaction().await.unwrap();
        let mine = response(&key);
        assert_eq!(claim(&transaction, &request, &mine).await.unwrap(), Claim::Won, "{key}");
        transaction.commit().await.unwrap();
        assert_eq!(guard.complete(&owner, &mine).await, OwnerUpdate::Applied, "{key}");
        assert_eq!(replayed(guard.begin(&request).await), mine, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_pairs_of_scope_and_key_have_different_redis_keys() {
    let (redis, guard) = guarded(&settings());
    let pairs =
        [("a", "b:c"), ("a:b", "c"), ("a b", "c"), ("a", "b"), ("a b c", "d"), ("a:b c", "d")];
    let mut owners = Vec::new();
    for (scope, key) in pairs {
        let fingerprint = Fingerprint::of("POST", "/", b"");
        let request = Request::new(scope, Key::parse(key).unwrap(), fingerprint).unwrap();
        owners.push(lease(guard.begin(&request).await));
    }
    let keys = i64::try_from(pairs.len()).unwrap();
    assert_eq!(command(&redis, "DBSIZE").await, Value::Int(keys));
}

/// As large and as odd as HTTP allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_come_back_as_they_were() {
    let (_redis, guard) = guarded(&settings());
    let visible: String = (b' '..=b'~').map(char::from).chain(['\t']).collect();
    let mut headers = vec![
        ("x".to_owned(), String::new()),
        ("!#$%&'*+-.^_`|~aZ0".to_owned(), visible),
        ("x-long".to_owned(), "v".repeat(8_000)),
    ];
    headers.extend((0..200).map(|number| (format!("x-{number}"), "same".to_owned())));
    let mine = StoredResponse::new(200, headers, "").unwrap();
    let owner = lease(guard.begin(&request("k")).await);
    assert_eq!(guard.complete(&owner, &mine).await, OwnerUpdate::Applied);
    assert_eq!(replayed(guard.begin(&request("k")).await), mine);
}

/// Of any type and with any bytes: nothing is overwritten, no other key suffers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_value_makes_the_guard_unsure_of_that_key_alone() {
    let (redis, guard) = guarded(&settings());
    let owner = lease(guard.begin(&request("k")).await);
    let key = only_key(&redis).await;
    let mut session = session(&redis).await;
    let pending: Vec<u8> = redis::cmd("GET").arg(&key).query_async(&mut session).await.unwrap();
    let mut garbage: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("RPUSH", vec![pending.clone()]),
        ("SADD", vec![pending.clone()]),
        ("HSET", vec![b"a".to_vec(), pending.clone()]),
        ("ZADD", vec![b"1".to_vec(), pending.clone()]),
        ("XADD", vec![b"*".to_vec(), b"a".to_vec(), pending.clone()]),
        ("SET", vec![Vec::new()]),
        ("SET", vec![b"1790000000000000".to_vec()]),
        ("SET", vec![vec![0xff; 41]]),
        ("SET", vec![[pending.as_slice(), b"x"].concat()]),
        ("SET", vec![[b"C", &pending[1..33], &[0, 200, 0xff, 0xff, 0xff]].concat()]),
        ("SET", vec![vec![b'x'; 1_000_000]]),
    ];
    garbage.extend((0..=255).map(|byte| ("SET", vec![vec![byte; 32]])));
    for (command, arguments) in garbage {
        let () = redis::cmd("DEL").arg(&key).query_async(&mut session).await.unwrap();
        let _: Value =
            redis::cmd(command).arg(&key).arg(arguments).query_async(&mut session).await.unwrap();
        let dump = async |session: &mut redis::aio::MultiplexedConnection| -> Vec<u8> {
            redis::cmd("DUMP").arg(&key).query_async(session).await.unwrap()
        };
        let before = dump(&mut session).await;
        assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Unsure), "{command}");
        assert_eq!(guard.complete(&owner, &response("{}")).await, OwnerUpdate::Stale, "{command}");
        assert_eq!(guard.renew(&owner).await, OwnerUpdate::Stale, "{command}");
        assert_eq!(guard.release(&owner).await, OwnerUpdate::Stale, "{command}");
        assert_eq!(dump(&mut session).await, before, "{command}");
        let other = lease(guard.begin(&request("other")).await);
        assert_eq!(guard.release(&other).await, OwnerUpdate::Applied);
    }
}
