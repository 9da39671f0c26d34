//! `tests/core/any_input/tuple.rs` under libFuzzer.

#![no_main]

#[path = "../../tests/core/any_input/tuple.rs"]
mod tuple;

libfuzzer_sys::fuzz_target!(|data: &[u8]| tuple::run(data));
