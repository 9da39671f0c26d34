//! Which transactions are wholly confirmed: the watermark.

/// A record's number in the ledger. It travels through librdkafka as the delivery opaque, so a
/// confirmation finds its transaction without a map, box or future.
///
/// Low 32 bits: the transaction's sequence number, modulo 2^32. High 32 bits: the record's weight
/// in bytes, so that the byte budget is exact without a word of memory per record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// Joins a transaction's number with a record's weight in bytes (saturating at 4 GiB - 1).
    pub const fn new(transaction: u32, weight: u32) -> Self {
        Self(((weight as u64) << 32) | transaction as u64)
    }

    /// As librdkafka carries it.
    pub const fn to_opaque(self) -> u64 {
        self.0
    }

    /// As librdkafka gave it back.
    pub const fn from_opaque(opaque: u64) -> Self {
        Self(opaque)
    }
}
