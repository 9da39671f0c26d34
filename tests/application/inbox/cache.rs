//! The cache in front of the markers: hits, misses, flushes and outages.

use std::time::Duration;

use postrider::sandbox::redis::Redis;
use postrider::sandbox::redis_group::{RedisCluster, RedisSentinels};

use crate::inbox::scene::{Draft, Outcome, Running, Scene, TestEffects};
use support::redis_database::{self, ask};

const COUNT: u64 = 400;

#[test]
fn cached_repeats_cost_no_statement() {
    let Some(scene) = Scene::new("remembered") else { return };
    let redis = redis_database::next();
    scene.send(&Draft::many(400));
    let first = Running::start(scene.spec_with_cache(&redis), TestEffects::plain());
    scene.await_effects(400);
    let first = first.stop();
    assert_eq!((first.cache_hits, first.cache_misses), (0, COUNT));
    assert_eq!(ask::<i64>(&redis, "DBSIZE"), 400);

    scene.rewind();
    let again = Running::start(scene.spec_with_cache(&redis), TestEffects::plain());
    again.await_counters("the repeats", |now| now.duplicates == COUNT);
    let again = again.stop();
    assert_eq!((again.cache_hits, again.cache_misses, again.statements), (COUNT, 0, 0));
    scene.await_effects(400);
}

#[test]
fn a_flushed_cache_costs_time_and_no_more() {
    let Some(scene) = Scene::new("forgotten") else { return };
    let redis = redis_database::next();
    scene.send(&Draft::many(400));
    let first = Running::start(scene.spec_with_cache(&redis), TestEffects::plain());
    scene.await_effects(400);
    first.stop();
    ask::<()>(&redis, "FLUSHDB");
    scene.rewind();
    let again = Running::start(scene.spec_with_cache(&redis), TestEffects::plain());
    again.await_counters("the repeats", |now| now.duplicates == COUNT);
    let again = again.stop();
    assert_eq!((again.cache_hits, again.cache_misses), (0, COUNT));
    scene.await_effects(400);
    // What the markers said is remembered from now on.
    assert_eq!(ask::<i64>(&redis, "DBSIZE"), 400);
}

#[test]
fn a_cache_that_is_killed_and_comes_back_stops_nothing() {
    // A Redis of its own: it is killed.
    let mut redis = Redis::start().unwrap();
    let Some(scene) = Scene::new("killed_cache") else { return };
    let running = Running::start(scene.spec_with_cache(&redis.url()), TestEffects::plain());
    scene.send(&Draft::many(100));
    scene.await_effects(100);
    redis.kill().unwrap();
    scene.send(&Draft::many(100));
    scene.await_effects(200);
    let failures = running.await_counters("a failure", |now| now.cache_failures > 0).cache_failures;
    redis.restart().unwrap();
    // It is asked again after a moment, and then remembers.
    support::wait_for("the cache to be used", || {
        scene.send(&Draft::many(10));
        (ask::<i64>(&redis.url(), "DBSIZE") > 0).then_some(())
    });
    let sent = support::topic::read(&scene.bootstrap, std::slice::from_ref(&scene.topic)).len();
    scene.await_effects(sent);
    let end = running.stop();
    assert_eq!((end.dead_letters, end.duplicates), (0, 0));
    assert!(end.cache_failures >= failures);
}

#[test]
fn a_cache_whose_master_sentinels_replace_is_used_again() {
    let Some(scene) = Scene::new("sentinel_cache") else { return };
    let mut group = RedisSentinels::start(Duration::from_secs(2)).unwrap();
    let running = Running::start(scene.spec_with_cache(&group.url()), TestEffects::plain());
    scene.send(&Draft::many(100));
    scene.await_effects(100);
    group.kill_master();
    support::wait_for("the failover", || group.has_failed_over().unwrap().then_some(()));
    // Each is looked for, and so found not to be there, once there is a master that can be asked.
    let misses = running.now().cache_misses;
    support::wait_for("the new master to be used", || {
        scene.send(&Draft::many(10));
        (running.now().cache_misses > misses).then_some(())
    });
    let sent = support::topic::read(&scene.bootstrap, std::slice::from_ref(&scene.topic)).len();
    scene.await_effects(sent);
    let end = running.stop();
    assert_eq!((end.dead_letters, end.duplicates), (0, 0));
    assert!(end.cache_failures > 0, "the old master was missed");
}

#[test]
fn cached_repeats_of_a_cluster_cost_no_statement() {
    let Some(scene) = Scene::new("cluster_cache") else { return };
    let cluster = RedisCluster::start(Duration::from_secs(15)).unwrap();
    scene.send(&Draft::many(400));
    let first = Running::start(scene.spec_with_cache(&cluster.url()), TestEffects::plain());
    scene.await_effects(400);
    let first = first.stop();
    assert_eq!((first.cache_hits, first.cache_failures), (0, 0));
    scene.rewind();
    let again = Running::start(scene.spec_with_cache(&cluster.url()), TestEffects::plain());
    again.await_counters("the repeats", |now| now.duplicates == COUNT);
    let again = again.stop();
    assert_eq!((again.cache_hits, again.cache_misses, again.statements), (COUNT, 0, 0));
}

#[test]
fn what_is_rolled_back_is_not_cached() {
    let Some(scene) = Scene::new("unremembered") else { return };
    let redis = redis_database::next();
    let url = redis.clone();
    scene.send(&Draft::many(1));
    // Looked at from outside, after each attempt that was rolled back and before the next.
    let effect_rows = TestEffects::with(move |_, attempt| {
        let url = url.clone();
        assert_eq!(ask::<i64>(&url, "DBSIZE"), 0);
        if attempt < 4 { Outcome::Fail } else { Outcome::Succeed }
    });
    let running = Running::start(scene.spec_with_cache(&redis), effect_rows.clone());
    scene.await_effects(1);
    running.stop();
    assert_eq!((effect_rows.attempts(0), ask::<i64>(&redis, "DBSIZE")), (4, 1));
}
