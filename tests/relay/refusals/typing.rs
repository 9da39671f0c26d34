//! Settings that are mistyped, and a port that is taken. Nothing is touched before they are right.

use std::net::TcpListener;

use super::attempt::{CANARY, refused};
use super::outbox::Outbox;
use support::postgres;

#[test]
fn a_mistyped_setting_is_refused_before_anything_is_touched() {
    let outbox = Outbox::ready(postgres::installed(), "typing");
    outbox.write();
    let before = outbox.acknowledged();
    let secret_url = format!("postgres://u:{CANARY}@h:port/db");
    for (option, value, words) in [
        ("kafka.compresion", "zstd", "POSTRIDER_KAFKA__COMPRESSION"),
        ("kafka.compression", "zstdd", "did you mean"),
        ("source.status_interval", "often", "duration"),
        ("kafka.max_in_flight", "lots", "size"),
        ("source.url", secret_url.as_str(), "port"),
        ("route.regex", "(unclosed", "route.regex"),
        ("route.topic", "${nobody}", "nobody"),
        ("http.bind", "everywhere", "http.bind"),
    ] {
        let refusal = refused(&outbox.relay().set(option, value), &["run"], 78);
        assert!(refusal.text.contains(words), "{option}: {}", refusal.text);
        assert!(refusal.warnings.is_empty(), "{:#?}", refusal.warnings);
    }
    for (property, value, words) in [
        ("acks", "1", "remove `acks`"),
        ("socket.timeout.sm", "1", "did you mean `socket.timeout.ms`?"),
        ("debug", "everything", "kafka.properties.debug"),
        ("sasl.mechanism", "GSSAPI", "sasl.mechanism"),
    ] {
        let relay = outbox
            .relay()
            .property("security.protocol", "sasl_plaintext")
            .property("sasl.username", "u")
            .property("sasl.password", CANARY)
            .property(property, value);
        let refusal = refused(&relay, &["run"], 78);
        assert!(refusal.text.contains(words), "{property}: {}", refusal.text);
    }
    assert_eq!(outbox.acknowledged(), before);
    outbox.assert_delivered_by(&outbox.relay());
}

#[test]
fn a_taken_port_is_named() {
    let outbox = Outbox::ready(postgres::installed(), "port");
    outbox.write();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let relay = outbox.relay().set("http.bind", &address);
    let refusal = refused(&relay, &["run"], 78);
    refusal.assert("PR-H001", &[&format!("cannot listen on {address}"), "--set http.bind="]);
    // That port may be anybody's next.
    drop(taken);
    outbox.assert_delivered_by(&relay.set("http.bind", "127.0.0.1:0"));
}
