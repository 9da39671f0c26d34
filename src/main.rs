//! `postrider`: see `cli`.
fn main() {}
