//! Selects the rows to send again, as SQL.
//!
//! Literals take the type of their column, so that Postgres can use an index and reports unfit
//! values.

use super::error::TableRowsError;
use postrider_config::Config;
use postrider_core::outbox::{TableName, Wanted};
use postrider_postgres::control::TableFacts;
use postrider_postgres::wal::{identifier, literal};

/// All criteria must match; any value of a criterion matches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowFilter {
    /// At or after this time. Postgres parses the timestamp.
    pub since: Option<String>,
    /// Before this time.
    pub until: Option<String>,
    pub types: Vec<String>,
    /// Values of the aggregate's id.
    pub keys: Vec<String>,
    pub ids: Vec<String>,
}

impl RowFilter {
    /// `None`: all rows match.
    pub fn condition(
        &self,
        config: &Config,
        table: &TableName,
        facts: &TableFacts,
    ) -> Result<Option<String>, TableRowsError> {
        let outbox = &config.outbox;
        let column = |wanted: &str| {
            let aliases = outbox.aliases.get(wanted).cloned().unwrap_or_default();
            let wanted = Wanted::required(wanted);
            let mut names = std::iter::once(&wanted.name).chain(&aliases).chain(&wanted.aliases);
            let found = names.find(|name| facts.columns.contains(name));
            let missing = || TableRowsError::FilterColumnMissing {
                table: table.to_string(),
                column: wanted.name.clone(),
            };
            found.map(|name| identifier(name)).ok_or_else(missing)
        };
        let mut conditions = Vec::new();
        for (sign, moment) in [(">=", &self.since), ("<", &self.until)] {
            if let Some(moment) = moment {
                let column = column(&outbox.created_at)?;
                conditions.push(format!("{column} {sign} {}", literal(moment)));
            }
        }
        let any_of = [
            (&outbox.event_type, &self.types),
            (&outbox.aggregate_id, &self.keys),
            (&outbox.id, &self.ids),
        ];
        for (name, values) in any_of {
            if !values.is_empty() {
                conditions.push(format!("{} = ANY ({})", column(name)?, array(values)));
            }
        }
        Ok((!conditions.is_empty()).then(|| conditions.join(" AND ")))
    }
}

fn array(values: &[String]) -> String {
    let element =
        |value: &String| format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""));
    literal(&format!("{{{}}}", values.iter().map(element).collect::<Vec<_>>().join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_has_any_text_in_it() {
        let values = ["plain", "it's", "a \"b\" \\c", "{x,y}", ""].map(str::to_owned);
        let wanted = r#"E'{"plain","it''s","a \\"b\\" \\\\c","{x,y}",""}'"#;
        assert_eq!(array(&values), wanted);
    }
}
