//! `tests/core/any_input/pgoutput.rs` under libFuzzer.

#![no_main]

#[path = "../../tests/core/any_input/pgoutput.rs"]
mod pgoutput;

libfuzzer_sys::fuzz_target!(|data: &[u8]| pgoutput::run(data));
