//! `--stream`: one stream of several, for each command.

use super::{file_of, relay, stages, start};
use crate::operate::Desk;
use support::broker::Broker;
use support::postgres;

#[test]
fn a_command_works_on_the_stream_that_is_named() {
    let broker = Broker::best();
    let bootstrap = broker.bootstrap();
    let streams = stages(postgres::installed(), &bootstrap, &["first", "second"]);
    let [(_, first), (_, second)] = &streams[..] else { panic!("two") };
    let desk = Desk::new();
    desk.write(&file_of("", &streams));
    let relay = relay(&streams).allow_log("");
    first.insert("A", 7);
    second.insert("A", 7);

    let once = start(&relay, &desk.file(), &["run", "--once", "--only", "second"]).outcome();
    assert!(once.status.success() && once.stdout.contains("7 records"), "{once:?}");
    assert_eq!((first.records().len(), second.records().len()), (0, 7));

    let peek = start(&relay, &desk.file(), &["peek"]).outcome();
    let told = peek.log.join("\n");
    assert_eq!(peek.status.code(), Some(78), "{told}");
    assert!(told.contains("PR-C012") && told.contains("first, second"), "{told}");
    let unknown = start(&relay, &desk.file(), &["lag", "--only", "third"]).outcome();
    assert!(unknown.log.join("\n").contains("first, second"), "{unknown:?}");
    for words in [&["lag", "--only", "first"][..], &["--only", "first", "config", "show"]] {
        let outcome = start(&relay, &desk.file(), words).outcome();
        assert!(outcome.status.success(), "{outcome:?}");
    }
    let doctor = ["doctor", "--stream", "first", "--only", "slot"];
    let doctor = start(&relay, &desk.file(), &doctor).outcome();
    assert!(doctor.status.code() == Some(0) && !doctor.stdout.is_empty(), "{doctor:?}");
    let rehearsal = start(&relay, &desk.file(), &["run", "--dry-run"]).outcome();
    assert!(rehearsal.log.join("\n").contains("first, second"), "{rehearsal:?}");

    let both = start(&relay, &desk.file(), &["run", "--once"]).outcome();
    assert!(both.status.success(), "{both:?}");
    assert!(both.stdout.contains("first: 7 records") && both.stdout.contains("second: 0 records"));
    assert_eq!((first.records().len(), second.records().len()), (7, 7));
}

#[test]
fn two_streams_of_one_slot_are_refused_at_the_start() {
    let streams = stages(postgres::installed(), "127.0.0.1:1", &["one", "two"]);
    let desk = Desk::new();
    let text = file_of("", &streams);
    let (one, two) = (streams[0].1.slot(), streams[1].1.slot());
    desk.write(&text.replace(&format!("slot = \"{two}\""), &format!("slot = \"{one}\"")));
    let outcome = start(&relay(&streams).allow_log(""), &desk.file(), &["run"]).outcome();
    let told = outcome.log.join("\n");
    assert_eq!(outcome.status.code(), Some(78), "{told}");
    assert!(told.contains("the streams `one` and `two` both read the slot"), "{told}");
}
