//! Defines [`Ticket`], which identifies a record in flight.
//!
//! A ticket fits into librdkafka's delivery opaque, so a delivery report finds its transaction
//! without a map or an allocation.

/// Returned by delivery reports. Equally large records of a transaction share a ticket.
///
/// Low 32 bits: the transaction's number. High 32 bits: the record's weight in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// Combines number and weight.
    pub const fn new(transaction: u32, weight: u32) -> Self {
        Self(((weight as u64) << 32) | transaction as u64)
    }

    /// Number of the transaction, modulo 2^32.
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
    pub const fn transaction(self) -> u32 {
        self.0 as u32
    }

    /// Bytes of key, value and headers.
    pub const fn weight(self) -> u64 {
        self.0 >> 32
    }

    /// As librdkafka's opaque.
    pub const fn to_opaque(self) -> u64 {
        self.0
    }

    /// From librdkafka's opaque.
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
