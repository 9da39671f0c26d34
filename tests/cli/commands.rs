//! Each command without its servers: what it prints, and with which exit code it ends.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::io::Read as _;
use std::process::{Output, Stdio};

use super::postrider;

fn run(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    postrider(folder.path()).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn in_folder(config: &str, arguments: &[&str], env: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("postrider.toml"), config).unwrap();
    let mut command = postrider(folder.path());
    command.args(arguments).envs(env.iter().copied()).output().unwrap()
}

#[test]
fn usage_mistakes_are_code_2_and_leave_stdout_empty() {
    for arguments in [&[][..], &["rnu"], &["run", "--one"], &["config"], &["bench", "floor"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
    assert!(text(&run(&["setpu"]).stderr).contains("'setup'"), "did you mean");
}

#[test]
fn usage_mistakes_are_json_where_the_output_is() {
    for arguments in [&["--output", "json", "rnu"][..], &["run", "--one", "--output=json"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = text(&output.stderr) + &text(&output.stdout);
        let failure: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert!(failure.to_string().contains("PR-X004"), "{failure}");
    }
}

#[test]
fn doctor_with_quiet_shows_only_failures() {
    let lines = |arguments: &[&str]| text(&run(arguments).stdout);
    let (all, quiet) = (lines(&["doctor"]), lines(&["doctor", "-q"]));
    assert!(all.contains("\nPASS") || all.starts_with("PASS"), "{all}");
    let shown = |it: &&str| ["PASS", "WARN", "SKIP"].iter().any(|word| it.starts_with(word));
    assert!(quiet.contains("FAIL") && !quiet.lines().any(|line| shown(&line)), "{quiet}");
}

#[test]
fn a_secret_in_the_wrong_place_of_the_command_line_is_not_repeated() {
    const URL: &str = "postgres://relay:canary-bird@db/shop";
    for arguments in [
        &["run", URL][..],
        &[URL],
        &["run", "--output", URL],
        &["run", "--set", URL],
        &["run", "--config", URL],
        &["--log-format=json", "run", "--config", URL],
        &["--log-format=json", "run", URL],
        &["--output=json", "run", "--config", URL],
        &["run", "--debezium", URL],
        &["import", "debezium", URL],
        &["dead-letters", "show", URL],
        &["route", "--source.url=postgres://relay:canary-bird@db/shop"],
        &["tail", "--source", "password=canary-bird"],
        &["--set", "source.url=relay:canary-bird@db/shop", "run"],
        &["--set", "kafka.brokers=relay:canary-bird@db:9092", "run"],
        &["setup", "--table", "relay:canary-bird@db/shop"],
        &["run", "--debezium", "relay:canary-bird@db/shop"],
        &["import", "debezium", "relay:canary-bird@db/shop"],
    ] {
        let output = run(arguments);
        let said = text(&output.stderr) + &text(&output.stdout);
        assert!(output.status.code() != Some(0) && !said.is_empty(), "{arguments:?}");
        assert!(!said.contains("canary-bird"), "{arguments:?}: {said}");
    }
}

#[test]
fn mistakes_about_dead_letters_name_what_is_possible() {
    let mistake = |words: &[&str]| {
        let output = run(&[&["dead-letters"], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
        text(&output.stderr)
    };
    let codes = mistake(&["list", "--code", "no_rout"]);
    for code in postrider::route::RejectionCode::ALL {
        assert!(codes.contains(code.as_str()), "{code}: {codes}");
    }
    assert!(mistake(&["list", "--since", "5"]).contains("5s"));
    assert!(mistake(&["retry", "--to", "bad/topic"]).contains("character"));
    assert!(mistake(&["retry", "--rate", "0"]).contains("--rate"));
    assert!(mistake(&["show"]).contains("PARTITION:OFFSET|ID"));
    let itself = mistake(&["retry", "--from", "dead", "--to", "dead", "--execute"]);
    assert!(itself.contains("PR-D004"), "{itself}");
}

#[test]
fn brokers_of_the_command_line_go_by_the_rules_of_the_configuration() {
    for command in [&["tail", "t", "-e"][..], &["dead-letters", "list"]] {
        for wrong in ["user:hunter22@127.0.0.1:9092", "127.0.0.1:99999", "http://127.0.0.1:9092"] {
            let output = run(&[command, &["-b", wrong]].concat());
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(78), "{command:?} {wrong}: {said}");
            assert!(said.contains("PR-C005") && said.contains("host:port"), "{wrong}: {said}");
            assert!(!said.contains("hunter22"), "{said}");
        }
    }
}

#[test]
fn commands_of_later_releases_are_not_there() {
    assert_eq!(run(&["ctl"]).status.code(), Some(2));
}

#[test]
fn help_is_data_and_names_the_exit_codes() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = text(&output.stdout);
    for words in ["Exit codes:", "65", "configuration error", "Examples:", "postrider demo"] {
        assert!(help.contains(words), "{words}");
    }
    assert!(!help.contains("broker "), "the embedded broker is for our own use");
    let retry = "dead-letters retry";
    for command in ["run", "demo", "setup", "tail", "config show", "bench ceiling", retry] {
        let arguments: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = text(&run(&arguments).stdout);
        assert!(help.contains("Example"), "{command}: {help}");
    }
}

#[test]
fn a_mistake_in_the_file_is_shown_where_it_is() {
    let config = "[source]\npublicaton = \"x\"\n\n[kafka]\ndelivery = \"exactly_one\"\n";
    let output = in_folder(config, &["run"], &[]);
    assert_eq!(output.status.code(), Some(78));
    assert!(output.stdout.is_empty());
    assert_eq!(
        text(&output.stderr),
        "error[PR-C003]: there is no setting `source.publicaton`\n \
         --> postrider.toml:2:1\n  \
         |\n\
         2 | publicaton = ...\n  \
         | ^^^^^^^^^^\n  \
         help: did you mean `source.publication`?\n\
         error[PR-C005]: `kafka.delivery`: `exactly_one` is not one of its choices\n \
         --> postrider.toml:5:12\n  \
         |\n\
         5 | delivery = \"exactly_one\"\n  \
         |            ^^^^^^^^^^^^^\n  \
         help: did you mean \"exactly_once\"? The choices are at_least_once, exactly_once\n"
    );
}

#[test]
fn log_lines_are_json_if_the_output_is() {
    let config = "[source]\nurl = \"postgres://app@127.0.0.1:1/shop\"\n";
    let said = |arguments: &[&str], env: &[(&str, &str)]| {
        let env = [env, &[("RUST_LOG", "no such=level")]].concat();
        let output = in_folder(config, &[&["lag"], arguments].concat(), &env);
        text(&output.stderr).lines().next().unwrap().to_owned()
    };
    let line = said(&["--output", "json"], &[]);
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["level"], "WARN", "{line}");
    for line in [
        said(&[], &[]),
        said(&["--output", "json", "--log-format", "text"], &[]),
        said(&["--output", "json"], &[("POSTRIDER_LOG__FORMAT", "text")]),
    ] {
        assert!(line.contains(" WARN RUST_LOG is ignored"), "{line}");
    }
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    let output = in_folder("[source]\nslot = 5\n", &["config", "show", "--output", "json"], &[]);
    assert_eq!(output.status.code(), Some(78));
    let stderr = text(&output.stderr);
    assert_eq!(stderr.lines().count(), 1);
    let value: serde_json::Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!(value["exit_code"], 78);
    assert_eq!(value["errors"][0]["code"], "PR-C004");
    assert_eq!(value["errors"][0]["place"]["line"], 2);
}

#[test]
fn properties_a_guarantee_rests_on_are_refused_where_they_stand() {
    let config = "[kafka.properties]\n\"acks\" = \"0\"\n";
    let output = in_folder(config, &["config", "show"], &[]);
    assert_eq!(output.status.code(), Some(78));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("PR-C007") && stderr.contains("postrider.toml:2:1"), "{stderr}");

    let config = "[kafka.properties]\n\"sasl.pasword\" = \"hunter2\"\n";
    let output = in_folder(config, &["config", "show"], &[]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr.contains("did you mean `sasl.password`?"), "{stderr}");
    assert!(!stderr.contains("hunter2"), "{stderr}");

    let output = run(&["run", "--set", "kafka.properties.enable.idempotence=false"]);
    assert_eq!(output.status.code(), Some(78));
    assert!(text(&output.stderr).contains("--set"), "{}", text(&output.stderr));
}

#[cfg(not(any(feature = "kafka-tls", feature = "kafka-tls-vendored")))]
/// A misspelt level is the name of a part to whoever reads it, and would leave nothing of the log.
#[test]
fn a_login_without_user_name_is_reported() {
    let config = "[kafka.properties]\n\"security.protocol\" = \"SASL_PLAINTEXT\"\n\
                  \"sasl.mechanism\" = \"PLAIN\"\n";
    let output = in_folder(config, &["config", "show"], &[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    for words in ["sasl.username", "postrider.toml:3:1", "help: "] {
        assert!(said.contains(words), "{words} in {said}");
    }
}

#[test]
fn a_misspelt_rust_log_is_told_and_silences_nothing() {
    const NOWHERE: &str = "[source]\nurl = \"postgres://relay@127.0.0.1:1/shop\"\n";
    let logged = |filter: &str| text(&in_folder(NOWHERE, &["lag"], &[("RUST_LOG", filter)]).stderr);
    for (filter, why) in [
        ("wran", "`wran` is neither a level nor a part's level"),
        ("info,postrider::kafak=debug", "`postrider::kafak` is not a part"),
        ("info,kafka=debug", "write `postrider::kafka`"),
        ("info,postrider=loud", "level"),
    ] {
        let log = logged(filter);
        assert!(log.contains("WARN RUST_LOG is ignored") && log.contains(why), "{filter}: {log}");
    }
    let log = logged("info,rustls=debug,postrider::wal=debug");
    assert!(!log.contains("RUST_LOG"), "{log}");
}

#[test]
fn a_stream_without_a_name_is_listed() {
    let list = |output: &[&str]| {
        let database = ["--set", "source.url=postgres://relay@127.0.0.1:1/shop"];
        run(&[&["config", "streams"], &database[..], output].concat())
    };
    let named = list(&[]);
    assert_eq!((text(&named.stdout), named.status.code()), (String::new(), Some(0)));
    assert!(text(&named.stderr).contains("the only stream has no name"), "{named:?}");
    let listed: serde_json::Value =
        serde_json::from_slice(&list(&["--output", "json"]).stdout).unwrap();
    assert_eq!(
        (&listed["stream"], &listed["database"]),
        (&serde_json::Value::Null, &"shop".into())
    );
}

#[test]
fn a_hint_that_names_a_secret_word_is_not_masked() {
    let set = "kafka.properties.sasl.oauthbearer.method=oidc";
    let said = text(&run(&["config", "show", "--set", set]).stderr);
    assert!(said.contains("the options of kafka.oauth say where tokens come from"), "{said}");
}

#[test]
fn a_file_that_is_there_is_not_to_be_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("postrider.toml"), b"# Z\xfcrich\n").unwrap();
    let output = postrider(folder.path()).args(["config", "show"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("save it as UTF-8") && !said.contains("config example"), "{said}");
}

#[cfg(not(any(feature = "kafka-tls", feature = "kafka-tls-vendored")))]
#[test]
fn tls_in_a_build_without_it_says_how_to_get_it() {
    let config = "[kafka.properties]\n\"security.protocol\" = \"ssl\"\n";
    let output = in_folder(config, &["config", "show"], &[]);
    assert_eq!(output.status.code(), Some(78));
    assert!(text(&output.stderr).contains("--features kafka-tls"), "{}", text(&output.stderr));
}

#[cfg(any(feature = "kafka-tls", feature = "kafka-tls-vendored"))]
#[test]
fn what_managed_brokers_ask_for_is_in_the_build() {
    let config = "[kafka.properties]\n\"security.protocol\" = \"SASL_SSL\"\n\
                  \"sasl.mechanism\" = \"SCRAM-SHA-512\"\n\"sasl.username\" = \"a\"\n";
    let password = [("POSTRIDER_KAFKA__PROPERTIES__SASL_PASSWORD", "hunter2")];
    let output = in_folder(config, &["config", "show"], &password);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let version = text(&run(&["version"]).stdout);
    for feature in ["ssl", "sasl_scram", "sasl_oauthbearer"] {
        assert!(version.contains(feature), "{version}");
    }
}

#[test]
fn config_show_tells_value_and_origin_but_no_secret() {
    let config = "[source]\nurl = \"postgres://app:hunter2@db/shop\"\nslot = \"mine\"\n";
    let env = [
        ("POSTRIDER_KAFKA__BROKERS", "a:9092,b:9092"),
        ("POSTRIDER_KAFKA__PROPERTIES__SASL_PASSWORD", "hunter2"),
        ("PGPASSWORD", "hunter2"),
    ];
    let arguments = ["config", "show", "--set", "kafka.compression=gzip", "-v"];
    let shown = in_folder(config, &arguments, &env);
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
    let lines = text(&shown.stdout);
    for (line, origin) in [
        ("source.url = \"postgres://app:****@db/shop\"", "postrider.toml:2"),
        ("source.slot = \"mine\"", "postrider.toml:3"),
        ("source.publication = \"postrider\"", "default"),
        ("kafka.brokers = [\"a:9092\", \"b:9092\"]", "env POSTRIDER_KAFKA__BROKERS"),
        ("kafka.compression = \"gzip\"", "--set"),
        ("log.level = \"debug\"", "-v"),
        (
            "kafka.properties.sasl.password = \"****\"",
            "env POSTRIDER_KAFKA__PROPERTIES__SASL_PASSWORD",
        ),
    ] {
        let found = lines.lines().find(|found| found.starts_with(line)).expect(line);
        assert!(found.ends_with(&format!("# {origin}")), "{found}");
    }
    assert!(!lines.contains("hunter2"));

    let arguments = ["config", "show", "--output", "json"];
    let json = in_folder(config, &arguments, &env);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(value["file"], "postrider.toml");
    let settings = value["settings"].as_array().unwrap();
    assert!(settings.len() > 30);
    let setting = |key: &str| &settings.iter().find(|line| line["key"] == key).unwrap()["value"];
    assert_eq!(setting("source.slot"), "mine");
    assert_eq!(setting("source.url"), "postgres://app:****@db/shop");
    assert_eq!(*setting("kafka.brokers"), serde_json::json!(["a:9092", "b:9092"]));
    assert_eq!(*setting("route.position_header"), true);
    assert_eq!(setting("source.frame_max"), "64MiB");
    assert_eq!(setting("kafka.properties.sasl.password"), "****");
    assert!(!text(&json.stdout).contains("hunter2"));
}

#[test]
fn the_file_is_found_by_flag_variable_or_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.toml");
    std::fs::write(&path, "[source]\nslot = \"other\"\n").unwrap();
    let path = path.display().to_string();
    let slot = |output: &Output| text(&output.stdout).contains("source.slot = \"other\"");
    let here = "[source]\nslot = \"here\"\n";
    assert!(slot(&in_folder(here, &["-c", &path, "config", "show"], &[])));
    assert!(slot(&in_folder(here, &["config", "show"], &[("POSTRIDER_CONFIG", &path)])));
    assert!(!slot(&in_folder(here, &["config", "show"], &[])));
    let missing = run(&["-c", "/no/such/file.toml", "run"]);
    assert_eq!(missing.status.code(), Some(78));
    let stderr = text(&missing.stderr);
    assert!(stderr.contains("PR-C001") && stderr.contains("/no/such/file.toml"), "{stderr}");
}

#[test]
fn the_example_is_a_configuration() {
    let example = run(&["config", "example"]);
    assert_eq!(example.status.code(), Some(0));
    let shown = in_folder(&text(&example.stdout), &["config", "show"], &[]);
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
    assert!(!text(&shown.stdout).contains("# default"), "the example names every option");
}

#[test]
fn version_says_what_it_was_built_with() {
    let output = run(&["version", "--output", "json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["version"], env!("CARGO_PKG_VERSION"));
    assert!(value["librdkafka"].as_str().unwrap().contains('.'));
    let features = value["librdkafka_features"].as_array().unwrap();
    assert!(features.iter().any(|feature| feature == "lz4"), "{features:?}");
    assert!(text(&run(&["version"]).stdout).starts_with("postrider "));
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains("kafka") || output.stdout.len() > 1_000, "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let page = |words: &[&str]| run(&[&["man"], words].concat());
    let program = text(&page(&[]).stdout);
    assert!(program.starts_with(".ie") || program.contains(".TH postrider 1"), "{program}");
    assert!(
        text(&page(&["dead-letters", "retry"]).stdout)
            .contains("postrider\\-dead\\-letters\\-retry")
    );
    assert_eq!(page(&["deliver"]).status.code(), Some(2));

    let folder = tempfile::tempdir().unwrap();
    let into = postrider(folder.path()).args(["man", "--into", "."]).output().unwrap();
    assert_eq!(into.status.code(), Some(0), "{}", text(&into.stderr));
    for name in ["postrider.1", "postrider-run.1", "postrider-dead-letters-retry.1"] {
        assert!(folder.path().join(name).exists(), "{name}");
    }
    // A hidden command is for our own use.
    assert!(!folder.path().join("postrider-broker.1").exists());
    let nowhere = run(&["man", "--into", "/nowhere/at/all"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(text(&nowhere.stderr).contains("PR-X015"), "{}", text(&nowhere.stderr));
}

#[test]
fn colours_follow_the_flag() {
    let colored = run(&["--color", "always", "--set", "a.b=c", "config", "show"]);
    assert!(text(&colored.stderr).contains("\u{1b}["));
    for plain in
        [&["config", "show", "--set", "a.b=c"][..], &["--color", "never", "--set", "a=b", "run"]]
    {
        assert!(!text(&run(plain).stderr).contains('\u{1b}'));
    }
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    for arguments in
        [&["config", "example"][..], &["completions", "bash"], &["--help"], &["version"]]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut child = postrider(folder.path())
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = child.wait().unwrap();
        assert_eq!((status.code(), stderr.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn the_demo_refuses_what_it_would_not_heed() {
    let refused = |arguments: &[&str], exit: i32, words: &[&str]| {
        let output = run(&[&["demo"], arguments].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {stderr}");
        for words in words {
            assert!(stderr.contains(words), "{arguments:?}: {stderr}");
        }
    };
    refused(&["-c", "/nope.toml"], 78, &["/nope.toml"]);
    refused(&["--set", "kafka.compresion=zstd"], 78, &["did you mean `kafka.compression`"]);
    refused(&["--set", "source.slot=mine"], 2, &["source.slot", "the demo chooses"]);
    let arguments = ["--kill-every", "1s", "--set", "kafka.delivery=exactly_once"];
    refused(&arguments, 2, &["--brokers HOST:PORT"]);
}
