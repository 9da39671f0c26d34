//! Which rows are sent once more, as SQL.
//!
//! Input: a [`RowFilter`], and the columns that a table has. Output: a condition, or the column that is not there.
//! Values are literals that take their column's type, so that an index on it is used and a value that is none of
//! the type is Postgres's error.

use super::error::TableRowsError;
use postrider_config::Config;
use postrider_core::outbox::{TableName, Wanted};
use postrider_postgres::control::TableFacts;
use postrider_postgres::wal::{identifier, literal};

/// Rows that fit all that is given; of several values of one kind, any.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowFilter {
    /// Written at or after this, as Postgres reads a timestamp.
    pub since: Option<String>,
    /// Written before this.
    pub until: Option<String>,
    /// Of these event types.
    pub types: Vec<String>,
    /// Of these keys: the values of the aggregate's id.
    pub keys: Vec<String>,
    /// With these ids.
    pub ids: Vec<String>,
}

impl RowFilter {
    /// The condition for a table; `None`: all rows.
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

/// An array's text, as a literal.
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
