//! A PgBouncer with its own defaults between the relay and Postgres: sessions pass it, and what it does not let pass is
//! named.

use rdkafka::mocking::MockCluster;

use super::{Scene, insert, records};
use crate::stage::Stage;
use support::pgbouncer::PgBouncer;
use support::relay::Relay;
use support::{kafka, postgres, wait_for};

/// A stage whose relay connects to a pooler in this mode.
fn pooled(stem: &str, pool_mode: &str) -> Option<(Scene, Relay, PgBouncer)> {
    let kafka = kafka::shared()?;
    let settings = [("source.poll.notify", "outbox"), ("source.poll.interval", "30s")];
    let scene = Scene::new(&kafka.bootstrap(), stem, &settings);
    let role = format!("poller_{}", scene.stage.database.name());
    let server = scene.stage.database.address();
    let password = server.password.clone();
    let server = server.login_as(&role, password.as_deref());
    let pooler = PgBouncer::start(&server, pool_mode)?;
    let relay = scene.relay.clone().set("source.url", &pooler.address(&server).url());
    Some((scene, relay, pooler))
}

#[test]
fn rows_are_polled_through_a_pooler_in_session_mode() {
    let Some((scene, relay, _pooler)) = pooled("pooled_session", "session") else { return };
    let found = relay.start(&["doctor"]).outcome();
    assert!(found.status.success(), "{found:?}");
    insert(&scene.stage, 0..50);
    relay.run_once();
    assert_eq!(records(&scene.stage).len(), 50);
    let running = relay.run();
    // Within the interval: its LISTEN holds.
    for end in [51, 52, 53] {
        insert(&scene.stage, end - 1..end);
        let wanted = usize::try_from(end).unwrap();
        wait_for("a row", || (records(&scene.stage).len() == wanted).then_some(()));
    }
    running.stop();
}

#[test]
fn a_pooler_that_keeps_no_session_is_named_with_the_fix() {
    let Some((scene, relay, _pooler)) = pooled("pooled_transaction", "transaction") else {
        return;
    };
    insert(&scene.stage, 0..5);
    for _ in 0..3 {
        let (exit, said) = Scene::failure(&relay.clone().allow_log("PR-P024"), &["run", "--once"]);
        assert_eq!(exit, Some(78), "{said}");
        for part in ["PR-P024", "PgBouncer", "pool_mode = session"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    let (exit, said) = Scene::failure(&relay, &["doctor"]);
    assert!(exit != Some(0) && said.contains("pool_mode = session"), "{said}");
    assert_eq!(records(&scene.stage).len(), 0, "nothing is begun");
}

#[test]
fn a_replication_connection_that_a_pooler_refuses_names_it_at_once() {
    let brokers = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &brokers.bootstrap_servers(), "pooled_stream");
    let server = stage.database.address();
    let Some(pooler) = PgBouncer::start(&server, "session") else { return };
    let relay = stage.relay_at(&pooler.address(&server)).allow_log("");
    let (exit, said) = Scene::failure(&relay, &["run", "--once"]);
    assert_eq!(exit, Some(78), "{said}");
    for part in ["PR-P024", "PgBouncer", "source.mode = "] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (_, said) = Scene::failure(&relay, &["doctor"]);
    assert!(said.contains("PgBouncer") && said.contains("Postgres itself"), "{said}");
    // A user whom the pooler alone does not know.
    let stranger = stage.database.create_role(&format!("stranger_{}", stage.database.name()), "");
    let relay = stage.relay_at(&pooler.address(&stranger)).allow_log("");
    let (exit, said) = Scene::failure(&relay, &["run", "--once"]);
    assert_eq!(exit, Some(78), "{said}");
    for part in ["PR-P024", "auth_file or auth_query", "Postgres itself"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
