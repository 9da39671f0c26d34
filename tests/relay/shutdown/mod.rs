//! A relay that is told to end leaves nothing unconfirmed, or says what (G8).

mod owed;
mod signals;
mod untimely;
