//! A blocking SQL session for tests.

use std::str::FromStr as _;

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

use super::postgres::Database;

/// One session. Its connection is served while a call waits, which is all a test needs.
#[derive(Debug)]
pub struct Sql {
    runtime: Runtime,
    client: Client,
    // Last: it may be the last one that holds the database, which then ends.
    _database: Option<Database>,
}

impl Sql {
    /// Connects.
    pub fn connect(url: &str) -> Self {
        Self::try_connect(url).unwrap_or_else(|error| {
            panic!("cannot connect: {error:?}\n{}", crashes(url).join("\n"))
        })
    }

    /// Connects, for a server that may be down.
    pub fn try_connect(url: &str) -> Result<Self, tokio_postgres::Error> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls))?;
        runtime.spawn(connection);
        Ok(Self { runtime, client, _database: None })
    }

    /// Connects, and keeps the database for as long.
    pub(crate) fn of(database: &Database) -> Self {
        let sql = Self::connect(&database.address().unix_url());
        Self { _database: Some(database.clone()), ..sql }
    }

    /// Runs statements, separated by semicolons.
    pub fn run(&self, sql: &str) {
        self.try_run(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Runs statements that may fail.
    pub fn try_run(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.runtime.block_on(self.client.batch_execute(sql))
    }

    /// Every row of a query, its values as text.
    pub fn rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.try_rows(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// The same, of a query that may fail.
    pub fn try_rows(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
        let messages = self.runtime.block_on(self.client.simple_query(sql))?;
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
            }
            _ => None,
        });
        Ok(rows.collect())
    }

    /// The only value of a query's only row.
    pub fn value(&self, sql: &str) -> String {
        let rows = self.rows(sql);
        let [row] = rows.as_slice() else { panic!("{sql}: {} rows", rows.len()) };
        row.first().cloned().flatten().unwrap_or_else(|| panic!("{sql}: NULL"))
    }
}

/// What the log of a test's server says of its crashes: a full disk, or a process that was killed.
fn crashes(url: &str) -> Vec<String> {
    let config = Config::from_str(url).unwrap();
    let Some(Host::Unix(folder)) = config.get_hosts().first() else { return Vec::new() };
    let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    let tells = |line: &&str| line.contains("PANIC") || line.contains("terminated by signal");
    log.lines().filter(tells).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_found_in_the_log_of_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let log = "LOG:  checkpoint\nPANIC:  could not write to file: No space left on device\n";
        std::fs::write(folder.path().join("log"), log).unwrap();
        let url = format!("postgres://postgres@/postgres?host={}", folder.path().display());
        assert_eq!(crashes(&url), [log.lines().last().unwrap()]);
        assert!(crashes("postgres://postgres@127.0.0.1:1/postgres").is_empty());
    }
}
