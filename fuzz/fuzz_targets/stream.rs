//! `tests/core/any_input/stream.rs` under libFuzzer.

#![no_main]

#[path = "../../tests/core/any_input/stream.rs"]
mod stream;

libfuzzer_sys::fuzz_target!(|data: &[u8]| stream::run(data));
