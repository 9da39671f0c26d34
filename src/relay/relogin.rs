//! A login that is refused while the password is being changed.
//!
//! Enters: the error that ended a session, and when. Leaves: the same, to be tried again, or as the
//! final one that it is. What always holds: only a login is tried again, only where the secret comes
//! from something that can change and another one may help, and no longer than
//! `retry.login_give_up_after`. A secret that was typed into the configuration is refused for good at
//! once. See docs/decisions/0018.

use std::time::{Duration, Instant};

use crate::error::RelayError;
use crate::plan::Plan;
use postrider_kafka::{SettingsError, SinkError};
use postrider_postgres::control::ControlError;
use postrider_postgres::libpq::ConnectInfo;
use postrider_postgres::wal::WalError;

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
            another_may_help(error, &plan.config.source.connect)
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

/// Where pg_hba.conf bars the way, only another role may help.
fn another_may_help(error: &WalError, connect: &ConnectInfo) -> bool {
    let can_change = if error.is_barred_by_hba() {
        connect.user_can_change()
    } else {
        connect.secret_can_change()
    };
    error.is_login_refused() && can_change
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_postgres::libpq::PasswordCommand;
    use postrider_postgres::wal::ServerMessage;

    #[test]
    fn a_login_is_tried_again_where_another_secret_may_help() {
        let typed = ConnectInfo::resolve("user=u password=x", &|_| None).unwrap().0;
        let command = PasswordCommand::new(vec!["helper".to_owned()]).unwrap();
        let asked = typed.clone().ask(command);
        let filed = typed.clone().read_from("/run/url".into());
        // Which of these are tried again.
        for (code, routine, expected) in [
            ("28P01", "auth_failed", [false, true, true]),
            ("28000", "InitializeSessionUserId", [false, true, true]),
            ("28000", "auth_failed", [false, true, true]),
            ("28000", "", [false, true, true]),
            ("28000", "ClientAuthentication", [false, false, true]),
            ("42501", "ClientAuthentication", [false, false, false]),
        ] {
            let (code, routine) = (code.to_owned(), routine.to_owned());
            let error = ServerMessage { code, routine, ..ServerMessage::default() };
            let error = WalError::Server(Box::new(error));
            let found = [&typed, &asked, &filed].map(|connect| another_may_help(&error, connect));
            assert_eq!(found, expected, "{error:?}");
        }
    }
}
