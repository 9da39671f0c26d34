//! Decides whether a refused login may succeed later, because the password is being changed.
//!
//! Input: the error that ended a session, and where the login's secret comes from. Output: whether to log
//! in again. Invariant: only logins are retried, and only if the secret comes from a source that can
//! change, such as a file or a command; with a secret in the configuration itself, the relay ends at once.
//! See docs/decisions/0018.

use crate::error::RelayError;
use crate::plan::Plan;
use postrider_kafka::SinkError;
use postrider_postgres::control::ControlError;
use postrider_postgres::libpq::ConnectInfo;
use postrider_postgres::wal::WalError;

/// Whether it is a login that the next secret may pass.
pub(super) fn can_change(error: &RelayError, plan: &Plan) -> bool {
    match error {
        RelayError::Wal(error)
        | RelayError::Control(ControlError::Connection { source: error, .. }) => {
            another_may_help(error, &plan.config.source.connect)
        }
        RelayError::Sink(SinkError::Authentication(_)) => plan.kafka.secrets.can_change(),
        RelayError::Sink(SinkError::Settings(error))
        | RelayError::DeadLetters(SinkError::Settings(error)) => {
            error.is_of_login() && plan.kafka.secrets.can_change()
        }
        RelayError::Topics(error) => error.is_login_refused() && plan.kafka.secrets.can_change(),
        _ => false,
    }
}

/// Whether files of a client that could be made before may be half replaced: a certificate whose key comes a moment
/// later. What a handshake refuses is an end as at a first start.
pub(super) fn are_files_replaced(error: &RelayError, plan: &Plan) -> bool {
    match error {
        RelayError::Sink(error) | RelayError::DeadLetters(error) => {
            error.may_be_of_tls_files() && plan.kafka.has_tls_files()
        }
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
