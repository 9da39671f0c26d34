//! `tests/fuzz/config.rs` under libFuzzer.

#![no_main]

#[path = "../../tests/fuzz/config.rs"]
mod config;

libfuzzer_sys::fuzz_target!(|data: &[u8]| config::run(data));
