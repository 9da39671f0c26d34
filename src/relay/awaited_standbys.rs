//! Reports once that Postgres waits for an absent standby in `synchronized_standby_slots`. Rows
//! then wait, and the stream appears to be idle.

use postrider_postgres::control::{self, Client, FailoverAbout};

/// Consecutive checks before a report. A restarted standby is back within five seconds.
const LOOKS: u32 = 2;

/// Kept across connections.
#[derive(Debug, Default)]
pub(super) struct AwaitedStandbys {
    away: u32,
    is_told: bool,
}

impl AwaitedStandbys {
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
            tracing::info!("no longer waiting for a standby; resuming");
        }
        self.away >= LOOKS
    }
}

/// `false`: the query failed, or the standby is back already.
async fn tell(client: &Client, slot: &str) -> bool {
    let Ok(facts) = control::failover_of_server(client, slot).await else { return false };
    let mut findings = facts.findings();
    findings.retain(|finding| finding.about == FailoverAbout::Awaited);
    for finding in &findings {
        tracing::warn!(help = finding.fix.text(), "{}", finding.what);
    }
    !findings.is_empty()
}
