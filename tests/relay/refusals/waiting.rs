//! Servers that come up after the relay.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

use postrider::sandbox::port;
use postrider::sandbox::postgres::{Options, Stop};

use super::attempt::refused;
use super::outbox::Outbox;
use support::postgres;

#[test]
fn a_postgres_that_starts_later_is_waited_for() {
    let mut cluster = postgres::start(&Options::default());
    let outbox = Outbox::ready(&cluster, "later");
    outbox.write();
    let relay = outbox.relay().set("retry.max", "500ms");
    cluster.stop(Stop::Fast).unwrap();
    let refusal = refused(&relay.clone().set("retry.give_up_after", "1s"), &["run", "--once"], 69);
    assert_eq!(refusal.code, "PR-P001", "{}", refusal.text);
    for words in ["cannot connect to Postgres at 127.0.0.1:", "gave up after", "check that the"] {
        assert!(refusal.text.contains(words), "{}", refusal.text);
    }
    let relay = relay.expect_log("cannot connect to Postgres").expect_log("trying again");
    let mut running = relay.run();
    running.wait_for_log("check that the server runs");
    cluster.start_again().unwrap();
    running.wait_for_log("caught up");
    outbox.write();
    running.stop();
    outbox.assert_delivered_by(&outbox.relay());
}

/// PostgreSQL 18 opens each published table to say what it publishes of it.
#[test]
fn a_table_that_is_locked_at_the_start_is_named_as_a_reason_and_waited_for() {
    let Some(eighteen) = postgres::eighteen() else { return };
    let outbox = Outbox::ready(eighteen, "locked");
    outbox.write();
    let locking = outbox.database.sql();
    locking.run("BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE");
    let mut running = outbox.relay().expect_log("locks on the published tables").run();
    running.wait_for_log("locks on the published tables");
    locking.run("COMMIT");
    running.wait_for_log("caught up");
    running.stop();
    outbox.assert_delivered_by(&outbox.relay());
}

#[test]
fn brokers_that_start_later_are_waited_for() {
    let outbox = Outbox::ready(postgres::installed(), "broker_later");
    outbox.write();
    let port = port::free().unwrap();
    let relay = outbox.relay_to(&outbox.database.address(), &format!("127.0.0.1:{port}"));
    let mut running = relay.expect_log("cannot reach Kafka").run();
    running.wait_for_log("cannot reach Kafka");
    forward(port, outbox.bootstrap().parse().unwrap());
    running.wait_for_log("connected to Kafka");
    running.wait_for_log("caught up");
    outbox.write();
    running.stop();
    outbox.assert_delivered_by(&outbox.relay());
}

/// Opens the port and passes everything on, until this process ends.
fn forward(port: u16, target: SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(target) else { continue };
            let carry = |mut from: TcpStream, mut to: TcpStream| {
                std::thread::spawn(move || io::copy(&mut from, &mut to));
            };
            carry(client.try_clone().unwrap(), server.try_clone().unwrap());
            carry(server, client);
        }
    });
}
