//! Determines whether a slot can be decoded, for `repair` and `doctor`. Acknowledges no position.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use crate::blocking::run_blocking;
use crate::error::RelayError;
use crate::plan::Plan;
use postrider_config::Config;
use postrider_core::lsn::Lsn;
use postrider_postgres::control::{Client, Inspection, SlotFacts};
use postrider_postgres::wal::{LogProbe, Readability, SessionParams};

/// Reads as much log as the limit allows. The slot stays free.
pub async fn slot_readability(
    plan: &Plan,
    client: &Client,
    inspection: &Inspection,
    limit: Duration,
) -> Result<Readability, RelayError> {
    let mut config = plan.config.clone();
    config.source.connect = client.server().clone();
    let params = plan.session_params(client, inspection).await?;
    let slot = inspection.slot.clone();
    run_blocking(move || {
        let is_left = clock(limit);
        readability(&config, &params, slot.as_ref(), (false, &|_, _| is_left()))
    })
    .await?
}

/// A loaded machine may create the slot's copy late, so the time starts at its first read.
fn clock(limit: Duration) -> impl Fn() -> bool {
    let began = OnceCell::new();
    move || began.get_or_init(Instant::now).elapsed() < limit
}

/// Blocks this thread, and may take the slot itself.
pub(super) fn readability(
    config: &Config,
    params: &SessionParams,
    slot: Option<&SlotFacts>,
    (takes_slot, goes_on): (bool, &dyn Fn(Lsn, Lsn) -> bool),
) -> Result<Readability, RelayError> {
    if slot.is_none_or(|slot| slot.is_lost() || slot.is_unfinished()) {
        return Ok(Readability::Unknown("the slot cannot be read from".to_owned()));
    }
    let source = &config.source;
    let probe = LogProbe {
        server: &source.connect,
        params,
        slot: &source.slot,
        publication: &source.publication,
        takes_slot,
    };
    Ok(probe.run(goes_on)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_the_first_question_does_not_count() {
        let limit = Duration::from_millis(50);
        let is_left = clock(limit);
        std::thread::sleep(2 * limit);
        assert!(is_left());
        std::thread::sleep(2 * limit);
        assert!(!is_left());
    }
}
