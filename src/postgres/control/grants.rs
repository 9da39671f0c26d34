//! Finds all rights that the role lacks to create missing objects, and the statements that grant
//! them.

use super::connect::Client;
use super::error::ControlError;
use super::inspect::{Inspection, Requirements, get};
use crate::wal::quote::identifier;

const DOING: &str = "reading the role's rights";

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LackingRights {
    /// Schemas of missing tables in which the role may not create.
    pub schemas: Vec<String>,
    /// True if the role may not create a missing publication.
    pub publication: bool,
}

/// `schemas`: of the missing tables.
pub(super) async fn lacking(
    client: &Client,
    schemas: &[&str],
    is_published: bool,
) -> Result<LackingRights, ControlError> {
    const SQL: &str = "\
        SELECT ARRAY(SELECT n.nspname::text FROM pg_catalog.pg_namespace n \
                WHERE n.nspname::text = ANY ($1::text[]) \
                AND NOT pg_catalog.has_schema_privilege(n.oid, 'CREATE') ORDER BY 1), \
            pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')";
    let row = client.run(DOING, client.sql().query_one(SQL, &[&schemas])).await?;
    Ok(LackingRights {
        schemas: get(&row, 0)?,
        publication: !is_published && !get::<bool>(&row, 1)?,
    })
}

impl Inspection {
    /// Statements that grant the role all missing rights; `replicates`: including replication.
    pub fn grants(&self, replicates: bool) -> Vec<String> {
        let role = identifier(&self.server.role);
        let schemas = self.lacking.schemas.iter();
        let mut grants: Vec<String> = schemas
            .map(|schema| format!("GRANT CREATE ON SCHEMA {} TO {role};", identifier(schema)))
            .collect();
        if self.lacking.publication {
            let database = identifier(&self.server.database);
            grants.push(format!("GRANT CREATE ON DATABASE {database} TO {role};"));
        }
        if replicates && !self.server.may_replicate {
            grants.push(format!("ALTER ROLE {role} REPLICATION;"));
        }
        grants
    }

    /// The right for one object, and the statements for all missing objects.
    pub(super) fn needs(&self, what: &str, replicates: bool) -> String {
        let grants = self.grants(replicates);
        if grants.is_empty() {
            return what.to_owned();
        }
        format!("{what}; for all that is missing, as a superuser:\n{}", grants.join("\n"))
    }
}

impl Requirements {
    pub(super) fn schemas_of_missing<'a>(
        &'a self,
        tables: &[Option<super::TableFacts>],
    ) -> Vec<&'a str> {
        let missing = self.tables.iter().zip(tables).filter(|(_, facts)| facts.is_none());
        missing.map(|(table, _)| table.schema.as_str()).collect()
    }
}
