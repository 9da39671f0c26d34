//! Defines [`Rejection`]: why a row cannot become a record.
//!
//! By default the row becomes a dead letter under its record's ticket (G4).

use std::fmt;

use crate::record::TOO_LARGE_CODE;

/// Reason as a stable word for headers, metrics and `postrider route`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectionCode {
    /// The routing column is unusable, or yields an empty name.
    NoRoute,
    /// Kafka does not allow the name.
    InvalidTopic,
    /// A required column is missing.
    MissingColumn,
    /// A required value is NULL.
    MissingValue,
    /// Bytes do not match the type.
    InvalidValue,
    /// Text has no equivalent in UTF-8.
    UntranslatableCharacter,
    /// The record exceeds the limit.
    TooLarge,
    /// The topic does not exist.
    MissingTopic,
    /// The relay may not write to the topic.
    ForbiddenTopic,
    /// The broker refused the record.
    Refused,
}

impl RejectionCode {
    /// Every code.
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

    /// The word in `postrider-error-code` and the metric label `reason`.
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

/// Why a row cannot be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Kind.
    pub code: RejectionCode,
    /// A lowercase fragment that names the column or limit. Never contains payload bytes.
    pub reason: String,
}
