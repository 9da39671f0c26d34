//! A payment gateway as a stranger: slow, forgetful of its answers, and with books of its own.
//!
//! Enters: a charge or a refund with an idempotency key. Leaves: what became of it. What always holds:
//! one key is booked once, however often it is asked for, and gets the same answer; some answers are
//! lost after the booking, as on a real network, so who got no answer must ask again with the same
//! key.

use std::time::Duration;

use deadpool_postgres::Pool;

use crate::ShopError;

/// Above this a card is declined, in cents.
pub const CARD_LIMIT_CENTS: i64 = 80_000;
/// How long a call takes.
const DELAY: Duration = Duration::from_millis(5);
/// Of so many first calls, one's answer is lost after the booking.
const LOST_ONE_IN: u32 = 20;

/// What is asked of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Take money.
    Charge,
    /// Give it back.
    Refund,
}

impl Kind {
    /// As the books spell it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Refund => "refund",
        }
    }
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is booked.
    Approved,
    /// It will never be, and why.
    Declined(String),
    /// Nobody knows: ask again with the same key.
    Lost,
}

/// A client of the gateway.
#[derive(Clone)]
pub(super) struct Gateway {
    books: Pool,
}

impl Gateway {
    /// A gateway whose books are in the database behind this pool.
    pub(super) fn new(books: Pool) -> Self {
        Self { books }
    }

    /// Books once for each key. `attempt` counts the caller's calls for it, from 1.
    pub(super) async fn call(
        &self,
        kind: Kind,
        key: &str,
        amount_cents: i64,
        attempt: i32,
    ) -> Result<Answer, ShopError> {
        tokio::time::sleep(DELAY).await;
        let is_declined = kind == Kind::Charge && amount_cents > CARD_LIMIT_CENTS;
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
            return Ok(Answer::Lost);
        }
        Ok(booked.map_or(Answer::Approved, Answer::Declined))
    }
}
