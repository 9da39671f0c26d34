//! `tests/fuzz/frame.rs` under libFuzzer.

#![no_main]

#[path = "../../tests/fuzz/frame.rs"]
mod frame;

libfuzzer_sys::fuzz_target!(|data: &[u8]| frame::run(data));
