//! Imports a Debezium configuration: translates it to Postrider's, with a report about every option.
//!
//! Input: the text of a Kafka Connect connector (JSON, or properties), of a Debezium Server (properties),
//! or of the outbox router's options alone. Output: [`Imported`], commented TOML and an [`OptionFinding`]
//! for each option, or [`ImportError`]. Invariant: an option is in exactly one finding; the TOML is a valid
//! configuration; [`import`] imports nothing if any option is refused, since consumers could see other records, and
//! [`import_partially`] leaves such options out and says so in the text; no finding shows a secret, nor does the text
//! without secrets.
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

/// What a Debezium configuration comes to.
#[derive(Clone, PartialEq, Eq)]
pub struct Imported {
    /// A `postrider.toml`, commented. Holds the passwords that it needs and the file held: fit for
    /// a file that its owner alone reads.
    pub toml: String,
    /// The same without them, fit to be printed; a comment stands for each setting that is left out.
    pub toml_without_secrets: String,
    /// One finding for each option in the order of the file, then one for each thing that was
    /// assumed.
    pub report: Vec<OptionFinding>,
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Imported").field("report", &self.report).finish_non_exhaustive()
    }
}

/// What became of one option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OptionFinding {
    /// The option, as the file names it.
    pub option: String,
    /// Its value, masked where it may be secret; `None` where the file does not have the option.
    pub value: Option<String>,
    /// What became of it.
    pub outcome: ImportOutcome,
    /// The setting it became, what is different now, or why it is not needed or not possible.
    pub note: String,
    /// What to do about it, where something can be done.
    pub help: Option<String>,
}

/// The four things that can become of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportOutcome {
    /// There is a setting that means the same.
    Mapped,
    /// Something is different from what it was with Debezium.
    Changed,
    /// Nothing is lost without it.
    NotNeeded,
    /// It stands for something that cannot be done: nothing is imported, or all but this.
    Refused,
}

/// Why nothing is imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The text begins like JSON and is not.
    #[error("not readable as JSON: {reason}")]
    Json {
        /// The parser's words, which repeat nothing of the text, with line and column.
        reason: String,
    },
    /// A line of a properties file that Java would not read either.
    #[error("not readable as properties, line {line}: {reason}")]
    Properties {
        /// From 1.
        line: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// Something else than one connector's configuration.
    #[error("not a connector's configuration: {reason}")]
    Foreign {
        /// What it seems to be.
        reason: &'static str,
        /// What to do instead.
        help: &'static str,
    },
    /// Options that stand for something that cannot be done.
    #[error("{}", RefusedOptions(.report))]
    Refused {
        /// Every finding, at least one of them refused.
        report: Vec<OptionFinding>,
    },
}

impl ImportError {
    /// What to do about it, where there is one answer.
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

/// Translates. Pure: no file, environment or server is looked at, and placeholders such as
/// `${env:PASSWORD}` are left alone.
pub fn import(text: &str) -> Result<Imported, ImportError> {
    let draft = translate(text)?;
    let imported = written(draft);
    if imported.report.iter().any(|finding| finding.outcome == ImportOutcome::Refused) {
        return Err(ImportError::Refused { report: imported.report });
    }
    Ok(imported)
}

/// Translates all but the options that are refused. A comment at the beginning of the text names each of them.
pub fn import_partially(text: &str) -> Result<Imported, ImportError> {
    let mut draft = translate(text)?;
    // A setting that is left out may be what another one needs.
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
