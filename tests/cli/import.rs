//! `postrider import debezium` and `run --debezium` as a user meets them: the built binary.
//!
//! `tests/relay/routing/import.rs` runs what is imported.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use super::postrider;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/debezium/import").join(name)
}

fn run(folder: &Path, arguments: &[&str], file: &Path) -> Output {
    postrider(folder).args(arguments).arg(file).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_toml_is_on_stdout_and_the_account_on_stderr() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["import", "debezium"], &fixture("json-payloads.json"));
    let (toml, account) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{account}");
    let full = std::fs::read_to_string(fixture("json-payloads.toml")).unwrap();
    assert!(full.contains(":hunter2@"), "{full}");
    assert_eq!(toml, full.replace(":hunter2@", "@"));
    for words in [
        "19 mapped, 2 changed meaning",
        "\nmapped:\n  slot.name = shop_outbox -> source.slot\n",
        "\nchanged meaning:\n",
        "\nnot needed:\n  name = shop-outbox-connector: ",
        "help: ",
    ] {
        assert!(account.contains(words), "{words} in {account}");
    }
    assert!(!account.contains("refused:"), "{account}");

    std::fs::write(folder.path().join("postrider.toml"), &toml).unwrap();
    let shown = postrider(folder.path()).args(["config", "show"]).output().unwrap();
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
    assert!(text(&shown.stdout).contains("source.slot = \"shop_outbox\""));
}

#[test]
fn stdin_is_read_where_a_dash_is_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = postrider(folder.path())
        .args(["import", "debezium", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"route.by.field = kind\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(text(&output.stdout).contains("by = \"kind\""));
}

#[test]
fn json_is_one_object_of_toml_and_report() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["import", "debezium", "--output", "json"];
    let output = run(folder.path(), &arguments, &fixture("server.properties"));
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let toml = std::fs::read_to_string(fixture("server.toml")).unwrap();
    assert_eq!(value["toml"].as_str(), Some(toml.as_str()));
    let secret = run(folder.path(), &arguments, &fixture("tls-and-scram.json"));
    let secret: serde_json::Value = serde_json::from_slice(&secret.stdout).unwrap();
    assert!(!secret.to_string().contains("hunter2"), "{secret}");
    let toml = secret["toml"].as_str().unwrap();
    assert!(toml.contains("POSTRIDER_KAFKA__PROPERTIES__SASL_PASSWORD_FILE"), "{toml}");
    let report = value["report"].as_array().unwrap();
    let of = |option: &str| report.iter().find(|finding| finding["option"] == option).unwrap();
    assert_eq!(of("debezium.source.slot.name")["outcome"], "mapped");
    assert_eq!(of("debezium.source.slot.name")["note"], "source.slot");
    assert_eq!(of("debezium.source.database.password")["value"], "****");
    assert_eq!(of("quarkus.log.console.json")["outcome"], "not_needed");
}

#[test]
fn files_are_private_and_replaced_only_when_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("postrider.toml");
    let write = ["import", "debezium", "--write", "postrider.toml"];
    let output = run(folder.path(), &write, &fixture("json-payloads.json"));
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.is_empty());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&written), 0o600);

    let before = std::fs::read_to_string(&written).unwrap();
    assert!(before.contains(":hunter2@"), "a file of its owner's holds what it needs");
    let refused = run(folder.path(), &write, &fixture("predicate.json"));
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("--force"), "{}", text(&refused.stderr));
    assert_eq!(std::fs::read_to_string(&written).unwrap(), before);

    std::fs::set_permissions(&written, std::fs::Permissions::from_mode(0o644)).unwrap();
    let forced =
        run(folder.path(), &[&write[..], &["--force"]].concat(), &fixture("predicate.json"));
    assert_eq!(forced.status.code(), Some(0));
    assert_eq!(mode(&written), 0o600);
    assert_ne!(std::fs::read_to_string(&written).unwrap(), before);
    let alone = run(folder.path(), &["import", "debezium", "--force"], &fixture("predicate.json"));
    assert_eq!(alone.status.code(), Some(2));
}

#[test]
fn what_is_refused_is_told_all_at_once_with_code_78_and_nothing_on_stdout() {
    let folder = tempfile::tempdir().unwrap();
    for command in [&["import", "debezium"][..], &["run", "--once", "--debezium"]] {
        let output = run(folder.path(), command, &fixture("changes-and-outbox.json"));
        assert_eq!(output.status.code(), Some(78), "{command:?}");
        assert!(output.stdout.is_empty(), "{command:?}");
        let said = text(&output.stderr);
        for words in [
            "error[PR-C009]: `transforms.unwrap.type`",
            "error[PR-C009]: `transforms.rename.type`",
            "error[PR-C009]: `column.mask.hash.SHA-256.with.salt.CzQMA0cB5K`",
            "help: ",
        ] {
            assert!(said.contains(words), "{words} in {said}");
        }
        assert!(!said.contains("hunter2"), "{said}");
    }
    let json = ["import", "debezium", "--output", "json"];
    let output = run(folder.path(), &json, &fixture("mysql.json"));
    assert_eq!(output.status.code(), Some(78));
    let value: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(value["errors"][0]["code"], "PR-C009");
}

#[test]
fn what_is_no_configuration_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for (content, words) in [
        ("{\"a\": ", "PR-C010"),
        ("a=\\u1", "line 1"),
        ("", "nothing in it"),
        ("apiVersion: v1\nkind: KafkaConnector\n", "spec.config"),
    ] {
        std::fs::write(&path, content).unwrap();
        let output = run(folder.path(), &["run", "--debezium"], &path);
        assert_eq!(output.status.code(), Some(78), "{content}");
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
    let missing = run(folder.path(), &["import", "debezium"], Path::new("no-such-file"));
    assert_eq!(missing.status.code(), Some(78));
    assert!(text(&missing.stderr).contains("PR-C001"));
}

#[test]
fn two_configurations_at_once_are_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in
        [&["run", "--config", "a.toml", "--debezium"][..], &["-c", "a.toml", "run", "--debezium"]]
    {
        let output = run(folder.path(), arguments, &fixture("predicate.json"));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_partial_import_names_the_settings_that_it_leaves_out() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["import", "debezium", "--partial"];
    let output = run(folder.path(), &arguments, &fixture("changes-and-outbox.json"));
    let (toml, account) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{account}");
    assert!(
        toml.contains("INCOMPLETE") && toml.contains("\n# - transforms.rename.type: "),
        "{toml}"
    );
    assert!(toml.contains("slot = \"debezium\""), "{toml}");
    let (_, left_out) = account.split_once("\nleft out, by hand before it runs:\n").unwrap();
    for option in ["transforms.unwrap.type", "transforms.rename.type", "column.mask.hash.SHA-256"] {
        assert!(left_out.contains(option), "{option} in {account}");
    }
    assert!(!format!("{toml}{account}").contains("hunter2"));
    std::fs::write(folder.path().join("postrider.toml"), &toml).unwrap();
    let shown = postrider(folder.path()).args(["config", "show"]).output().unwrap();
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
}

#[test]
fn setup_takes_the_file_that_run_takes() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["setup", "--print", "--debezium"];
    let output = run(folder.path(), &arguments, &fixture("json-payloads.json"));
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(said.contains("shop_outbox") && !said.contains("hunter2"), "{said}");
    std::fs::write(folder.path().join("own.toml"), "").unwrap();
    let both = ["--config", "own.toml", "setup", "--print", "--debezium"];
    let output = run(folder.path(), &both, &fixture("json-payloads.json"));
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn mistakes_above_the_imported_file_are_told_as_ever() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["run", "--set", "source.slto=x", "--debezium"];
    let output = run(folder.path(), &arguments, &fixture("predicate.json"));
    assert_eq!(output.status.code(), Some(78));
    assert!(text(&output.stderr).contains("did you mean `source.slot`?"));
}
