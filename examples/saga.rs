//! A process that ends or is given up: a trip that is booked within a time, or asked for no longer.
//!
//! ```toml
//! postrider-patterns = { version = "0.1", features = ["saga"] }
//! serde = { version = "1", features = ["derive"] }
//! serde_json = "1"
//! tokio = { version = "1", features = ["macros", "rt", "time"] }
//! tokio-postgres = "0.7"
//! ```
//!
//! Input: `DATABASE_URL`, and `start ID`, `booked ID` or `deadlines` as arguments. Output: the saga's status;
//! `deadlines` runs until it is killed. Invariant: state, history and events are one transaction; whoever is not
//! booked within two seconds is given up.

use std::io::Write as _;
use std::time::Duration;

use postrider_patterns::migrations::{Piece, migrate};
use postrider_patterns::saga::{self, Emitted, Saga, SagaError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::NoTls;

type AnyError = Box<dyn std::error::Error>;
const TIMEOUT: Duration = Duration::from_secs(2);

/// Facts that only grow, so that the order in which they come does not matter.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Trip {
    booked: bool,
    given_up: bool,
}

enum Fact {
    Booked,
    DeadlinePassed,
}

impl Saga for Trip {
    const KIND: &'static str = "trip";
    type Event = Fact;

    fn apply(&mut self, fact: &Fact) -> Vec<Emitted> {
        let had_ended = self.has_ended();
        match fact {
            Fact::Booked => self.booked = true,
            Fact::DeadlinePassed if !self.booked => self.given_up = true,
            Fact::DeadlinePassed => {}
        }
        let is_given_up = self.given_up && !had_ended;
        if is_given_up { vec![Emitted::new("TripGivenUp", json!({}))] } else { vec![] }
    }

    fn name(fact: &Fact) -> &'static str {
        match fact {
            Fact::Booked => "Booked",
            Fact::DeadlinePassed => "DeadlinePassed",
        }
    }

    fn status(&self) -> &'static str {
        match (self.given_up, self.booked) {
            (true, _) => "GIVEN_UP",
            (false, true) => "BOOKED",
            (false, false) => "OPEN",
        }
    }

    fn has_ended(&self) -> bool {
        self.booked || self.given_up
    }

    fn deadline_passed() -> Fact {
        Fact::DeadlinePassed
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let (mut client, connection) =
        tokio_postgres::connect(&std::env::var("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connection);
    migrate(&mut client, "public", &[Piece::Outbox, Piece::Saga]).await?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let id = match arguments[..] {
        ["deadlines"] => loop {
            saga::fire_due::<Trip>(&mut client, TIMEOUT).await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        },
        ["start", id] => {
            let transaction = client.transaction().await?;
            let asked = Emitted::new("HotelAsked", json!({}));
            saga::start(&transaction, id, &Trip::default(), &[asked], TIMEOUT).await?;
            transaction.commit().await?;
            id
        }
        ["booked", id] => {
            // In a consumer: in the transaction of its marker, with the message's id as the cause.
            let transaction = client.transaction().await?;
            saga::advance::<Trip>(&transaction, id, &Fact::Booked, saga::Cause::default()).await?;
            transaction.commit().await?;
            id
        }
        _ => return Err("usage: saga start ID | booked ID | deadlines".into()),
    };
    let status = status(&client, id).await?;
    writeln!(std::io::stdout(), "{status}")?;
    Ok(())
}

async fn status(client: &tokio_postgres::Client, id: &str) -> Result<&'static str, SagaError> {
    let view = saga::view::<Trip>(client, id).await?;
    Ok(view.map_or("there is no such trip", |view| view.state.status()))
}
