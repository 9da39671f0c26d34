//! Tests that each mistake is reported with its place and its fix.

use super::*;
use crate::options::OptionKind;
use crate::table::option;
use crate::{Mistake, MistakeKind, OPTIONS, Objection, SourcePosition};

fn mistakes(given: &Given<'_>) -> Vec<Mistake> {
    match given.load() {
        Err(ConfigError::Mistakes(mistakes)) => mistakes,
        other => panic!("{other:?}"),
    }
}

/// File, expected line, text above the caret, and words of the message or help.
const FILES: &[(&str, usize, &str, &str)] = &[
    ("[source]\npublicaton = \"x\"", 2, "publicaton", "did you mean `source.publication`?"),
    ("[sorce]\nslot = \"x\"", 1, "sorce", "did you mean [source]?"),
    ("[dead-letters]\ntopic = \"x\"", 1, "dead-letters", "did you mean [dead_letters]?"),
    ("[nothing]\nslot = \"x\"", 1, "nothing", "the sections are"),
    ("slot = \"x\"", 1, "slot", "did you mean `source.slot`?"),
    ("[kafka]\nslot = \"x\"", 2, "slot", "did you mean `source.slot`?"),
    ("[kafka]\nbroker = [\"a:1\"]", 2, "broker", "did you mean `kafka.brokers`?"),
    ("[http]\nport = 80", 2, "port", "[http] has bind"),
    ("[source]\nslot = 5", 2, "5", "must be text, not a number"),
    ("[source]\nslot = \"Post-Rider\"", 2, "\"Post-Rider\"", "\"post_rider\""),
    ("[source]\nslot = \"\"", 2, "\"\"", "must not be empty"),
    ("\n\n[source]\ntables = \"public.outbox\"", 4, "\"public.outbox\"", "[\"public.outbox\"]"),
    ("[source]\ntables = [\"a.b\", \"outbox\"]", 2, "\"outbox\"", "\"public.outbox\""),
    ("[source]\ntables = [\n  \"a.b\",\n  5,\n]", 2, "[", "a list with something else"),
    ("[source]\ntables = [\n  \"a.b\",\n  \"Shop.Out\",\n]", 4, "\"Shop.Out\"", "not a table name"),
    ("[source]\ntables = []", 2, "[]", "at least one"),
    ("[source]\ntables = [\"a.b\", \"a.b\"]", 2, "[\"a.b\", \"a.b\"]", "named twice"),
    ("[source]\ncreate = \"atuo\"", 2, "\"atuo\"", "did you mean \"auto\"?"),
    ("[source]\nstatus_interval = 1", 2, "1", "\"1s\""),
    ("[source]\nstatus_interval = \"1\"", 2, "\"1\"", "\"1s\" or \"1ms\""),
    ("[source]\nstatus_interval = \"5m\"", 2, "\"5m\"", "between 10ms and 20s"),
    ("[source]\nurl = \"postgres://h/d?sslmod=require\"", 2, "\"", "did you mean `sslmode`?"),
    (
        "[source]\nurl = \"postgres://u:a/b@h/d\"",
        2,
        "\"",
        "are written %2F %3F %23 %40 %3A %25; write",
    ),
    ("[kafka]\nbrokers = [\"http://k:9092\"]", 2, "\"http://k:9092\"", "host:port: \"k:9092\""),
    ("source = 5", 1, "5", "must be a section, not a single value"),
    ("[outbox]\nid = true", 2, "true", "must be a name, or a list of names, not"),
    ("[outbox]\nid = \"\"", 2, "\"\"", "must not be empty"),
    ("[outbox]\nid = [\"a\", \"\"]", 2, "\"\"", "must not be empty"),
    ("[outbox]\non_update = \"fail\"", 2, "\"fail\"", "ignore, warn, error, stop"),
    ("[route]\nregex = \"(?<a\"", 2, "\"(?<a\"", "not a regular expression"),
    ("[route]\ntopic = \"${kind}\"", 2, "\"${kind}\"", "routedByValue"),
    ("[route]\ntopic = \"a b\"", 2, "\"a b\"", "topics are made of"),
    ("[route]\ntopic = \"__consumer_offsets\"", 2, "\"__c", "no row could go to"),
    ("[route]\ntopic = \"__${routedByValue}\"", 2, "\"__$", "as Kafka's own topics do"),
    ("[route]\ntopic = \"a\"\ntopics_allowed = [\"b*\"]", 2, "\"a\"", "matches no pattern"),
    ("[route]\ntopics_allowed = [\"\"]", 2, "\"\"", "matches nothing"),
    ("[[route.rules]]\nglob = \"*\"\ntopic = \"postrider.progress.x\"", 3, "\"p", "no row could"),
    ("[dead_letters]\ntopic = \"postrider.progress.a\"", 2, "\"p", "where relays keep progress"),
    ("[progress]\ntopic = \"__p\"", 2, "\"__p\"", "begins with `__`"),
    ("[progress]\ntopic = \"postrider.dead-letters\"", 2, "\"p", "dead letters go to"),
    ("[route]\nheaders = [\"a:b:c\"]", 2, "\"a:b:c\"", "column:name"),
    ("[route]\nenvelope = [\"a\"]", 2, "[", "needs an object around"),
    ("[route]\nenvelope = [\"a\", \"b:a\"]", 2, "[", "the member `a` twice"),
    ("[route]\nenvelope = [\"a:payload\"]", 2, "[", "`payload` is the payload's own"),
    ("[[route.rules]]\ntopic = \"x\"", 2, "\"x\"", "the rule has no pattern"),
    ("[[route.rules]]\nglob = \"*\"", 2, "\"*\"", "the rule does nothing"),
    ("[[route.rules]]\nglob = \"*\"\ndrop = true\nkey = \"a\"", 3, "true", "sends them nowhere"),
    ("[[route.rules]]\nglob = \"*\"\nregex = \"a\"", 3, "\"a\"", "has a glob already"),
    ("[[route.rules]]\nregex = \"(\"", 2, "\"(\"", "not a regular expression"),
    ("[[route.rules]]\nregex = \"(a)\"\ntopic = \"$2\"", 3, "\"$2\"", "refers to the group"),
    ("[[route.rules]]\nglobe = \"*\"", 2, "globe", "a [[route.rules]] has column, glob"),
    ("[route]\nrules = [5]", 2, "5", "must be a section"),
    ("[format]\nvalue = \"avro\"", 2, "\"avro\"", "raw, string, json, json_schema"),
    ("[route]\nposition_header = \"yes\"", 2, "\"yes\"", "true or false"),
    (
        "[kafka]\ndelivery = \"exactly\"",
        2,
        "\"exactly\"",
        "the choices are at_least_once, exactly_once",
    ),
    ("[kafka]\nbrokers = [\"kafka\", \"kafka:x\"]", 2, "\"kafka:x\"", "host:port"),
    ("[kafka]\nmax_in_flight = 32", 2, "32", "\"32MiB\""),
    ("[kafka]\nmax_in_flight = \"1KiB\"", 2, "\"1KiB\"", "between 1MiB and 1GiB"),
    ("[dead_letters]\ntopic = \"a/b\"", 2, "\"a/b\"", "character other than"),
    ("[http]\nbind = \"8484\"", 2, "\"8484\"", "127.0.0.1:8484"),
    ("[retry]\ninitial = \"5s\"\nmax = \"1s\"", 3, "\"1s\"", "must not be below"),
    ("[kafka]\nbrokers = [\"a:1\"\ncompression = \"lz4\"", 3, "", "not readable"),
    (
        "[kafka]\nbrokers = [\"k1:9092,k2:9092\"]",
        2,
        "\"k1:9092,",
        "write k1:9092,k2:9092, or [\"k1:9092\", \"k2:9092\"]",
    ),
    ("[kafka]\nbrokers = \"k1:9092,http://k\"", 2, "\"k1", "`http://k` begins with a protocol"),
    ("[kafka]\nbrokers = \"\"", 2, "\"\"", "write \"host:port\""),
    ("[kafka]\nbrokers = [\"${BROKER}:9092\"]", 2, "\"$", "write \"host:port\""),
    (
        "[source]\npassword_command = \"cat /run/pw\"",
        2,
        "****",
        "put it in brackets: [\"cat\", \"/run/pw\"]",
    ),
    ("[source]\ntables = \"a.b, c.d\"", 2, "\"a.b", ": [\"a.b\", \"c.d\"]"),
    (
        "[source]\nurl = \"jdbc:postgresql://h/d\"",
        2,
        "\"jdbc",
        "postgresql://HOST:5432/DATABASE?user=USER",
    ),
    ("[source]\nurl = \"mysql://h/d\"", 2, "\"mysql", "write postgresql://USER@HOST:5432/DATABASE"),
    ("[source]\nurl = \"postgres://u:${PW}@h/d\"", 2, "\"", "set PGPASSWORD in the environment"),
    ("[source]\nurl = \"host=$(DB_HOST)\"", 2, "\"", "url_file = \"PATH\""),
    (
        "[kafka.properties]\n\"sasl.password\" = \"${env:PW}\"",
        2,
        "\"sasl.password\"",
        "set POSTRIDER_KAFKA__PROPERTIES__SASL_PASSWORD in the environment",
    ),
    ("[kafka.oauth]\nclient_secret = \"${S}\"", 2, "****", "`client_secret_file` instead of"),
    ("[source]\npassword = \"x\"", 2, "password", "set PGPASSWORD in the environment, or name a"),
    (
        "[source]\nhost = \"db\"",
        2,
        "host",
        "put it into source.url: url = \"postgresql://USER@HOST",
    ),
    ("[postgres]\nhost = \"db\"", 1, "postgres", "the sections are"),
    ("user = \"app\"", 1, "user", "put it into source.url"),
    ("[source.poll]\nworkers = 65", 2, "65", "between 1 and 64"),
    ("[source.poll]\nworkers = \"many\"", 2, "\"many\"", "is not a whole number"),
    ("[source.poll]\nbatch = 1.5", 2, "1.5", "is not a whole number"),
    ("[source.poll]\nbatch = true", 2, "true", "must be a whole number, not true or false"),
    ("[http]\nbind = \":8484\"", 2, "\":8484\"", "or \"0.0.0.0:8484\" for every network"),
    (
        "[route]\nrejected = \"stop\"\nmissing_topic = \"dead_letter\"",
        3,
        "\"dead_letter\"",
        "rows may end as dead letters",
    ),
    ("[kafka]\nmax_in_flight = \"32M\"", 2, "\"32M\"", "\"32MiB\" (1024) or \"32MB\" (1000)"),
    ("[kafka]\nmax_in_flight = \"1.5GB\"", 2, "\"1.5GB\"", "\"1500MB\""),
    ("[route]\nregex = \"Order(.*\"", 2, "\"Order", "at character 9"),
    ("[route]\nregex = \"\\\\d.[a\"", 2, "\"", "at character 6"),
    ("[route]\nregex = \"\\\\d.x)y\"", 2, "\"", "at character 5"),
    ("[kafka]\nbrokers = [\"a:1, \"b:2\"]", 2, "\"a:1, ", "is opened here and not closed"),
    ("[kafka]\nbrokers = [\"a:1\", \"b:2]\nlinger = \"1ms\"", 2, "\"b:2]", "is opened here"),
    ("[source]\nslot = \"x", 2, "\"x", "is opened here and not closed"),
    ("[source]\nslot = 'x\nmode = \"poll\"", 2, "'x", "is opened here and not closed"),
    (
        "[[route.rules]]\nglob = \"*\"\nkey = \"a\"\n[[route.rules]]\nregex = \"Order.*\"\ndrop = true",
        5,
        "\"Order.*\"",
        "route.rules.0 matches all of its rows",
    ),
    (
        "[[route.rules]]\nglob = \"Order*\"\nkey = \"a\"\n[[route.rules]]\nglob = \"OrderPaid\"\nkey = \"b\"",
        5,
        "\"OrderPaid\"",
        "move this rule before it, or remove it",
    ),
    (
        "[[route.rules]]\nregex = \"(.*)\"\nkey = \"a\"\n[[route.rules]]\nglob = \"b\"\ndrop = true",
        5,
        "\"b\"",
        "no row reaches this rule",
    ),
];

#[test]
fn rules_that_rows_can_reach_are_accepted() {
    for (earlier, later) in [
        ("glob = \"OrderPaid\"", "glob = \"Order*\""),
        ("glob = \"*\"\ncolumn = \"tenant\"", "glob = \"Order*\""),
        ("glob = \"Order*\"", "glob = \"*Paid\""),
        ("regex = \"Order.*\"", "regex = \"Ord.*\""),
    ] {
        let rule = |pattern: &str| format!("[[route.rules]]\n{pattern}\nkey = \"a\"\n");
        let file = rule(earlier) + &rule(later);
        let loaded = Given { file: Some(&file), ..Given::default() }.load();
        assert!(loaded.is_ok(), "{file}: {loaded:?}");
    }
}

#[test]
fn what_is_meant_without_doubt_is_accepted() {
    let file = "[kafka]\nbrokers = \"k1:9092, k2:9092\"\n[source.poll]\nworkers = 4\nbatch = \"50\"\n\
                [route]\ncreate_topics_max = 7\n[traces]\nmax_per_second = 0";
    let loaded = Given { file: Some(file), ..Given::default() }.load().unwrap();
    let config = loaded.config;
    assert_eq!(config.kafka.brokers, ["k1:9092", "k2:9092"]);
    assert_eq!((config.source.poll.workers, config.source.poll.batch), (4, 50));
    assert_eq!((config.route.missing_topic.create_max, config.traces.max_per_second), (7, 0));
    // The file of a secret may hold any text.
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a${b}c\n").unwrap();
    let secret = secret.display().to_string();
    let env = [
        ("POSTRIDER_KAFKA__PROPERTIES__SASL_PASSWORD_FILE", secret.as_str()),
        ("POSTRIDER_SOURCE__URL", "postgres://u:pa$$%7Bx}@h/d"),
    ];
    assert!(Given { env: &env, ..Given::default() }.load().is_ok());
}

#[test]
fn a_secret_that_is_empty_or_missing_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (empty, missing) = (folder.path().join("empty"), folder.path().join("missing"));
    std::fs::write(&empty, "\n").unwrap();
    let (empty, missing) = (empty.display().to_string(), missing.display().to_string());
    for (path, words) in [(&empty, "it is empty"), (&missing, "check its path")] {
        let file = format!("[source]\nurl_file = \"{path}\"");
        let env = [("POSTRIDER_SOURCE__URL_FILE", path.as_str())];
        for given in [
            Given { file: Some(&file), ..Given::default() },
            Given { env: &env, ..Given::default() },
        ] {
            let found = mistakes(&given);
            let said = format!("{} {}", found[0], found[0].help.as_deref().unwrap_or(""));
            assert!(found.len() == 1 && said.contains(words) && said.contains(path), "{said}");
            assert!(matches!(found[0].kind, MistakeKind::UnreadableFile { .. }), "{found:?}");
        }
    }
}

#[test]
fn a_relative_path_of_a_secret_is_named_with_its_folder() {
    let folder = std::env::current_dir().unwrap().display().to_string();
    let said = |file: &str| {
        let found = mistakes(&Given { file: Some(file), ..Given::default() });
        let [mistake] = found.as_slice() else { panic!("{found:?}") };
        format!("{mistake} {}", mistake.help.as_deref().unwrap_or(""))
    };
    let missing = said("[source]\nurl_file = \"nowhere/url\"");
    assert!(
        missing.contains("cannot read `nowhere/url`") && missing.ends_with(&folder),
        "{missing}"
    );
    // The secret itself instead of its file.
    for mistaken in [
        "[source]\nurl_file = \"postgres://app:hunter2@db/shop\"",
        "[kafka.properties]\n\"sasl.password_file\" = \"hunter2\"",
    ] {
        let said = said(mistaken);
        assert!(said.contains("****") && !said.contains("hunter2"), "{said}");
    }
}

#[test]
fn a_file_with_more_lines_than_the_url_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("url");
    std::fs::write(&path, "postgres://app:hunter2@db/shop\n# of the shop\n").unwrap();
    let file = format!("[source]\nurl_file = \"{}\"", path.display());
    let found = mistakes(&Given { file: Some(&file), ..Given::default() });
    let said = format!("{found:?}");
    assert!(
        found.len() == 1 && said.contains("the URL must be one line without other text"),
        "{said}"
    );
    assert!(!said.contains("hunter2"), "{said}");
}

#[test]
fn a_file_in_another_language_is_told_from_toml() {
    for (text, words) in [
        (
            "source:\n  url: postgres://app:hunter2@db/shop",
            "this is YAML, and the configuration is TOML",
        ),
        ("# by hand\n---\nkafka: {}", "`postrider config example`"),
        ("{\"source\": {\"url\": \"postgres://app:hunter2@db\"}}", "this is JSON"),
        (
            "{\n\"connector.class\": \"x\", \"database.password\": \"hunter2\"}",
            "`postrider import debezium FILE`",
        ),
    ] {
        let found = mistakes(&Given { file: Some(text), ..Given::default() });
        let said = format!("{} {}", found[0], found[0].help.as_deref().unwrap_or(""));
        assert!(said.contains(words) && said.contains("postrider.toml"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn missing_parts_of_a_login_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.toml");
    std::fs::write(
        &path,
        "[kafka.properties]\n\"security.protocol\" = \"SASL_SSL\"\n\"sasl.mechanism\" = \"PLAIN\"",
    )
    .unwrap();
    let inputs = Inputs {
        file: FileChoice::At(path),
        variables: vec![("PGUSER".into(), "tester".into())],
        ..Inputs::default()
    };
    let objection = Objection {
        key: "kafka.properties".into(),
        reason: "sasl.username is missing".into(),
        help: None,
    };
    let Err(ConfigError::Mistakes(found)) = load(&inputs, &|_| vec![objection.clone()]) else {
        panic!()
    };
    assert!(
        matches!(&found[0].place, SourcePosition::File(excerpt) if excerpt.line == 3),
        "{found:?}"
    );
}

fn difference(&(text, line, under, words): &(&str, usize, &str, &str)) -> Option<String> {
    let found = mistakes(&Given { file: Some(text), ..Given::default() });
    let [Mistake { kind, place: SourcePosition::File(excerpt), help }] = found.as_slice() else {
        return Some(format!("{text}: {found:?}"));
    };
    let marked: String =
        excerpt.text.chars().skip(excerpt.column - 1).take(excerpt.width).collect();
    let said = format!("{kind} {}", help.as_deref().unwrap_or(""));
    let is_right = excerpt.line == line && marked.starts_with(under) && said.contains(words);
    (!is_right).then(|| format!("{text}: {said}: marked {marked:?} in {excerpt:?}"))
}

#[test]
fn each_mistake_in_a_file_is_pointed_at_with_help() {
    let differences: Vec<String> = FILES.iter().filter_map(difference).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

#[test]
fn all_mistakes_are_told_at_once_in_the_files_order() {
    let text = "[kafka]\nlinger = 5\n[source]\nslot = \"A\"\nnone = 1\n[http]\nbind = \"x\"";
    let found = mistakes(&Given { file: Some(text), set: &["a.b=c"], ..Given::default() });
    let lines: Vec<_> = found
        .iter()
        .map(|mistake| match &mistake.place {
            SourcePosition::File(excerpt) => excerpt.line,
            _ => 0,
        })
        .collect();
    assert_eq!(lines, [2, 4, 5, 7, 0]);
}

#[test]
fn a_wrong_type_is_refused_even_where_it_is_overridden() {
    let given =
        Given { file: Some("[source]\nslot = 5"), set: &["source.slot=right"], ..Given::default() };
    assert_eq!(mistakes(&given).len(), 1);
}

#[test]
fn mistakes_outside_of_a_file_name_their_variable_or_flag() {
    for (name, words) in [
        ("POSTRIDER_KAFKA__BROKER", "did you mean `POSTRIDER_KAFKA__BROKERS`?"),
        ("POSTRIDER_KAFKA_BROKERS", "`POSTRIDER_KAFKA__BROKERS`, with two underscores"),
        ("POSTRIDER_HTTP__BIND", "127.0.0.1:8484"),
        ("POSTRIDER_SOURCE__SLOT_FILE", "cannot read"),
    ] {
        let found = mistakes(&Given { env: &[(name, "/no such value")], ..Given::default() });
        let said = format!("{} {}", found[0], found[0].help.as_deref().unwrap_or(""));
        assert!(said.contains(words) && said.contains(name), "{said}");
    }
    for (set, words) in [
        ("kafka.brokerz=a", "did you mean `kafka.brokers`?"),
        ("nonsense", "section.name=value"),
        ("source.slot=UP", "not a slot name"),
        ("kafka.properties=x", "no setting"),
        ("kafka.propertiesx=y", "no setting"),
        ("outbox.id=[\"id\", \"event", "`[\"id\", \"event` is not a list"),
        ("route.headers=[[a]]", "write a, or [\"a\"]"),
        ("source.password_command=[cat,hunter2", "write [\"PROGRAM\", \"ARGUMENT\"]"),
    ] {
        let found = mistakes(&Given { set: &[set], ..Given::default() });
        let said = format!("{} {}", found[0], found[0].help.as_deref().unwrap_or(""));
        assert!(said.contains(words) && said.contains("--set"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn a_list_that_is_not_closed_is_refused_of_every_key() {
    let is_list = |kind| matches!(kind, OptionKind::List | OptionKind::Names);
    let keys = OPTIONS.iter().filter(|option| is_list(option.kind)).map(|option| option.key);
    let broken = ["[a,b", "a,b]", "[a*,b", "a,[b", "[a],b", "[[a],b]", "[\"a\",\"b\"", "\"a,b"];
    for (key, text) in keys.flat_map(|key| broken.map(|text| (key, text))) {
        let (set, name) = (format!("{key}={text}"), option(key).unwrap().env());
        let key = key.replace(".N.", ".0.");
        let set = set.replace(".N.", ".0.");
        let name = name.replace("__N__", "__0__");
        let env = [(name.as_str(), text)];
        let given =
            [Given { set: &[&set], ..Given::default() }, Given { env: &env, ..Given::default() }];
        for given in given {
            let said: Vec<_> =
                mistakes(&given).iter().map(|one| format!("{one} {:?}", one.help)).collect();
            let is_told = |said: &String| {
                let value = if key.ends_with("command") { "`****`" } else { text };
                [&key, value, "is not a list", "write "].iter().all(|word| said.contains(*word))
            };
            assert!(said.iter().any(is_told), "{key}={text}: {said:?}");
        }
    }
}

#[test]
fn a_value_and_the_file_that_holds_it_are_not_both_given() {
    let env = [("POSTRIDER_SOURCE__SLOT", "one"), ("POSTRIDER_SOURCE__SLOT_FILE", "Cargo.toml")];
    let said = mistakes(&Given { env: &env, ..Given::default() })[0].to_string();
    assert!(env.iter().all(|(name, _)| said.contains(name)), "{said}");
}

#[test]
fn a_word_that_is_unlike_every_choice_is_not_taken_for_one() {
    for (typed, words) in [("avro", "the choices are"), ("rwa", "did you mean \"raw\"?")] {
        let set = format!("format.value={typed}");
        let found = mistakes(&Given { set: &[&set], ..Given::default() });
        let help = found[0].help.as_deref().unwrap();
        assert!(help.contains(words), "{typed}: {help}");
    }
}

#[test]
fn variables_of_others_are_left_alone() {
    // Kubernetes sets these for a service named `postrider`, except the file's own variable.
    let env = [
        ("POSTRIDER_PORT", "tcp://10.0.0.1:8484"),
        ("POSTRIDER_PORT_8484_TCP_ADDR", "10.0.0.1"),
        ("POSTRIDER_SERVICE_HOST", "10.0.0.1"),
        ("POSTRIDER_CONFIG", "/x"),
        ("OTHER_SOURCE__SLOT", "5"),
    ];
    assert!(Given { env: &env, ..Given::default() }.load().is_ok());
}

#[test]
fn no_message_shows_a_secret() {
    let files = [
        "[source]\nurl = \"postgres://app:hunter2@db/shop?sslmod=require\"",
        "[source]\nurl = postgres://app:hunter2@db/shop",
        "[source]\npasswrod = \"hunter2\"",
        "password = \"hunter2\"",
        "[kafka.properties]\n\"sasl.password\" = [\"hunter2\"]",
        "[kafka]\npasword = \"hunter2\"\n\"sasl.password\" = \"hunter2\"",
        "[kafka.properties]\nsasl.password = \"hunter2",
    ];
    for text in files {
        let error = Given { file: Some(text), ..Given::default() }.load().unwrap_err();
        let ConfigError::Mistakes(found) = &error else { panic!("{error:?}") };
        assert!(!format!("{error} {error:?} {found:?}").contains("hunter2"), "{text}: {error:?}");
    }
    let set = [
        "source.url=postgres://a:hunter2@h/d?x=y",
        "source.url=dbname=postgres://a:hunter2@h/d",
        "kafka.pasword=hunter2",
    ];
    for set in set {
        let error = Given { set: &[set], ..Given::default() }.load().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

#[test]
fn no_message_shows_the_password_of_a_url_or_of_one_without_its_scheme() {
    for value in ["postgres://app:hunter2@db/shop", "app:hunter2@db/shop", "app:hun=hunter2@db"] {
        for option in OPTIONS {
            let (key, env) = (option.key, option.env());
            let (section, name) = key.split_once('.').unwrap();
            let set = format!("{key}={value}");
            let file = |text: String| format!("[{section}]\n{name} = {text}\n");
            let text = file(format!("\"{value}\""));
            let list = file(format!("[\n  \"{value}\",\n]"));
            let [text, list] =
                [text, list].map(|file| file.replace("[route.rules", "[route_rules"));
            let given = [
                Given { set: &[&set], ..Given::default() },
                Given { env: &[(&env, value)], ..Given::default() },
                Given { flags: &[(key, value)], ..Given::default() },
                Given { file: Some(&text), ..Given::default() },
                Given { file: Some(&list), ..Given::default() },
            ];
            for given in given {
                let said = match given.load() {
                    Err(ConfigError::Mistakes(found)) => {
                        format!("{found:?} {}", ConfigError::Mistakes(found.clone()))
                    }
                    Err(error) => format!("{error} {error:?}"),
                    Ok(loaded) => {
                        let shown = loaded.effective.iter().map(|one| format!("{one:?}"));
                        shown.chain(loaded.warnings.iter().map(ToString::to_string)).collect()
                    }
                };
                assert!(!said.contains("hunter2"), "{key}: {said}");
            }
        }
    }
}

#[test]
fn objections_of_later_rooms_point_at_their_property() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.toml");
    std::fs::write(&path, "[kafka.properties]\nacks = 0\n").unwrap();
    let inputs = Inputs {
        file: FileChoice::At(path),
        variables: vec![("PGUSER".into(), "tester".into())],
        ..Inputs::default()
    };
    let objection = Objection {
        key: "kafka.properties.acks".into(),
        reason: "a guarantee rests on it".into(),
        help: None,
    };
    let error = load(&inputs, &|_| vec![objection.clone()]).unwrap_err();
    let ConfigError::Mistakes(found) = error else { panic!() };
    assert!(matches!(found[0].kind, MistakeKind::RefusedProperty { .. }), "{found:?}");
    assert!(
        matches!(&found[0].place, SourcePosition::File(excerpt) if excerpt.line == 2),
        "{found:?}"
    );
}

#[test]
fn a_missing_file_is_named() {
    let inputs = Inputs { file: FileChoice::At("/no/such.toml".into()), ..Inputs::default() };
    let error = load(&inputs, &|_| Vec::new()).unwrap_err();
    assert!(error.to_string().contains("/no/such.toml"));
    assert!(error.hint().unwrap().contains("config example"));
}

proptest::proptest! {
    #[test]
    fn any_text_is_a_configuration_or_a_list_of_mistakes(
        text in "([\\[\\]{}=\\.\"'#, \n\t\u{e4}a-c0-9]|source|kafka|properties|slot|url|brokers|route|regex|topic){0,40}"
    ) {
        match (Given { file: Some(&text), ..Given::default() }).load() {
            Ok(_) => {}
            Err(ConfigError::Mistakes(found)) => proptest::prop_assert!(!found.is_empty()),
            Err(other) => panic!("{other:?}"),
        }
    }

    /// Any text gives a printable configuration or printable mistakes.
    #[test]
    fn any_value_in_any_layer_is_taken_or_refused(
        option in proptest::sample::select(OPTIONS),
        typed in "(\\PC|[0-9:/@%=,'\\[\\] ]|ms|MiB|postgres://|host=|::1){0,24}",
        layer in 0..3,
    ) {
        let (text, assignment) = (toml::Value::String(typed.clone()), format!("{}={typed}", option.key));
        let (section, name) = option.key.split_once('.').unwrap();
        let file = format!("[{section}]\n{name} = {text}\n");
        let variable = option.env();
        let loaded = match layer {
            0 => Given { file: Some(&file), ..Given::default() }.load(),
            1 => Given { env: &[(&variable, &typed)], ..Given::default() }.load(),
            _ => Given { set: &[&assignment], ..Given::default() }.load(),
        };
        match loaded {
            Ok(loaded) => {
                let shown = loaded.effective.iter().find(|line| line.key == option.key).unwrap();
                let line = format!("value = {}", shown.value);
                proptest::prop_assert!(line.parse::<toml::Table>().is_ok(), "{line}");
                proptest::prop_assert!(serde_json::to_string(&shown.value).is_ok());
            }
            Err(ConfigError::Mistakes(found)) => proptest::prop_assert!(!found.is_empty()),
            Err(other) => panic!("{other:?}"),
        }
    }
}
