//! CPU time and memory of a contestant and of the servers, seen from outside while it works.
//!
//! Input: process ids. Output: [`Samples`], read at any moment of the run. Invariant: each has the server's clock beside
//! it, so that the time before the first record and after the last can be left out.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use postrider_sandbox::proc;

/// Distance of two samples: twice what the kernel counts CPU time by.
const PERIOD: Duration = Duration::from_millis(20);

/// Milliseconds since 1970, by the clock that the brokers stamp records with.
pub(super) fn now_ms() -> i64 {
    now_us() / 1_000
}

/// The same in microseconds.
pub(super) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_micros()).unwrap()
}

/// Of one moment.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    at_ms: i64,
    cpu: Cpu,
}

/// CPU time since the processes began.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cpu {
    pub(super) relay: Duration,
    /// Of all processes that have read its log: the walsender, and the session that reads windows of a backlog.
    pub(super) walsender: Duration,
    /// Of all of Postgres.
    pub(super) server: Duration,
    pub(super) broker: Duration,
}

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Samples {
    all: Vec<Sample>,
    pub(super) peak_rss_bytes: u64,
    /// Without the pages of files, which others map too and the kernel can drop.
    pub(super) peak_private_bytes: u64,
    /// CPU time of each process that was seen reading the log, when it was first seen and when last. Between two windows it
    /// shows as idle.
    readers: BTreeMap<u32, (Duration, Duration)>,
}

/// A thread that looks.
#[derive(Debug)]
pub(super) struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Samples>,
}

/// Who is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Processes {
    pub(super) relay: u32,
    pub(super) postmaster: u32,
    pub(super) broker: u32,
}

impl Sampler {
    pub(super) fn start(processes: Processes) -> Self {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let mut samples = Samples::default();
            loop {
                samples.look(processes);
                if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    samples.look(processes);
                    return samples;
                }
            }
        });
        Self { stop, thread }
    }

    /// Ends, after a last look.
    pub(super) fn finish(self) -> Samples {
        drop(self.stop);
        self.thread.join().unwrap()
    }
}

impl Samples {
    fn look(&mut self, processes: Processes) {
        let Processes { relay, postmaster, broker } = processes;
        let of = |pid| proc::stat(pid).map(|stat| stat.cpu);
        let before = self.all.last().copied().unwrap_or_default().cpu;
        // What has ended is as it was seen last.
        let cpu = Cpu {
            relay: of(relay).unwrap_or(before.relay),
            walsender: self.wal_readers(postmaster),
            server: proc::server_cpu(postmaster).unwrap_or(before.server),
            broker: of(broker).unwrap_or(before.broker),
        };
        self.all.push(Sample { at_ms: now_ms(), cpu });
        let peak = proc::peak_rss_bytes(relay).unwrap_or_default();
        self.peak_rss_bytes = self.peak_rss_bytes.max(peak);
        let private = proc::private_bytes(relay).unwrap_or_default();
        self.peak_private_bytes = self.peak_private_bytes.max(private);
    }

    fn wal_readers(&mut self, postmaster: u32) -> Duration {
        let of = |pid| proc::stat(pid).map(|stat| stat.cpu);
        for pid in proc::wal_readers(postmaster) {
            // What it did before is not of this run.
            let now = of(pid).unwrap_or_default();
            self.readers.entry(pid).or_insert((now, now));
        }
        for (pid, (_, last)) in &mut self.readers {
            // One that has ended is as it was seen last.
            *last = of(*pid).map_or(*last, |now| now.max(*last));
        }
        self.readers.values().map(|(first, last)| last.saturating_sub(*first)).sum()
    }

    /// CPU time from one moment to another.
    pub(super) fn between(&self, (from_ms, to_ms): (i64, i64)) -> Cpu {
        let begin = self.all.iter().rev().find(|sample| sample.at_ms <= from_ms);
        let end = self.all.iter().find(|sample| sample.at_ms >= to_ms).or(self.all.last());
        let begin = begin.or(self.all.first()).copied().unwrap_or_default().cpu;
        let end = end.copied().unwrap_or_default().cpu;
        Cpu {
            relay: end.relay.saturating_sub(begin.relay),
            walsender: end.walsender.saturating_sub(begin.walsender),
            server: end.server.saturating_sub(begin.server),
            broker: end.broker.saturating_sub(begin.broker),
        }
    }

    /// The moment of the last look.
    pub(super) fn ended_ms(&self) -> i64 {
        self.all.last().map_or(0, |sample| sample.at_ms)
    }

    /// From before the start to the end.
    pub(super) fn whole(&self) -> Cpu {
        let from = self.all.first().map_or(0, |sample| sample.at_ms);
        // A new process begins with none.
        let relay = self.all.last().map_or(Duration::ZERO, |sample| sample.cpu.relay);
        Cpu { relay, ..self.between((from, i64::MAX)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_the_first_record_and_after_the_last_is_left_out() {
        let at = |at_ms, ms| Sample {
            at_ms,
            cpu: Cpu { relay: Duration::from_millis(ms), ..Cpu::default() },
        };
        let all = vec![at(0, 0), at(20, 10), at(40, 30), at(60, 45), at(80, 90)];
        let samples = Samples { all, ..Samples::default() };
        assert_eq!(samples.between((25, 55)).relay, Duration::from_millis(35));
        assert_eq!(samples.between((25, 500)).relay, Duration::from_millis(80));
        assert_eq!(samples.whole().relay, Duration::from_millis(90));
    }
}
