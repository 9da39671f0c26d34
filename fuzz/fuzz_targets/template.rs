//! `tests/fuzz/template.rs` under libFuzzer.

#![no_main]

#[path = "../../tests/fuzz/template.rs"]
mod template;

libfuzzer_sys::fuzz_target!(|data: &[u8]| template::run(data));
