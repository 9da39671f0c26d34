//! What can be done to the bytes of any connection, one lever after the other.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use support::fault::link::{Fault, Way};
use support::fault::proxy::{Proxy, blind};
use support::wait::let_pass;

/// How long something is waited for that should not come.
const SILENCE: Duration = Duration::from_millis(200);
/// How long something may take that should, on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// A client and a server, connected through a proxy that suffers from these faults.
fn pair(faults: &[(Way, Fault)]) -> (Proxy, TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::brokers(1, Box::new(blind));
    proxy.lead_to(&[listener.local_addr().unwrap().port()]);
    let faults = faults.to_vec();
    proxy.greet(move |link| faults.iter().for_each(|(way, fault)| link.inject(*way, *fault)));
    let client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.ports()[0])).unwrap();
    let (server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
    }
    (proxy, client, server)
}

/// What comes until the end.
fn all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

fn exactly(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn assert_silent(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let error = stream.read(&mut [0]).expect_err("it is silent");
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    stream.set_read_timeout(Some(LIMIT)).unwrap();
}

fn struck(proxy: &Proxy) -> u64 {
    let mut struck = 0;
    proxy.each(|link| struck += link.struck());
    struck
}

#[test]
fn without_a_fault_everything_passes_both_ways_and_so_does_the_end() {
    let (_proxy, mut client, mut server) = pair(&[]);
    let sent: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_be_bytes()[3]).collect();
    let writer = {
        let (mut client, sent) = (client.try_clone().unwrap(), sent.clone());
        std::thread::spawn(move || client.write_all(&sent).unwrap())
    };
    assert_eq!(exactly(&mut server, sent.len()), sent);
    writer.join().unwrap();
    server.write_all(b"answer").unwrap();
    drop(server);
    assert_eq!(all(&mut client), b"answer");
}

#[test]
fn latency_delays_bytes_but_not_their_rate() {
    // More than a busy machine holds up one byte of twenty.
    const LATENCY: Duration = Duration::from_secs(2);
    let (_proxy, mut client, mut server) = pair(&[(Way::ToServer, Fault::Latency(LATENCY))]);
    let begun = Instant::now();
    for _ in 0..20 {
        client.write_all(b"x").unwrap();
        let_pass(Duration::from_millis(10), "bytes come one by one");
    }
    assert_eq!(exactly(&mut server, 20), [b'x'; 20]);
    let took = begun.elapsed();
    assert!(took >= LATENCY && took < LATENCY * 20, "{took:?}");
    // The other way is not slow; the machine may be, now and then.
    let back = (0..20).map(|_| {
        let begun = Instant::now();
        server.write_all(b"y").unwrap();
        exactly(&mut client, 1);
        begun.elapsed()
    });
    let fastest = back.min().unwrap();
    assert!(fastest < LATENCY, "{fastest:?}");
}

#[test]
fn a_throttled_line_carries_so_much_a_second() {
    let throttle = Fault::Throttle { bytes_per_s: 100_000 };
    let (_proxy, mut client, mut server) = pair(&[(Way::ToClient, throttle)]);
    let begun = Instant::now();
    server.write_all(&vec![7; 50_000]).unwrap();
    assert_eq!(exactly(&mut client, 50_000), vec![7; 50_000]);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(450), "{took:?}");
}

#[test]
fn a_black_hole_holds_everything_even_the_end() {
    let (proxy, mut client, mut server) = pair(&[(Way::ToServer, Fault::BlackHole)]);
    client.write_all(b"held").unwrap();
    drop(client);
    assert_silent(&mut server);
    proxy.heal();
    assert_eq!(all(&mut server), b"held");
}

#[test]
fn a_cut_ends_both_sides_after_so_many_bytes() {
    let (_proxy, mut client, mut server) = pair(&[(Way::ToServer, Fault::CutAfter(5))]);
    client.write_all(b"0123456789").unwrap();
    assert_eq!(all(&mut server), b"01234");
    assert_eq!(all(&mut client), b"");
}

#[test]
fn a_reset_is_no_mere_end() {
    let (_proxy, mut client, mut server) = pair(&[(Way::ToServer, Fault::ResetAfter(5))]);
    client.write_all(b"0123456789").unwrap();
    for stream in [&mut client, &mut server] {
        let error = stream.read_to_end(&mut Vec::new()).expect_err("it was reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn a_half_closed_connection_still_carries_the_other_way() {
    let (proxy, mut client, mut server) = pair(&[(Way::ToServer, Fault::HalfCloseAfter(5))]);
    client.write_all(b"0123456789").unwrap();
    assert_eq!(all(&mut server), b"01234");
    server.write_all(b"answer").unwrap();
    assert_eq!(exactly(&mut client, 6), b"answer");
    // What is sent on is lost, and that is all.
    client.write_all(b"more").unwrap();
    assert_silent(&mut client);
    assert_eq!(struck(&proxy), 1);
    client.shutdown(Shutdown::Both).unwrap();
}

#[test]
fn one_bit_flips_and_no_other() {
    let (proxy, mut client, mut server) =
        pair(&[(Way::ToClient, Fault::FlipBit { after: 3, bit: 4 })]);
    server.write_all(&[0; 10]).unwrap();
    assert_eq!(exactly(&mut client, 10), [0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
    assert_eq!(struck(&proxy), 1);
}

#[test]
fn a_server_that_is_haunted_sends_into_the_void() {
    let (proxy, mut client, mut server) = pair(&[]);
    client.write_all(b"boo").unwrap();
    exactly(&mut server, 3);
    proxy.each(support::fault::link::Link::haunt);
    assert_eq!(all(&mut client), b"");
    for _ in 0..100 {
        server.write_all(&vec![0; 100_000]).unwrap();
    }
    assert_silent(&mut server);
}
