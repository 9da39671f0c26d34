//! `postrider tail` and `postrider broker` as processes: what they write, and when they end.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::terminal::Terminal;
use postrider::kafka::{KafkaSpec, Producer, SendError};
use postrider::ledger::Ticket;
use postrider::route::{Headers, Record};
use support::wait::within;
use support::{kafka, topic, unique, wait_for};

const LIMIT: Duration = Duration::from_mins(2);

/// Nobody looks at a silent terminal for longer.
const TOLD_WITHIN: Duration = Duration::from_secs(40);

/// When records were made, for brokers that keep them for ever.
const LONG_AGO_MS: i64 = 1_700_000_000_000;

/// A `postrider broker`, which ends with its stdin.
struct Served {
    process: Child,
    bootstrap: String,
}

impl Served {
    fn start(topics: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
        command.arg("broker").stdin(Stdio::piped()).stdout(Stdio::piped());
        for topic in topics {
            command.args(["--topic", topic]);
        }
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        let bootstrap = told["bootstrap"].as_str().unwrap().to_owned();
        Self { process, bootstrap }
    }

    fn produce(&self, topic: &str, records: &[Pair<'_>]) {
        produce(&self.bootstrap, topic, records, LONG_AGO_MS);
    }

    fn tail(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
        command.args(["tail", "-b", &self.bootstrap]).args(words).stdin(Stdio::null());
        command
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Key and value, or none.
type Pair<'a> = (Option<&'a str>, Option<&'a [u8]>);

fn produce(bootstrap: &str, topic: &str, records: &[Pair<'_>], from_ms: i64) {
    let mut producer = Producer::open(&KafkaSpec::of_brokers(bootstrap)).unwrap();
    let (begun, mut answers) = (Instant::now(), Vec::new());
    for (number, &(key, value)) in (0..).zip(records) {
        let mut headers = Headers::new();
        headers.push(("id", Some(b"i")));
        headers.push(("none", None));
        let key = key.map(str::as_bytes);
        let timestamp_ms = from_ms + i64::from(number);
        let record = Record { topic, partition: None, key, value, headers, timestamp_ms };
        while let Err(error) = producer.send(&record, Ticket::new(number, 1)) {
            assert!(matches!(error, SendError::Full) && begun.elapsed() < LIMIT, "{error}");
            producer.poll(&mut answers).unwrap();
        }
    }
    while answers.len() < records.len() {
        assert!(begun.elapsed() < LIMIT);
        producer.poll(&mut answers).unwrap();
    }
}

/// The lines as they come.
fn listen(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, said) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        // Nobody listens any more once the test is over.
        lines.for_each(|line| drop(sender.send(line)));
    });
    said
}

fn wait_for_words(said: &Receiver<String>, words: &str) {
    let (begun, mut all) = (Instant::now(), Vec::new());
    while !all.last().is_some_and(|line: &String| line.contains(words)) {
        let left = (2 * LIMIT).saturating_sub(begun.elapsed());
        let line = said.recv_timeout(left);
        all.push(line.unwrap_or_else(|error| panic!("{error}: no `{words}` in {all:#?}")));
    }
}

fn text(output: &Output) -> &str {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::str::from_utf8(&output.stdout).unwrap()
}

fn await_end(process: &mut Child) -> bool {
    let Some(status) = within(LIMIT, || process.try_wait().unwrap()) else {
        process.kill().unwrap();
        panic!("it does not end");
    };
    status.success()
}

#[test]
fn records_are_written_as_asked() {
    let served = Served::start(&["orders:1", "empty"]);
    let records: [(Option<&str>, Option<&[u8]>); 4] = [
        (Some("k"), Some(b"{\"n\": 1}")),
        (Some(""), None),
        (None, Some(b"\xff\n")),
        (Some("last"), Some(b"x")),
    ];
    served.produce("orders", &records);
    let run = |words: &[&str]| served.tail(words).output().unwrap();
    let format = "%t %p %o %k %S %K %T %h%%\\n";
    let output = run(&["orders", "-e", "-f", format]);
    let wanted = "orders 0 0 k 8 1 1700000000000 id=i,none=NULL%\n\
                  orders 0 1  -1 0 1700000000001 id=i,none=NULL%\n\
                  orders 0 2  2 -1 1700000000002 id=i,none=NULL%\n\
                  orders 0 3 last 1 4 1700000000003 id=i,none=NULL%\n";
    assert_eq!(text(&output), wanted);
    let output = run(&["orders", "-e", "-J"]);
    let headers = "\"headers\":[\"id\",\"i\",\"none\",null]";
    let line = |n: u32, key: &str, payload: &str| {
        format!(
            "{{\"topic\":\"orders\",\"partition\":0,\"offset\":{n},\"tstype\":\"create\",\
             \"ts\":170000000000{n},{headers},\"key\":{key},\"payload\":{payload}}}\n"
        )
    };
    let wanted = [
        line(0, "\"k\"", "\"{\\\"n\\\": 1}\""),
        line(1, "\"\"", "null"),
        line(2, "null", "{\"$hex\":\"ff0a\"}"),
        line(3, "\"last\"", "\"x\""),
    ];
    assert_eq!(text(&output), wanted.concat());
    assert_eq!(run(&["orders", "-e", "-o", "2"]).stdout, b"\xff\n\nx\n");
    assert_eq!(text(&run(&["orders", "-c", "1", "-o", "-1"])), "x\n");
    assert_eq!(text(&run(&["empty", "orders", "-e", "-c", "1", "-f", "%s"])), "{\"n\": 1}");
}

#[test]
fn a_missing_topic_is_one_clear_error() {
    let served = Served::start(&["orders"]);
    let told = |topic: &str| {
        let output = served.tail(&[topic, "-e"]).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let words = told("absent");
    assert!(words.contains("topic `absent` does not exist"), "{words}");
    let list =
        format!("list the topics: kafka-topics.sh --bootstrap-server {} --list", served.bootstrap);
    assert!(words.contains(&list) && !words.contains("did you mean"), "{words}");
    let words = told("odrers");
    assert!(words.contains("did you mean `orders`?") && words.contains(&list), "{words}");
}

#[test]
fn brokers_that_do_not_answer_are_told_of_before_it_gives_up() {
    let mut tail = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(["tail", "-b", "127.0.0.1:1", "orders"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let mut lines = BufReader::new(tail.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told = lines.next().unwrap();
    assert!(begun.elapsed() < TOLD_WITHIN, "{:?}: {told}", begun.elapsed());
    for words in ["cannot reach Kafka; retrying", "Connection refused", "-b"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let rest: Vec<String> = lines.collect();
    assert!(rest.iter().any(|line| line.contains("cannot reach Kafka at 127.0.0.1:1")));
    assert_eq!(tail.wait().unwrap().code(), Some(69), "{rest:?}");
}

#[test]
fn a_follower_says_that_the_brokers_died_and_goes_on() {
    let mut served = Served::start(&["orders:1"]);
    served.produce("orders", &[(Some("k"), Some(b"first"))]);
    let mut tail =
        served.tail(&["orders"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Kept open: a closed pipe would end it.
    let mut pipe = BufReader::new(tail.stdout.take().unwrap());
    let mut line = String::new();
    pipe.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    served.process.kill().unwrap();
    let begun = Instant::now();
    let mut lines = BufReader::new(tail.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told = lines.find(|line| line.contains("cannot reach Kafka; retrying"));
    assert!(told.is_some() && begun.elapsed() < TOLD_WITHIN, "{told:?}, {:?}", begun.elapsed());
    assert_eq!(tail.try_wait().unwrap(), None, "it goes on");
    tail.kill().unwrap();
    tail.wait().unwrap();
}

/// Its connections stay open, and nothing comes over them: a follower says so and goes on when the
/// broker does, and who comes meanwhile is told so, and ends.
#[test]
fn a_broker_that_stands_still_is_told_of_and_waited_for_by_a_follower_alone() {
    let Some(kafka) = kafka::start(&kafka::Options::default()) else { return };
    let (bootstrap, topic) = (kafka.bootstrap(), unique("frozen"));
    topic::create(&bootstrap, &topic, 1, &[]);
    let now_ms = UNIX_EPOCH.elapsed().unwrap().as_millis().try_into().unwrap();
    produce(&bootstrap, &topic, &[(Some("k"), Some(b"first"))], now_ms);
    let start = |words: &[&str]| {
        let mut tail = Command::new(env!("CARGO_BIN_EXE_postrider"));
        tail.args(["tail", "-b", &bootstrap, &topic]).args(words);
        // How long a request may go without an answer; a minute would make a long test.
        tail.env("POSTRIDER_KAFKA__PROPERTIES__SOCKET_TIMEOUT_MS", "3000");
        tail.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut follower = start(&[]);
    let written = listen(follower.stdout.take().unwrap());
    wait_for_words(&written, "first");
    kafka.freeze_broker(0);
    let late = start(&["-e"]);
    let said = listen(follower.stderr.take().unwrap());
    wait_for_words(&said, "cannot reach Kafka; retrying");
    let late = late.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&late.stderr);
    assert_eq!(late.status.code(), Some(69), "{words}");
    assert!(words.contains("cannot reach Kafka; retrying"), "{words}");
    assert!(words.contains("cannot reach Kafka at"), "{words}");
    assert_eq!(follower.try_wait().unwrap(), None, "it goes on");
    kafka.resume_broker(0);
    produce(&bootstrap, &topic, &[(Some("k"), Some(b"second"))], now_ms);
    wait_for_words(&written, "second");
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[test]
fn a_closed_pipe_ends_it_quietly_even_while_idle() {
    let served = Served::start(&["orders:1"]);
    served.produce("orders", &[(Some("k"), Some(b"first"))]);
    let mut tail =
        served.tail(&["orders"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe: BufReader<ChildStdout> = BufReader::new(tail.stdout.take().unwrap());
    let mut line = String::new();
    pipe.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n", "a follower writes at once");
    drop(pipe);
    assert!(await_end(&mut tail));
    let mut words = String::new();
    tail.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    assert_eq!(words, "");
}

#[test]
fn a_follower_ends_with_its_terminal() {
    let served = Served::start(&["orders:1"]);
    served.produce("orders", &[(Some("k"), Some(b"first"))]);
    let mut terminal = Terminal::of(&mut served.tail(&["orders"]));
    wait_for("the record", || terminal.text().contains("first").then_some(()));
    terminal.vanish();
    terminal.ends_unseen();
}

#[test]
fn the_broker_ends_with_its_stdin() {
    let mut served = Served::start(&[]);
    drop(served.process.stdin.take());
    assert!(await_end(&mut served.process));
}
