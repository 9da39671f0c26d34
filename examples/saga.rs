//! A process that ends or is undone: a trip is booked within a time, or else given up and its hotel cancelled.
//!
//! ```toml
//! postrider-patterns = { version = "0.1", features = ["saga"] }
//! serde = { version = "1", features = ["derive"] }
//! serde_json = "1"
//! tokio = { version = "1", features = ["macros", "rt", "time"] }
//! tokio-postgres = "0.7"
//! ```
//!
//! Input: `DATABASE_URL`, and `start ID`, `booked ID`, `cancelled ID` or `deadlines` as arguments. Output: the saga's
//! status; `deadlines` runs until it is killed. Invariant: state, history and events are one transaction; a trip that
//! is not booked within two seconds is given up, and has not ended before the hotel says that nothing is booked.

use std::io::Write as _;
use std::time::Duration;

use postrider_patterns::migrations::{Piece, migrate};
use postrider_patterns::saga::{self, Cause, Emitted, NewSaga, Saga, SagaError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::NoTls;

type AnyError = Box<dyn std::error::Error>;
const TIMEOUT: Duration = Duration::from_secs(2);

/// Facts that only grow, so that the order in which they come does not matter.
#[derive(Debug, Default, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact that came, in any order")]
struct Trip {
    wanted: bool,
    booked: bool,
    given_up: bool,
    cancelled: bool,
}

enum Fact {
    /// The customer's request.
    Wanted,
    /// The hotel's answer to HotelAsked.
    Booked,
    DeadlinePassed,
    /// The hotel's answer to HotelCancelled: nothing is booked, and nothing will be.
    Cancelled,
}

impl Saga for Trip {
    const KIND: &'static str = "trip";
    type Event = Fact;

    fn apply(&mut self, fact: &Fact) -> Vec<Emitted> {
        let emit = |event_type| Emitted::new(event_type, json!({}));
        match fact {
            Fact::Wanted => {
                let is_new = !(self.wanted || self.booked || self.given_up);
                self.wanted = true;
                if is_new { vec![emit("HotelAsked")] } else { vec![] }
            }
            Fact::Booked => {
                self.booked = true;
                // Too late: the compensation. The hotel takes it any number of times.
                if self.given_up { vec![emit("HotelCancelled")] } else { vec![] }
            }
            Fact::DeadlinePassed if self.has_ended() => vec![],
            // Each time that it passes, since the one before may be lost.
            Fact::DeadlinePassed if self.given_up => vec![emit("HotelCancelled")],
            Fact::DeadlinePassed => {
                self.given_up = true;
                vec![emit("TripGivenUp"), emit("HotelCancelled")]
            }
            Fact::Cancelled => {
                self.cancelled = true;
                vec![]
            }
        }
    }

    fn name(fact: &Fact) -> &'static str {
        match fact {
            Fact::Wanted => "Wanted",
            Fact::Booked => "Booked",
            Fact::DeadlinePassed => "DeadlinePassed",
            Fact::Cancelled => "Cancelled",
        }
    }

    fn status(&self) -> &'static str {
        match (self.given_up, self.has_ended()) {
            (true, true) => "GIVEN_UP",
            (true, false) => "CANCELLING",
            (false, true) => "BOOKED",
            (false, false) => "OPEN",
        }
    }

    fn has_ended(&self) -> bool {
        if self.given_up { self.cancelled } else { self.booked }
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
    let (fact, id) = match arguments[..] {
        ["deadlines"] => loop {
            saga::fire_due::<Trip>(&mut client, TIMEOUT).await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        },
        ["start", id] => (Fact::Wanted, id),
        ["booked", id] => (Fact::Booked, id),
        ["cancelled", id] => (Fact::Cancelled, id),
        _ => return Err("usage: saga start ID | booked ID | cancelled ID | deadlines".into()),
    };
    // In a consumer: in the transaction of its marker, with the message as the cause. An answer that comes before the
    // request, as from another topic, starts the trip; a request that comes twice changes nothing.
    let transaction = client.transaction().await?;
    let new = NewSaga::new(Trip::default(), TIMEOUT);
    saga::start_or_advance(&transaction, id, new, &fact, Cause::default()).await?;
    transaction.commit().await?;
    let status = status(&client, id).await?;
    writeln!(std::io::stdout(), "{status}")?;
    Ok(())
}

async fn status(client: &tokio_postgres::Client, id: &str) -> Result<&'static str, SagaError> {
    let view = saga::view::<Trip>(client, id).await?;
    Ok(view.map_or("there is no such trip", |view| view.state.status()))
}
