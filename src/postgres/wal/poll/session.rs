//! Prepares a session for polling.
//!
//! A lost session holds the locks of its batch. If its host or network has failed, TCP tells the
//! server within 25 s. If its process is stuck, the server ends the session after
//! [`IDLE_IN_TRANSACTION`], because a live one sends keepalives while its batch is open.

use crate::wal::quote::identifier;
use crate::wal::{Connection, Transport, WalError};

const IDLE_IN_TRANSACTION: &str = "60s";

/// Marks do not wait for the server's disk: a crash then repeats rows. A policy that hides rows is
/// an error. Batches are too small to be worth compiling.
///
/// Without the planner settings the server sorts all waiting rows for each batch if the table was
/// never analyzed. Measured with 300,000 rows and a batch of 1,000: 495 ms, and 6 ms with the
/// settings and an index. Without an index it still sorts.
const SETTINGS: [(&str, &str); 11] = [
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("synchronous_commit", "off"),
    ("row_security", "off"),
    ("jit", "off"),
    ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION),
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "25s"),
    // Ends a poll whose client is gone.
    ("client_connection_check_interval", "10s"),
];

/// Prepares the session, and listens for notifications.
pub fn prepare_session<T: Transport>(
    connection: &mut Connection<T>,
    notify: Option<&str>,
) -> Result<(), WalError> {
    connection.set_for_session(&SETTINGS)?;
    if let Some(channel) = notify {
        connection.simple_query(&format!("LISTEN {}", identifier(channel)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT_S: u32 = 25;

    #[test]
    fn the_network_is_given_up_after_the_time_that_is_told() {
        let seconds = |name: &str| {
            let (_, value) = SETTINGS.iter().find(|(known, _)| *known == name).unwrap();
            value.trim_end_matches('s').parse::<u32>().unwrap()
        };
        let keepalives = seconds("tcp_keepalives_interval") * seconds("tcp_keepalives_count");
        assert_eq!(seconds("tcp_keepalives_idle") + keepalives, SILENT_S);
        assert_eq!(seconds("tcp_user_timeout"), SILENT_S);
    }
}
