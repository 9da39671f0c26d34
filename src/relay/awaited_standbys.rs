//! Reports that Postgres waits for an absent standby in `synchronized_standby_slots`. Postgres then
//! does not send rows, and the stream appears to be idle.
//!
//! Input: the SQL session beside a stream, every few seconds. Output: whether Postgres waits, and a
//! warning per absent standby with its fix, once until the standby is back. Invariant: a standby
//! that reconnects within two checks is not reported.

use postrider_postgres::control::{self, Client, FailoverAbout};

/// Number of consecutive checks before a report. A restarted standby is back within five seconds.
const LOOKS: u32 = 2;

/// State of the checks and reports, kept across connections.
#[derive(Debug, Default)]
pub(super) struct AwaitedStandbys {
    /// Number of consecutive checks that found an absent standby.
    away: u32,
    /// Whether the log has a line about the absent standby.
    is_told: bool,
}

impl AwaitedStandbys {
    /// Checks the standbys, and logs changes. Returns whether Postgres waits.
    pub(super) async fn look(&mut self, client: &Client, slot: &str) -> bool {
        // A failed check does not change the state.
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

/// Logs the absent standbys, and returns whether there were any. The query may fail, or the standby
/// may be back already.
async fn tell(client: &Client, slot: &str) -> bool {
    let Ok(facts) = control::failover_of_server(client, slot).await else { return false };
    let mut findings = facts.findings();
    findings.retain(|finding| finding.about == FailoverAbout::Awaited);
    for finding in &findings {
        tracing::warn!(help = finding.fix.text(), "{}", finding.what);
    }
    !findings.is_empty()
}
