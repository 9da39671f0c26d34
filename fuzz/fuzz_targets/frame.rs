//! `tests/core/any_input/frame.rs` under libFuzzer.

#![no_main]

#[path = "../../tests/core/any_input/frame.rs"]
mod frame;

libfuzzer_sys::fuzz_target!(|data: &[u8]| frame::run(data));
