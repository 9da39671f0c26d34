//! Frame in, at most one record out; confirmation in, settled position out.

mod confirmation;

pub use confirmation::{Confirmation, Outcome, Refused};
