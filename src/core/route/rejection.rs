//! Defines [`Rejection`]: why a row cannot become a record, as a stable [`RejectionCode`] and a
//! sentence.
//!
//! A rejection is a value and not an error: by default the row becomes a dead letter under its
//! record's ticket (G4). The codes appear in headers, metrics and `postrider route`.

use std::fmt;

use crate::record::TOO_LARGE_CODE;

/// The reason as a stable word for headers, metrics and `postrider route`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectionCode {
    /// The routing column is NULL or not text, or yields an empty name.
    NoRoute,
    /// The template yields a name that Kafka does not allow.
    InvalidTopic,
    /// A required column is missing.
    MissingColumn,
    /// A column that requires a value is NULL.
    MissingValue,
    /// A column's bytes do not match its type.
    InvalidValue,
    /// A column's text has no equivalent in UTF-8.
    UntranslatableCharacter,
    /// Key, value and headers together exceed the limit.
    TooLarge,
    /// The topic does not exist, and the policy is not to wait for it.
    MissingTopic,
    /// The relay may not write to the topic, and the policy is not to wait for permission.
    ForbiddenTopic,
    /// The broker refused this record.
    Refused,
}

impl RejectionCode {
    /// Every code, for documentation and metrics.
    pub const ALL: [Self; 10] = [
        Self::NoRoute,
        Self::InvalidTopic,
        Self::MissingColumn,
        Self::MissingValue,
        Self::InvalidValue,
        Self::UntranslatableCharacter,
        Self::TooLarge,
        Self::MissingTopic,
        Self::ForbiddenTopic,
        Self::Refused,
    ];

    /// The stable word in the header `postrider-error-code` and the metric label `reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoRoute => "no_route",
            Self::InvalidTopic => "invalid_topic",
            Self::MissingColumn => "missing_column",
            Self::MissingValue => "missing_value",
            Self::InvalidValue => "invalid_value",
            Self::UntranslatableCharacter => "untranslatable_character",
            Self::TooLarge => TOO_LARGE_CODE,
            Self::MissingTopic => "missing_topic",
            Self::ForbiddenTopic => "forbidden_topic",
            Self::Refused => "refused",
        }
    }
}

impl fmt::Display for RejectionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a row cannot be delivered unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The kind, stable across releases.
    pub code: RejectionCode,
    /// A lowercase fragment that names the column or limit. Never contains payload bytes.
    pub reason: String,
}
