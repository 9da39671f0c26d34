//! Tests of precedence between sources, and of the source that is shown for each value.

use std::time::Duration;

use super::*;
use crate::{Rejected, Shown};

fn effective<'a>(loaded: &'a Loaded, key: &str) -> &'a crate::Effective {
    loaded.effective.iter().find(|line| line.key == key).unwrap()
}

#[test]
fn flag_set_environment_file_default() {
    let file = "[source]\nslot = \"from_file\"";
    let env = [("POSTRIDER_SOURCE__SLOT", "from_env")];
    let set = ["source.slot=first", "source.slot=from_set"];
    let flags = [("source.slot", "from_flag")];
    let cases = [
        (Given::default(), "postrider", "default"),
        (Given { file: Some(file), ..Given::default() }, "from_file", "postrider.toml:2"),
        (
            Given { file: Some(file), env: &env, ..Given::default() },
            "from_env",
            "env POSTRIDER_SOURCE__SLOT",
        ),
        (Given { file: Some(file), env: &env, set: &set, ..Given::default() }, "from_set", "--set"),
        (Given { file: Some(file), env: &env, set: &set, flags: &flags }, "from_flag", "--flag"),
    ];
    for (given, slot, origin) in cases {
        let loaded = given.load().unwrap();
        assert_eq!(loaded.config.source.slot, slot);
        let line = effective(&loaded, "source.slot");
        assert_eq!(line.value, Shown::Text(slot.to_owned()));
        assert!(line.origin.to_string().ends_with(origin), "{}", line.origin);
    }
}

#[test]
fn a_list_is_taken_as_a_file_would_have_it_too() {
    for text in ["event_id, id", "event_id,id", r#"["event_id", "id"]"#, "['event_id','id']"] {
        let set = format!("outbox.id={text}");
        let loaded = Given { set: &[&set], ..Given::default() }.load().unwrap();
        let names = ["event_id".to_owned(), "id".to_owned()];
        assert_eq!(effective(&loaded, "outbox.id").value, Shown::List(names.into()), "{text}");
    }
    let forms: [(&str, &[&str]); 6] = [
        ("[]", &[]),
        ("[ ]", &[]),
        ("", &[]),
        ("[a]", &["a"]),
        ("[a, b]", &["a", "b"]),
        ("[\"a\",]", &["a"]),
    ];
    for (text, expected) in forms {
        let (set, env) =
            (format!("route.topics_allowed={text}"), [("POSTRIDER_ROUTE__TOPICS_ALLOWED", text)]);
        for given in
            [Given { set: &[&set], ..Given::default() }, Given { env: &env, ..Given::default() }]
        {
            let allowed = given.load().unwrap().config.route.topics_allowed;
            assert_eq!(allowed, expected, "{text}");
        }
    }
    for key in ["route.headers", "messages.prefixes", "source.password_command", "outbox.order_by"]
    {
        let set = format!("{key}=[]");
        let loaded = Given { set: &[&set], ..Given::default() }.load().unwrap();
        assert_eq!(effective(&loaded, key).value, Shown::List(Vec::new()), "{key}");
    }
    let set = ["kafka.brokers=[::1]:9092,[::2]"];
    let loaded = Given { set: &set, ..Given::default() }.load().unwrap();
    assert_eq!(loaded.config.kafka.brokers, ["[::1]:9092", "[::2]"], "of an address, too");
    // A glob may contain a bracket.
    let set = ["route.topics_allowed=[ab]*"];
    let loaded = Given { set: &set, ..Given::default() }.load().unwrap();
    let line = effective(&loaded, "route.topics_allowed");
    assert_eq!(line.value, Shown::List(vec!["[ab]*".to_owned()]));
}

#[test]
fn rules_have_numbers_in_every_layer() {
    let file =
        "[[route.rules]]\nglob = \"a\"\nkey = \"k\"\n[[route.rules]]\nglob = \"b\"\nkey = \"k\"";
    let env = [("POSTRIDER_ROUTE__RULES__1__GLOB", "from_env")];
    let set = ["route.rules.2.glob=from_set", "route.rules.2.drop=true"];
    let loaded = Given { file: Some(file), env: &env, set: &set, ..Given::default() };
    let loaded = loaded.load().unwrap();
    let globs: Vec<_> = loaded.config.route.rules.iter().map(|rule| &rule.pattern).collect();
    let glob = |text: &str| postrider_core::route::PatternSpec::Glob(text.to_owned());
    assert_eq!(globs, [&glob("a"), &glob("from_env"), &glob("from_set")]);
    let line = effective(&loaded, "route.rules.1.glob");
    assert_eq!(line.origin.to_string(), "env POSTRIDER_ROUTE__RULES__1__GLOB");
}

#[test]
fn libpqs_variables_fill_what_the_url_leaves_out() {
    let env = [("PGHOST", "fromenv"), ("PGPORT", "6000")];
    let loaded = Given { env: &env, set: &["source.url=postgres://db/shop"], ..Given::default() }
        .load()
        .unwrap();
    let connect = &loaded.config.source.connect;
    assert_eq!(connect.endpoints[0].to_string(), "db:6000");
    assert_eq!((connect.user.as_str(), connect.database.as_str()), ("tester", "shop"));
    let line = effective(&loaded, "source.connect");
    assert!(
        line.value.to_string().contains("server=db:6000 user=tester dbname=shop"),
        "{}",
        line.value
    );
    assert_eq!(
        line.origin.to_string(),
        "host, dbname: --set; port: env PGPORT; user: env PGUSER; sslmode: default"
    );
}

#[test]
fn each_part_of_the_connection_is_shown_with_its_own_origin() {
    let file = "[source]\nurl = \"postgres://fileuser@filehost/shop\"";
    let env = [("PGHOST", "envhost"), ("PGUSER", "envuser"), ("PGPASSWORD", "hunter2")];
    let loaded = Given { file: Some(file), env: &env, ..Given::default() }.load().unwrap();
    let line = effective(&loaded, "source.connect");
    let (parts, password) = (line.origin.to_string(), "; password: env PGPASSWORD");
    assert!(parts.starts_with("host, user, dbname: ") && parts.contains(":2; "), "{parts}");
    assert!(parts.ends_with(password) && !parts.contains("PGHOST"), "{parts}");
    let set = ["source.password_command=print-password"];
    let loaded = Given { file: Some(file), env: &env, set: &set, ..Given::default() }.load();
    let line = effective(&loaded.unwrap(), "source.connect").origin.to_string();
    assert!(line.ends_with("password: source.password_command, --set"), "{line}");
}

#[test]
fn it_runs_without_a_file() {
    let env = [
        ("PGHOST", "db"),
        ("PGPASSWORD", "hunter2"),
        ("POSTRIDER_KAFKA__BROKERS", "a:9092, b:9092"),
    ];
    let loaded = Given { env: &env, ..Given::default() }.load().unwrap();
    assert_eq!(loaded.config.kafka.brokers, ["a:9092", "b:9092"]);
    assert!(!format!("{loaded:?}").contains("hunter2"));
    assert!(effective(&loaded, "source.connect").value.to_string().contains("password=****"));
}

#[test]
fn secrets_come_from_files_and_are_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "hunter2\n").unwrap();
    let secret = secret.display().to_string();
    let env = [
        ("POSTRIDER_KAFKA__PROPERTIES__SASL_PASSWORD_FILE", secret.as_str()),
        ("POSTRIDER_KAFKA__PROPERTIES__SECURITY_PROTOCOL", "sasl_ssl"),
        ("POSTRIDER_SOURCE__URL", "postgres://app:hunter2@db/shop"),
    ];
    let loaded = Given { env: &env, ..Given::default() }.load().unwrap();
    let properties: Vec<_> = loaded
        .config
        .kafka
        .properties
        .iter()
        .map(|property| (property.name.as_str(), property.value.as_str()))
        .collect();
    assert_eq!(properties, [("sasl.password", "hunter2"), ("security.protocol", "sasl_ssl")]);
    assert!(!format!("{loaded:?}").contains("hunter2"), "{loaded:?}");
    assert_eq!(effective(&loaded, "kafka.properties.sasl.password").value.to_string(), "\"****\"");
    assert_eq!(
        effective(&loaded, "source.url").value.to_string(),
        "\"postgres://app:****@db/shop\""
    );
}

#[test]
fn every_kind_of_value_is_taken_from_file_and_environment_alike() {
    let file = "[source]\ntables = [\"a.b\", \"c.d\"]\nstatus_interval = \"500ms\"\n\
                [route]\nposition_header = false\nrejected = \"stop\"\n\
                [kafka]\nmax_in_flight = \"8MiB\"\n\
                [kafka.properties]\nsocket.keepalive.enable = true\n\"batch.size\" = 5\n\
                [http]\nbind = \"\"";
    let env = [
        ("POSTRIDER_SOURCE__TABLES", "a.b, c.d"),
        ("POSTRIDER_SOURCE__STATUS_INTERVAL", "500ms"),
        ("POSTRIDER_ROUTE__POSITION_HEADER", "false"),
        ("POSTRIDER_ROUTE__REJECTED", "stop"),
        ("POSTRIDER_KAFKA__MAX_IN_FLIGHT", "8MiB"),
        ("POSTRIDER_KAFKA__PROPERTIES__SOCKET_KEEPALIVE_ENABLE", "true"),
        ("POSTRIDER_KAFKA__PROPERTIES__BATCH_SIZE", "5"),
        ("POSTRIDER_HTTP__BIND", ""),
    ];
    let from_file = Given { file: Some(file), ..Given::default() }.load().unwrap().config;
    let from_env = Given { env: &env, ..Given::default() }.load().unwrap().config;
    assert_eq!(from_file, from_env);
    assert_eq!(from_file.source.status_interval, Duration::from_millis(500));
    assert_eq!(from_file.route.rejected, Rejected::Stop);
    assert_eq!(from_file.kafka.in_flight_bytes_max, 8 << 20);
    assert_eq!(from_file.kafka.properties.len(), 2);
    assert_eq!(from_file.http.bind, None);
}
