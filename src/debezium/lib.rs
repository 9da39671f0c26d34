//! Translates a Debezium configuration to Postrider's, with a report about every option.
//!
//! Input: the text of a Kafka Connect connector (JSON, or properties), of a Debezium Server, or of
//! the outbox router's options alone. Output: [`Imported`], or [`ImportError`].
//!
//! Invariants:
//!
//! * Each option is in exactly one finding.
//! * The TOML is a valid configuration.
//! * [`import`] imports nothing if any option is refused. [`import_partially`] leaves such options
//!   out and lists them.
//! * Neither a finding nor the text without secrets shows a secret.
//!
//! Names and meanings of the options: Debezium's documentation, "Outbox Event Router" and "Debezium
//! connector for PostgreSQL" (3.7); Kafka's, "Connect" and "Producer Configs" (4.x).
//!
//! ```
//! use postrider_debezium::import;
//!
//! let connector = r#"{
//!     "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
//!     "database.hostname": "db", "database.user": "app", "database.dbname": "shop",
//!     "table.include.list": "public.outbox", "topic.prefix": "shop",
//!     "transforms": "outbox",
//!     "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter"
//! }"#;
//! let imported = import(connector)?;
//! assert!(imported.toml_without_secrets.contains("public.outbox"));
//! assert!(imported.report.iter().any(|finding| finding.option == "table.include.list"));
//! # Ok::<(), postrider_debezium::ImportError>(())
//! ```

mod additional_fields;
mod chain;
mod check;
mod connection;
mod connector;
mod converters;
mod document;
mod draft;
mod jaas;
mod names;
mod options_file;
mod other_options;
mod producer;
mod properties;
mod router;
mod sasl;
#[cfg(test)]
mod tests;
mod tls;
mod tokens;
mod topic_creation;

use std::fmt;

use serde::Serialize;

use draft::Draft;

#[derive(Clone, PartialEq, Eq)]
pub struct Imported {
    /// A commented `postrider.toml` with the passwords of the file, so only its owner may read it.
    pub toml: String,
    /// Without secrets. A comment replaces each omitted setting.
    pub toml_without_secrets: String,
    /// Findings per option in the order of the file, then per assumption.
    pub report: Vec<OptionFinding>,
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Imported").field("report", &self.report).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OptionFinding {
    pub option: String,
    /// Masked if it may be secret.
    pub value: Option<String>,
    pub outcome: ImportOutcome,
    /// The new setting, the difference, or the reason.
    pub note: String,
    pub help: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportOutcome {
    Mapped,
    /// The behavior differs from Debezium's.
    Changed,
    NotNeeded,
    /// The option is not possible.
    Refused,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("not readable as JSON: {reason}")]
    Json {
        /// Message with line and column. It repeats no part of the text.
        reason: String,
    },
    #[error("not readable as properties, line {line}: {reason}")]
    Properties {
        /// From 1.
        line: usize,
        reason: &'static str,
    },
    #[error("not a connector's configuration: {reason}")]
    Foreign {
        /// Apparent kind of the text.
        reason: &'static str,
        help: &'static str,
    },
    #[error("{}", RefusedOptions(.report))]
    Refused {
        /// All findings, with at least one refused option.
        report: Vec<OptionFinding>,
    },
}

impl ImportError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Json { .. } | Self::Properties { .. } => Some(
                "write the connector's JSON as Kafka Connect takes it, or the properties of \
                 Debezium Server"
                    .to_owned(),
            ),
            Self::Foreign { help, .. } => Some((*help).to_owned()),
            Self::Refused { report } => {
                report.iter().find(|f| f.outcome == ImportOutcome::Refused)?.help.clone()
            }
        }
    }
}

struct RefusedOptions<'a>(&'a [OptionFinding]);

impl fmt::Display for RefusedOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused = self.0.iter().filter(|finding| finding.outcome == ImportOutcome::Refused);
        for (index, finding) in refused.enumerate() {
            let separator = if index > 0 { "; " } else { "" };
            write!(f, "{separator}`{}`: {}", finding.option, finding.note)?;
        }
        Ok(())
    }
}

/// Does not access files, environment or servers. Placeholders such as `${env:PASSWORD}` stay.
pub fn import(text: &str) -> Result<Imported, ImportError> {
    let draft = translate(text)?;
    let imported = written(draft);
    if imported.report.iter().any(|finding| finding.outcome == ImportOutcome::Refused) {
        return Err(ImportError::Refused { report: imported.report });
    }
    Ok(imported)
}

/// A comment names the refused options.
pub fn import_partially(text: &str) -> Result<Imported, ImportError> {
    let mut draft = translate(text)?;
    // Another setting may need a setting that was left out.
    while draft.leave_out_refused() {
        check::loads(&mut draft);
    }
    Ok(written(draft))
}

fn translate(text: &str) -> Result<Draft, ImportError> {
    let mut draft = Draft::new(options_file::read(text)?);
    let mut chain = chain::find(&mut draft);
    let tables = connector::source(&mut draft, &chain);
    chain::predicates(&mut draft, &mut chain, &tables);
    connection::map(&mut draft);
    connector::messages(&mut draft, &chain);
    router::map(&mut draft, &chain);
    converters::map(&mut draft);
    producer::map(&mut draft);
    topic_creation::map(&mut draft);
    connector::rest(&mut draft);
    other_options::settle(&mut draft);
    check::loads(&mut draft);
    Ok(draft)
}

fn written(draft: Draft) -> Imported {
    let toml = document::render(&draft);
    let toml_without_secrets = document::render_without_secrets(&draft);
    Imported { toml, toml_without_secrets, report: draft.into_report() }
}
