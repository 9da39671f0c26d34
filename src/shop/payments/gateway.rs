//! A simulated external payment gateway: slow, with its own ledger.
//!
//! Invariant: one key is booked once within [`KEY_MEMORY`], and again after that. Some replies are
//! lost after the booking. A caller without a reply retries with its key, and queries the reference
//! once the key is too old.

use std::time::Duration;

use deadpool_postgres::Pool;

use crate::ShopError;

/// Cents; a larger card payment is declined.
pub const CARD_LIMIT_CENTS: i64 = 80_000;
/// Stripe removes keys after at least 24 hours (its API reference, "Idempotent requests").
pub(super) const KEY_MEMORY: Duration = Duration::from_hours(24);
const DELAY: Duration = Duration::from_millis(5);
const LOST_ONE_IN: u32 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Charge,
    Refund,
}

impl Operation {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Refund => "refund",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GatewayReply {
    Approved,
    /// Permanent, for this reason.
    Declined(String),
    /// Retry with the key.
    Lost,
}

impl GatewayReply {
    fn of_booking(declined: Option<String>) -> Self {
        declined.map_or(Self::Approved, Self::Declined)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct GatewayRequest<'a> {
    pub(super) kind: Operation,
    pub(super) key: &'a str,
    pub(super) reference: &'a str,
    pub(super) amount_cents: i64,
    /// Number of sendings, including this one.
    pub(super) attempt: i32,
}

#[derive(Clone)]
pub(super) struct Gateway {
    books: Pool,
}

impl Gateway {
    pub(super) fn new(books: Pool) -> Self {
        Self { books }
    }

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

    /// Booking under the merchant's reference, however old.
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
