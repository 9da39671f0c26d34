//! Tests of the screen as text.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use serde_json::{Value, json};

use super::model::Model;
use super::screen::{View, render};
use super::{StreamEntry, Target, address_of};
use crate::marks::{WIDTHS, assert_snapshot};

fn state() -> Value {
    let link = |name: &str, detail: &str| json!({"name": name, "is": "ok", "detail": detail});
    json!({
        "condition": "streaming", "version": "0.1.0", "git": "abc", "librdkafka": "2.12.1",
        "slot_name": "postrider", "uptime_seconds": 245.0,
        "status": {"level": "ok", "headline": "Rows are delivered", "cause": null,
            "help": null, "command": null},
        "chain": [link("Postgres", "a stream is open"), link("Slot", "held by this relay"),
                  link("Relay", "streaming"), link("Kafka", "the brokers confirm")],
        "numbers": {"confirmed": 123_456, "dead_lettered": 4, "in_flight_records": 12,
            "in_flight_bytes": 999, "oldest_unacknowledged_seconds": 0.0042, "transactions_settled": 9,
            "received_lsn": 1, "settled_lsn": 1, "acknowledged_lsn": 1, "slot_lag_bytes": 18_432,
            "slot_retained_bytes": 52_428_800, "slot_safe_bytes": null},
        "topics": (0..12).map(|n| json!({"name": format!("orders.{n}"), "sent": 1_000 * n, "dead_lettered": 0,
            "bytes": 70_000 * n, "rate": if n == 0 { None } else { Some(150.0 * f64::from(n)) }})).collect::<Vec<_>>(),
        "unavailable": [{"topic": "orders.1", "reason": "missing", "seconds": 7, "rows_wait": true, "help": "x"}],
        "rejections": [["invalid_topic", 4], ["too_large", 0]], "ignored": [], "restarts": [["kafka", 1]],
        "last_failure": null, "slot": null, "settings": [],
    })
}

fn history(samples: i64) -> Value {
    let all = |value: &dyn Fn(i64) -> Value| (0..samples).map(value).collect::<Vec<_>>();
    json!({
        "at_ms": all(&|n| json!(n * 1_000)), "confirmed": all(&|n| json!(n * n * 10)),
        "in_flight": all(&|_| json!(0)), "received": all(&|_| json!(0)), "settled": all(&|_| json!(0)),
        "lag": all(&|_| json!(null)), "retained": all(&|_| json!(null)),
        "p50_us": all(&|_| json!(900)), "p95_us": all(&|_| json!(5_000)), "p99_us": all(&|n| json!(n * 1_000)),
    })
}

fn model(state: Value, samples: i64) -> Model {
    let mut model = Model::of("127.0.0.1:8484".to_owned(), None);
    let columns = serde_json::from_value(history(samples)).unwrap();
    model.take(Ok((serde_json::from_value(state).unwrap(), columns)));
    model
}

fn screen(model: &Model, view: &View, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| render(frame, model, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    (0..height).map(line).collect()
}

const LARGE: (u16, u16) = (80, 24);

fn holds_snapshots(name: &str, model: &Model) {
    for width in WIDTHS {
        let shown = screen(model, &View::default(), (width, 24));
        assert_snapshot(&format!("top/snapshots/{name}-{width}.txt"), &shown);
    }
}

#[test]
fn a_relay_that_streams_is_on_one_screen() {
    holds_snapshots("streaming", &model(state(), 40));
}

#[test]
fn what_is_wrong_is_said_in_words_and_above_all() {
    let mut state = state();
    state["numbers"]["oldest_unacknowledged_seconds"] = json!(45.5);
    state["condition"] = json!("not ready");
    state["chain"][3] = json!({"name": "Kafka", "is": "failed", "detail": "no broker answers"});
    state["status"] = json!({"level": "failed", "headline": "No Kafka broker answers",
        "cause": "None of kafka-1:9092, kafka-2:9092 answers.",
        "help": "Check kafka.brokers and the network; nothing is lost: the rows wait in Postgres",
        "command": "postrider doctor"});
    holds_snapshots("not-ready", &model(state, 3));
}

#[test]
fn the_command_is_shown_in_every_width() {
    let mut state = state();
    state["condition"] = json!("not ready");
    state["status"] = json!({"level": "failed",
        "headline": "Reading from Postgres fails; the relay retries",
        "cause": "Connecting: cannot connect to Postgres at 127.0.0.1:25510: connection refused. \
            Nothing is lost: rows wait in Postgres.",
        "help": "Check that the server runs and that host, port and firewall are right",
        "command": "postrider doctor"});
    for width in [30, 50, 80, 120, 200] {
        let shown = screen(&model(state.clone(), 3), &View::default(), (width, 24));
        assert!(shown.contains("Run: postrider doctor\n"), "{shown}");
        assert!(shown.contains("Kafka"), "{shown}");
    }
}

#[test]
fn a_steady_load_has_a_steady_rate() {
    let mut model = Model::of("127.0.0.1:8484".to_owned(), None);
    let mut columns = history(30);
    columns["confirmed"] = json!((0..30).map(|n| n / 2 * 60).collect::<Vec<_>>());
    let columns = serde_json::from_value(columns).unwrap();
    model.take(Ok((serde_json::from_value(state()).unwrap(), columns)));
    assert_eq!(model.rates()[12..], vec![Some(30.0); 18]);
    assert_eq!(model.rates()[0], None);
}

#[test]
fn a_relay_that_does_not_answer_is_told_from_one_that_never_did() {
    let mut model = model(state(), 3);
    model.take(Err("no relay answers at 127.0.0.1:8484: Connection refused".to_owned()));
    model.answered_before(std::time::Duration::from_secs(12));
    let shown = screen(&model, &View::default(), LARGE);
    let lines: Vec<_> = shown.lines().take(3).collect();
    assert!(lines[0].starts_with("Postrider  ✗ no answer  slot postrider"), "{shown}");
    assert!(lines[1].starts_with("The relay does not answer: no relay answers"), "{shown}");
    assert!(lines[2].ends_with("What is shown is 12 s old."), "{shown}");
    assert!(shown.contains("orders.0"), "{shown}");
    let mut never = Model::of("127.0.0.1:1".to_owned(), None);
    assert!(
        screen(&never, &View::default(), LARGE).starts_with("Postrider  · asking  at 127.0.0.1:1")
    );
    never.take(Err("no relay answers at 127.0.0.1:1: Connection refused".to_owned()));
    let shown = screen(&never, &View::default(), LARGE);
    assert!(!shown.contains("old") && shown.contains("Connection refused."), "{shown}");
}

#[test]
fn a_latency_without_a_sample_is_not_zero() {
    let mut model = Model::of("127.0.0.1:8484".to_owned(), None);
    let mut columns = history(3);
    columns["p99_us"] = json!([null, null, null]);
    let columns = serde_json::from_value(columns).unwrap();
    model.take(Ok((serde_json::from_value(state()).unwrap(), columns)));
    let shown = screen(&model, &View::default(), LARGE);
    assert!(shown.contains("900 µs / 5.0 ms / –"), "{shown}");
    assert!(!shown.contains("0 µs\n"), "{shown}");
}

#[test]
fn a_pause_and_small_values_can_be_seen() {
    let mut model = Model::of("127.0.0.1:8484".to_owned(), None);
    let (mut state, mut columns) = (state(), history(5));
    state["condition"] = json!("paused");
    columns["confirmed"] = json!([7, 7, 7, 7, 7]);
    columns["p99_us"] = json!([null, 900, 900, 5_000_000, 900]);
    let state = serde_json::from_value(state).unwrap();
    model.take(Ok((state, serde_json::from_value(columns).unwrap())));
    let shown = screen(&model, &View::default(), LARGE);
    assert!(shown.starts_with("Postrider  ! paused"), "{shown}");
    assert!(shown.contains("records/s 0 ") && shown.contains("peak 0/s"), "{shown}");
    assert!(shown.contains(" ▁▁█▁\n"), "{shown}");
}

#[test]
fn a_row_that_waits_for_half_a_minute_is_marked_as_stuck() {
    let shown = |seconds: f64| {
        let mut state = state();
        state["numbers"]["oldest_unacknowledged_seconds"] = json!(seconds);
        screen(&model(state, 3), &View::default(), LARGE)
    };
    for (seconds, text) in [(9.0, "oldest 9.0 s"), (30.0, "oldest ! 30 s"), (31.0, "oldest ✗ 31 s")]
    {
        assert!(shown(seconds).contains(text), "{}", shown(seconds));
    }
}

#[test]
fn keys_move_through_the_topics_and_explain() {
    let (model, mut view) = (model(state(), 3), View::default());
    let top = |view: &View| {
        let shown = screen(&model, view, LARGE);
        shown
            .lines()
            .find(|line| line.starts_with("orders."))
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .to_owned()
    };
    view.press(KeyCode::Up, 12);
    assert_eq!(top(&view), "orders.0");
    view.press(KeyCode::Down, 12);
    view.press(KeyCode::PageDown, 12);
    assert_eq!(top(&view), "orders.6");
    view.press(KeyCode::PageDown, 12);
    view.press(KeyCode::PageDown, 12);
    assert_eq!(top(&view), "orders.11", "the last one stays");
    view.press(KeyCode::Home, 12);
    assert_eq!(top(&view), "orders.0");
    view.press(KeyCode::Char('?'), 12);
    let shown = screen(&model, &view, LARGE);
    assert!(shown.contains("postrider doctor") && !shown.contains("orders.0"), "{shown}");
    view.press(KeyCode::Char('x'), 12);
    assert_eq!(top(&view), "orders.0");
}

#[test]
fn any_terminal_and_any_relay_can_be_drawn() {
    let mut bare = state();
    for list in ["chain", "topics", "unavailable", "rejections", "restarts"] {
        bare[list] = json!([]);
    }
    for size in [(1, 1), (10, 3), (40, 10), (80, 24), (250, 80)] {
        for state in [state(), bare.clone()] {
            for has_colors in [false, true] {
                let view = View { has_colors, ..View::default() };
                let shown = screen(&model(state.clone(), 400), &view, size);
                assert_eq!(shown.lines().count(), usize::from(size.1));
            }
        }
    }
}

fn numbers(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != ',');
    words.map(|word| word.trim_matches(',')).filter(|digits| !digits.is_empty()).collect()
}

#[test]
fn a_number_is_shown_whole_or_not_at_all() {
    let mut state = state();
    state["numbers"]["confirmed"] = json!(98_765_432_100_u64);
    state["topics"][3]["sent"] = json!(12_345_678_901_234_u64);
    for topic in state["topics"].as_array_mut().unwrap() {
        topic["name"] = json!(format!("orders.{}", "placed".repeat(4)));
    }
    state["unavailable"] = json!([]);
    let model = model(state, 40);
    let whole = screen(&model, &View::default(), (250, 60));
    for width in 1..120 {
        let shown = screen(&model, &View::default(), (width, 60));
        for number in numbers(&shown) {
            assert!(numbers(&whole).contains(&number), "{number} in {width} columns:\n{shown}");
        }
    }
    let narrow = screen(&model, &View::default(), (50, 24));
    for text in ["confirmed 98,765,432,100", "in flight 12", "12,345,678,901,234", "…"] {
        assert!(narrow.contains(text), "{text}:\n{narrow}");
    }
}

#[test]
fn an_address_is_read_and_a_password_in_it_is_not_repeated() {
    for url in ["http://127.0.0.1:8484", "http://127.0.0.1:8484/", "127.0.0.1:8484"] {
        assert_eq!(address_of(url).unwrap().to_string(), "127.0.0.1:8484");
    }
    for url in ["https://127.0.0.1:8484", "http://u:planted@127.0.0.1:8484", "127.0.0.1", ""] {
        let failure = format!("{:?}", address_of(url).unwrap_err());
        assert!(failure.contains("--url") && !failure.contains("planted"), "{failure}");
    }
}

#[test]
fn a_query_names_the_stream_only_if_the_relay_has_several() {
    let entries = |names: &[&str]| -> Vec<StreamEntry> {
        names.iter().map(|name| StreamEntry { name: (*name).to_owned() }).collect()
    };
    let query = |stream: Option<&str>, names: &[&str]| {
        let address = ([127, 0, 0, 1], 8484).into();
        Target { address, stream: stream.map(str::to_owned) }.query(&entries(names))
    };
    assert_eq!(query(None, &[]), Ok(String::new()));
    assert_eq!(query(Some("a"), &[]), Ok(String::new()));
    assert_eq!(query(Some("b"), &["a", "b"]), Ok("stream=b&".to_owned()));
    for (stream, said) in [(Some("c"), "no stream `c`"), (None, "postrider top --stream NAME")] {
        let why = query(stream, &["a", "b"]).unwrap_err();
        assert!(why.contains(said) && why.contains("a, b"), "{why}");
    }
}

#[test]
fn the_title_names_the_stream() {
    let mut model = model(state(), 1);
    model.stream = Some("orders".to_owned());
    let shown = screen(&model, &View::default(), LARGE);
    assert!(shown.starts_with("Postrider  ✓ streaming  stream orders  slot postrider"), "{shown}");
}
