//! A simulated external payment gateway: slow, with its own ledger, and some replies are lost.
//!
//! Input: a charge or a refund with an idempotency key and the merchant's reference, or a query for
//! the booking under a reference. Output: approved, declined, or no reply.
//!
//! Invariant: one key is booked once, however often it is sent within [`KEY_MEMORY`], and again
//! after that, like at real gateways. Some replies are lost after the booking, like in a real
//! network. A caller without a reply retries with its key, and queries the reference once the key
//! is too old.

use std::time::Duration;

use deadpool_postgres::Pool;

use crate::ShopError;

/// Largest accepted card payment in cents. A larger one is declined.
pub const CARD_LIMIT_CENTS: i64 = 80_000;
/// Time for which the gateway remembers a key. Stripe removes keys once they are at least 24 hours
/// old (its API reference, "Idempotent requests").
pub(super) const KEY_MEMORY: Duration = Duration::from_hours(24);
/// Duration of a call.
const DELAY: Duration = Duration::from_millis(5);
/// Inverse share of first calls that lose their reply after the booking.
const LOST_ONE_IN: u32 = 20;

/// An operation of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// Takes money.
    Charge,
    /// Returns money.
    Refund,
}

impl Operation {
    /// Returns the name in the ledger.
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
    /// The operation is booked.
    Approved,
    /// The operation is refused permanently, for this reason.
    Declined(String),
    /// No reply: retry with the key.
    Lost,
}

impl GatewayReply {
    fn of_booking(declined: Option<String>) -> Self {
        declined.map_or(Self::Approved, Self::Declined)
    }
}

/// A request for a charge or a refund.
#[derive(Debug, Clone, Copy)]
pub(super) struct GatewayRequest<'a> {
    /// Kind of the operation.
    pub(super) kind: Operation,
    /// The idempotency key.
    pub(super) key: &'a str,
    /// The merchant's reference, under which the booking can be found.
    pub(super) reference: &'a str,
    /// Amount in cents.
    pub(super) amount_cents: i64,
    /// Number of times that the caller has sent the request, including this time.
    pub(super) attempt: i32,
}

/// A client of the gateway.
#[derive(Clone)]
pub(super) struct Gateway {
    books: Pool,
}

impl Gateway {
    /// Creates a gateway with its ledger in the database of this pool.
    pub(super) fn new(books: Pool) -> Self {
        Self { books }
    }

    /// Books once per key that is younger than [`KEY_MEMORY`].
    pub(super) async fn call(
        &self,
        request: &GatewayRequest<'_>,
    ) -> Result<GatewayReply, ShopError> {
        let GatewayRequest { kind, key, reference, amount_cents, attempt } = *request;
        tokio::time::sleep(DELAY).await;
        let is_declined = kind == Operation::Charge && amount_cents > CARD_LIMIT_CENTS;
        let declined = is_declined.then_some("the card's limit is exceeded");
        let client = self.books.get().await?;
        let forget = "UPDATE gateway_operations SET key_forgotten_at = now() WHERE key = $1 \
             AND key_forgotten_at IS NULL AND at < now() - $2 * interval '1 second'";
        client.execute(forget, &[&key, &KEY_MEMORY.as_secs_f64()]).await?;
        let book = "INSERT INTO gateway_operations (key, kind, reference, amount_cents, declined) \
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (key, key_forgotten_at) DO NOTHING";
        client.execute(book, &[&key, &kind.as_str(), &reference, &amount_cents, &declined]).await?;
        let sql =
            "SELECT declined FROM gateway_operations WHERE key = $1 AND key_forgotten_at IS NULL";
        let booked = client.query_one(sql, &[&key]).await?.try_get(0)?;
        if attempt == 1 && crc32fast::hash(key.as_bytes()).is_multiple_of(LOST_ONE_IN) {
            return Ok(GatewayReply::Lost);
        }
        Ok(GatewayReply::of_booking(booked))
    }

    /// Returns the booking under the merchant's reference, however old; `None` if there is none.
    pub(super) async fn find(
        &self,
        kind: Operation,
        reference: &str,
    ) -> Result<Option<GatewayReply>, ShopError> {
        tokio::time::sleep(DELAY).await;
        let sql = "SELECT declined FROM gateway_operations \
             WHERE reference = $1 AND kind = $2 ORDER BY at DESC LIMIT 1";
        let client = self.books.get().await?;
        let found = client.query_opt(sql, &[&reference, &kind.as_str()]).await?;
        found.map(|row| Ok(GatewayReply::of_booking(row.try_get(0)?))).transpose()
    }
}
