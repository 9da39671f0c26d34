//! Tests of whole files: `fixtures/debezium/import`, and generated ones.
//!
//! Beside `NAME.json` or `NAME.properties`, `NAME.report` has one finding per line. `NAME.toml`
//! exists unless an option is refused. `UPDATE_FIXTURES=1 cargo test --lib debezium` updates them.

mod forms;
mod generated;

use std::path::{Path, PathBuf};

use super::*;
use postrider_config::{Config, FileChoice, Inputs, load};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/debezium/import")
}

fn fixture(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

fn loaded(toml: &str) -> Config {
    let file = FileChoice::Text { name: "imported.toml".into(), text: toml.to_owned() };
    let mut variables = vec![("PGUSER".to_owned(), "tester".to_owned())];
    for name in ["endpoint", "client_id"] {
        let (_, section) = toml.split_once("[kafka.oauth]").unwrap_or_default();
        if !section.contains(&format!("\n{name} = ")) {
            let variable = postrider_config::env_name(&format!("kafka.oauth.{name}"));
            variables.push((variable, "https://login.example".to_owned()));
        }
    }
    load(&Inputs { file, variables, ..Inputs::default() }, &|_| Vec::new()).unwrap().config
}

fn imported(name: &str) -> Imported {
    import(&fixture(name)).unwrap()
}

fn lines(report: &[OptionFinding]) -> String {
    let line = |finding: &OptionFinding| {
        let outcome = serde_json::to_value(finding.outcome).unwrap();
        let value = finding.value.as_ref().map_or(String::new(), |value| format!(" = {value}"));
        let help = finding.help.as_ref().map_or(String::new(), |help| format!(" [{help}]"));
        format!(
            "{}: {}{value}: {}{help}\n",
            outcome.as_str().unwrap(),
            finding.option,
            finding.note
        )
    };
    report.iter().map(line).collect()
}

fn compare(path: &Path, found: &str) {
    if std::env::var_os("UPDATE_FIXTURES").is_some() {
        std::fs::write(path, found).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert!(expected == found, "{} is not what comes out:\n{found}", path.display());
}

#[test]
fn files_come_to_what_lies_beside_them() {
    let mut count = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if !path.extension().is_some_and(|it| it == "json" || it == "properties") {
            continue;
        }
        count += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let report = match import(&text) {
            Ok(Imported { toml, report, .. }) => {
                compare(&path.with_extension("toml"), &toml);
                let _ = loaded(&toml);
                report
            }
            Err(ImportError::Refused { report }) => {
                assert!(!path.with_extension("toml").exists(), "{}", path.display());
                report
            }
            Err(error) => panic!("{}: {error}", path.display()),
        };
        compare(&path.with_extension("report"), &lines(&report));
        assert!(!format!("{report:?}").contains("hunter2"), "{}", path.display());
    }
    assert!(count >= 21, "{count}");
}

#[test]
fn every_option_of_every_file_is_in_exactly_one_finding() {
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let names: Vec<String> = match path.extension().unwrap().to_str().unwrap() {
            "json" => {
                let value: serde_json::Value = serde_json::from_str(&text).unwrap();
                let config = value.get("config").unwrap_or(&value).as_object().unwrap();
                config.keys().cloned().collect()
            }
            "properties" => {
                let pairs = properties::parse(&text).unwrap();
                pairs.into_iter().map(|(name, _)| name).collect()
            }
            _ => continue,
        };
        let report = match import(&text) {
            Ok(imported) => imported.report,
            Err(ImportError::Refused { report }) => report,
            Err(error) => panic!("{error}"),
        };
        for name in &names {
            let found = report.iter().filter(|finding| finding.option == *name).count();
            assert_eq!(found, 1, "{name} of {}", path.display());
        }
    }
}

#[test]
fn the_connection_is_the_files() {
    let config = loaded(&imported("tls-and-scram.json").toml);
    let connect = &config.source.connect;
    assert_eq!(connect.endpoints[0].to_string(), "orders.example.com:5432");
    assert_eq!((connect.user.as_str(), connect.database.as_str()), ("relay", "orders"));
    assert_eq!(connect.endpoints[0].password.as_ref().unwrap().reveal(), "hunter2");
    assert_eq!(connect.tls.client.as_ref().unwrap().key, Path::new("/etc/ssl/relay.key"));
    assert_eq!(config.kafka.brokers, ["kafka-1:9093", "kafka-2:9093"]);
    assert_eq!(config.kafka.message_bytes_max, 5_242_880);
    let encoded = loaded(&imported("encoded-payloads.json").toml);
    assert_eq!(
        encoded.source.connect.endpoints[0].password.as_ref().unwrap().reveal(),
        "hunter2 / @"
    );
}

#[test]
fn the_routing_is_the_files() {
    let config = loaded(&imported("envelope-with-schemas.json").toml);
    assert_eq!(config.source.slot, "billing");
    let tables: Vec<String> = config.source.tables.iter().map(ToString::to_string).collect();
    assert_eq!(tables, ["billing.outbox", "billing.outbox_archive"]);
    assert_eq!((config.outbox.id.as_str(), config.outbox.payload.as_str()), ("event_id", "body"));
    assert_eq!(config.outbox.timestamp.as_deref(), Some("created_at"));
    assert_eq!(config.route.topic, "${domain}.outbox.${routedByValue}");
    assert!(!config.route.position_header);
}

#[test]
fn defaults_of_debezium_are_written_out() {
    let imported = import("{}").unwrap();
    assert_eq!(imported.report, []);
    let config = loaded(&imported.toml);
    assert_eq!(
        (config.source.slot.as_str(), config.route.by.as_str()),
        ("debezium", "aggregatetype")
    );
    assert_eq!(config.source.publication, "dbz_publication");
    assert_eq!(config.route.topic, "outbox.event.${routedByValue}");
    assert_eq!((config.route.key.as_str(), config.route.headers.len()), ("aggregateid", 0));
    assert_eq!(config.outbox.traceparent.as_deref(), Some("tracingspancontext"));
}

fn refused(text: &str) -> Vec<(String, String)> {
    match import(text) {
        Err(ImportError::Refused { report }) => report
            .into_iter()
            .filter(|finding| finding.outcome == ImportOutcome::Refused)
            .map(|finding| (finding.option, format!("{} {:?}", finding.note, finding.help)))
            .collect(),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn settings_that_do_not_load_are_refused_as_the_options_they_were() {
    for (text, option, words) in [
        ("slot.name=Shop-Outbox", "slot.name", "shop_outbox"),
        ("route.topic.regex=(?<a", "route.topic.regex", "regular expression"),
        ("route.topic.replacement=${b}", "route.topic.replacement", "routedByValue"),
        ("route.topic.regex=(.*)", "route.topic.regex", "routedByValue"),
        ("table.field.event.id=", "table.field.event.id", "empty"),
        ("table.fields.additional.placement=", "table.fields.additional.placement", "empty"),
        ("producer.override.compression.type=brotli", "producer.override.compression.type", "lz4"),
        ("bootstrap.servers=a:x", "bootstrap.servers", "host:port"),
        ("database.sslmode=verify", "database.sslmode", "sslmode"),
        ("table.include.list=public.a,public.\\\\d", "table.include.list", "pattern"),
        (
            "key.converter=org.apache.kafka.connect.json.JsonConverter\nvalue.converter=BinaryDataConverter\nvalue.converter.delegate.converter.type=JsonConverter",
            "key.converter",
            "same converter",
        ),
    ] {
        let text = format!("{text}\nroute.by.field=kind\n");
        let found = refused(&text);
        let said = found.iter().find(|(name, _)| name == option);
        assert!(said.is_some_and(|(_, said)| said.contains(words)), "{text}: {found:?}");
    }
}
