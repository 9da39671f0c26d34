//! What a session that polls sets for itself before it begins.
//!
//! A session that is gone, and whose server does not know it yet, holds the locks of its batch. If its host is gone, or
//! the network, TCP tells the server within 25 s (10 until it asks, then three questions, 5 s apart); if its process stands still, the server ends the session after
//! [`IDLE_IN_TRANSACTION`], since a live one speaks more often while its batch is open.

use crate::wal::quote::identifier;
use crate::wal::{Connection, Transport, WalError};

/// How long a batch may be open without a word of ours.
const IDLE_IN_TRANSACTION: &str = "60s";

/// Marks are committed without waiting for the server's disk: a crash of the server that forgets them repeats rows, as
/// any crash does. A policy that hides rows is an error, and not fewer rows. Batches are too small to be worth compiling.
///
/// The first rows in an order are wanted, whatever the planner knows of how many wait: their number changes faster than
/// statistics. Without these it sorts all of them for each batch where the table was never analyzed (measured: 300,000
/// rows that wait, a batch of 1,000: 495 ms, and 6 ms by the index). Where there is no index it does that all the same.
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
    // A poll that nobody waits for any more.
    ("client_connection_check_interval", "10s"),
];

/// Sets what a polling session needs, as far as the server has it, and listens for notifications.
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

    /// As documents tell.
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
