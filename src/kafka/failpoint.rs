//! Failpoints: named places at which a test can kill, stop or delay the process.
//!
//! Input: the environment variable `FAILPOINT`: `place=kill`, `place=stop` (SIGSTOP) or
//! `place=sleep` (1 s), at the n-th time with `@n`, for example `commit_asked=kill@7`.

/// In the order in which a row passes them.
pub const PLACES: [&str; 19] = [
    "backfill_intended",
    "repair_slot_dropped",
    "backfill_slot_made",
    "slot_taken",
    "progress_read",
    "repair_compared",
    "frames_read",
    "frame_taken",
    "transaction_begun",
    "record_sent",
    "dead_letter_sent",
    "progress_sent",
    "commit_due",
    "commit_asked",
    "committed",
    "status_due",
    "status_sent",
    "draining",
    "drained",
];

#[cfg(not(feature = "failpoints"))]
#[inline]
pub const fn pass(_place: &str) {}

#[cfg(feature = "failpoints")]
pub use armed::pass;

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    const SLEEP: Duration = Duration::from_secs(1);

    struct Armed {
        place: String,
        act: Act,
        at: u64,
        passed: AtomicU64,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Act {
        Kill,
        Stop,
        Sleep,
    }

    pub fn pass(place: &str) {
        static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
        let armed =
            ARMED.get_or_init(|| std::env::var("FAILPOINT").ok().and_then(|text| parse(&text)));
        let Some(armed) = armed.as_ref().filter(|armed| armed.place == place) else { return };
        if armed.passed.fetch_add(1, Ordering::SeqCst) + 1 != armed.at {
            return;
        }
        match armed.act {
            Act::Sleep => std::thread::sleep(SLEEP),
            // A process can always send these to itself.
            Act::Kill => drop(kill_process(getpid(), Signal::KILL)),
            Act::Stop => drop(kill_process(getpid(), Signal::STOP)),
        }
    }

    fn parse(text: &str) -> Option<Armed> {
        let (place, rest) = text.split_once('=')?;
        let (act, at) = rest.split_once('@').unwrap_or((rest, "1"));
        let act = match act {
            "kill" => Act::Kill,
            "stop" => Act::Stop,
            "sleep" => Act::Sleep,
            _ => return None,
        };
        let place = place.to_owned();
        Some(Armed { place, act, at: at.parse().ok()?, passed: AtomicU64::new(0) })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_place_an_act_and_a_count() {
            let armed = parse("commit_asked=kill@7").unwrap();
            assert_eq!((armed.place.as_str(), armed.act, armed.at), ("commit_asked", Act::Kill, 7));
            assert_eq!(parse("drained=sleep").unwrap().at, 1);
            for wrong in ["", "drained", "drained=explode", "drained=kill@often"] {
                assert!(parse(wrong).is_none(), "{wrong}");
            }
        }
    }
}
