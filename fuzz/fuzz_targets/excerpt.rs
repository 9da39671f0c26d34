//! `tests/core/any_input/excerpt.rs` under libFuzzer.

#![no_main]

#[path = "../../tests/core/any_input/excerpt.rs"]
mod excerpt;

libfuzzer_sys::fuzz_target!(|data: &[u8]| excerpt::run(data));
