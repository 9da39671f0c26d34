//! Tests of several streams in one file.

use super::*;
use crate::{Mistake, load_streams};

const TWO: &str = "[source]\nurl = \"postgres://app@db-a/shop\"\n[kafka]\nbrokers = [\"k:9092\"]\n\
    [[route.rules]]\nglob = \"A*\"\ndrop = true\n[[route.rules]]\nglob = \"B*\"\ndrop = true\n\
    [[stream]]\nname = \"one\"\nsource.slot = \"first\"\n\
    [[stream]]\nname = \"two\"\n[stream.source]\nurl = \"postgres://app@db-b/shop\"\n\
    [[stream.route.rules]]\nglob = \"C*\"\ntopic = \"c\"\n";

fn inputs(text: &str, only: Option<&str>) -> Inputs {
    Inputs {
        file: FileChoice::Text { name: "p.toml".into(), text: text.to_owned() },
        variables: vec![("PGUSER".to_owned(), "app".to_owned())],
        only: only.map(str::to_owned),
        ..Inputs::default()
    }
}

fn streams(text: &str) -> Result<Vec<Loaded>, ConfigError> {
    load_streams(&inputs(text, None), &|_| Vec::new())
}

fn mistakes(text: &str) -> Vec<Mistake> {
    match streams(text) {
        Err(ConfigError::Mistakes(mistakes)) => mistakes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stream_has_the_top_level_as_its_defaults_and_rules_of_its_own_or_those() {
    let streams = streams(TWO).unwrap();
    let names: Vec<_> = streams.iter().map(|one| one.stream.as_deref().unwrap()).collect();
    assert_eq!(names, ["one", "two"]);
    let [one, two] = [&streams[0].config, &streams[1].config];
    assert_eq!((one.source.slot.as_str(), two.source.slot.as_str()), ("first", "postrider"));
    let servers = [one, two].map(|config| config.source.connect.endpoints[0].to_string());
    assert_eq!(servers, ["db-a:5432", "db-b:5432"]);
    assert_eq!((one.route.rules.len(), two.route.rules.len()), (2, 1));
    assert_eq!((&one.kafka, one.progress.topic.as_str()), (&two.kafka, "postrider.progress.first"));
}

#[test]
fn what_is_set_from_outside_goes_above_every_stream() {
    let set = vec!["kafka.linger=7ms".to_owned(), "retry.max=1m".to_owned()];
    let inputs = Inputs { set, ..inputs(TWO, None) };
    for loaded in load_streams(&inputs, &|_| Vec::new()).unwrap() {
        assert_eq!(loaded.config.kafka.linger.as_millis(), 7);
        assert_eq!(loaded.config.retry.max.as_secs(), 60);
    }
}

#[test]
fn one_stream_is_meant_and_the_error_lists_them() {
    let only = |only| load(&inputs(TWO, only), &|_| Vec::new());
    assert_eq!(only(Some("two")).unwrap().stream.as_deref(), Some("two"));
    let error = only(None).unwrap_err();
    assert_eq!(error.to_string(), "the configuration has 2 streams: one, two");
    assert!(error.hint().unwrap().contains("--stream"));
    let error = only(Some("tow")).unwrap_err();
    assert!(error.to_string().contains("`tow`") && error.hint().unwrap().contains("one, two"));
    let single = "[[stream]]\nname = \"a\"\n";
    assert_eq!(load(&inputs(single, None), &|_| Vec::new()).unwrap().stream.as_deref(), Some("a"));
    let none = load(&inputs("", Some("a")), &|_| Vec::new()).unwrap_err();
    assert!(none.hint().unwrap().contains("leave --stream out"));
}

/// Added text, expected line, and words of the message or the help.
#[test]
fn streams_that_get_into_each_others_way_are_refused_by_name() {
    for (more, line, words) in [
        ("[[stream]]\nname = \"two\"\nsource.slot = \"x\"", 22, "two streams have the name `two`"),
        (
            "[[stream]]\nname = \"c\"\nsource.slot = \"first\"",
            23,
            "`one` and `c` both read the slot",
        ),
        (
            "[[stream]]\nname = \"c\"\nsource.slot = \"first\"\nsource.url = \"postgres://u@db-a/other\"",
            23,
            "belongs to the whole server",
        ),
        (
            "[[stream]]\nname = \"c\"\nsource.slot = \"c\"\nprogress.topic = \"postrider.dead-letters\"",
            24,
            "dead letters go to",
        ),
        ("[[stream]]\nsource.slot = \"c\"", 21, "each stream has a name"),
        ("[[stream]]\nname = \"a b\"", 22, "letters, digits"),
        ("[[stream]]\nname = 5", 22, "each stream has a name"),
        ("[[stream]]\nname = \"c\"\nsource.slto = \"c\"", 23, "did you mean `source.slot`?"),
        ("[[stream]]\nname = \"c\"\nhttp.bind = \"\"", 23, "belongs to the whole process"),
        ("[[stream]]\nname = \"c\"\n[[stream.stream]]\nname = \"d\"", 23, "no setting"),
    ] {
        let found = mistakes(&format!("{TWO}{more}\n"));
        let said = |one: &Mistake| format!("{one} {}", one.help.clone().unwrap_or_default());
        let is_it = |one: &Mistake| one.line() == line && said(one).contains(words);
        assert!(found.iter().any(is_it), "{more}: {found:#?}");
    }
    let found = mistakes("[stream]\nname = \"a\"\n");
    assert!(found[0].help.as_deref().unwrap().contains("[[stream]]"), "{found:?}");
}

/// Otherwise a stream would wait for the other forever.
#[test]
fn one_slot_by_two_names_of_this_machine_is_refused() {
    let text = "[source]\nslot = \"s\"\n\
        [[stream]]\nname = \"one\"\nsource.url = \"postgres://app@localhost/shop\"\n\
        [[stream]]\nname = \"two\"\nsource.url = \"postgres://app@ADDRESS/shop\"\n";
    for address in ["127.0.0.1", "[::1]", "localhost:5432"] {
        let found = mistakes(&text.replace("ADDRESS", address));
        assert!(found[0].to_string().contains("slot `s` of localhost:5432"), "{found:?}");
    }
    for address in ["127.0.0.1:5433", "db-a"] {
        assert!(streams(&text.replace("ADDRESS", address)).is_ok(), "{address}");
    }
}

#[test]
fn what_is_wrong_at_the_top_level_is_told_once() {
    let found = mistakes(&TWO.replace("shop\"\n[kafka]", "shop?sslmod=x\"\n[kafka]"));
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn a_variable_that_would_make_all_streams_one_is_refused() {
    let url = ("POSTRIDER_SOURCE__URL".to_owned(), "postgres://app@db-c/shop".to_owned());
    let with = |only: Option<&str>, set: &[&str]| {
        let mut inputs = inputs(TWO, only);
        inputs.set = set.iter().map(|&set| set.to_owned()).collect();
        inputs
    };
    for only in [None, Some("two")] {
        let mut inputs = with(only, &[]);
        inputs.variables.push(url.clone());
        let Err(ConfigError::Mistakes(found)) = load_streams(&inputs, &|_| Vec::new()) else {
            panic!("accepted")
        };
        assert_eq!(found.len(), 1, "{found:?}");
        let told = found[0].to_string();
        assert!(told.contains("POSTRIDER_SOURCE__URL") && told.contains("`two`"), "{told}");
    }
    let slot = ["source.url=postgres://app@db-c/shop"];
    assert!(load_streams(&with(None, &slot), &|_| Vec::new()).is_err());
    // A user may run one stream by hand.
    assert!(load_streams(&with(Some("two"), &slot), &|_| Vec::new()).is_ok());
    let mut inputs = with(Some("one"), &[]);
    inputs.variables.push(url);
    assert!(load_streams(&inputs, &|_| Vec::new()).is_ok());
}

#[test]
fn streams_that_would_share_a_topic_of_progress_are_refused() {
    let text = "[source]\nslot = \"s\"\n[kafka]\nbrokers = [\"k:9092\"]\n\
        [[stream]]\nname = \"one\"\nsource.url = \"postgres://app@db-a/shop\"\n\
        [[stream]]\nname = \"two\"\nsource.url = \"postgres://app@db-b/shop\"\n";
    assert!(streams(text).is_ok(), "no progress is kept");
    let text = text.replace("[kafka]", "[kafka]\ndelivery = \"exactly_once\"");
    let found = mistakes(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].to_string().contains("postrider.progress.s"), "{found:?}");
    assert!(
        streams(&text.replace("name = \"two\"", "name = \"two\"\nsource.slot = \"t\"")).is_ok()
    );
}

#[test]
fn secrets_of_a_stream_come_from_files_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (url, password) =
        (write("url", "postgres://app:pw@db-c/shop\n"), write("password", "secret1"));
    let text = format!(
        "{TWO}[[stream]]\nname = \"c\"\nsource.slot = \"c\"\nsource.url_file = \"{url}\"\n\
         [stream.kafka.properties]\n\"sasl.password_file\" = \"{password}\"\nsasl.username = \"u\"\n"
    );
    let streams = streams(&text).unwrap();
    let config = &streams[2].config;
    assert_eq!(config.source.connect.endpoints[0].to_string(), "db-c:5432");
    assert_eq!(config.kafka.secret_files["sasl.password"].display().to_string(), password);
    assert_eq!(streams[0].config.kafka.secret_files.len(), 0);
    let shown = streams[2].effective.iter().find(|line| line.key == "source.url").unwrap();
    assert!(shown.origin.to_string().ends_with(&format!("contents of {url}")), "{shown:?}");
    assert!(!shown.value.to_string().contains("pw"), "{shown:?}");
    for (more, words) in [
        ("source.url_file = \"/nowhere/url\"", "cannot read `/nowhere/url`"),
        (
            "source.url = \"postgres://u@db/x\"\nsource.url_file = \"/nowhere/url\"",
            "both give its value",
        ),
        ("source.url_file = \"/dev/null\"", "it is not a regular file"),
        ("source.url_file = 5", "no setting `source.url_file`"),
        ("kafka.linger_file = \"/nowhere/linger\"", "no setting `kafka.linger_file`"),
    ] {
        let found =
            mistakes(&format!("{TWO}[[stream]]\nname = \"c\"\nsource.slot = \"c\"\n{more}\n"));
        assert!(found.iter().any(|one| one.to_string().contains(words)), "{more}: {found:#?}");
    }
}

/// A variable above every stream must not be suggested for one stream.
#[test]
fn a_variable_of_one_stream_is_no_setting_and_no_other_variable_is_named() {
    for (variables, set) in [
        (vec![("POSTRIDER_STREAM__0__SOURCE__SLOT".to_owned(), "x".to_owned())], Vec::new()),
        (Vec::new(), vec!["stream.0.source.slot=x".to_owned()]),
    ] {
        let mut inputs = inputs(TWO, None);
        inputs.variables.extend(variables);
        inputs.set = set;
        let error = load_streams(&inputs, &|_| Vec::new()).unwrap_err();
        let hint = error.hint().unwrap();
        assert!(hint.contains("[[stream]]") && !hint.contains("did you mean"), "{hint}");
    }
}
