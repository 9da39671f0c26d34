//! Tests that parse the metrics page according to the exposition format and promtool.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::telemetry::CertificateEnd;
use postrider_kafka::Traces;
use postrider_service::prometheus::{Format, render};

fn full_view() -> View {
    let mut commit_to_confirm = Histogram::default();
    for us in [10, 900, 900, 70_000_000] {
        commit_to_confirm.record(us);
    }
    let snapshot = Snapshot {
        state: RelayState::Streaming,
        holds_slot: true,
        topics: vec![TopicCount {
            topic: Arc::from("orders"),
            sent: 7,
            dead_lettered: 1,
            bytes: 99,
        }],
        confirmed: 6,
        rejections: vec![("no_route", 1)],
        ignored: vec![("update", 2)],
        messages: vec![("insert", 8), ("keepalive", 3)],
        restarts: vec![("kafka", 1)],
        back_pressure: Duration::from_millis(1500),
        commit_to_confirm,
        ..Snapshot::default()
    };
    View {
        snapshot: Arc::new(snapshot),
        slot: Some(SlotMetrics {
            waits: None,
            acknowledged_lsn: 1,
            lag_bytes: 5,
            retained_bytes: 6,
            safe_bytes: Some(7),
            clock_skew_us: -1_500_000,
        }),
        slot_columns: None,
        certificates: Arc::new([
            CertificateEnd { peer: "postgres", owner: "server", until_s: 1_900_000_000 },
            CertificateEnd { peer: "kafka", owner: "relay", until_s: 1_900_086_400 },
        ]),
        oldest_unacknowledged_age: Duration::ZERO,
        tick_age: Duration::ZERO,
        uptime: Duration::from_secs(3),
        operated: crate::telemetry::Operated::default(),
        traces: Traces::default(),
        next_run: None,
    }
}

fn page(view: &View) -> String {
    page_in(view, Format::Text)
}

fn page_in(view: &View, format: Format) -> String {
    let build = BuildInfo {
        version: "0.1.0".into(),
        git: "a\"b\\c\nd".into(),
        librdkafka: "2".into(),
        slot: "s".into(),
        ..BuildInfo::default()
    };
    let usage = Usage {
        resident_bytes: Some(1),
        resident_bytes_max: Some(2),
        cpu_ticks: Some(150),
        open_files: Some(4),
    };
    render(RelayMetrics { view: view.clone(), build, usage: Some(usage) }, format)
}

/// Splits `name{labels} value`. Labels are quoted, with escapes.
fn split_sample(line: &str) -> (String, Vec<(String, String)>, f64) {
    let name_end = line.find(['{', ' ']).unwrap();
    let name = line[..name_end].to_owned();
    let mut labels = Vec::new();
    let mut rest = &line[name_end..];
    while rest.starts_with(['{', ',']) {
        let (label, tail) = rest[1..].split_once("=\"").unwrap();
        let mut value = String::new();
        let mut characters = tail.char_indices();
        let end = loop {
            match characters.next().unwrap() {
                (_, '\\') => match characters.next().unwrap().1 {
                    'n' => value.push('\n'),
                    c @ ('"' | '\\') => value.push(c),
                    c => panic!("escape {c}"),
                },
                (at, '"') => break at,
                (_, c) => value.push(c),
            }
        };
        labels.push((label.to_owned(), value));
        rest = &tail[end + 1..];
    }
    let value = rest.trim_start_matches('}').strip_prefix(' ').unwrap().parse().unwrap();
    (name, labels, value)
}

type Families = BTreeMap<String, (String, Vec<(String, Vec<(String, String)>, f64)>)>;

fn parse(text: &str) -> Families {
    let mut families = Families::new();
    let mut help = BTreeSet::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, words) = rest.split_once(' ').unwrap();
            assert!(help.insert(name.to_owned()), "HELP twice: {name}");
            assert!(!words.trim().is_empty());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(help.contains(name), "TYPE without HELP: {name}");
            assert!(families.insert(name.to_owned(), (kind.to_owned(), Vec::new())).is_none());
            name.clone_into(&mut current);
        } else {
            let sample = split_sample(line);
            assert!(sample.0.starts_with(current.as_str()), "{line} below {current}");
            families.get_mut(&current).unwrap().1.push(sample);
        }
    }
    families
}

#[test]
fn the_page_follows_the_format_and_promtools_rules() {
    for (name, (kind, samples)) in parse(&page(&full_view())) {
        assert!(name.starts_with("postrider_") || name.starts_with("process_"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} {kind}");
        for unit in ["milliseconds", "_ms", "kilobytes", "minutes"] {
            assert!(!name.contains(unit), "{name}: base units only");
        }
        let mut series = BTreeSet::new();
        for (sample, labels, value) in &samples {
            assert!(series.insert((sample.clone(), labels.clone())), "series twice: {sample}");
            assert!(value.is_finite());
            let suffix = sample.strip_prefix(name.as_str()).unwrap();
            let allowed: &[&str] =
                if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(allowed.contains(&suffix), "{sample}");
        }
    }
}

#[test]
fn the_histogram_is_cumulative_in_seconds() {
    let families = parse(&page(&full_view()));
    let (_, samples) = &families["postrider_commit_to_confirm_seconds"];
    let buckets: Vec<(f64, f64)> = samples
        .iter()
        .filter(|(name, ..)| name.ends_with("_bucket"))
        .map(|(_, labels, value)| (labels[0].1.replace("+Inf", "inf").parse().unwrap(), *value))
        .collect();
    assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
    assert_eq!(buckets.first(), Some(&(0.000_05, 1.0)));
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, 4.0)));
    let value = |suffix| samples.iter().find(|(name, ..)| name.ends_with(suffix)).unwrap().2;
    assert!((value("_count") - 4.0).abs() < f64::EPSILON);
    assert!((value("_sum") - 70.001_81).abs() < 1e-9);
}

#[test]
fn labels_are_escaped() {
    let families = parse(&page(&full_view()));
    let labels = &families["postrider_build_info"].1[0].1;
    assert!(labels.contains(&("git".to_owned(), "a\"b\\c\nd".to_owned())));
}

#[test]
fn exactly_one_state_is_on() {
    let families = parse(&page(&full_view()));
    let on: Vec<_> = families["postrider_state"].1.iter().filter(|s| s.2 > 0.5).collect();
    assert_eq!(on.len(), 1);
    assert_eq!(on[0].1[0].1, "streaming");
}

#[test]
fn readiness_is_that_of_the_probe_and_names_the_check_that_fails() {
    let mut view = full_view();
    let samples = |view: &View, name: &str| parse(&page(view))[name].1.clone();
    for (broker_connected, expected) in [(true, vec![]), (false, vec!["kafka"])] {
        let last_progress = Some(Instant::now());
        let snapshot = (*view.snapshot).clone();
        view.snapshot = Arc::new(Snapshot { broker_connected, last_progress, ..snapshot });
        let is_ready = samples(&view, "postrider_ready")[0].2 > 0.5;
        assert_eq!(is_ready, readiness(&view, Role::Any).ok);
        let failing = samples(&view, "postrider_ready_check").into_iter();
        let failing = failing.filter(|(_, _, value)| *value < 0.5);
        let failing: Vec<String> = failing.map(|(_, labels, _)| labels[0].1.clone()).collect();
        assert_eq!(failing, expected);
        assert_eq!(is_ready, failing.is_empty());
    }
}

#[test]
fn every_reason_is_shown_from_zero_on() {
    let mut view = full_view();
    let counted = |view: &View, name: &str| parse(&page(view))[name].1.clone();
    let restarts = counted(&view, "postrider_restarts_total");
    assert_eq!(
        restarts.len(),
        RESTART_REASONS.len(),
        "one more would be a reason that no list has"
    );
    assert!((restarts.iter().map(|sample| sample.2).sum::<f64>() - 1.0).abs() < f64::EPSILON);
    view.snapshot = Arc::default();
    for (name, reasons) in [
        ("postrider_restarts_total", RESTART_REASONS.len()),
        ("postrider_rejections_total", RejectionCode::ALL.len()),
    ] {
        let samples = counted(&view, name);
        assert_eq!(samples.len(), reasons);
        assert!(samples.iter().all(|sample| sample.2 == 0.0), "{samples:?}");
    }
}

#[test]
fn many_topics_share_one_series() {
    let mut view = full_view();
    let topic = |n: usize| TopicCount {
        topic: Arc::from(format!("t{n}")),
        sent: 1,
        dead_lettered: 0,
        bytes: 1,
    };
    let topics = (0..TOPICS_MAX + 50).map(topic).collect();
    view.snapshot = Arc::new(Snapshot { topics, ..Snapshot::default() });
    let text = page(&view);
    assert!(text.contains("postrider_records_total{topic=\"other\",result=\"sent\"} 50\n"));
    assert!(!text.contains(&format!("\"t{TOPICS_MAX}\"")));
}

#[test]
fn an_exemplar_stands_in_its_bucket_and_in_no_other_format() {
    let mut view = full_view();
    let mut snapshot = (*view.snapshot).clone();
    snapshot.exemplars.keep([0xab; 16], 900, 1_700_000_000_000_000);
    snapshot.exemplars.keep([0xcd; 16], 70_000_000, 1_700_000_000_500_000);
    view.snapshot = Arc::new(snapshot);
    let text = page_in(&view, Format::OpenMetrics);
    let trace = "ab".repeat(16);
    let line = format!(
        "postrider_commit_to_confirm_seconds_bucket{{le=\"0.001\"}} 3 # {{trace_id=\"{trace}\"}} 0.0009 1700000000.000000\n"
    );
    assert!(text.contains(&line), "{text}");
    assert!(text.contains("le=\"+Inf\"} 4 # {trace_id=\"cd"), "{text}");
    assert_eq!(text.matches(" # {").count(), 2);
    assert!(!page(&view).contains("trace_id"));
}

#[test]
fn bounds_are_the_numbers_that_a_reader_would_write() {
    for (us, bound) in [(50, 0.000_05), (2_500, 0.002_5), (1_000_000, 1.0), (60_000_000, 60.0)] {
        assert_eq!(seconds(us).to_bits(), f64::to_bits(bound));
    }
}
