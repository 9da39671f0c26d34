//! `tests/core/any_input/import.rs` under libFuzzer.

#![no_main]

#[path = "../../tests/core/any_input/import.rs"]
mod import;

libfuzzer_sys::fuzz_target!(|data: &[u8]| import::run(data));
