//! How a process of several streams ends, of which one has failed.

use rustix::process::Signal;

use super::{file_of, relay, stages, start};
use crate::operate::Desk;
use support::broker::Broker;
use support::postgres;
use support::relay_http::RelayHttp;
use support::wait::wait_until;

const FAILED: &str = "this stream has failed";

/// A service manager starts it again, whichever stream stands first in the file and fails first.
#[test]
fn a_failure_that_may_pass_decides_the_exit_code() {
    for names in [["human", "passes"], ["passes", "human"]] {
        let streams = stages(postgres::installed(), "127.0.0.1:1", &names);
        let text = file_of("", &streams)
            .replace("[retry]\n", "[retry]\ngive_up_after = \"2s\"\n")
            .replace("\"human\"\n", "\"human\"\nsource.publication = \"nowhere\"\n");
        let desk = Desk::new();
        desk.write(&text);
        let relay = relay(&streams).allow_log("");
        let outcome = start(&relay, &desk.file(), &["run"]).outcome();
        assert_eq!(outcome.status.code(), Some(69), "{names:?}: {outcome:?}");
        for name in names {
            let told = format!("stream `{name}`: ");
            assert!(outcome.log.iter().any(|line| line.contains(&told)), "{outcome:?}");
        }
        // One that ends the process is told by its end alone.
        let failed = outcome.log.iter().filter(|line| line.contains(FAILED));
        assert_eq!(failed.count(), 1, "{outcome:?}");
    }
}

#[test]
fn g8_a_process_of_which_a_stream_waits_is_drained_at_once() {
    let broker = Broker::best();
    for (wrong, code) in [
        ("source.publication = \"nowhere\"\n", 70),
        ("source.url = \"postgres://postrider@127.0.0.1:1/nothing\"\n", 69),
    ] {
        let streams = stages(postgres::installed(), &broker.bootstrap(), &["serves", "waits"]);
        let [(_, serves), (_, waits)] = &streams[..] else { panic!("two") };
        let url = format!("source.url = \"{}\"\n", waits.database.address().url());
        let name = "name = \"waits\"\n";
        let text = file_of("", &streams);
        let text = if code == 69 { text.replace(&url, "") } else { text };
        // It would begin anew after five minutes.
        let own = "retry.max = \"30s\"\nretry.give_up_after = \"1s\"\n";
        let desk = Desk::new();
        desk.write(&text.replace(name, &format!("{name}{own}{wrong}")));
        let relay = relay(&streams).allow_log("");
        let mut running = start(&relay, &desk.file(), &["run"]);
        let face = RelayHttp::of(&mut running);
        running.wait_for_log(FAILED);
        wait_until("the other one", || face.probe("/readyz?stream=serves").0 == 200);
        serves.insert("A", 5);
        serves.wait_for_records(5);
        running.signal(Signal::TERM);
        let outcome = running.outcome();
        assert_eq!(outcome.status.code(), Some(code), "{outcome:?}");
        let again = start(&relay, &desk.file(), &["run", "--once", "--only", "serves"]).outcome();
        assert!(again.status.success() && again.stdout.contains("0 records"), "{again:?}");
    }
}
