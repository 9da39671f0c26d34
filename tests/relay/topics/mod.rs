//! Topics that rows choose: missing, created, altered, forbidden.

mod absent;
mod grown;
mod lookup;
mod names;
mod reserved;
mod rights;
