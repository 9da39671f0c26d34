//! A simulated external payment gateway: slow, with a ledger of its own, and some replies are lost.
//!
//! Input: a charge or a refund with an idempotency key. Output: approved, declined, or no reply. Invariant:
//! one key is booked once, however often it is sent; some replies are lost after the booking, as on a real
//! network, so a caller without a reply must retry with the same key.

use std::time::Duration;

use deadpool_postgres::Pool;

use crate::ShopError;

/// Above this a card is declined, in cents.
pub const CARD_LIMIT_CENTS: i64 = 80_000;
/// How long a call takes.
const DELAY: Duration = Duration::from_millis(5);
/// One in this many first calls loses its reply after the booking.
const LOST_ONE_IN: u32 = 20;

/// An operation of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// Take money.
    Charge,
    /// Give it back.
    Refund,
}

impl Operation {
    /// As it is stored in the ledger.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Refund => "refund",
        }
    }
}

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GatewayReply {
    /// It is booked.
    Approved,
    /// It is refused for good, and why.
    Declined(String),
    /// No reply: retry with the same key.
    Lost,
}

/// A client of the gateway.
#[derive(Clone)]
pub(super) struct Gateway {
    books: Pool,
}

impl Gateway {
    /// A gateway whose ledger is in the database of this pool.
    pub(super) fn new(books: Pool) -> Self {
        Self { books }
    }

    /// Books once for each key. `attempt` counts the caller's calls for it, from 1.
    pub(super) async fn call(
        &self,
        kind: Operation,
        key: &str,
        amount_cents: i64,
        attempt: i32,
    ) -> Result<GatewayReply, ShopError> {
        tokio::time::sleep(DELAY).await;
        let is_declined = kind == Operation::Charge && amount_cents > CARD_LIMIT_CENTS;
        let declined = is_declined.then_some("the card's limit is exceeded");
        let client = self.books.get().await?;
        client
            .execute(
                "INSERT INTO gateway_operations (key, kind, amount_cents, declined) \
                 VALUES ($1, $2, $3, $4) ON CONFLICT (key) DO NOTHING",
                &[&key, &kind.as_str(), &amount_cents, &declined],
            )
            .await?;
        let sql = "SELECT declined FROM gateway_operations WHERE key = $1";
        let booked: Option<String> = client.query_one(sql, &[&key]).await?.try_get(0)?;
        if attempt == 1 && crc32fast::hash(key.as_bytes()).is_multiple_of(LOST_ONE_IN) {
            return Ok(GatewayReply::Lost);
        }
        Ok(booked.map_or(GatewayReply::Approved, GatewayReply::Declined))
    }
}
