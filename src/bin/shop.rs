//! `shop`: see `shop`.
fn main() {}
