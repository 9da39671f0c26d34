//! Clients that connect and send nothing, or half a request, do not keep others from ordering.

use std::io::Write as _;
use std::net::TcpStream;

use crate::services::orders::BODY;
use crate::services::stage::Stage;
use support::http::{get, place};

/// What a shell gives a process by default is four times as many.
const DESCRIPTORS: u32 = 256;
/// More than these.
const SILENT: usize = 300;

#[test]
fn silent_connections_do_not_keep_others_from_ordering() {
    let stage = Stage::set();
    let orders = stage.orders_with_descriptors(DESCRIPTORS);
    assert_eq!(place(&orders.address, "before", BODY).unwrap().status, 201);
    let connect = || TcpStream::connect(&orders.address).unwrap();
    let mut open: Vec<_> = (0..SILENT).map(|_| connect()).collect();
    let head = b"POST /orders HTTP/1.1\r\nhost: shop\r\nidempotency-key: half";
    for _ in 0..SILENT / 10 {
        let mut half = connect();
        half.write_all(head).unwrap();
        open.push(half);
    }
    let before = stage.written();
    let mut placed = 0;
    for number in 0..20 {
        let response = place(&orders.address, &format!("beside-{number}"), BODY);
        assert_eq!(response.map(|response| response.status), Some(201), "{number}");
        placed += 1;
        // Connections that were closed are opened again.
        open.extend((0..SILENT / 10).map(|_| connect()));
    }
    let written = stage.written();
    assert_eq!(written[0] - before[0], placed, "orders");
    assert_eq!(written[3] - before[3], placed, "outbox rows");
    assert_eq!(get(&orders.address, "/readyz").status, 200);
    drop(open);
    orders.stop();
}
