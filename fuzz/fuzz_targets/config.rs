//! `tests/core/any_input/config.rs` under libFuzzer.

#![no_main]

#[path = "../../tests/core/any_input/config.rs"]
mod config;

libfuzzer_sys::fuzz_target!(|data: &[u8]| config::run(data));
