//! The demo's output for people. Each figure is next to its meaning, and the verdict begins with
//! PASS or FAIL.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use super::judge::DeliveryVerdict;
use super::shop::{ORDERS, REPEATED_EVERY, ShopFigures};
use super::stage::Stage;
use super::{DemoArgs, Figures};
use crate::marks::{columns, wrapped};
use postrider_config::Delivery;
use postrider_kafka::Received;

/// A vanished terminal must not end the demo before it has cleaned up the database.
macro_rules! tell {
    ($($part:tt)*) => {{
        let _ = writeln!(std::io::stderr(), $($part)*);
    }};
}

const LINE_EVERY: Duration = Duration::from_millis(500);
const LINES: u32 = 20;
const WIDTH: usize = 90;
/// Minimum columns of text in a terminal.
const TEXT_MIN: usize = 16;
const MARGIN: &str = "     ";
const PAYLOAD_MAX: usize = 40;

pub(super) fn introduce(stage: &Stage) {
    let width = width();
    tell!("{}", hanging("", &stage.describe(), width));
    tell!("Kafka: {}\nDashboard: http://{}/\n", stage.brokers, stage.http);
    tell!("{}", heading("1/3  A shop of three services"));
    let shop = format!(
        "{ORDERS} orders are placed over HTTP. The services for orders, payments and inventory communicate only \
         through outbox rows and Kafka. Some cards are declined, the stock is too small, and {} requests are sent \
         twice.",
        ORDERS / REPEATED_EVERY
    );
    tell!("{}\n", hanging(MARGIN, &shop, width));
}

fn width() -> usize {
    columns(std::io::stderr()).unwrap_or(WIDTH)
}

/// Text behind `begin`, in aligned lines of this width.
fn hanging(begin: &str, text: &str, width: usize) -> String {
    let indent = begin.chars().count();
    let lines = wrapped(text, width.saturating_sub(indent).max(TEXT_MIN));
    format!("{begin}{}", lines.join(&format!("\n{:indent$}", "")))
}

pub(super) fn tell_ways(ways: &BTreeMap<Vec<String>, usize>) {
    for (way, orders) in ways {
        let (end, events) = way.split_last().map_or(("", &way[..]), |(end, events)| (end, events));
        let begin = format!("{MARGIN}{orders:>2} x {end}  ");
        tell!("{}", hanging(&begin, &events.join(" > "), width()));
    }
}

pub(super) fn tell_first(record: &Received<'_>) {
    let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or(b"")).into_owned();
    let mut payload = text(record.value());
    if let Some((end, _)) = payload.char_indices().nth(PAYLOAD_MAX) {
        payload.truncate(end);
        payload.push('…');
    }
    let (partition, offset) = (record.partition(), record.offset());
    let record =
        format!("{}[{partition}]@{offset} key {} {payload}", record.topic(), text(record.key()));
    tell!("{}", hanging(&format!("{MARGIN}first record: "), &record, width()));
}

pub(super) fn tell_stay(stage: &Stage) {
    let text = format!("The relay and some orders continue until Ctrl-C: http://{}/", stage.http);
    tell!("{}", hanging("", &text, width()));
}

pub(super) struct LoadReport {
    is_shown: bool,
    begun: Instant,
    every: Duration,
    pub(super) next: Instant,
    /// Rows committed at the last kill, until they are delivered.
    committed_at_kill: Option<u64>,
}

impl LoadReport {
    pub(super) fn begin(args: &DemoArgs, shop: &ShopFigures, is_shown: bool) -> Self {
        if is_shown {
            introduce_load(args, shop);
        }
        let begun = Instant::now();
        let length = Duration::from_secs(args.count / u64::from(args.rate));
        let every = LINE_EVERY.max(length / LINES);
        Self { is_shown, begun, every, next: begun + every, committed_at_kill: None }
    }

    pub(super) fn tell(&mut self, [committed, delivered]: [u64; 2]) {
        self.next = Instant::now() + self.every;
        if !self.is_shown {
            return;
        }
        let caught_up = self.committed_at_kill.take_if(|before| delivered >= *before);
        tell!("{}  {committed:>9} committed  {delivered:>9} delivered", self.clock());
        if caught_up.is_some() {
            tell!("{}  the restarted relay has caught up", self.clock());
        }
    }

    pub(super) fn tell_kill(&mut self, kills: u32, [committed, _]: [u64; 2]) {
        self.committed_at_kill = Some(committed);
        if self.is_shown {
            let title = heading(&format!("KILL {kills}"));
            tell!("{}  {title}  the relay is killed and restarted", self.clock());
        }
    }

    fn clock(&self) -> String {
        format!("  {:>6.1} s", self.begun.elapsed().as_secs_f64())
    }
}

fn introduce_load(args: &DemoArgs, shop: &ShopFigures) {
    let ShopFigures { confirmed, cancelled, refunded, .. } = shop;
    let paragraph = |text: &str| tell!("{}", hanging(MARGIN, text, width()));
    tell!();
    paragraph(&format!(
        "{confirmed} orders confirmed, {cancelled} cancelled ({refunded} refunded). No repeated request made a second order."
    ));
    let title = format!("2/3  A load of {} rows, {} per second", args.count, args.rate);
    tell!("\n{}", heading(&title));
    paragraph("Some transactions and savepoints roll back on purpose: their rows must not arrive.");
    if let Some(every) = args.kill_every {
        let seconds = every.as_secs_f64();
        paragraph(&format!("Every {seconds} s the relay is killed (SIGKILL) and started again."));
    }
    tell!();
}

fn heading(text: &str) -> String {
    let is_plain = !std::io::stderr().is_terminal() || std::env::var_os("NO_COLOR").is_some();
    if is_plain { text.to_owned() } else { format!("\x1b[1m{text}\x1b[0m") }
}

pub(super) fn to_text(
    figures: &Figures,
    delivery: Delivery,
    stays: bool,
    width: Option<usize>,
) -> String {
    let width = width.unwrap_or(WIDTH);
    let DeliveryVerdict { committed, delivered, lost, duplicated, phantom, out_of_order, .. } =
        figures.verdict;
    let (p50, p99) = (figures.verdict.p50_ms, figures.verdict.p99_ms);
    let ShopFigures { orders, repeated_requests, confirmed, cancelled, refunded, stuck } =
        &figures.shop;
    let repeats = match delivery {
        Delivery::ExactlyOnce => "read twice by a consumer of committed records (must be 0)",
        Delivery::AtLeastOnce => {
            "read twice: at least once sends rows in flight again after a kill"
        }
    };
    let verdict = if figures.is_sound(delivery) {
        "PASS  every committed row arrived in order, and no other row"
    } else {
        "FAIL  a figure that must be 0 is not"
    };
    let mut text = format!("\n{}\n\n", hanging("3/3  ", verdict, width));
    let of_orders = format!(
        "of {orders}: {confirmed} confirmed, {cancelled} cancelled, {refunded} refunded (must be 0)"
    );
    let lines: [(&str, String, &str); 10] = [
        ("committed", committed.to_string(), "rows committed to the outbox"),
        ("delivered", delivered.to_string(), "committed rows that a consumer read from Kafka"),
        ("lost", lost.to_string(), "committed rows that were not read (must be 0)"),
        ("duplicated", duplicated.to_string(), repeats),
        ("phantom", phantom.to_string(), "read, but rolled back or never written (must be 0)"),
        ("out of order", out_of_order.to_string(), "read after a later row of the key (must be 0)"),
        ("kills", figures.kills.to_string(), "SIGKILLs to the relay"),
        ("p50, p99", format!("{p50:.1}, {p99:.1} ms"), "time from COMMIT to the consumer"),
        ("stuck orders", stuck.to_string(), &of_orders),
        ("repeats", repeated_requests.to_string(), "requests sent twice; none made a second order"),
    ];
    for (name, value, meaning) in lines {
        let begin = format!("{MARGIN}{name:<13} {value:<14} ");
        let _ = writeln!(text, "{}", hanging(&begin, meaning, width));
    }
    let next: [(&str, &str); 2] = [
        ("postrider demo --count 20000 --rate 2000 --kill-every 2s", "kills the relay every 2 s"),
        ("postrider demo --stay", "keeps the dashboard open"),
    ];
    text.push_str("\nNext (in the repository: make demo ARGS=\"..\"):\n");
    for (command, meaning) in next.into_iter().take(if stays { 1 } else { 2 }) {
        let is_wide = width >= WIDTH;
        let _ = if is_wide {
            writeln!(text, "  {command:<58} {meaning}")
        } else {
            writeln!(text, "  {command}\n      {meaning}")
        };
    }
    text.push_str("  README.md, \"Your own database, in five minutes\"\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(lost: u64) -> Figures {
        let verdict = DeliveryVerdict {
            committed: 10,
            delivered: 10 - lost,
            lost,
            duplicated: 2,
            phantom: 0,
            out_of_order: 0,
            p50_ms: 1.25,
            p99_ms: 9.0,
        };
        let shop = ShopFigures {
            orders: 2,
            repeated_requests: 1,
            confirmed: 2,
            cancelled: 0,
            refunded: 0,
            stuck: 0,
        };
        Figures { verdict, kills: 3, shop }
    }

    #[test]
    fn the_verdict_is_a_word_and_each_number_has_its_meaning() {
        let text = |lost, delivery| to_text(&figures(lost), delivery, false, None);
        let (lost_one, once) = (text(1, Delivery::AtLeastOnce), text(0, Delivery::ExactlyOnce));
        let text = text(0, Delivery::AtLeastOnce);
        assert!(text.starts_with("\n3/3  PASS "), "{text}");
        let lost = "  lost          0              committed rows that were not read (must be 0)\n";
        assert!(text.contains(lost), "{text}");
        assert!(lost_one.starts_with("\n3/3  FAIL "));
        let once = once.replace("\n                                  ", " ");
        assert!(
            once.starts_with("\n3/3  FAIL ") && once.contains("committed records (must be 0)"),
            "{once}"
        );
    }

    #[test]
    fn the_figures_fit_the_terminal() {
        let text = to_text(&figures(0), Delivery::AtLeastOnce, false, Some(60));
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(
            text.contains("  postrider demo --stay\n      keeps the dashboard open\n"),
            "{text}"
        );
    }

    #[test]
    fn a_demo_that_stays_does_not_advise_to_stay() {
        let text = to_text(&figures(0), Delivery::AtLeastOnce, true, None);
        assert!(text.contains("--kill-every") && !text.contains("--stay"), "{text}");
    }
}
