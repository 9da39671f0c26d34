//! The SQL of an error's hint, for programs that run it. Invariant: empty if a person must choose
//! what is lost, or if the remedy is not SQL.

use super::error::ControlError;
use super::hint_text::{ONLY_INSERTS, UNLOGGED_PART, VIA_ROOT, qualified, two_phase_copies};
use crate::wal::quote::identifier;

impl ControlError {
    pub fn remedy(&self) -> Vec<String> {
        match self {
            Self::WalLevel { .. } => vec!["ALTER SYSTEM SET wal_level = 'logical';".to_owned()],
            Self::RoleMayNotReplicate { role } => {
                vec![format!("ALTER ROLE {} REPLICATION;", identifier(role))]
            }
            Self::PartUnsuitable { part, kind, .. } if *kind == UNLOGGED_PART => {
                vec![format!("ALTER TABLE {} SET LOGGED;", qualified(part))]
            }
            Self::TableForbidden { table, role } => {
                let (schema, role) = (identifier(&table.schema), identifier(role));
                vec![
                    format!("GRANT USAGE ON SCHEMA {schema} TO {role};"),
                    format!("GRANT SELECT ON {} TO {role};", qualified(table)),
                ]
            }
            Self::PublicationWithoutInserts { publication } => {
                vec![format!("ALTER PUBLICATION {} SET ({ONLY_INSERTS});", identifier(publication))]
            }
            Self::PublicationLacksTable { publication, partitioned: true, .. } => {
                vec![format!("ALTER PUBLICATION {} SET ({VIA_ROOT});", identifier(publication))]
            }
            Self::PublicationLacksTable { publication, table, .. } => {
                let (name, table) = (identifier(publication), qualified(table));
                vec![format!("ALTER PUBLICATION {name} ADD TABLE {table};")]
            }
            Self::PublicationFiltersRows { publication, table }
            | Self::PublicationHidesColumns { publication, table, .. } => {
                let (name, table) = (identifier(publication), qualified(table));
                vec![
                    "BEGIN;".to_owned(),
                    format!("ALTER PUBLICATION {name} DROP TABLE {table};"),
                    format!("ALTER PUBLICATION {name} ADD TABLE {table};"),
                    "COMMIT;".to_owned(),
                ]
            }
            Self::SlotTwoPhase { slot } => two_phase_copies(slot).to_vec(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::outbox::TableName;

    #[test]
    fn every_statement_stands_in_the_hint_and_in_its_order() {
        let name = || "it's \"ours\"".to_owned();
        let table = || TableName::new("Shop", "out\"box");
        let lacks = |partitioned| ControlError::PublicationLacksTable {
            publication: name(),
            table: table(),
            partitioned,
        };
        let errors = [
            ControlError::WalLevel { current: "replica".to_owned() },
            ControlError::RoleMayNotReplicate { role: name() },
            ControlError::PartUnsuitable { table: table(), part: table(), kind: UNLOGGED_PART },
            ControlError::TableForbidden { table: table(), role: name() },
            ControlError::PublicationWithoutInserts { publication: name() },
            lacks(false),
            lacks(true),
            ControlError::PublicationFiltersRows { publication: name(), table: table() },
            ControlError::PublicationHidesColumns {
                publication: name(),
                table: table(),
                columns: vec!["id".to_owned()],
            },
            ControlError::SlotTwoPhase { slot: name() },
        ];
        for error in errors {
            let hint = error.hint().unwrap();
            let mut rest = hint.as_str();
            assert!(!error.remedy().is_empty(), "{error}");
            for statement in error.remedy() {
                let at = rest.find(&statement);
                let at = at.unwrap_or_else(|| panic!("no `{statement}` in {rest}"));
                rest = &rest[at + statement.len()..];
            }
        }
        let child = ControlError::PartUnsuitable {
            table: table(),
            part: table(),
            kind: "an inheritance child",
        };
        assert!(child.remedy().is_empty(), "a person chooses");
    }
}
