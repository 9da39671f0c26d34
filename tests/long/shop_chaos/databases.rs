//! The database of each service, with its outbox and its slot; and the replies that are destroyed.
//!
//! Input: a cluster, the stock, a seed. Output: three databases, and sessions with them. Invariant: each has the
//! tables of its service and no others; of the events of payments and inventory one in [`LOST_ONE_IN`] goes to a
//! topic that nobody reads, decided by its id and the seed; what it was is written down for the audit.

use std::collections::BTreeMap;

use postrider::sandbox::postgres::Cluster;
use postrider::shop::migrations::Service as Tables;
use support::postgres::Database;
use support::sql::Sql;

/// The topic of destroyed replies.
pub(crate) const LOST: &str = "Lost";

/// How many replies there are to one that is destroyed.
const LOST_ONE_IN: u32 = 20;

/// What a destroyed reply was. Empty for the order service, whose events are not replies.
const LOST_TABLE: &str =
    "CREATE TABLE lost_replies (id uuid PRIMARY KEY, event_type text NOT NULL)";

/// Events of one outbox, as they were meant: id, order, type, and whether it was destroyed.
const EVENTS: &str = "\
    SELECT outbox.id, aggregate_id, coalesce(lost.event_type, outbox.event_type), lost.id IS NOT NULL \
    FROM outbox LEFT JOIN lost_replies AS lost USING (id)";

/// Each service's own, in the order of the services.
pub(crate) struct Databases([Database; 3]);

/// A session with each.
pub(crate) struct Sessions {
    pub(crate) orders: Sql,
    pub(crate) payments: Sql,
    pub(crate) inventory: Sql,
}

/// A row of an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) id: String,
    pub(crate) order: String,
    pub(crate) event: String,
    pub(crate) is_lost: bool,
}

impl Databases {
    /// The commands of the services, in the order of their databases.
    pub(crate) const SERVICES: [&str; 3] = ["orders", "payments", "inventory"];

    pub(crate) fn create(cluster: &Cluster, stock: &BTreeMap<String, i64>) -> Self {
        let services = [Tables::Orders, Tables::Payments, Tables::Inventory];
        let [orders, payments, inventory] = services.map(|service| {
            let database = Database::create(cluster, "shop");
            let sql = database.sql();
            sql.run(&service.sql());
            sql.run(LOST_TABLE);
            let slot = database.name();
            sql.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
            database
        });
        for (sku, available) in stock {
            inventory.sql().run(&format!("INSERT INTO stock VALUES ('{sku}', {available})"));
        }
        Self([orders, payments, inventory])
    }

    /// From now on, one in [`LOST_ONE_IN`].
    pub(crate) fn lose_replies(&self, seed: u64) {
        let [_, payments, inventory] = self.each();
        for replying in [payments, inventory] {
            replying.sql().run(&lose_replies(seed));
        }
    }

    /// In the order of [`Databases::SERVICES`].
    pub(crate) fn each(&self) -> &[Database; 3] {
        &self.0
    }

    /// Connects; Postgres must be running.
    pub(crate) fn connect(&self) -> Sessions {
        let [orders, payments, inventory] = self.each().each_ref().map(Database::sql);
        Sessions { orders, payments, inventory }
    }
}

/// The record is delivered, and its readers never see it: as a topic that was deleted, or lost with its disk.
fn lose_replies(seed: u64) -> String {
    let seed = i64::from_ne_bytes(seed.to_ne_bytes());
    format!(
        "CREATE FUNCTION lose_reply() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO lost_replies VALUES (NEW.id, NEW.event_type); \
             NEW.event_type := '{LOST}'; \
             RETURN NEW; \
         END $$; \
         CREATE TRIGGER lose_reply BEFORE INSERT ON outbox FOR EACH ROW \
             WHEN (uuid_hash_extended(NEW.id, '{seed}') % {LOST_ONE_IN} = 0) \
             EXECUTE FUNCTION lose_reply()"
    )
}

impl Sessions {
    pub(crate) fn each(&self) -> [&Sql; 3] {
        [&self.orders, &self.payments, &self.inventory]
    }

    /// Rows of all databases that have this table.
    pub(crate) fn count(&self, table_and_condition: &str) -> usize {
        self.each().map(|sql| count(sql, table_and_condition)).iter().sum()
    }

    /// All rows of all outboxes.
    pub(crate) fn events(&self) -> Vec<Written> {
        let rows = self.each().into_iter().flat_map(|sql| sql.rows(EVENTS));
        let written = rows.map(|row| {
            let texts: Vec<String> = row.into_iter().map(Option::unwrap).collect();
            let [id, order, event, is_lost] = texts.try_into().unwrap();
            Written { id, order, event, is_lost: is_lost == "t" }
        });
        written.collect()
    }
}

/// Rows in one of them.
pub(crate) fn count(sql: &Sql, table_and_condition: &str) -> usize {
    sql.value(&format!("SELECT count(*) FROM {table_and_condition}")).parse().unwrap()
}
