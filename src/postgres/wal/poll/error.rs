//! Why rows cannot be polled or marked. Temporary errors are a
//! [`WalError::Server`](crate::wal::WalError::Server).

use crate::wal::error::{Class, ServerMessage};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PollError {
    #[error("the role may not poll table {table}: {}", .server.message)]
    Forbidden { table: String, needs: String, server: Box<ServerMessage> },
    /// The statement that takes or marks rows fails every time.
    #[error("cannot {doing} rows of table {table}: {server}")]
    Refused {
        /// `take` or `mark`.
        doing: &'static str,
        table: String,
        server: Box<ServerMessage>,
    },
    /// The statement succeeded, but the rows are unchanged.
    #[error("rows of table {table} that were marked as delivered are still pending: {what}")]
    NotMarked { table: String, what: &'static str },
    #[error("table {table} has no column `{column}`, which {option} names")]
    ColumnMissing { table: String, column: String, option: &'static str },
    /// The column that marks waiting rows is never NULL.
    #[error("column `{column}` of table {table} is NOT NULL, so that no row waits to be delivered")]
    NeverPending { table: String, column: String },
    /// CloudEvents require a time, which must be equal each time a row is sent.
    #[error("table {table} has no column with the time of an event")]
    NoTime { table: String },
}

impl PollError {
    /// The error of a statement on a table, if it would repeat every time.
    pub(super) fn of(
        (doing, table, needs): (&'static str, &str, &str),
        server: ServerMessage,
    ) -> Result<Self, ServerMessage> {
        let (table, server) = (table.to_owned(), Box::new(server));
        match server.code.as_str() {
            "42501" => Ok(Self::Forbidden { table, needs: needs.to_owned(), server }),
            // A standby, or a primary that is becoming one.
            "25006" => Err(*server),
            _ if is_unreadable(&server) => Ok(Self::Refused { doing, table, server }),
            code => match code.get(..2) {
                // Constraints, and exceptions of triggers.
                Some(
                    "21" | "22" | "23" | "27" | "2F" | "38" | "39" | "42" | "44" | "0A" | "P0",
                ) => Ok(Self::Refused { doing, table, server }),
                _ => Err(*server),
            },
        }
    }

    pub const fn class(&self) -> Class {
        match self {
            Self::Forbidden { .. } => Class::Permission,
            Self::Refused { .. }
            | Self::NotMarked { .. }
            | Self::ColumnMissing { .. }
            | Self::NeverPending { .. }
            | Self::NoTime { .. } => Class::Configuration,
        }
    }

    pub fn hint(&self) -> String {
        match self {
            Self::Forbidden { needs, .. } => needs.clone(),
            Self::Refused { doing: "mark", .. } => {
                "find the constraint or trigger that the message names, and let it pass what the relay writes \
                 (source.poll.mark); rows that were delivered and could not be marked are delivered again"
                    .to_owned()
            }
            Self::Refused { server, .. } if is_unreadable(server) => {
                "a row is damaged, or its text has 1 GiB or more: read the rows that wait one by one to find it, and \
                 repair or delete it; nothing of this batch was delivered"
                    .to_owned()
            }
            Self::Refused { .. } => {
                "compare the names and values in [source.poll] and outbox.order_by with the table; nothing of this \
                 batch was delivered"
                    .to_owned()
            }
            Self::NotMarked { .. } => {
                "a trigger of the table skips the UPDATE or DELETE of the relay, or writes the old value back: let it \
                 pass what the relay writes; those rows were delivered, and are delivered again"
                    .to_owned()
            }
            Self::ColumnMissing { option, .. } if option.starts_with("source.poll") => {
                "`postrider setup` adds it; or set that option to the table's own name, or source.poll.mark to another \
                 way"
                    .to_owned()
            }
            Self::ColumnMissing { .. } => {
                "name the columns that the rows of one key are to be sent in the order of in outbox.order_by".to_owned()
            }
            Self::NeverPending { table, column } => format!(
                "ALTER TABLE {table} ALTER COLUMN \"{column}\" DROP NOT NULL; or say which value means that a row waits: \
                 source.poll.mark = \"status\", source.poll.status = \"{column}\", source.poll.pending = [\"-infinity\"], \
                 source.poll.sent = \"now\""
            ),
            Self::NoTime { .. } => {
                "name a column in outbox.timestamp or outbox.created_at; or set format.value to another format".to_owned()
            }
        }
    }
}

/// True if a row would exceed 1 GiB as a message, or is corrupted. Messages of XX000 are not
/// translated.
fn is_unreadable(server: &ServerMessage) -> bool {
    match server.code.as_str() {
        "54000" | "XX001" | "XX002" => true,
        "XX000" => server.message.starts_with("invalid memory alloc request size"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_each_time_is_definite_and_what_passes_is_not() {
        let about = ("take", "public.outbox", "GRANT");
        let of = |code: &str| {
            PollError::of(
                about,
                ServerMessage { code: code.to_owned(), ..ServerMessage::default() },
            )
        };
        assert_eq!(of("42501").unwrap().class(), Class::Permission);
        for code in ["23514", "P0001", "22P02", "42703"] {
            assert_eq!(of(code).unwrap().class(), Class::Configuration, "{code}");
        }
        for code in ["54000", "XX001"] {
            assert!(of(code).unwrap().hint().contains("1 GiB"), "{code}");
        }
        for code in
            ["54001", "XX000", "40001", "40P01", "57P01", "53100", "25006", "55P03", "08006"]
        {
            assert!(of(code).is_err(), "{code}");
        }
    }
}
