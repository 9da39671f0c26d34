//! A secret that is planted in every field of the configuration that may hold one is in nothing that comes out: logs at the
//! finest level, errors, `config show`, `doctor`, `status`, metrics, pages and API answers.
//!
//! The fields are those of the reference, so that a new option is among them by itself.

use std::fs;

use postrider::config::{OPTIONS, OptionKind, OptionSpec, PROPERTIES};

use crate::stage::Stage;
use support::broker::Broker;
use support::kafka::{self, ALLOWED_USER};
use support::relay::{Outcome, Relay, Running};
use support::relay_http::RelayHttp;
use support::{is_full, postgres, unique};

/// Nothing else is written so.
const SECRET: &str = "Pl4nted.S3cret";

/// What somebody pastes into a wrong field, or a right one.
const PASTED: &str = "postgres://app:Pl4nted.S3cret@db.invalid/shop";

/// librdkafka's properties that are secrets.
const PROPERTIES_SECRET: [&str; 8] = [
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.key.pem",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
];

/// Options of which the relay looks for a host that does not exist, for long.
const HOSTS: [&str; 2] = ["source.url", "kafka.brokers"];

fn said(Outcome { stdout, log, .. }: &Outcome) -> String {
    format!("{stdout}\n{}", log.join("\n"))
}

#[track_caller]
fn hides(what: &str, text: &str) {
    let line = text.lines().find(|line| line.contains(SECRET));
    assert!(line.is_none(), "{what} says: {}", line.unwrap_or_default());
}

/// A relay that does not try for long.
fn gives_up(relay: &Relay) -> Relay {
    relay.clone().set("retry.login_give_up_after", "0s").set("retry.give_up_after", "3s")
}

/// Each way to set an option: the environment, the command line, a file, and a file that a variable or that file names.
fn ways(relay: &Relay, option: &OptionSpec, folder: &std::path::Path) -> Vec<(Relay, Vec<String>)> {
    let key = option.key;
    let (section, name) = (option.section(), option.name());
    let value = match option.kind {
        OptionKind::List => format!("[\"{PASTED}\"]"),
        _ => format!("\"{PASTED}\""),
    };
    let file = folder.join("postrider.toml");
    fs::write(&file, format!("[{section}]\n{name} = {value}\n")).unwrap();
    let held = folder.join("held");
    fs::write(&held, PASTED).unwrap();
    let configured = |name: &str, value: &str| {
        let file = folder.join(format!("{name}.toml"));
        fs::write(&file, format!("[{section}]\n{name} = \"{value}\"\n")).unwrap();
        vec!["--config".to_owned(), file.to_str().unwrap().to_owned()]
    };
    let (held_by, is_path) = (format!("{name}_file"), held.to_str().unwrap());
    let bare = relay.clone().unset(key);
    vec![
        (bare.clone().set(key, PASTED), Vec::new()),
        (bare.clone(), vec!["--set".to_owned(), format!("{key}={PASTED}")]),
        (bare.clone(), vec!["--config".to_owned(), file.to_str().unwrap().to_owned()]),
        (bare.clone(), configured(&held_by, is_path)),
        (bare.clone(), configured(&held_by, PASTED)),
        (bare.variable(&format!("{}_FILE", option.env()), is_path), Vec::new()),
    ]
}

/// What the commands said, which are started together: most of them wait for servers.
fn outcomes<'a>(
    relay: &Relay,
    commands: &'a [Vec<&'a str>],
) -> impl Iterator<Item = (&'a [&'a str], Outcome)> {
    let started: Vec<_> = commands.iter().map(|command| relay.start(command)).collect();
    commands.iter().map(Vec::as_slice).zip(started.into_iter().map(Running::outcome))
}

fn ask(relay: &Relay, arguments: &[&str], further: &[String]) -> Outcome {
    let further = further.iter().map(String::as_str);
    let arguments: Vec<&str> = arguments.iter().copied().chain(further).collect();
    relay.start(&arguments).outcome()
}

#[test]
fn no_option_is_shown_or_refused_with_a_secret_that_was_put_into_it() {
    let folder = tempfile::tempdir().unwrap();
    let stage = Stage::migrated(postgres::installed(), "127.0.0.1:1", "secret_options");
    let relay = stage.relay();
    assert!(OPTIONS.len() > 50, "{} options", OPTIONS.len());
    for (number, option) in OPTIONS.iter().enumerate() {
        let ways = ways(&relay, option, folder.path());
        for (index, (relay, arguments)) in ways.iter().enumerate() {
            let mut commands = vec![&["config", "show"][..]];
            // The ways in turn: JSON shows what text shows, whatever set the option.
            if is_full() || number % ways.len() == index {
                commands.push(&["config", "show", "--output", "json"]);
            }
            for command in commands {
                let told = said(&ask(relay, command, arguments));
                hides(&format!("{} ({index}): {command:?}", option.key), &told);
            }
        }
    }
    for property in PROPERTIES_SECRET {
        let assignment = format!("{PROPERTIES}.{property}={SECRET}");
        let arguments = ["--set".to_owned(), assignment];
        for command in [&["config", "show"][..], &["config", "show", "--output", "json"]] {
            hides(property, &said(&ask(&relay, command, &arguments)));
        }
        let doctor = ["doctor", "--output", "json", "--only", "config", "--only", "kafka"];
        hides(property, &said(&ask(&relay, &doctor, &arguments)));
    }
}

/// What the configuration takes goes on to servers, topics and the log.
#[test]
fn no_option_is_logged_with_a_secret_that_was_put_into_it() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "secret_runs");
    stage.insert("A", 2);
    let (mut ran, mut shown) = (0, Vec::new());
    for option in OPTIONS.iter().filter(|option| !HOSTS.contains(&option.key)) {
        let relay = gives_up(&stage.relay()).set(option.key, PASTED);
        if !relay.start(&["config", "show"]).outcome().status.success() {
            continue;
        }
        ran += 1;
        for arguments in [&["run", "--once", "-vv"][..], &["doctor", "-vv"]] {
            let told = said(&relay.start(arguments).outcome());
            let line = told.lines().find(|line| line.contains(SECRET));
            shown.extend(line.map(|line| format!("{}: {arguments:?} says {line}", option.key)));
        }
    }
    assert!(shown.is_empty(), "{}", shown.join("\n"));
    assert!(ran > 5, "{ran} options take any text");
    println!("{ran} options take any text");
}

fn pages(running: &mut Running) -> String {
    let face = RelayHttp::of(running);
    face.wait_ready(200);
    let paths =
        ["/", "/dashboard.js", "/api/v1/state", "/api/v1/history", "/metrics", "/readyz", "/livez"];
    paths.iter().map(|path| face.get(path).1).collect::<Vec<_>>().join("\n")
}

/// A database and brokers that are logged in to by passwords, and by wrong ones.
#[test]
fn passwords_that_are_used_are_nowhere_in_what_comes_out() {
    let Some(kafka) = kafka::strict() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "secret_logins");
    let role = unique("secret");
    let address = stage.database.create_role(&role, "SUPERUSER REPLICATION");
    stage.sql().run(&format!("ALTER ROLE {role} PASSWORD '{SECRET}'"));
    let address = address.login_as(&role, Some(SECRET));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, SECRET).unwrap();
    let command = format!("cat,{}", file.display());
    let known = stage.relay_at(&address).property("ssl.key.password", SECRET);
    let bare = address.clone().login_as(&role, None);
    let commanded = stage.relay_at(&bare).set("source.password_command", &command);
    let broker = |relay: &Relay| {
        relay.clone().log_in(&kafka.sasl_bootstrap(), ALLOWED_USER, kafka::PASSWORD)
    };
    stage.insert("A", 2);
    stage.insert("no topic!", 1);
    for relay in [broker(&known), broker(&commanded)] {
        let mut running = relay.clone().allow_log("").start(&["run", "-vv"]);
        let shown = pages(&mut running);
        hides("a page", &shown);
        assert!(!shown.contains(kafka::PASSWORD), "a page has the brokers' password");
        let mut commands = vec![
            vec!["status"],
            vec!["doctor", "--output", "json"],
            vec!["lag"],
            vec!["config", "show"],
            vec!["trace", "c0ffee00-0000-4000-8000-000000000042"],
            vec!["dead-letters", "list"],
            vec!["prune", "--older-than", "1d"],
            vec!["verify"],
            vec!["route", "--from-database"],
        ];
        for command in &mut commands {
            command.push("-vv");
        }
        for (command, outcome) in outcomes(&relay, &commands) {
            let told = said(&outcome);
            hides(&format!("{command:?}"), &told);
            assert!(!told.contains(kafka::PASSWORD), "{command:?} has the brokers' password");
        }
        running.signal(rustix::process::Signal::TERM);
        let told = said(&running.outcome());
        hides("the log of a relay", &told);
        assert!(!told.contains(kafka::PASSWORD), "the log has the brokers' password");
    }
    // The same where they are refused.
    stage.sql().run(&format!("ALTER ROLE {role} PASSWORD 'another'"));
    let unknown = known.clone().log_in(&kafka.sasl_bootstrap(), ALLOWED_USER, SECRET);
    let stage_relay = stage.relay().log_in(&kafka.sasl_bootstrap(), ALLOWED_USER, SECRET);
    for relay in [broker(&known), broker(&commanded), unknown, stage_relay] {
        let relay = gives_up(&relay);
        let commands = [vec!["run", "--once", "-vv"], vec!["doctor", "-vv"], vec!["status", "-vv"]];
        for (command, outcome) in outcomes(&relay, &commands) {
            assert!(!outcome.status.success(), "{command:?}");
            hides(&format!("{command:?}, refused"), &said(&outcome));
        }
    }
}
