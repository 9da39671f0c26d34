//! Connections cut in the middle of a frame.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use postrider::sandbox::postgres::Address;

use super::load::Load;
use super::stage::Stage;
use crate::support::broker::Broker;
use crate::support::postgres;

/// Rows of some 300 bytes each, in transactions of ten.
const TRANSACTIONS: usize = 1_000;

/// A proxy that ends each connection after so many bytes from the server; later ones never.
fn shears(target: &Address, cuts: &'static [usize]) -> Address {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut address = target.clone();
    address.port = listener.local_addr().unwrap().port();
    let port = target.port;
    std::thread::spawn(move || {
        let mut cuts = cuts.iter().copied();
        for client in listener.incoming() {
            let client = client.unwrap();
            let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
            let pair = |one: &TcpStream| one.try_clone().unwrap();
            // SQL sessions carry little and live on; it is the stream that is cut.
            let cut = if is_replication(&client) { cuts.next() } else { None };
            let (from, to) = (pair(&client), pair(&server));
            std::thread::spawn(move || carry(from, to, usize::MAX));
            std::thread::spawn(move || carry(server, client, cut.unwrap_or(usize::MAX)));
        }
    });
    address
}

/// Looks at the StartupMessage without taking it.
fn is_replication(client: &TcpStream) -> bool {
    let mut start = [0; 512];
    let length = client.peek(&mut start).unwrap();
    start[..length].windows(11).any(|window| window == b"replication")
}

fn carry(mut from: TcpStream, mut to: TcpStream, mut left: usize) {
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        let count = count.min(left);
        if to.write_all(&chunk[..count]).is_err() {
            break;
        }
        left -= count;
        if left == 0 {
            break;
        }
    }
    for stream in [from, to] {
        // The other side may have gone first.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

#[test]
fn g1_g2_connections_cut_inside_a_frame_are_taken_up_again() {
    // In the login, in the first frames, and ever later; odd, so that no boundary is hit.
    const CUTS: &[usize] = &[37, 391, 1_777, 9_973, 100_003, 400_009, 900_001, 1_600_001];
    let broker = Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "severed");
    let oracle = stage.oracle();
    let sql = stage.sql();
    for number in 0..TRANSACTIONS {
        sql.run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT 't', n % 10, 'A', jsonb_build_object('n', {number}, 'text', repeat('x', 250)) \
             FROM generate_series(1, 10) AS n"
        ));
    }
    let address = shears(&stage.database.address(), CUTS);
    let relay = stage.relay().set("retry.max", "200ms").set("log.repeat_interval", "0s");
    // The shears recognise the stream by its first message.
    let relay = relay.set("source.url", &format!("{}?sslmode=disable", address.url()));
    let running = relay.expect_log("trying again").run();
    stage.wait_acknowledged(stage.log_end());
    std::thread::sleep(Duration::from_millis(100));
    running.stop();
    let verdict = stage.verdict(&oracle, &[]);
    eprintln!("{} rows, {} repeated", verdict.committed, verdict.duplicated.len());
    verdict.assert_at_least_once();
    assert_eq!(verdict.committed, TRANSACTIONS * 10);
}

#[test]
fn g1_g2_connections_cut_under_load_are_taken_up_again() {
    let broker = Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "cut");
    let oracle = stage.oracle();
    let tap = stage.tap();
    let relay = stage.relay_at(&tap.address()).set("source.status_interval", "100ms");
    let mut running = relay.expect_log("trying again").run();
    let load = Load::start(&stage, &[(500, 1), (500, 40)]);
    for _ in 0..4 {
        running.wait_for_log("\"streaming\"");
        std::thread::sleep(Duration::from_millis(400));
        tap.cut();
    }
    running.wait_for_log("\"streaming\"");
    load.stop();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    let verdict = stage.verdict(&oracle, &tap.statuses());
    eprintln!("{} rows, {} repeated", verdict.committed, verdict.duplicated.len());
    verdict.assert_at_least_once();
}
