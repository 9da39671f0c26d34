//! Defines [`Ticket`]: the 64-bit number that identifies a record in flight.
//!
//! A ticket holds the transaction's number and the record's weight (key, value and headers in
//! bytes). It fits into librdkafka's delivery opaque, so a delivery report finds its transaction
//! without a map or an allocation. The ledger issues tickets; the Kafka client returns them.

/// The identification that a delivery report returns. Two records of one transaction with equal
/// size share a ticket.
///
/// Low 32 bits: the transaction's sequence number, modulo 2^32. High 32 bits: the record's weight
/// in bytes. The byte budget is exact without any memory per record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// Combines a transaction's number with a record's weight in bytes (at most 4 GiB - 1).
    pub const fn new(transaction: u32, weight: u32) -> Self {
        Self(((weight as u64) << 32) | transaction as u64)
    }

    /// The transaction's sequence number in this session, modulo 2^32.
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
    pub const fn transaction(self) -> u32 {
        self.0 as u32
    }

    /// The record's weight in bytes, for the byte budget.
    pub const fn weight(self) -> u64 {
        self.0 >> 32
    }

    /// The ticket as librdkafka's opaque.
    pub const fn to_opaque(self) -> u64 {
        self.0
    }

    /// The ticket from librdkafka's opaque.
    pub const fn from_opaque(opaque: u64) -> Self {
        Self(opaque)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn halves_survive_the_journey(transaction: u32, weight: u32) {
            let ticket = Ticket::from_opaque(Ticket::new(transaction, weight).to_opaque());
            prop_assert_eq!(ticket.transaction(), transaction);
            prop_assert_eq!(ticket.weight(), u64::from(weight));
        }
    }
}
