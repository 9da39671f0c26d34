//! Says at the start which settings would lose the slot, or rows, in a failover to a standby, or the slot of a standby
//! that is streamed from.
//!
//! Input: the session that has just passed the checks of the source. Output: log lines, a warning for each wrong setting
//! with its fix, once in the life of a process; nothing where nobody stands by. Invariant: no session waits for it longer
//! than for two statements: hosts that may be away are asked beside it.

use tracing::Instrument as _;

use crate::plan::Plan;
use postrider_postgres::control::{
    self, Client, ControlError, FAILOVER_SLOTS_SINCE, FailoverAbout, FailoverFacts, Inspection,
};

/// See the module.
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
