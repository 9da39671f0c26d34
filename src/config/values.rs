//! Enums and small types of the validated configuration.

use std::fmt;

use postrider_core::route::keyword_enum;

/// A connection string. `Debug` and `Display` mask its password.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ConnectionString(String);

impl ConnectionString {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as typed, perhaps with a password. Must not be logged.
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

/// A librdkafka property. `Debug` masks a value that may be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Property {
    pub name: String,
    /// Value for librdkafka. Must not be logged.
    pub value: String,
}

impl fmt::Debug for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = postrider_secrets::mask::shown(&self.name, &self.value);
        write!(f, "{}={shown:?}", self.name)
    }
}

keyword_enum!(
    Create {
        Auto = "auto",
        Never = "never",
    }
);
keyword_enum!(
    SourceLogin {
        Password = "password",
        /// A password signed by AWS credentials.
        RdsIam = "rds_iam",
    }
);
keyword_enum!(
    /// Source of tokens for OAUTHBEARER.
    OAuthMethod {
        Off = "off",
        Oidc = "oidc",
        Command = "command",
        AwsMskIam = "aws_msk_iam",
    }
);
keyword_enum!(
    SourceMode {
        Stream = "stream",
        Poll = "poll",
    }
);
keyword_enum!(
    /// Mark on a polled row that was delivered.
    MarkWord {
        /// A time in a column that was NULL.
        ProcessedAt = "processed_at",
        Status = "status",
        Delete = "delete",
    }
);
keyword_enum!(
    /// Treatment of an undeliverable row (G4).
    Rejected {
        DeadLetter = "dead_letter",
        Stop = "stop",
        /// Left out, with an audit line.
        Skip = "skip",
    }
);
keyword_enum!(
    /// Treatment of rows whose topic is missing or not authorised.
    MissingTopicWord {
        /// The row and all rows behind it wait.
        Wait = "wait",
        Create = "create",
        DeadLetter = "dead_letter",
    }
);
keyword_enum!(
    Delivery {
        /// Every committed row at least once, first occurrences in order.
        AtLeastOnce = "at_least_once",
        /// Every committed row once, for consumers that read committed records only.
        ExactlyOnce = "exactly_once",
    }
);
keyword_enum!(
    /// Batch compression; librdkafka's names.
    Compression {
        Lz4 = "lz4",
        /// Only if it is built in.
        Zstd = "zstd",
        Snappy = "snappy",
        Gzip = "gzip",
        None = "none",
    }
);
keyword_enum!(
    LogFormat {
        Text = "text",
        Json = "json",
    }
);
keyword_enum!(
    LogLevel {
        /// Only events that an operator must act on.
        Error = "error",
        /// Also unexpected events that passed.
        Warn = "warn",
        /// Also state changes.
        Info = "info",
        /// Also decisions.
        Debug = "debug",
        /// Also rows.
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
