//! The section of docs/operations/verify.md about one comparison: its commands, and what they print.

use std::path::Path;

use super::Verified;
use support::broker::Broker;
use support::relay::Relay;
use support::topic;

const SECTION: &str = "## Compare once";

/// The fenced blocks of a language, in their order.
fn blocks(language: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations/verify.md");
    let text = std::fs::read_to_string(page).unwrap();
    let (_, section) = text.split_once(SECTION).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let fenced = section.split("```").skip(1).step_by(2);
    let of_language = fenced.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    of_language.map(str::to_owned).collect()
}

#[test]
fn the_section_about_verify_prints_what_it_says() {
    let verified = Verified::new("verify_example");
    let topic = verified.stage.topic("OrderPaid");
    if matches!(verified.broker, Broker::Kafka(_)) {
        topic::create(verified.stage.bootstrap(), &topic, 1, &[]);
    }
    let rows: Vec<String> = (1..=4)
        .map(|n| format!("(lpad('{n}', 32, '0')::uuid, 'order', '7', 'OrderPaid', '{{}}', {n})"))
        .collect();
    verified.stage.sql().run(&format!(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, sequence) VALUES {}",
        rows.join(", ")
    ));
    verified.relay.run_once();
    verified.pass();
    let (commands, printed) = (blocks("sh"), blocks("text"));
    assert_eq!((commands.len(), printed.len()), (2, 2));
    let run = |relay: &Relay, command: &str| {
        let words = command.trim().strip_prefix("postrider verify").unwrap();
        super::outcome(relay, words)
    };
    let clean = run(&verified.relay, &commands[0]);
    assert_eq!((clean.status.code(), clean.stdout), (Some(0), printed[0].clone()));
    // One record is lost, and one row updated.
    let mut records = verified.records();
    records.remove(1);
    verified.stage.sql().run("UPDATE outbox SET payload = '{\"a\": 1}' WHERE sequence = 3");
    verified.pass();
    if matches!(verified.broker, Broker::Kafka(_)) {
        let copy = verified.stage.topic("copy.OrderPaid");
        topic::create(verified.stage.bootstrap(), &copy, 1, &[]);
    }
    let copy = verified.copied(&records);
    let unclean = run(&copy, &commands[1]);
    let named = unclean.stdout.replace(&verified.stage.topic("copy."), "");
    assert_eq!((unclean.status.code(), named), (Some(1), printed[1].clone()));
}
