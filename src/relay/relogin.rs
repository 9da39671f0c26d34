//! A login that is refused while the password is being changed.
//!
//! Enters: the error that ended a session, and when. Leaves: the same, to be tried again, or as the
//! final one that it is. What always holds: only a login is tried again, only where the secret comes
//! from something that can change, and no longer than `retry.login_give_up_after`. A secret that was
//! typed into the configuration is refused for good at once. See docs/decisions/0018.

use std::time::{Duration, Instant};

use crate::control::ControlError;
use crate::kafka::{SettingsError, SinkError};
use crate::relay::error::RelayError;
use crate::relay::plan::Plan;

/// Refusals that are further apart than this, back-off not counted, are two: between them the relay
/// was let in.
const TOGETHER: Duration = Duration::from_mins(2);

/// How long logins have been refused without a break.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Relogin {
    refused: Option<(Instant, Instant)>,
}

impl Relogin {
    /// `Ok` with an error that is worth another attempt, `Err` with one that is final.
    pub(super) fn refused(
        &mut self,
        error: RelayError,
        plan: &Plan,
        now: Instant,
    ) -> Result<RelayError, RelayError> {
        let retry = &plan.config.retry;
        if !can_change(&error, plan) || retry.login_give_up_after.is_zero() {
            return Err(error);
        }
        let since = match self.refused {
            Some((since, last)) if now.duration_since(last) < TOGETHER + retry.max => since,
            _ => now,
        };
        self.refused = Some((since, now));
        if now.duration_since(since) >= retry.login_give_up_after { Err(error) } else { Ok(error) }
    }
}

/// Whether it is a login that the next secret may pass.
fn can_change(error: &RelayError, plan: &Plan) -> bool {
    match error {
        RelayError::Wal(error)
        | RelayError::Control(ControlError::Connection { source: error, .. }) => {
            error.is_login_refused() && plan.config.source.connect.secret_can_change()
        }
        RelayError::Sink(
            SinkError::Authentication(_) | SinkError::Settings(SettingsError::Secret(_)),
        )
        | RelayError::DeadLetters(SinkError::Settings(SettingsError::Secret(_))) => {
            plan.kafka.secrets.can_change()
        }
        RelayError::Topics(error) => error.is_login_refused() && plan.kafka.secrets.can_change(),
        _ => false,
    }
}
