//! `shop migrate`: creates the tables of one service in its own database. The command may run
//! again. No table refers to a table of another service.

use clap::{Args, ValueEnum};

use super::connect::connect;
use super::error::ShopError;
use postrider_patterns::migrations::{self, Piece};

const ORDERS: &str = include_str!("migrations/0002_shop.sql");
const SERVICES: &str = include_str!("migrations/0004_services.sql");

/// Arguments of `shop migrate`.
#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    /// The service whose tables are made
    #[arg(value_enum)]
    service: Service,
    /// Its database: a URL or key=value pairs
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
}

/// A service with tables of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Service {
    /// `orders`, and the saga of each order.
    Orders,
    /// `payments`, and the books of the simulated gateway.
    Payments,
    /// `stock` and `reservations`.
    Inventory,
    /// `notifications`.
    Notifications,
}

impl Service {
    pub const ALL: [Self; 4] = [Self::Orders, Self::Payments, Self::Inventory, Self::Notifications];

    fn pieces(self) -> &'static [Piece] {
        match self {
            Self::Orders => &Piece::ALL,
            Self::Payments | Self::Inventory => &[Piece::Outbox, Piece::Inbox],
            // The service emits no events.
            Self::Notifications => &[Piece::Inbox],
        }
    }

    fn heading(self) -> &'static str {
        match self {
            Self::Orders => "\n-- The order service.",
            Self::Payments => "\n-- The payment service.",
            Self::Inventory => "\n-- The inventory service.",
            Self::Notifications => "\n-- The notification service.",
        }
    }

    fn tables(self) -> String {
        let starts: Vec<usize> =
            Self::ALL.iter().filter_map(|service| SERVICES.find(service.heading())).collect();
        let start = SERVICES.find(self.heading());
        let end = starts.iter().copied().filter(|other| Some(*other) > start).min();
        let part = start.and_then(|start| SERVICES.get(start..end.unwrap_or(SERVICES.len())));
        let Some(part) = part else { unreachable!("the migration has a part for each service") };
        if self == Self::Orders { [ORDERS, part].join("\n") } else { part.to_owned() }
    }

    pub fn sql(self) -> String {
        let pieces = self.pieces().iter().map(|piece| piece.sql());
        pieces.chain([self.tables()]).collect::<Vec<_>>().join("\n")
    }
}

impl MigrateArgs {
    /// Two transactions: the pieces, and the service's tables.
    pub(super) async fn run(&self) -> Result<(), ShopError> {
        let mut client = connect(&self.database_url).await?;
        migrations::migrate(&mut client, "public", self.service.pieces()).await?;
        // The batch is one implicit transaction.
        client.batch_execute(&self.service.tables()).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_its_tables_and_no_other_ones() {
        for (table, services) in [
            ("orders", &[Service::Orders][..]),
            ("sagas", &[Service::Orders]),
            ("idempotency_keys", &[Service::Orders]),
            ("outbox", &[Service::Orders, Service::Payments, Service::Inventory]),
            ("processed_messages", &Service::ALL),
            ("payments", &[Service::Payments]),
            ("gateway_operations", &[Service::Payments]),
            ("stock", &[Service::Inventory]),
            ("reservations", &[Service::Inventory]),
            ("notifications", &[Service::Notifications]),
        ] {
            let has = |service: &Service| {
                service.sql().contains(&format!("CREATE TABLE IF NOT EXISTS {table} ("))
            };
            let found: Vec<Service> = Service::ALL.into_iter().filter(has).collect();
            assert_eq!(found, services, "{table}");
        }
    }
}
