//! Tells that a standby is away which Postgres waits for before it sends anything (`synchronized_standby_slots`): nothing
//! is delivered meanwhile, and the stream itself looks like one that is idle.
//!
//! Input: the SQL session beside a stream, every few seconds. Output: whether it waits; log lines, a warning for each
//! standby that is away with its fix, once until it is back. Invariant: a standby that reconnects within two looks is not
//! told.

use postrider_postgres::control::{self, Client, FailoverAbout};

/// So many looks in a row: a standby that starts anew is back within five seconds.
const LOOKS: u32 = 2;

/// What was seen and told. Outlives a connection.
#[derive(Debug, Default)]
pub(super) struct AwaitedStandbys {
    /// Looks in a row at which one was away.
    away: u32,
    /// Whether the log has a line of it.
    is_told: bool,
}

impl AwaitedStandbys {
    /// Looks, and tells what changed.
    pub(super) async fn look(&mut self, client: &Client, slot: &str) -> bool {
        // A look that fails says nothing of either.
        let Ok(waits) = control::waits_for_standby(client, slot).await else {
            return self.away >= LOOKS;
        };
        self.away = if waits { self.away.saturating_add(1) } else { 0 };
        if self.away >= LOOKS && !self.is_told {
            self.is_told = tell(client, slot).await;
        }
        if self.away == 0 && std::mem::take(&mut self.is_told) {
            tracing::info!("no standby is waited for any more; going on");
        }
        self.away >= LOOKS
    }
}

/// Whether there was anything to tell: the question may fail, and the standby be back meanwhile.
async fn tell(client: &Client, slot: &str) -> bool {
    let Ok(facts) = control::failover_of_server(client, slot).await else { return false };
    let mut findings = facts.findings();
    findings.retain(|finding| finding.about == FailoverAbout::Awaited);
    for finding in &findings {
        tracing::warn!(help = finding.fix.text(), "{}", finding.what);
    }
    !findings.is_empty()
}
