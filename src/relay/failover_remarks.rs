//! Warns once per process about settings that would lose the slot or rows in a failover. For a
//! stream from a standby, the warnings concern the standby's own slot.
//!
//! Invariant: a session waits for at most two statements. Hosts that may be unreachable are queried
//! concurrently.

use tracing::Instrument as _;

use crate::plan::Plan;
use postrider_postgres::control::{
    self, Client, ControlError, FAILOVER_SLOTS_SINCE, FailoverAbout, FailoverFacts, Inspection,
};

pub(super) async fn remark(client: &Client, plan: &Plan, inspection: &Inspection) {
    let server = &inspection.server;
    if server.version_num < FAILOVER_SLOTS_SINCE && !server.in_recovery {
        return;
    }
    let source = &plan.config.source;
    let wants_failover = source.failover;
    if source.connect.endpoints.len() == 1 {
        tell(control::failover_of_server(client, &source.slot).await, wants_failover);
        return;
    }
    let (reached, all, slot) =
        (client.server().clone(), source.connect.clone(), source.slot.clone());
    let look = async move {
        let looked = async {
            let client = control::connect(&reached).await?;
            control::failover(&client, &all, &slot).await
        };
        tell(looked.await, wants_failover);
    };
    drop(tokio::spawn(look.in_current_span()));
}

fn tell(facts: Result<FailoverFacts, ControlError>, wants_failover: bool) {
    let facts = match facts {
        Ok(facts) => facts,
        Err(error) => {
            tracing::debug!("what a failover needs was not looked at: {error}");
            return;
        }
    };
    if facts.has_primary && !facts.has_standby() {
        return;
    }
    for finding in facts.findings() {
        if finding.about == FailoverAbout::Slot && !wants_failover {
            continue;
        }
        let help = finding.fix.text();
        if finding.passes {
            tracing::info!(help, "{}", finding.what);
        } else {
            tracing::warn!(help, "{}", finding.what);
        }
    }
}
