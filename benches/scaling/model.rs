//! A model of one relay and of a fleet: who is busy for how long with a row, and what waits for whom.
//!
//! Input: measured constants (docs/scaling-model.md says where each is from). Output: the page's tables, by name.
//! Invariant: no clock and no chance but a seeded generator, so that the same constants give the same tables.
//!
//! A transaction is committed at moments of a Poisson process. Its rows pass three queues in turn, walsender, hot
//! thread and the client's thread of a broker, in steps of 50 us; in each step a queue passes on what it has time for.
//! On top of that comes the path without a queue (network, brokers, consumer), drawn from a lognormal distribution
//! through its measured median and p99.

#![expect(clippy::indexing_slicing, reason = "arrays of known length")]

use std::collections::VecDeque;

/// What a row costs, in us of CPU time unless another unit is named.
struct Costs {
    title: &'static str,
    rows_per_transaction: f64,
    /// A walsender for a row that it sends, and for a row of another slot's table in the same database.
    walsender: f64,
    of_other_slot: f64,
    /// The same of a row of another database of the server.
    of_other_database: f64,
    /// The server for a row of a window (decision 0031).
    window: f64,
    /// The relay, and how much of it is the hot thread's; the rest is the client's threads'.
    relay: f64,
    hot_share: f64,
    broker: f64,
    wal_bytes: f64,
}

const ONE: Costs = Costs {
    title: "1 row per transaction",
    rows_per_transaction: 1.0,
    walsender: 13.9,
    of_other_slot: 2.5,
    of_other_database: 1.37,
    window: 3.5,
    relay: 3.9,
    hot_share: 0.63,
    broker: 7.2,
    wal_bytes: 540.0,
};
const BULK: Costs = Costs {
    title: "1,000 rows per transaction",
    rows_per_transaction: 1_000.0,
    walsender: 4.6,
    of_other_slot: 1.0,
    of_other_database: 0.87,
    window: 2.3,
    relay: 2.5,
    hot_share: 0.49,
    broker: 2.2,
    wal_bytes: 520.0,
};
/// A walsender on cores that others use, too (decision 0031).
const SHARED: Costs = Costs { title: "1 row per transaction, at 6.5 us", walsender: 6.5, ..ONE };
/// The relay while it reads windows.
const RELAY_WINDOW: [f64; 2] = [2.85, 3.0];
/// The embedded broker: what is left of two cores in a run that fills both. The first figure is fitted to windows of
/// one row, the second to streaming 1,000.
const EMBEDDED: [f64; 2] = [4.85, 2.65];
/// Median and p99 of the path without a queue.
const PATH_MS: [f64; 2] = [0.8, 7.0];
/// Rows per second in windows on two cores.
const WINDOWS: [f64; 2] = [178_800.0, 247_000.0];
/// How often a server notes which transactions are open, and how much log before a window is decoded in vain at most.
const NOTES_S: f64 = 15.0;
const IN_VAIN_BYTES: f64 = 134_217_728.0;
/// What each relay writes to in the fleet: assumed, not measured.
const BROKERS: f64 = 3.0;
const PARTITIONS: f64 = 15.0;
const ROUND_TRIP_S: f64 = 0.001;
/// Records that may be under way, and requests to one broker.
const IN_FLIGHT: f64 = 50_000.0;
const REQUESTS: f64 = 5.0;
/// What a plan leaves free, and slots of a server: PostgreSQL has 10 by default, and a relay that catches up takes two.
const BUSY: f64 = 0.7;
const SLOTS: u32 = 5;
/// Time that one topic-partition adds to the end of a Kafka transaction (decision 0013: 80 ms for 150).
const END_MS: f64 = 80.0 / 150.0;
/// `kafka.transaction_age`.
const AGE_MS: f64 = 5.0;
const STEP_S: f64 = 50e-6;
const LOADS: [u32; 8] = [1_000, 10_000, 50_000, 100_000, 200_000, 300_000, 500_000, 1_000_000];
const PARTS: [&str; 4] = ["walsender", "hot thread", "broker thread", "requests"];
/// The tables of the page, each with the name of its place.
pub(crate) fn tables() -> Vec<(&'static str, String)> {
    vec![
        ("checks", checks()),
        ("latency-checks", latency_checks()),
        ("fleet-1", fleet(&ONE)),
        ("fleet-1000", fleet(&BULK)),
        ("split", split()),
        ("busy", busy()),
        ("catch-up", catch_up()),
        ("requests", requests()),
        ("transactions", transactions()),
    ]
}

/// How busy each of [`PARTS`] is where `rate` rows per second are divided among servers with so many slots each.
fn utilisation(costs: &Costs, rate: f64, servers: u32, slots: u32) -> [f64; 4] {
    let of_server = rate / f64::from(servers);
    let of_slot = of_server / f64::from(slots);
    let decoded = of_slot * costs.walsender + (of_server - of_slot) * costs.of_other_slot;
    let client = costs.relay * (1.0 - costs.hot_share) / BROKERS;
    let under_way = of_slot * PARTITIONS / BROKERS * ROUND_TRIP_S / REQUESTS;
    let hot = of_slot * costs.relay * costs.hot_share;
    [decoded / 1e6, hot / 1e6, of_slot * client / 1e6, under_way / IN_FLIGHT]
}

/// The fewest servers, and of those the fewest slots, of which no part is busier than [`BUSY`].
fn plan(costs: &Costs, rate: f64) -> (u32, u32) {
    let layouts = (1..).flat_map(|servers| (1..=SLOTS).map(move |slots| (servers, slots)));
    let mut fits = layouts.filter(|&(servers, slots)| {
        utilisation(costs, rate, servers, slots).iter().all(|part| *part <= BUSY)
    });
    fits.next().unwrap_or((u32::MAX, SLOTS))
}

fn fleet(costs: &Costs) -> String {
    let columns = "rows/s | servers x slots | first limit | walsender | hot thread | broker thread | requests | \
                   p50, p99 ms | cores: walsenders, relays, brokers | WAL MB/s";
    let row = |load: u32| {
        let rate = f64::from(load);
        let (servers, slots) = plan(costs, rate);
        let parts = utilisation(costs, rate, servers, slots);
        let relays = f64::from(servers * slots);
        let limit = (0..PARTS.len()).max_by(|left, right| parts[*left].total_cmp(&parts[*right]));
        let limit = limit.map_or("", |index| PARTS[index]);
        let (p50, p99) = simulate(costs, rate / relays, &parts[..3]);
        let shares = parts.map(|part| format!("{:.1} %", part * 100.0)).join(" | ");
        let cores = [parts[0] * relays, rate * costs.relay / 1e6, rate * costs.broker / 1e6];
        let cores = cores.map(|cores| format!("{cores:.2}")).join(", ");
        let (rate, wal) = (grouped(rate), rate * costs.wal_bytes / 1e6);
        format!(
            "{rate} | {servers} x {slots} | {limit} | {shares} | {p50:.1}, {p99:.1} | {cores} | {wal:.1}"
        )
    };
    table(columns, LOADS.into_iter().map(row))
}

/// Median and p99, in ms, of rows that come at `rate` to one relay whose queues are so busy.
fn simulate(costs: &Costs, rate: f64, busy: &[f64]) -> (f64, f64) {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let transactions = if costs.rows_per_transaction > 1.0 { 3_000 } else { 100_000 };
    let gap = costs.rows_per_transaction / rate;
    let capacity: Vec<f64> = busy.iter().map(|part| rate / part * STEP_S).collect();
    let mut queues = vec![0.0; busy.len()];
    let mut waiting: VecDeque<(f64, f64)> = VecDeque::new();
    let mut latencies: Vec<(f64, f64)> = Vec::new();
    let (mut now, mut next, mut begun) = (0.0, 0.0, 0);
    while begun < transactions || !waiting.is_empty() {
        if waiting.is_empty() {
            now = f64::max(now, next);
        }
        while begun < transactions && next < now + STEP_S {
            queues[0] += costs.rows_per_transaction;
            waiting.push_back((next, costs.rows_per_transaction));
            next -= random.uniform().ln() * gap;
            begun += 1;
        }
        let mut passed = 0.0;
        for (queue, capacity) in queues.iter_mut().zip(&capacity) {
            *queue += passed;
            passed = f64::min(*queue, *capacity);
            *queue -= passed;
        }
        now += STEP_S;
        while let Some((since, rows)) = waiting.front_mut() {
            let taken = f64::min(passed, *rows);
            passed -= taken;
            *rows -= taken;
            latencies.push(((now - *since) * 1_000.0 + random.path(), taken));
            if *rows > 1e-6 {
                break;
            }
            waiting.pop_front();
        }
    }
    (quantile(&mut latencies, 0.5), quantile(&mut latencies, 0.99))
}

/// Of values with weights.
fn quantile(values: &mut [(f64, f64)], share: f64) -> f64 {
    values.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut left = values.iter().map(|value| value.1).sum::<f64>() * share;
    let at = values.iter().find(|value| {
        left -= value.1;
        left <= 0.0
    });
    at.map_or(0.0, |value| value.0)
}

/// xorshift64*.
struct Random(u64);

impl Random {
    /// Above 0, at most 1.
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = u32::try_from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32).unwrap_or(0);
        (f64::from(bits) + 1.0) / (f64::from(u32::MAX) + 1.0)
    }

    /// The path without a queue, in ms; 2.326 is the p99 of the normal distribution.
    fn path(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.uniform()).cos();
        let deviation = (PATH_MS[1] / PATH_MS[0]).ln() / 2.326;
        PATH_MS[0] * (normal * deviation).exp()
    }
}

/// What is measured beside what the model says: the slowest single thread, or two cores for all CPU time.
fn checks() -> String {
    let two = |server: f64, relay: f64, broker: f64| {
        f64::min(1e6 / server, 2e6 / (server + relay + broker))
    };
    let (one, bulk, [few, many]) = (ONE.walsender, BULK.walsender, EMBEDDED);
    let rows = [
        ("streamed, 1 row, embedded broker", two(one, ONE.relay, few), 71_000.0),
        ("streamed, 1,000, embedded (fitted)", two(bulk, BULK.relay, many), 205_000.0),
        ("windows, 1, embedded (fitted)", two(ONE.window, RELAY_WINDOW[0], few), WINDOWS[0]),
        ("windows, 1,000, embedded", two(BULK.window, RELAY_WINDOW[1], many), WINDOWS[1]),
        ("streamed, 1, Kafka", two(one, 5.65, ONE.broker), 73_000.0),
        ("streamed, 1,000, Kafka", two(bulk, 3.8, BULK.broker), 177_500.0),
        ("exactly once, 1, Kafka", two(one, 6.0, 12.0), 64_000.0),
        ("exactly once, 1,000, Kafka", two(bulk, 4.0, 3.5), 155_000.0),
        ("polled, 100, four workers, embedded", 2e6 / (20.0 + 5.7 + many), 69_500.0),
        ("Debezium, tuned, 1, Kafka", two(one, 69.0, 8.0), 20_000.0),
        ("Debezium, tuned, 1,000, Kafka", two(bulk, 43.0, 8.0), 36_500.0),
    ];
    let row = |(what, model, measured): (&str, f64, f64)| {
        let error = (model / measured - 1.0) * 100.0;
        format!("{what} | {} | {} | {error:+.1} %", rounded(model, 100.0), grouped(measured))
    };
    let columns = "two cores; rows per transaction | model, rows/s | measured | error";
    table(columns, rows.into_iter().map(row))
}

/// The same of times, in ms: what was measured is a range or one run.
fn latency_checks() -> String {
    let quiet = simulate(&ONE, 1_000.0, &utilisation(&ONE, 1_000.0, 1, 1)[..3]);
    let rows = [
        ("at least once, two shared cores", quiet, "1.6 to 1.8, 4 to 7"),
        ("exactly once, 15 topic-partitions", exactly_once(15.0, false), "16, 47"),
        ("the same on another day", exactly_once(15.0, false), "6.1, 28"),
        ("exactly once, 150", exactly_once(150.0, false), "6.6, 55"),
    ];
    let row = |(what, (p50, p99), measured): (&str, (f64, f64), &str)| {
        format!("{what} | {p50:.1}, {p99:.1} | {measured}")
    };
    table("1,000 rows/s | model: p50, p99 ms | measured", rows.into_iter().map(row))
}

/// Most rows per second at [`BUSY`], by what is divided.
fn split() -> String {
    let shapes = [&ONE, &SHARED, &BULK];
    let layouts =
        shapes.into_iter().flat_map(|costs| [1.0, 2.0, 4.0, 8.0, 16.0].map(|slots| (costs, slots)));
    let row = |(costs, slots): (&Costs, f64)| {
        let most = |other: f64| {
            let per_row = costs.walsender / slots + (1.0 - 1.0 / slots) * other;
            rounded(BUSY / per_row * 1e6, 1_000.0)
        };
        let layouts = [costs.of_other_slot, costs.of_other_database, 0.0].map(most).join(" | ");
        format!("{} | {slots} | {layouts}", costs.title)
    };
    let columns =
        "transactions | slots | tables of one database | databases of one server | servers";
    table(columns, layouts.map(row))
}

/// What waiting costs by how busy a walsender is.
fn busy() -> String {
    let row = |share: f64| {
        let cells = [&ONE, &BULK].map(|costs| {
            let rate = share / costs.walsender * 1e6;
            let (p50, p99) = simulate(costs, rate, &utilisation(costs, rate, 1, 1)[..3]);
            format!("{} | {p50:.1}, {p99:.1}", rounded(rate, 100.0))
        });
        format!("{:.0} % | {}", share * 100.0, cells.join(" | "))
    };
    let columns = "walsender busy | 1 row: rows/s | p50, p99 ms | 1,000 rows: rows/s | p50, p99 ms";
    table(columns, [0.1, 0.3, 0.5, 0.7, 0.9, 0.95].into_iter().map(row))
}

/// An hour without a relay, and rows that go on. Windows are of use while what the server writes between two of its
/// notes of open transactions is decoded in vain at most (decision 0031).
fn catch_up() -> String {
    let rates = [1_000.0, 5_000.0, 15_000.0, 30_000.0, 60_000.0, 100_000.0];
    let cases = [(&ONE, WINDOWS[0]), (&BULK, WINDOWS[1])];
    let cases = cases.into_iter().flat_map(|(costs, drain)| rates.map(|rate| (costs, drain, rate)));
    let row = |(costs, windows, rate): (&Costs, f64, f64)| {
        let in_vain = rate * costs.wal_bytes * NOTES_S;
        let drains = [(1e6 / costs.walsender, true), (windows, in_vain <= IN_VAIN_BYTES)];
        let minutes = drains.map(|(drain, is_possible)| match is_possible {
            false => "streamed".to_owned(),
            true if drain <= rate => "never".to_owned(),
            true => format!("{:.1}", rate * 60.0 / (drain - rate)),
        });
        let (wal, minutes) = (rate * 3_600.0 * costs.wal_bytes / 1e9, minutes.join(" | "));
        format!("{} | {} | {wal:.1} | {minutes}", costs.title, grouped(rate))
    };
    let columns =
        "transactions | rows/s | WAL retained, GB | streamed, minutes | in windows, minutes";
    table(columns, cases.map(row))
}

/// Most rows per second of one relay by what may be under way, and how long a partition waits for its turn.
fn requests() -> String {
    let row = |round_trip_ms: f64| {
        let cell = |partitions: f64| {
            let turn_ms = partitions / REQUESTS * round_trip_ms;
            format!("{}, {turn_ms} ms", grouped(IN_FLIGHT / turn_ms * 1_000.0))
        };
        format!("{round_trip_ms} ms | {}", [5.0, 50.0, 500.0].map(cell).join(" | "))
    };
    let columns = "round trip | 5 partitions per broker | 50 | 500";
    table(columns, [1.0, 5.0, 20.0, 100.0].into_iter().map(row))
}

fn transactions() -> String {
    let row = |partitions: f64| {
        let cells = [false, true].map(|old| {
            let (p50, p99) = exactly_once(partitions, old);
            format!("{p50:.0}, {p99:.0}")
        });
        format!("{partitions} | {:.0} | {}", END_MS * partitions, cells.join(" | "))
    };
    let columns =
        "topic-partitions | end, ms | p50, p99 ms | p50, p99 ms of many rows older than 250 ms";
    table(columns, [3.0, 15.0, 50.0, 150.0, 300.0].into_iter().map(row))
}

/// A row waits until its transaction ends, and first for the one before if that is ending.
fn exactly_once(partitions: f64, old: bool) -> (f64, f64) {
    let end = END_MS * partitions;
    let open = if old { (end * 10.0).clamp(50.0, 1_000.0) } else { AGE_MS };
    let mut random = Random(1);
    let mut wait = |_| {
        let at = random.uniform() * (open + end);
        let begun = if at < open { 0.0 } else { open + end };
        (begun + open + end - at + random.path(), 1.0)
    };
    let mut waits: Vec<(f64, f64)> = (0..100_000).map(&mut wait).collect();
    (quantile(&mut waits, 0.5), quantile(&mut waits, 0.99))
}

fn table(columns: &str, rows: impl Iterator<Item = String>) -> String {
    let rule = "|---".repeat(columns.split(" | ").count());
    let rows: Vec<String> = rows.collect();
    format!("| {columns} |\n{rule}|\n| {} |\n", rows.join(" |\n| "))
}

fn rounded(number: f64, to: f64) -> String {
    grouped((number / to).round() * to)
}

/// With commas between thousands.
fn grouped(number: f64) -> String {
    let mut digits = format!("{number:.0}");
    let mut place = digits.len();
    while place > 3 {
        place -= 3;
        digits.insert(place, ',');
    }
    digits
}
