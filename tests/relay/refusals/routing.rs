//! Routings and formats that cannot work. Whatever can be known without a server is refused before one
//! is asked; what depends on the tables, before the stream begins.

use std::io::Write as _;

use tempfile::NamedTempFile;

use super::attempt::refused;
use super::outbox::Outbox;
use support::postgres;

/// A file, the refusal's code, and words that it has.
const FILES: [(&str, &str, &str); 22] = [
    ("[route]\nenvelope = [\"event_type\"]", "PR-C005", "set format.value to json"),
    (
        "[route]\nenvelope = [\"event_type\"]\n[format]\nvalue = \"cloudevents_binary\"",
        "PR-C005",
        "`cloudevents_binary` has none",
    ),
    (
        "[route]\nenvelope = [\"event_type\", \"id:event_type\"]\n[format]\nvalue = \"json\"",
        "PR-C005",
        "the member `event_type` twice",
    ),
    (
        "[route]\nenvelope = [\"event_type:payload\"]\n[format]\nvalue = \"json\"",
        "PR-C005",
        "`payload` is the payload's own",
    ),
    (
        "[[route.rules]]\nglob = \"*\"\nglobe = \"*\"\ndrop = true",
        "PR-C003",
        "a [[route.rules]] has column, glob",
    ),
    ("[[route.rules]]\ntopic = \"x\"", "PR-C005", "the rule has no pattern"),
    ("[[route.rules]]\nglob = \"*\"", "PR-C005", "the rule does nothing"),
    ("[[route.rules]]\nglob = \"*\"\ndrop = true\ntopic = \"x\"", "PR-C005", "sends them nowhere"),
    ("[[route.rules]]\nregex = \"(\"\ntopic = \"x\"", "PR-C005", "not a regular expression"),
    ("[[route.rules]]\nregex = \"(a)\"\ntopic = \"x.$2\"", "PR-C005", "refers to the group `2`"),
    (
        "[[route.rules]]\nglob = \"*\"\ntopic = \"${kind}\"",
        "PR-C005",
        "it has $0, ${routedByValue}",
    ),
    ("[[route.rules]]\nglob = \"*\"\ntopic = \"a b\"", "PR-C005", "topics are made of"),
    ("[route]\nregex = \"(?<a>b\"", "PR-C005", "not a regular expression"),
    ("[route]\ntopic = \"${kind}\"", "PR-C005", "refers to the group `kind`"),
    ("[route]\nheaders = [\"a:b:c\"]", "PR-C005", "column:name"),
    ("[source]\ntables = []", "PR-C005", "messages.prefixes"),
    ("[messages]\nprefixes = [\"\"]", "PR-C005", "`*` matches all"),
    ("[messages]\nprefixes = [\"postrider\"]", "PR-C005", "the relay's own"),
    ("[route]\nheaders = [\"event_type:postrider-error\"]", "PR-C005", "the relay's own"),
    ("[route]\nregex = \"(?x)a b\"", "PR-C005", "the flag `x` is not understood"),
    (
        "[route]\ntopic = \"dead\"\n[dead_letters]\ntopic = \"dead\"",
        "PR-C005",
        "a topic of their own",
    ),
    (
        "[[route.rules]]\nglob = \"*\"\ntopic = \"dead\"\n[dead_letters]\ntopic = \"dead\"",
        "PR-C005",
        "a topic of their own",
    ),
];

#[test]
fn a_routing_that_cannot_work_is_refused_before_anything_is_touched() {
    let outbox = Outbox::ready(postgres::installed(), "routing");
    outbox.write();
    let before = outbox.acknowledged();
    // Nobody answers there, and nobody is asked.
    let relay = outbox
        .relay()
        .unset("route.topic")
        .unset("dead_letters.topic")
        .set("source.url", "postgres://u@127.0.0.1:1/x");
    for (text, code, words) in FILES {
        let mut file = NamedTempFile::with_suffix(".toml").unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let arguments = ["run", "--config", file.path().to_str().unwrap()];
        refused(&relay, &arguments, 78).assert(code, &[words]);
    }
    for (option, value, words) in [
        ("route.rules.0.globe", "x", "a [[route.rules]] has column, glob"),
        ("route.rules.0.topic", "x", "the rule has no pattern"),
        ("route.rules.x.glob", "x", "as in `route.rules.0.glob`"),
        ("route.rules", "x", "as in `route.rules.0.glob`"),
    ] {
        let refusal = refused(&relay.clone().set(option, value), &["run"], 78);
        assert!(refusal.text.contains(words), "{option}: {}", refusal.text);
    }
    assert_eq!(outbox.acknowledged(), before);
    outbox.assert_delivered_by(&outbox.relay());
}

#[test]
fn a_column_that_is_not_there_is_refused_or_done_without() {
    let outbox = Outbox::ready(postgres::installed(), "absent");
    outbox.write();
    let before = outbox.acknowledged();
    for (option, value) in [
        ("route.partition", "shard"),
        ("route.headers", "event_type,shard:s"),
        ("route.envelope", "shard"),
        ("outbox.timestamp", "shard"),
        ("route.key", "shard"),
    ] {
        let relay = outbox.relay().set(option, value);
        let relay =
            if option == "route.envelope" { relay.set("format.value", "json") } else { relay };
        let words = ["table public.outbox has no column shard (it has id, "];
        refused(&relay, &["run"], 78).assert("PR-P034", &words);
    }
    for rule in ["column", "key", "partition"] {
        let relay = outbox
            .relay()
            .set("route.rules.0.glob", "x")
            .set("route.rules.0.topic", "x")
            .set(&format!("route.rules.0.{rule}"), "shard");
        refused(&relay, &["run"], 78).assert("PR-P034", &["no column shard"]);
    }
    assert_eq!(outbox.acknowledged(), before);
    let lenient = outbox
        .relay()
        .set("route.missing_column", "ignore")
        .set("route.partition", "shard")
        .set("route.headers", "event_type,shard:s");
    // The key is not among what may be missing.
    refused(&lenient.clone().set("route.key", "shard"), &["run"], 78).assert("PR-P034", &["shard"]);
    outbox.assert_delivered_by(&lenient);
}
