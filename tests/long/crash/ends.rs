//! The end of Kafka transactions, delayed, lost, cut off or doubled between the relay and its broker,
//! while rows flow.
//!
//! Input: a seed and how many. Output: a [`Tally`] of what was done, what of it a client must
//! notice, and what the relay says it noticed.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use crate::crash::settings::Plan;
use support::chance::Chance;
use support::fault::endtxn::{End, EndTxns, Injection, Journal};
use support::fault::kafka_frame::Producer;
use support::fault::proxy::Proxy;
use support::relay::Running;
use support::relay_http::RelayHttp;

/// How long the relay's client waits for an answer (`socket.timeout.ms`). It looks once a second, so
/// it may take twice as long.
pub(crate) const SOCKET_TIMEOUT: Duration = Duration::from_secs(1);

/// Delays that are waited for, in ms.
const SHORT_MS: (u64, u64) = (20, 300);
/// Delays that outlast the client's patience, in ms.
const LONG_MS: (u64, u64) = (2_500, 5_000);
/// An answer that came later than this by itself may have been waited for in vain.
const SLOW: Duration = Duration::from_millis(900);
/// How many of 100 EndTxns suffer.
const PERCENT: u64 = 30;
/// How long it may take until the next one.
const LIMIT_EACH: Duration = Duration::from_mins(1);
/// The relay's count.
const NOTICED: &str = r#"postrider_restarts_total{reason="ambiguous_commit"}"#;

/// What was done, and what was noticed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    injections: usize,
    delays: usize,
    drops: usize,
    duplicates: usize,
    cuts: usize,
    /// Commits and aborts that the relay asked for, those it sent again included.
    seen: [usize; 2],
    /// Injections that a client must notice: it is cut off, or waits in vain.
    expected: u64,
    /// How many the relay says it noticed.
    detected: u64,
    /// Answers that were late without our doing, as on a machine that is busy: the relay may have
    /// noticed these, too.
    slow: u64,
    /// How often it went on though it had lost sight of a commit.
    went_on: usize,
}

impl Tally {
    /// The same in words.
    pub(crate) fn explain(&self) {
        let [commits, aborts] = self.seen;
        eprintln!(
            "{commits} commits and {aborts} aborts were asked for; {} answers were late without our \
             doing; {} times the relay went on without an answer",
            self.slow, self.went_on
        );
    }

    /// Whether the relay noticed each, and never went on in an epoch that is in doubt.
    pub(crate) fn is_sound(&self) -> bool {
        let noticed = self.expected..=self.expected + self.slow;
        noticed.contains(&self.detected) && self.went_on == 0
    }

    /// Its part of the line.
    pub(crate) fn tell(&self, line: &mut Map<String, Value>) {
        let mut set = |name: &str, value: Value| drop(line.insert(name.to_owned(), value));
        set("injections", self.injections.into());
        set("delays", self.delays.into());
        set("drops", self.drops.into());
        set("duplicates", self.duplicates.into());
        set("cuts", self.cuts.into());
        set("detected", self.detected.into());
        set("expected", self.expected.into());
    }
}

/// The proxy before the broker, and what it is to do.
pub(crate) struct Ends {
    end_txns: Arc<EndTxns>,
    /// Injections so far.
    done: Arc<AtomicU32>,
    /// Keeps its ports.
    _proxy: Proxy,
}

impl Ends {
    /// Does so many things to the EndTxns from now on.
    pub(crate) fn begin(proxy: Proxy, end_txns: Arc<EndTxns>, plan: &Plan) -> Self {
        let done = Arc::new(AtomicU32::new(0));
        end_txns.plan(script(Chance::new(plan.seed), plan.cycles, Arc::clone(&done)));
        Self { end_txns, done, _proxy: proxy }
    }

    /// Returns when so many were done.
    pub(crate) fn await_injection(&self, number: u32) {
        let deadline = Instant::now() + LIMIT_EACH;
        while self.done.load(Ordering::SeqCst) < number {
            let went_on = self.end_txns.went_on();
            assert!(went_on.is_empty(), "went on without knowing how a commit ended: {went_on:?}");
            assert!(Instant::now() < deadline, "no transaction ended for {LIMIT_EACH:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What was done, and what a relay that has come over all of it says.
    pub(crate) fn tally(&self, running: &mut Running) -> Tally {
        let detected = RelayHttp::of(running).count(NOTICED).unwrap_or(0);
        tally(&self.end_txns.journal(), detected)
    }
}

/// What is done to each EndTxn. Once a producer has lost sight of one, nothing more is done to it:
/// what it sends now is the same request again, or a fault that must show as it is.
fn script(
    mut chance: Chance,
    wanted: u32,
    done: Arc<AtomicU32>,
) -> impl FnMut(&Producer, bool) -> Option<Injection> {
    let mut lost: HashSet<Producer> = HashSet::new();
    move |producer, _| {
        let is_enough = done.load(Ordering::SeqCst) == wanted;
        if is_enough || lost.contains(producer) || !chance.percent(PERCENT) {
            return None;
        }
        let injection = draw(&mut chance);
        if is_noticeable(injection) {
            lost.insert(producer.clone());
        }
        done.fetch_add(1, Ordering::SeqCst);
        Some(injection)
    }
}

fn draw(chance: &mut Chance) -> Injection {
    let delay = |(low, high), chance: &mut Chance| {
        Injection::Delay(Duration::from_millis(chance.between(low, high)))
    };
    match chance.below(100) {
        0..20 => delay(SHORT_MS, chance),
        20..35 => delay(LONG_MS, chance),
        35..50 => Injection::DropRequest,
        50..65 => Injection::DropResponse,
        65..85 => Injection::Duplicate,
        85..93 => Injection::CutBefore,
        _ => Injection::CutAfter,
    }
}

/// Whether the client is cut off or waits in vain.
fn is_noticeable(injection: Injection) -> bool {
    match injection {
        Injection::Delay(delay) => delay > SOCKET_TIMEOUT,
        Injection::Duplicate => false,
        Injection::DropRequest
        | Injection::DropResponse
        | Injection::CutBefore
        | Injection::CutAfter => true,
    }
}

fn tally(journal: &Journal, detected: u64) -> Tally {
    let count = |is: fn(Injection) -> bool| journal.injected(is);
    let lost: HashSet<&Producer> = journal
        .ends
        .iter()
        .filter(|end| end.injection.is_some_and(is_noticeable))
        .map(|end| &end.producer)
        .collect();
    let is_slow = |end: &&End| {
        !lost.contains(&end.producer) && end.answered_after.is_none_or(|after| after > SLOW)
    };
    Tally {
        injections: count(|_| true),
        delays: count(|one| matches!(one, Injection::Delay(_))),
        drops: count(|one| matches!(one, Injection::DropRequest | Injection::DropResponse)),
        duplicates: count(|one| one == Injection::Duplicate),
        cuts: count(|one| matches!(one, Injection::CutBefore | Injection::CutAfter)),
        seen: [journal.seen(true), journal.seen(false)],
        expected: count(is_noticeable) as u64,
        detected,
        slow: journal.ends.iter().filter(is_slow).count() as u64,
        went_on: journal.went_on.len(),
    }
}
