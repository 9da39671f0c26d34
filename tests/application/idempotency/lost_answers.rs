//! An answer of Redis that is lost with its connection: the key that it would have given is freed all the same.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider::idempotency::{BeginOutcome, Guard};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::block_in_place;

use crate::idempotency::dropped::{await_empty, lasting};
use crate::idempotency::fixture::{begin_when_redis_is_back, calls, lease, request};
use postrider::sandbox::redis::Redis;
use postrider::sandbox::redis_group::RedisCluster;

/// Stands before a Redis, and ends a connection in place of the next answer when it is told to.
struct Proxy {
    address: SocketAddr,
    loses_next: Arc<AtomicBool>,
}

impl Proxy {
    async fn before(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let loses_next = Arc::<AtomicBool>::default();
        let shared = Arc::clone(&loses_next);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                let loses_next = Arc::clone(&shared);
                tokio::spawn(async move { carry(client, server, &loses_next).await });
            }
        });
        Self { address, loses_next }
    }
}

async fn carry(client: TcpStream, server: TcpStream, loses_next: &AtomicBool) -> io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let answers = async {
        let mut bytes = vec![0; 4096];
        loop {
            let read = from_server.read(&mut bytes).await?;
            if read == 0 || loses_next.swap(false, Ordering::SeqCst) {
                return Ok(());
            }
            to_client.write_all(&bytes[..read]).await?;
        }
    };
    tokio::select! {
        sent = tokio::io::copy(&mut from_client, &mut to_server) => sent.map(|_| ()),
        ended = answers => ended,
    }
}

/// The key's time to live is an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_whose_answer_is_lost_leaves_no_key_pending() {
    let redis = Redis::start().unwrap();
    let url = redis.url();
    let (login, server) = url.split_once('@').unwrap();
    let proxy = Proxy::before(server.trim_end_matches('/').to_owned()).await;
    let guard = Guard::connect(&format!("{login}@{}", proxy.address), &lasting()).unwrap();
    // Connected from here on.
    let owner = lease(guard.begin(&request("before")).await);
    guard.release(&owner).await;
    let before = calls(&redis, "set").await;

    proxy.loses_next.store(true, Ordering::SeqCst);
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Unsure));
    assert_eq!(calls(&redis, "set").await, before + 1, "Redis has run it");
    await_empty(&redis).await;
}

/// The client of a cluster sends a command again by itself when its connection ends: it then finds its own key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_whose_answer_a_cluster_loses_has_its_key() {
    let cluster = block_in_place(|| RedisCluster::start(Duration::from_secs(15)).unwrap());
    let url = cluster.url();
    let (login, nodes) = url.split_once('@').unwrap();
    let node = nodes.split(',').next().unwrap();
    let proxy = Proxy::before(node.to_owned()).await;
    // The node sends its clients to the proxy.
    let alone = login.replace("redis+cluster", "redis");
    let client = redis::Client::open(format!("{alone}@{node}")).unwrap();
    let mut session = client.get_multiplexed_async_connection().await.unwrap();
    let mut announce = redis::cmd("CONFIG");
    announce.arg("SET").arg("cluster-announce-port").arg(proxy.address.port());
    let () = announce.query_async(&mut session).await.unwrap();
    let guard = Guard::connect(&format!("{login}@{}", proxy.address), &lasting()).unwrap();

    let mut is_ours = async |key: &str| {
        let key = format!("idem:tenant-7 {key}");
        redis::cmd("GET").arg(key).query_async::<Option<String>>(&mut session).await.is_ok()
    };
    let mut keys = Vec::new();
    for number in 0.. {
        let key = format!("key-{number}");
        if is_ours(&key).await {
            keys.push(key);
        }
        if keys.len() == 2 {
            break;
        }
    }
    // Connected from here on.
    let owner = lease(begin_when_redis_is_back(&guard, &request(&keys[0])).await);
    guard.release(&owner).await;
    proxy.loses_next.store(true, Ordering::SeqCst);
    let begin = guard.begin(&request(&keys[1])).await;
    assert!(!proxy.loses_next.load(Ordering::SeqCst), "an answer was lost");
    assert!(matches!(begin, BeginOutcome::New(_)), "{begin:?}");
}
