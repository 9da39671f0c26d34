//! Two relays and one slot: who works, who waits, and what becomes of the one that lost it.

mod pair;
#[cfg(feature = "faults")]
mod takeover;
