//! Enums and small types of the validated configuration.
//!
//! Input: text that an operator typed. Output: `ConnectionString` and `Property`, which keep a text that
//! may be secret and mask it when printed; enums such as `Delivery`, `Rejected` and `LogLevel`, each with
//! its words in the file.

use std::fmt;

use postrider_core::route::keyword_enum;

/// A connection string that may hold a password: `Debug` and `Display` mask it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ConnectionString(String);

impl ConnectionString {
    /// Wraps the text as typed.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as typed, password included. Never to be logged.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&postrider_secrets::mask::mask_connection_string(&self.0))
    }
}

impl fmt::Debug for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// A librdkafka property. Its value is masked in `Debug` where it may be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Property {
    /// librdkafka's name, such as `security.protocol`.
    pub name: String,
    /// The value as librdkafka takes it. Never to be logged.
    pub value: String,
}

impl fmt::Debug for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = postrider_secrets::mask::shown(&self.name, &self.value);
        write!(f, "{}={shown:?}", self.name)
    }
}

keyword_enum!(
    /// Whether missing publication and slot are created at start.
    Create {
        /// Created when missing.
        Auto = "auto",
        /// A missing one is an error.
        Never = "never",
    }
);
keyword_enum!(
    /// What the relay logs in to Postgres with.
    SourceLogin {
        /// A password or a certificate, as psql would.
        Password = "password",
        /// A password signed by AWS credentials.
        RdsIam = "rds_iam",
    }
);
keyword_enum!(
    /// Where the tokens of a login by OAUTHBEARER come from.
    OAuthMethod {
        /// There is no such login.
        Off = "off",
        /// An OIDC token endpoint.
        Oidc = "oidc",
        /// A command.
        Command = "command",
        /// AWS credentials, for MSK.
        AwsMskIam = "aws_msk_iam",
    }
);
keyword_enum!(
    /// Where rows are read from.
    SourceMode {
        /// The log, by a replication slot.
        Stream = "stream",
        /// The tables, by polling.
        Poll = "poll",
    }
);
keyword_enum!(
    /// How a row that was polled is marked as delivered.
    MarkWord {
        /// A time is written into a column that was NULL.
        ProcessedAt = "processed_at",
        /// A column gets another value.
        Status = "status",
        /// The row is deleted.
        Delete = "delete",
    }
);
keyword_enum!(
    /// What happens to a row that cannot be delivered as it is (G4).
    Rejected {
        /// Sent to the dead-letter topic.
        DeadLetter = "dead_letter",
        /// Stops the relay; the row stays in Postgres.
        Stop = "stop",
        /// Left out, with an audit line in the log.
        Skip = "skip",
    }
);
keyword_enum!(
    /// What happens to rows whose topic the brokers do not have, or deny us.
    MissingTopicWord {
        /// They wait, and all behind them.
        Wait = "wait",
        /// The topic is created.
        Create = "create",
        /// They are sent to the dead-letter topic.
        DeadLetter = "dead_letter",
    }
);
keyword_enum!(
    /// The delivery guarantee.
    Delivery {
        /// Every committed row at least once, first occurrences in order.
        AtLeastOnce = "at_least_once",
        /// Every committed row once, for who reads committed records only.
        ExactlyOnce = "exactly_once",
    }
);
keyword_enum!(
    /// Batch compression; librdkafka's names.
    Compression {
        /// LZ4.
        Lz4 = "lz4",
        /// Zstandard, where built in.
        Zstd = "zstd",
        /// Snappy.
        Snappy = "snappy",
        /// Gzip.
        Gzip = "gzip",
        /// None.
        None = "none",
    }
);
keyword_enum!(
    /// The form of log lines.
    LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
);
keyword_enum!(
    /// The least severe line that is logged.
    LogLevel {
        /// Only what an operator must act on.
        Error = "error",
        /// And what was unexpected but passed by itself.
        Warn = "warn",
        /// And state changes.
        Info = "info",
        /// And decisions.
        Debug = "debug",
        /// And rows.
        Trace = "trace",
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_printed() {
        let url = ConnectionString::new("postgres://u:hunter2@h/db");
        assert!(!format!("{url} {url:?}").contains("hunter2"));
        let property = Property { name: "sasl.password".into(), value: "hunter2".into() };
        assert!(!format!("{property:?}").contains("hunter2"));
    }
}
