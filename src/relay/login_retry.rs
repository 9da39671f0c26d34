//! Detects refused connections, and whether another secret may succeed.
//!
//! Invariant: a server error after the login (slot, publication, tables, privileges on them) is not
//! a refusal, because it may mean lost rows. See docs/decisions/0018.

use crate::error::RelayError;
use crate::plan::Plan;
use postrider_core::supervisor::Peer;
use postrider_kafka::SinkError;
use postrider_postgres::control::ControlError;
use postrider_postgres::libpq::ConnectInfo;
use postrider_postgres::wal::WalError;

/// A query checks the `REPLICATION` privilege before the stream's connection does.
pub(super) fn barred_by(error: &RelayError) -> Option<Peer> {
    let by_sink = |is_refused: bool| is_refused.then_some(Peer::Sink);
    match error {
        RelayError::Wal(error)
        | RelayError::Control(ControlError::Connection { source: error, .. }) => {
            error.is_refused_at_connect().then_some(Peer::Source)
        }
        RelayError::Control(ControlError::RoleMayNotReplicate { .. }) => Some(Peer::Source),
        RelayError::Sink(error) | RelayError::DeadLetters(error) => {
            by_sink(error.is_refused_at_connect())
        }
        RelayError::Topics(error) => by_sink(error.is_refused_at_connect()),
        _ => None,
    }
}

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

/// If pg_hba.conf refuses the connection, only another role may succeed.
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

    #[test]
    fn a_refused_connection_differs_from_an_unfit_source() {
        let server = |severity: &str, code: &str| {
            let (severity, code) = (severity.to_owned(), code.to_owned());
            let message = ServerMessage { severity, code, ..ServerMessage::default() };
            RelayError::from(WalError::Server(Box::new(message)))
        };
        // pg_hba.conf, a renamed database, a revoked CONNECT or REPLICATION privilege.
        for code in ["28000", "28P01", "3D000", "42501"] {
            assert_eq!(barred_by(&server("FATAL", code)), Some(Peer::Source), "{code}");
        }
        // A missing table privilege, a slot without its WAL.
        for code in ["42501", "55000", "42704"] {
            assert_eq!(barred_by(&server("ERROR", code)), None, "{code}");
        }
        let slot = "s".to_owned();
        let gone = ControlError::SlotVanished { slot, delivered: None };
        assert_eq!(barred_by(&gone.into()), None);
        assert_eq!(barred_by(&SinkError::Tls("expired".into()).into()), Some(Peer::Sink));
        assert_eq!(barred_by(&SinkError::NoIdempotence("no".into()).into()), None);
    }
}
