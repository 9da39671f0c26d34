//! What Debezium was recorded to make of rows; `fixtures/routing/README.md` says how.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::dry_run::{Answer, answers, connector};
use super::listed::Listed;
use super::tally::{Outcome, Tally};

/// How many processes run at a time.
const AT_ONCE: usize = 2;

/// A line of the recording.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    name: String,
    config: Map<String, Value>,
    types: Value,
    op: String,
    row: Value,
    expect: Value,
}

/// Runs all lines, in one process for each configuration.
pub(crate) fn run(text: &str, listed: &Listed) -> Tally {
    let lines: Vec<Recorded> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut groups: BTreeMap<String, Vec<&Recorded>> = BTreeMap::new();
    for line in &lines {
        groups.entry(json!(line.config).to_string()).or_default().push(line);
    }
    let groups: Vec<Vec<&Recorded>> = groups.into_values().collect();
    let mut tally = Tally::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|worker| {
                let own = groups.iter().skip(worker).step_by(AT_ONCE);
                scope.spawn(move || own.flat_map(|group| answered(group)).collect::<Vec<_>>())
            })
            .collect();
        for (line, answer) in workers.into_iter().flat_map(|worker| worker.join().unwrap()) {
            let outcome = compare(&line.expect, &answer);
            tally.count(&line.name, &line.expect, (outcome, &answer), listed);
        }
    });
    tally
}

fn answered<'a>(group: &[&'a Recorded]) -> Vec<(&'a Recorded, Answer)> {
    let line = |line: &&Recorded| {
        json!({ "op": line.op, "types": line.types, "row": line.row }).to_string()
    };
    let lines: Vec<String> = group.iter().map(line).collect();
    let answers = answers(&connector(&group[0].config), &lines);
    group.iter().copied().zip(answers).collect()
}

fn compare(expect: &Value, answer: &Answer) -> Outcome {
    match (expect.get("stops").and_then(Value::as_str), answer) {
        (Some("config"), Answer::Exit(78)) => return Outcome::Same,
        (Some("config"), _) => return Outcome::Differs(vec!["the configuration is not refused"]),
        (_, Answer::Exit(_)) => return Outcome::Differs(vec!["the configuration is refused"]),
        (Some(_), _) => return Outcome::Stops,
        (None, _) => {}
    }
    if expect.get("dropped").is_some() {
        let is_dropped = answer.is("dropped");
        return if is_dropped {
            Outcome::Same
        } else {
            Outcome::Differs(vec!["it is not dropped"])
        };
    }
    let Some(record) = answer.record() else { return Outcome::Differs(vec!["there is no record"]) };
    let members = ["topic", "key", "value", "headers", "partition", "timestamp"];
    let differing: Vec<_> =
        members.into_iter().filter(|member| expect[member] != record[member]).collect();
    if differing.is_empty() { Outcome::Same } else { Outcome::Differs(differing) }
}
