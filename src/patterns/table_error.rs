//! Classifies errors of the library's own statements, which name only its tables and functions.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableFault {
    /// Not found, or not in the `search_path`.
    Missing,
    Forbidden,
    /// Another transaction holds a lock for longer than `lock_timeout`.
    Busy,
    Repeated,
    /// A function of the library refuses a value.
    Invalid,
    Other,
}

impl TableFault {
    pub(crate) fn of(error: &tokio_postgres::Error) -> Self {
        match error.code().map(tokio_postgres::error::SqlState::code) {
            // undefined_table, undefined_function, undefined_column.
            Some("42P01" | "42883" | "42703") => Self::Missing,
            // insufficient_privilege
            Some("42501") => Self::Forbidden,
            // lock_not_available
            Some("55P03") => Self::Busy,
            // unique_violation
            Some("23505") => Self::Repeated,
            // invalid_parameter_value
            Some("22023") => Self::Invalid,
            _ => Self::Other,
        }
    }
}
