//! `tests/core/any_input/template.rs` under libFuzzer.

#![no_main]

#[path = "../../tests/core/any_input/template.rs"]
mod template;

libfuzzer_sys::fuzz_target!(|data: &[u8]| template::run(data));
