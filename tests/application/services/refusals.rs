//! Bad requests get Problem Details of RFC 9457 that name the field, and write nothing.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::services::orders::BODY;
use crate::services::stage::Stage;
use support::http::{Response, get, place, send};

const POST: &str = "POST /orders HTTP/1.1";
const JSON: &str = "content-type: application/json";

/// What is wrong, headers, body; status and field of the answer.
type Case<'a> = (&'a str, Vec<&'a str>, &'a str, u16, Option<&'a str>);

fn assert_problem(response: &Response, status: u16, field: Option<&str>, what: &str) {
    assert_eq!(response.status, status, "{what}: {response:?}");
    let kind = response.header("content-type");
    assert_eq!(kind, Some("application/problem+json"), "{what}: {response:?}");
    let problem = response.json();
    assert_eq!(problem["field"].as_str(), field, "{what}: {problem}");
    assert_eq!(problem["status"], status, "{what}");
    assert!(problem["detail"].is_string() && problem["title"].is_string(), "{what}");
}

#[test]
fn bad_requests_get_a_problem_that_names_the_field_and_write_nothing() {
    let stage = Stage::set();
    let service = stage.orders();
    let key = |value: &str| format!("idempotency-key: {value}");
    let good_key = key("k");
    let large = format!("{BODY}{}", " ".repeat(17_000));
    let negative = BODY.replace("990", "-990");
    let overflow = BODY.replace("990", "99999999999999999999");
    let cases: [Case<'_>; 12] = [
        ("no key", vec![JSON], BODY, 400, Some("idempotency-key")),
        ("an empty key", vec![JSON, "idempotency-key:"], BODY, 400, Some("idempotency-key")),
        (
            "two keys",
            vec![JSON, &good_key, "idempotency-key: l"],
            BODY,
            400,
            Some("idempotency-key"),
        ),
        (
            "a hostile key",
            vec![JSON, "idempotency-key: \u{e4}"],
            BODY,
            400,
            Some("idempotency-key"),
        ),
        ("no content type", vec![&good_key], BODY, 415, Some("content-type")),
        (
            "another content type",
            vec!["content-type: text/xml", &good_key],
            BODY,
            415,
            Some("content-type"),
        ),
        ("a large body", vec![JSON, &good_key], &large, 413, Some("body")),
        ("no JSON", vec![JSON, &good_key], "{", 400, None),
        ("an unknown field", vec![JSON, &good_key], r#"{"colour":1}"#, 422, Some("colour")),
        ("a missing field", vec![JSON, &good_key], "{}", 422, Some("customer")),
        ("a negative amount", vec![JSON, &good_key], &negative, 422, Some("amount_cents")),
        ("an overflow", vec![JSON, &good_key], &overflow, 422, Some("amount_cents")),
    ];
    for (what, headers, body, status, field) in cases {
        let head = [&[POST], headers.as_slice()].concat().join("\r\n");
        let response = send(&service.address, &head, body.as_bytes()).expect(what);
        assert_problem(&response, status, field, what);
    }
    assert_eq!(stage.written(), [0; 4], "nothing was written");
    service.stop();
}

#[test]
fn a_key_has_255_characters_at_most() {
    let stage = Stage::set();
    let service = stage.orders();
    let response = |length: usize| {
        let key = "k".repeat(length);
        let head = format!("{POST}\r\n{JSON}\r\nidempotency-key: {key}");
        send(&service.address, &head, BODY.as_bytes()).unwrap()
    };
    assert_problem(&response(256), 400, Some("idempotency-key"), "a long key");
    assert_eq!(stage.written(), [0; 4], "nothing was written");
    assert_eq!(response(255).status, 201);
    service.stop();
}

#[test]
fn unknown_resources_are_problems_too() {
    let stage = Stage::set();
    let service = stage.orders();
    assert_problem(&get(&service.address, "/orders/7"), 400, Some("id"), "no UUID");
    assert_problem(&get(&service.address, "/orders/%ff"), 400, Some("id"), "no UTF-8");
    let unknown = "/orders/0199f2a4-7c1e-7cc3-98c4-dc0c0c07398f";
    assert_problem(&get(&service.address, unknown), 404, Some("id"), "an unknown order");
    assert_problem(&get(&service.address, &format!("{unknown}/status")), 404, Some("id"), "status");
    assert_problem(&get(&service.address, "/nothing"), 404, None, "an unknown path");
    let delete = send(&service.address, "DELETE /orders HTTP/1.1", b"").unwrap();
    assert_problem(&delete, 405, None, "another method");
    service.stop();
}

#[test]
fn the_openapi_document_has_every_route() {
    let stage = Stage::set();
    let service = stage.orders();
    let described = get(&service.address, "/openapi.json").json();
    let paths: BTreeSet<&str> =
        described["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    let routes = [
        "/livez",
        "/metrics",
        "/openapi.json",
        "/orders",
        "/orders/{id}",
        "/orders/{id}/status",
        "/readyz",
    ];
    assert_eq!(paths, BTreeSet::from(routes));
    for path in routes.iter().filter(|path| !path.contains('{') && **path != "/orders") {
        assert_eq!(get(&service.address, path).status, 200, "{path}");
    }
    let mut references = Vec::new();
    find_references(&described, &mut references);
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(described.pointer(pointer).is_some(), "{reference}");
    }
    service.stop();
}

#[test]
fn a_body_that_does_not_arrive_completely_is_answered_with_408() {
    let stage = Stage::set();
    let service = stage.orders();
    let mut stream = TcpStream::connect(&service.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = format!(
        "{POST}\r\nhost: shop\r\n{JSON}\r\nidempotency-key: k\r\ncontent-length: 99\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut response = [0; 12];
    stream.read_exact(&mut response).unwrap();
    assert_eq!(&response, b"HTTP/1.1 408");
    assert_eq!(stage.written(), [0; 4], "nothing was written");
    service.stop();
}

#[test]
fn a_row_that_is_refused_is_not_quoted_when_the_shop_stops() {
    let stage = Stage::set();
    stage.run("ALTER TABLE orders ADD CONSTRAINT picky CHECK (amount_cents < 0)");
    let output = Command::new(env!("CARGO_BIN_EXE_shop"))
        .args(["load", "--count", "10"])
        .env("DATABASE_URL", stage.database_url())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && stderr.contains("constraint picky"), "{stderr}");
    assert!(!stderr.contains("row contains") && !stderr.contains("customer"), "{stderr}");
}

fn find_references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if name == "$ref" {
                    found.push(member.as_str().unwrap().to_owned());
                }
                find_references(member, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| find_references(item, found)),
        _ => {}
    }
}

#[test]
fn a_failure_that_every_request_has_is_logged_once() {
    let stage = Stage::set();
    let service = stage.orders();
    stage.run("ALTER TABLE orders RENAME TO elsewhere");
    for number in 0..20 {
        let response = place(&service.address, &format!("k-{number}"), BODY).unwrap();
        assert_eq!(response.status, 503, "{response:?}");
    }
    let log = service.stop();
    let lines = log.iter().filter(|line| line.contains("cannot write an order")).count();
    assert_eq!(lines, 1, "{log:#?}");
}
